import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from transduce.analysis import figures
from transduce.analysis.figures import draw_learning_curve
from transduce.cli import main
from transduce.experiments import quickstart
from transduce.experiments.presets import PRESETS
from transduce.grammar.corpus import Grammar
from transduce.search_config import SearchConfig


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Use few sentences and few updates; CI tests the quality."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quickstart, "NUM_TRAINING", 60)
        patch.setattr(quickstart, "NUM_DEV", 6)
        patch.setattr(quickstart, "NUM_TEST", 8)
        tiny = replace(PRESETS["tiny"], search=PRESETS["quickstart"].search)
        patch.setitem(PRESETS, "quickstart", tiny)
        patch.setattr(quickstart, "NUM_TRAINING_TREES", 60)
        patch.setattr(quickstart, "NUM_DEV_TREES", 3)
        patch.setattr(quickstart, "NUM_TEST_TREES", 6)
        search = SearchConfig(beam_size=2, extra_length=5)
        training = replace(tiny.training, best_by="f1")
        small = replace(tiny, search=search, training=training)
        patch.setitem(PRESETS, "parsing-quickstart", small)
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("quickstart") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw_learning_curve", draw_learning_curve)
        main(["quickstart", "--out", str(out)])
    return out


def test_the_quickstart_leaves_a_corpus_and_a_run_with_a_picture(out: Path) -> None:
    assert {path.name for path in out.iterdir()} == {"corpus", "run"}
    assert (out / "run" / "averaged" / "model.safetensors").is_file()
    assert (out / "run" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_training_and_test_sentences_have_nothing_in_common(out: Path) -> None:
    train, test = (
        set((out / "corpus" / f"{part}.en").read_text().splitlines())
        for part in ("train", "test")
    )
    assert len(test) == 8
    assert not train & test


def test_every_test_sentence_has_a_combination_held_out(out: Path) -> None:
    held_out = Grammar.built_in().held_out_sentences(quickstart.SEED)
    sentences = [next(held_out).source for _ in range(14)]
    written = [
        (out / "corpus" / f"{part}.en").read_text().splitlines()
        for part in ("dev", "test")
    ]
    assert written == [sentences[:6], sentences[6:]]


def test_the_quickstart_shows_five_translations_a_score_and_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["quickstart", "--out", str(tmp_path / "my out")])
    printed = capsys.readouterr().out
    assert printed.count("    -> ") == 5
    assert "BLEU on unseen sentences: " in printed
    assert f"Learning curve: {tmp_path}/my out/run/learning_curve.png" in printed
    assert f"| transduce translate '{tmp_path}/my out/run'" in printed
    assert "transduce train --source my.en --target my.de" in printed


def test_an_existing_folder_is_refused(command: Callable[..., Any], out: Path) -> None:
    outcome = command("quickstart", "--out", out)
    assert outcome.code == 2
    assert "the output folder must be new or empty, but is not" in outcome.err
    assert not outcome.out


def test_the_quickstart_of_parsing_shows_five_trees_and_their_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my out"
    main(["quickstart", "--task", "parsing", "--out", str(out)])
    printed = capsys.readouterr().out
    assert printed.count("\n  (TOP ") == 5
    assert "On unseen sentences: F1 = " in printed
    assert f"| transduce parse '{out}/run' --pretty" in printed
    assert "transduce train --trees my.trees" in printed
    train, test = (
        set((out / "corpus" / f"{part}.trees").read_text().splitlines())
        for part in ("train", "test")
    )
    assert len(test) == 6
    assert not train & test


def test_an_existing_folder_is_refused_by_parsing_too(
    refuses: Callable[..., str], out: Path
) -> None:
    message = refuses("quickstart", "--task", "parsing", "--out", out)
    assert "the output folder must be new or empty, but is not" in message


def test_the_pair_of_chinese_is_written_trained_and_scored_by_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    main(["quickstart", "--pair", "en-zh", "--out", str(out)])
    printed = capsys.readouterr().out
    assert "the built-in English-Chinese grammar" in printed
    assert "Languages: English (en) to Chinese (zh)" in printed
    assert "tokenizer zh" in printed
    assert "--target my.zh --dev-source dev.en --dev-target dev.zh" in printed
    lines = (out / "corpus" / "test.zh").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 8
    assert all(line.endswith(("。", "？")) for line in lines)


