"""A corpus is split into files, and training can hold out text itself."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from transduce.text.corpus import BYTE_ORDER_MARK, read_text

TINY = ("train", "--preset", "tiny", "--precision", "fp32", "--device", "cpu")
FEW = ("--set", "training.steps=2", "training.checkpoint_steps=1")
WORDS = ["dog", "cat", "house", "lamp", "tree", "book", "child", "river", "road", "cup"]


@pytest.fixture
def my_corpus(tmp_path: Path) -> tuple[Path, Path]:
    """Corpus of five hundred pairs."""
    names = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS[:5]]
    sides = tmp_path / "my.en", tmp_path / "my.de"
    sides[0].write_text("".join(f"a {n}\n" for n in names), encoding="utf-8")
    sides[1].write_text("".join(f"ein {n}\n" for n in names), encoding="utf-8")
    return sides


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def files(my_corpus: tuple[Path, Path]) -> tuple[object, ...]:
    return ("--source", my_corpus[0], "--target", my_corpus[1])


def test_a_corpus_is_split_into_files_that_can_be_trained_on(
    succeeds: Callable[..., str], my_corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "my parts"
    said = succeeds("split", *files(my_corpus), "--dev", 40, "--test", 10, "--out", out)
    assert "450 pairs  train.en train.de" in said
    assert "40 pairs  dev.en dev.de" in said
    assert "10 pairs  test.en test.de" in said
    assert said.endswith(
        "Train on them:\n"
        f"  transduce train --source '{out}/train.en' --target '{out}/train.de' \\\n"
        f"    --dev-source '{out}/dev.en' --dev-target '{out}/dev.de' \\\n"
        "    --preset multi30k --out runs/mine\n"
    )
    parts = {name: lines(out / f"{name}.en") for name in ("train", "dev", "test")}
    assert [len(part) for part in parts.values()] == [450, 40, 10]
    assert sorted(line for part in parts.values() for line in part) == sorted(
        lines(my_corpus[0])
    )
    for name, part in parts.items():
        assert [f"ein{line[1:]}" for line in part] == lines(out / f"{name}.de")
    train = ("--source", out / "train.en", "--target", out / "train.de")
    dev = ("--dev-source", out / "dev.en", "--dev-target", out / "dev.de")
    said = succeeds(*TINY, *FEW, *train, *dev, "--out", tmp_path / "run")
    assert "Dev pairs: 40 of 40 pairs kept " in said


def test_every_line_is_read_from_a_part_as_from_the_corpus(
    succeeds: Callable[..., str], my_corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    for side in my_corpus:  # begun by two byte order marks, and ended by CR CR LF
        text = side.read_bytes().replace(b"\n", b"\r\r\n")
        side.write_bytes(BYTE_ORDER_MARK * 2 + text)
    out = tmp_path / "parts"
    succeeds("split", *files(my_corpus), "--dev", 40, "--out", out)
    for side in my_corpus:
        parts = [out / f"{name}{side.suffix}" for name in ("train", "dev")]
        assert sorted(read_text(parts)) == sorted(read_text([side]))


def test_an_existing_folder_is_replaced_by_force_only(
    succeeds: Callable[..., str],
    refuses: Callable[..., str],
    my_corpus: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    out = tmp_path / "parts"
    call = ("split", *files(my_corpus), "--dev", 40, "--out", out)
    succeeds(*call)
    first = lines(out / "dev.en")
    (out / "mine").mkdir()
    assert "the output folder must be new or empty" in refuses(*call)
    succeeds(*call, "--force")
    assert lines(out / "dev.en") == first
    assert (out / "mine").exists()
    succeeds(*call, "--force", "--seed", 2)
    assert lines(out / "dev.en") != first


def test_the_corpus_itself_is_not_replaced(
    refuses: Callable[..., str], my_corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    said = refuses(
        "split", *files(my_corpus), "--dev", 40, "--out", tmp_path, "--force"
    )
    assert "must be a folder without the input in it" in said
    assert my_corpus[0].exists()


def test_few_pairs_need_sizes_to_be_split(
    succeeds: Callable[..., str],
    refuses: Callable[..., str],
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    call = ("split", *files(corpus_files), "--out", tmp_path / "parts")
    said = refuses("split", "--source", "-", *files(corpus_files)[2:], *call[5:])
    assert said.startswith("A corpus must be in files, as it is read several times, ")
    assert "40 pairs is too small for the default size" in refuses(*call)
    assert "hold out fewer" in refuses(*call, "--dev", 30)
    assert not (tmp_path / "parts").exists()
    assert "5 pairs  dev.en dev.de" in succeeds(*call, "--dev", 5)


def test_pairs_without_a_translation_are_not_held_out(
    succeeds: Callable[..., str],
    refuses: Callable[..., str],
    my_corpus: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    translated = [*lines(my_corpus[1])[:50], *[" "] * 450]
    my_corpus[1].write_text("\n".join(translated) + "\n", encoding="utf-8")
    call = ("split", *files(my_corpus), "--out", tmp_path / "parts")
    assert "hold out fewer" in refuses(*call, "--dev", 51)
    said = succeeds(*call, "--dev", 40)
    assert "40 pairs  dev.en dev.de" in said
    assert all(map(str.strip, lines(tmp_path / "parts/dev.de")))


def test_repeated_sources_of_held_out_pairs_are_reported(
    succeeds: Callable[..., str], my_corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    for path in my_corpus:
        path.write_text(2 * path.read_text(encoding="utf-8"), encoding="utf-8")
    said = succeeds("split", *files(my_corpus), "--dev", 40, "--out", tmp_path / "out")
    assert "as their sources are held out: 40 pairs.\n" in said


def test_a_corpus_of_few_sources_keeps_pairs_to_train_on(
    succeeds: Callable[..., str],
    refuses: Callable[..., str],
    my_corpus: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    for path in my_corpus:
        each = lines(path)[:205]
        path.write_text("\n".join([*each, *each]) + "\n", encoding="utf-8")
    said = refuses("split", *files(my_corpus), "--out", tmp_path / "out")
    assert "as many pairs with other sources to train on" in said
    assert not (tmp_path / "out").exists()
    said = succeeds(*TINY, *FEW, *files(my_corpus), "--out", tmp_path / "run")
    assert "Training pairs: 410 of 410 pairs kept" in said
    assert "Dev pairs: none" in said


@pytest.mark.parametrize("is_resumed", [False, True])
def test_training_holds_text_out_and_reports_it(
    succeeds: Callable[..., str],
    my_corpus: tuple[Path, Path],
    tmp_path: Path,
    *,
    is_resumed: bool,
) -> None:
    call = (*TINY, *FEW, *files(my_corpus), "--out", tmp_path / "run")
    said = succeeds(*call)
    assert "Training pairs: 300 of 300 pairs kept " in said
    assert "Dev pairs: 200 of 200 pairs kept " in said
    assert ", held out of the training corpus (--no-dev trains on all)\n" in said
    assert "step 1: dev: loss " in said
    assert not (tmp_path / "run" / "text").exists()
    if is_resumed:
        assert "dev: loss" in succeeds(*call, "--resume")
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert record["files"]["dev_source"] == []


def test_no_dev_trains_on_all_pairs(
    succeeds: Callable[..., str], my_corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    call = (*TINY, *FEW, *files(my_corpus), "--no-dev", "--out", tmp_path / "run")
    said = succeeds(*call)
    assert "Training pairs: 500 of 500 pairs kept " in said
    assert "Dev pairs: none, so nothing is scored while training\n" in said
    succeeds(*call, "--resume")


@pytest.mark.parametrize("names_files", [True, False])
def test_no_dev_is_refused_for_a_run_that_began_without_it(
    succeeds: Callable[..., str],
    refuses: Callable[..., str],
    my_corpus: tuple[Path, Path],
    tmp_path: Path,
    *,
    names_files: bool,
) -> None:
    out = tmp_path / "run"
    succeeds(*TINY, *FEW, *files(my_corpus), "--out", out)
    again = (*TINY, *FEW, *files(my_corpus)) if names_files else ("train",)
    assert refuses(*again, "--out", out, "--resume", "--no-dev") == (
        f"{out}: the run to resume was started without --no-dev; leave it out, or "
        "start another run."
    )


def test_a_dev_corpus_and_no_dev_contradict_each_other(
    refuses: Callable[..., str], my_corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    dev = ("--dev-source", my_corpus[0], "--dev-target", my_corpus[1], "--no-dev")
    said = refuses(*TINY, *files(my_corpus), *dev, "--out", tmp_path / "run")
    assert said.startswith("Either a dev corpus or --no-dev must be given")


def test_patience_uses_the_held_out_pairs(
    succeeds: Callable[..., str],
    refuses: Callable[..., str],
    my_corpus: tuple[Path, Path],
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    patient = (*TINY, *FEW, "training.patience=5", "--out", tmp_path / "run")
    for call in ((*files(my_corpus), "--no-dev"), files(corpus_files)):
        said = refuses(*patient, *call)
        assert said.startswith("`training.patience` needs a dev corpus")
        assert not (tmp_path / "run").exists()
    succeeds(*patient, *files(my_corpus))


def test_trees_are_held_out_too(succeeds: Callable[..., str], tmp_path: Path) -> None:
    trees = tmp_path / "my.trees"
    trees.write_text(
        "".join(
            f"(S (NP (DT the) (NN {a})) (VP (VBZ {b}s) (NP (NN {c}))))\n"
            for a in WORDS
            for b in WORDS
            for c in WORDS[:4]
        )
        * 2
    )
    call = (*TINY, *FEW, "--trees", trees, "--out", tmp_path / "run")
    said = succeeds(*call)
    assert "Dev pairs: 200 of 200 pairs kept " in said
    assert ", held out of the training corpus (--no-dev trains on all)\n" in said
    assert "Training pairs: 400 of 400 pairs kept" in said
    assert "F1" in said
    succeeds(*call, "--resume")