def test_the_quickstart_of_parsing_refuses_chinese(
    refuses: Callable[..., str], tmp_path: Path
) -> None:
    options = ["--task", "parsing", "--pair", "en-zh", "--out", tmp_path / "out"]
    assert "needs --task translation" in refuses("quickstart", *options)


def copied(out: Path, folder: Path) -> Path:
    """Copy a quickstart as if it had been written there."""
    shutil.copytree(out, folder)
    record = folder / "run" / "config.json"
    record.write_text(record.read_text().replace(str(out), str(folder)))
    return folder


def test_only_an_older_quickstart_is_overwritten(
    refuses: Callable[..., str], out: Path, tmp_path: Path
) -> None:
    folder = copied(out, tmp_path / "out")
    assert "overwrite it with --force" in refuses("quickstart", "--out", folder)
    (folder / "mine").touch()
    assert refuses("quickstart", "--out", folder) == (
        f"{folder}: the output folder must be new or empty, but is not; choose another."
    )
    said = refuses("quickstart", "--out", folder, "--force")
    assert "the folder holds something else" in said
    (folder / "mine").unlink()
    (folder / "corpus" / ".made-by").unlink()  # somebody's own corpus and run
    said = refuses("quickstart", "--out", folder, "--force")
    assert "only a folder that the same command wrote can be overwritten" in said
    assert (folder / "corpus" / "train.en").is_file()


def test_a_quickstart_whose_run_holds_other_files_stays_whole(
    refuses: Callable[..., str], out: Path, tmp_path: Path
) -> None:
    folder = copied(out, tmp_path / "out")
    (folder / "run" / "int8").mkdir()
    assert "--force" not in refuses("quickstart", "--out", folder)
    (folder / "corpus" / "train.en").write_text("The old corpus.\n")
    said = refuses("quickstart", "--out", folder, "--force")
    assert said.startswith(f"{folder}/run: only the files of a run can be overwritten")
    assert (folder / "corpus" / "train.en").read_text() == "The old corpus.\n"


@pytest.mark.parametrize("corpus", ["none", "empty", "another"])
def test_a_run_on_other_text_is_not_overwritten_by_a_quickstart(
    refuses: Callable[..., str], out: Path, tmp_path: Path, corpus: str
) -> None:
    folder = copied(out, tmp_path / "out")
    if corpus == "another":  # beside the corpus of a quickstart
        shutil.copytree(out / "run", folder / "run", dirs_exist_ok=True)
    else:
        shutil.rmtree(folder / "corpus")
    if corpus == "empty":
        (folder / "corpus").mkdir()
    before = (folder / "run" / "config.json").read_bytes()
    said = refuses("quickstart", "--out", folder, "--force")
    assert f"this one was not trained on {folder}/corpus; choose" in said
    assert (folder / "run" / "config.json").read_bytes() == before


def test_a_quickstart_killed_while_it_writes_its_corpus_is_repeated(
    tmp_path: Path,
) -> None:
    (tmp_path / ".corpus.transduce-new").mkdir()
    main(["quickstart", "--out", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {"corpus", "run"}


def test_an_older_quickstart_is_replaced_by_force(out: Path, tmp_path: Path) -> None:
    folder = copied(out, tmp_path / "out")
    before = json.loads((folder / "run" / "config.json").read_text())["id"]
    checkpoints = folder / "run" / "checkpoints"
    old = sorted(checkpoints.iterdir())[0].rename(checkpoints / "step-00000001")
    (folder / ".run.transduce-new").mkdir()  # as a killed process leaves it
    main(["quickstart", "--out", str(folder), "--force"])
    assert json.loads((folder / "run" / "config.json").read_text())["id"] != before
    assert not old.exists()
    assert {path.name for path in folder.iterdir()} == {"corpus", "run"}
