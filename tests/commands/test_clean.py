"""`transduce clean` writes the good pairs, and names what is wrong with the others."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import transduce
from transduce.checkpoint import Checkpoint, save_model
from transduce.data.cleaning_rules import CleaningConfig
from transduce.errors import ConfigError
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.model_folder import open_model
from transduce.text.corpus import BYTE_ORDER_MARK, read_text
from transduce.text.tokenizer import learn_tokenizer
from transduce.text.vocabulary import TokenizerConfig
from waiting import PATIENCE_S, runs, wait_until

PAIRS = (
    ("A dog barks.", "Ein Hund bellt."),
    ("A dog barks.", "Ein Hund bellt."),
    ("The <b>cat</b>.", "Die Katze."),
    ("one cat", "eine Katze"),
)


@pytest.fixture
def my_corpus(tmp_path: Path) -> tuple[object, ...]:
    """Options of a corpus of four pairs, two of which are good."""
    for number, name in enumerate(("my.en", "my.de")):
        text = "".join(f"{pair[number]}\n" for pair in PAIRS)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return ("--source", tmp_path / "my.en", "--target", tmp_path / "my.de")


def test_the_report_counts_the_reasons(
    succeeds: Callable[..., str], my_corpus: tuple[object, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    said = succeeds("clean", *my_corpus, "--out", out)
    assert said.splitlines()[:7] == [
        "             4 pairs  read",
        "              1 pair  dropped: markup (25.0 %)",
        "              1 pair  dropped: duplicate (25.0 %)",
        "             2 pairs  kept (50.0 %)",
        "Reasons:",
        "  markup: A side has HTML tags or entities.",
        "  duplicate: An earlier pair is the same.",
    ]
    assert f"train --source {out}/my.en --target {out}/my.de" in said
    assert (out / "my.de").read_text() == "Ein Hund bellt.\neine Katze\n"


def test_a_kept_line_is_read_as_from_the_corpus(
    succeeds: Callable[..., str], my_corpus: tuple[object, ...], tmp_path: Path
) -> None:
    for name in ("my.en", "my.de"):  # begun by two marks, and ended by CR CR LF
        text = (tmp_path / name).read_bytes().replace(b"\n", b"\r\r\n")
        (tmp_path / name).write_bytes(BYTE_ORDER_MARK * 2 + text)
    off = ("--off", "line-separator", "duplicate", "markup")
    succeeds("clean", *my_corpus, "--out", tmp_path / "out", *off)
    for name in ("my.en", "my.de"):
        given, kept = tmp_path / name, tmp_path / "out" / name
        assert list(read_text([kept])) == list(read_text([given]))


def test_the_printed_command_quotes_its_files(
    succeeds: Callable[..., str], my_corpus: tuple[object, ...], tmp_path: Path
) -> None:
    out = tmp_path / "my pairs"
    said = succeeds("clean", *my_corpus, "--out", out)
    assert said.endswith(
        "Train on them:\n"
        f"  transduce train --source '{out}/my.en' --target '{out}/my.de' \\\n"
        "    --preset multi30k --out runs/mine\n"
    )


def test_a_line_above_a_million_bytes_costs_only_its_pair(
    succeeds: Callable[..., str], my_corpus: tuple[object, ...], tmp_path: Path
) -> None:
    for name, line in (("my.en", "x" * 2_500_000), ("my.de", "Ein Hund.")):
        lines = (tmp_path / name).read_text(encoding="utf-8").splitlines()
        text = "\n".join([lines[0], line, *lines[1:], ""])
        (tmp_path / name).write_text(text, encoding="utf-8")
    out = tmp_path / "out"
    said = succeeds("clean", *my_corpus, "--out", out)
    assert "              1 pair  dropped: not-text (20.0 %)\n" in said
    assert "             2 pairs  kept (40.0 %)\n" in said
    first, *_ = (out / "dropped.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(first)["line"] == 2
    assert json.loads(first)["detail"] == "source: more than 1,000,000 bytes"
    assert json.loads(first)["source"] == "x" * 1_000


def test_rules_are_switched_off_and_thresholds_set(
    succeeds: Callable[..., str], my_corpus: tuple[object, ...], tmp_path: Path
) -> None:
    (tmp_path / "dev.en").write_text("one cat\n", encoding="utf-8")
    said = succeeds(
        *("clean", *my_corpus, "--out", tmp_path / "out", "--json"),
        *("--off", "markup", "duplicate", "--set", "max_words=2", "identical_words=9"),
        *("--dev-source", tmp_path / "dev.en", "--processes", 1),
    )
    report = json.loads(said)
    assert report["dropped"] == {"in-dev": 1, "too-long": 2}
    assert (report["total"], report["kept"]) == (4, 1)


def test_a_model_drops_the_worst_share(
    succeeds: Callable[..., str],
    my_corpus: tuple[object, ...],
    model: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    call = ("clean", *my_corpus, "--model", model, "--out", out, "--device", "cpu")
    said = succeeds(*call, "--worst", 0.5)
    assert "              1 pair  dropped: low-score (25.0 %)\n" in said
    assert "Largest score of a kept pair: " in said
    scores = [
        line.split("\t") for line in (out / "scores.tsv").read_text().splitlines()
    ]
    assert [line[1] for line in scores] == ["line", "1", "4"]
    assert sorted(line[2] for line in scores[1:]) == ["0", "1"]
    kept = max(scores[1:], key=lambda line: float(line[2]))
    assert float(kept[3]) == min(float(line[3]) for line in scores[1:])
    said = succeeds(*call, "--reverse-model", model, "--force")
    assert "low-score" not in said  # a tenth of two pairs
    _, line, _ = (out / "scores.tsv").read_text().splitlines()
    score, forward, reverse = map(float, line.split("\t")[3:])
    assert score == pytest.approx(
        abs(forward - reverse) + (forward + reverse) / 2, abs=1e-5
    )


def test_dev_sources_are_read_from_standard_input(
    succeeds: Callable[..., str], my_corpus: tuple[object, ...], tmp_path: Path
) -> None:
    call = ("clean", *my_corpus, "--out", tmp_path / "out", "--dev-source", "-")
    said = succeeds(*call, "--json", "--processes", 1, stdin=b"one cat\n")
    assert json.loads(said)["dropped"]["in-dev"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--off", "loops"), "There is no rule `loops`; did you mean `loop`?"),
        (("--off", "not-text"), "The rule not-text must be applied, since training"),
        (
            ("--set", "max_word=3"),
            "--set: there is no setting `max_word`; did you mean",
        ),
        (("--set", "max_words=few"), "`max_words` must be"),
        (("--set", "min_letters=2"), "`min_letters` must be at most 1, but is 2"),
        (("--worst", "0.2"), "`worst` must be given together with a model"),
        (("--reverse-model", "x"), "`reverse_model` must be given together with"),
        (
            ("--device", "cpu"),
            "`device` must be given together with a model of the corpus's own "
            "direction, but is given alone; add the model, or leave out `device`.",
        ),
        (("--model", "missing"), "missing: "),
        (("--processes", "0"), "The number of processes must be at least 1, but is 0."),
        (("--dev-source", "missing"), "missing: the file cannot be read (No such"),
        (("--source-language", "English"), "A language must be a BCP 47 tag"),
    ],
)
def test_a_mistake_gives_one_sentence_and_no_folder(
    refuses: Callable[..., str],
    my_corpus: tuple[object, ...],
    tmp_path: Path,
    options: tuple[str, ...],
    message: str,
) -> None:
    assert message in refuses("clean", *my_corpus, "--out", tmp_path / "out", *options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.de", "my.en"]


def test_one_side_or_none_is_refused(
    refuses: Callable[..., str], my_corpus: tuple[object, ...], tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "out")
    assert refuses("clean", *out).startswith("A corpus must be given: --source FILE")
    assert "Both sides of a corpus must be given" in refuses(
        "clean", *my_corpus[:2], *out
    )
    assert "A corpus must be in files" in refuses(
        "clean", *my_corpus[:2], "--target", "-", *out
    )
    assert "must have equally many files" in refuses(
        "clean", *my_corpus, tmp_path / "my.en", *out
    )


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_model_of_another_language_is_refused(
    refuses: Callable[..., str],
    my_corpus: tuple[object, ...],
    model: Path,
    tmp_path: Path,
    side: str,
) -> None:
    languages = {"source": "en", "target": "de"} | {side: "fr"}
    shutil.copytree(model, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    config |= {f"{name}_language": tag for name, tag in languages.items()}
    path.write_text(json.dumps(config))
    assert getattr(open_model(tmp_path / "model"), f"{side}_language") == "fr"
    call = ("clean", *my_corpus, "--out", tmp_path / "out", "--device", "cpu")
    said = refuses(*call, "--model", tmp_path / "model")
    of_corpus = {"source": "en", "target": "de"}[side]
    assert f"but its {side} is fr and here {of_corpus}; choose another model" in said
    # A reverse model has the languages the other way round.
    assert "languages of the corpus" in refuses(
        *call, "--model", model, "--reverse-model", tmp_path / "model"
    )


def with_languages(model: Path, folder: Path, source: str, target: str) -> Path:
    """Copy a model, with the languages in its settings."""
    shutil.copytree(model, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config |= {"source_language": source, "target_language": target}
    path.write_text(json.dumps(config))
    return folder


def test_files_of_both_directions_are_not_scored_by_one_model(
    refuses: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    german = with_languages(model, tmp_path / "model", "de", "en")
    for name in ("a.de", "a.en", "b.en", "b.de"):
        (tmp_path / name).write_text("word\n", encoding="utf-8")
    said = refuses(
        *("clean", "--source", tmp_path / "a.de", tmp_path / "b.en"),
        *("--target", tmp_path / "a.en", tmp_path / "b.de"),
        *("--model", german, "--out", tmp_path / "out", "--device", "cpu"),
    )
    assert "but its source is de and here en" in said
    assert f"clean {tmp_path / 'b.en'} without the files of other languages" in said
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def to_german_or_french(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained model from English into German and French."""
    torch.manual_seed(1)
    texts = [side for pair in PAIRS for side in pair]
    tags = [">>de<<", ">>fr<<"]
    tokenizer = learn_tokenizer(texts * 5, TokenizerConfig(vocab_size=300), tags)
    network = Transformer(
        ModelConfig(
            vocab_size=tokenizer.vocab_size, num_layers=1, d_model=16, d_ff=16,
            num_heads=2, d_k=8, d_v=8,
        )
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("several") / "model"
    checkpoint = Checkpoint(
        config=network.config,
        weights=network.state_dict(),
        tokenizer=tokenizer,
        step=1,
        source_language="en",
        target_language="de",
    )
    save_model(checkpoint, folder)
    return folder


@pytest.mark.parametrize("language", ["de", "fr"])
def test_a_model_of_several_target_languages_scores_with_the_tag(
    succeeds: Callable[..., str],
    my_corpus: tuple[object, ...],
    to_german_or_french: Path,
    tmp_path: Path,
    language: str,
) -> None:
    out = tmp_path / "out"
    succeeds(
        *("clean", *my_corpus, "--model", to_german_or_french, "--out", out),
        *("--device", "cpu", "--worst", 0, "--target-language", language),
    )
    scores = [line.split("\t") for line in (out / "scores.tsv").read_text().split("\n")]
    kept = [PAIRS[int(line[1]) - 1] for line in scores[1:-1]]
    expected = transduce.load(to_german_or_french, device="cpu").score(
        [f">>{language}<< {source}" for source, _ in kept], [pair[1] for pair in kept]
    )
    assert [float(line[3]) for line in scores[1:-1]] == pytest.approx(
        [-each.log_probability / each.num_tokens for each in expected], abs=1e-5
    )


def test_a_target_language_that_the_model_does_not_have_is_refused(
    refuses: Callable[..., str],
    my_corpus: tuple[object, ...],
    to_german_or_french: Path,
    tmp_path: Path,
) -> None:
    call = ("clean", "--model", to_german_or_french, "--out", tmp_path / "out")
    said = refuses(*call, *my_corpus, "--target-language", "it")
    assert "must be one of the model's, but is 'it'" in said
    (tmp_path / "my.fr").write_text("mot\n" * len(PAIRS), encoding="utf-8")
    said = refuses(
        *call, "--source", tmp_path / "my.en", tmp_path / "my.en",
        "--target", tmp_path / "my.de", tmp_path / "my.fr",
    )  # fmt: skip
    assert "but the files are in de, fr; clean each language alone." in said
    (tmp_path / "targets").write_text("Wort\n" * len(PAIRS), encoding="utf-8")
    said = refuses(*call, *my_corpus[:2], "--target", tmp_path / "targets")
    assert "but the files' endings name none; give the languages" in said
    assert not (tmp_path / "out").exists()


def test_rules_that_settings_switch_off_are_not_applied(
    succeeds: Callable[..., str], my_corpus: tuple[object, ...], tmp_path: Path
) -> None:
    said = succeeds(
        *("clean", *my_corpus, "--out", tmp_path / "out", "--json"),
        *("--set", 'off=["markup"]', "--off", "duplicate"),
    )
    assert json.loads(said)["dropped"] == {}


def test_a_share_of_the_worst_needs_its_rule(
    refuses: Callable[..., str],
    my_corpus: tuple[object, ...],
    model: Path,
    tmp_path: Path,
) -> None:
    call = ("clean", *my_corpus, "--model", model, "--out", tmp_path / "out")
    said = refuses(*call, "--off", "low-score", "--worst", 0.5)
    assert said.startswith("The rule low-score must be applied to drop a share of the")
    assert not (tmp_path / "out").exists()


def test_a_parser_is_refused(
    refuses: Callable[..., str],
    my_corpus: tuple[object, ...],
    parsing_model: Path,
    tmp_path: Path,
) -> None:
    call = ("clean", *my_corpus, "--out", tmp_path / "out", "--model", parsing_model)
    assert "parse" in refuses(*call)
    assert not (tmp_path / "out").exists()


def test_only_an_earlier_cleaning_is_overwritten_and_only_by_force(
    refuses: Callable[..., str],
    succeeds: Callable[..., str],
    my_corpus: tuple[object, ...],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    call = ("clean", *my_corpus, "--out", out)
    succeeds(*call)
    assert "overwrite it with --force" in refuses(*call)
    (out / "report.json").write_text("old")
    (out / "mine").touch()
    succeeds(*call, "--force")
    assert (out / "report.json").read_text() != "old"
    assert (out / "mine").exists()
    inside = ("clean", "--source", out / "my.en", "--target", out / "my.de")
    said = refuses(*inside, "--out", out, "--force")
    assert "a folder without the input in it" in said
    assert (out / "my.en").exists()
    (out / ".made-by").write_text("split\n")
    said = refuses(*call, "--force")
    assert "only a folder that the same command wrote can be overwritten" in said
    assert said.endswith(
        "but this one was written by `transduce split`; choose another."
    )
    (out / ".made-by").unlink()
    said = refuses(*call, "--force")
    assert said.endswith(
        "but this one has no file .made-by (or an older version wrote it: remove it "
        "yourself); choose another."
    )
    assert (out / "report.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_command_ends_its_processes_and_leaves_no_output(
    succeeds: Callable[..., str], tmp_path: Path, number: signal.Signals
) -> None:
    """A killed one leaves its unfinished folder, which the next command removes."""
    sides = tmp_path / "my.en", tmp_path / "my.de"
    for path in sides:
        text = "".join(f"{path.suffix} word {n} and more\n" for n in range(30_000))
        path.write_text(text, encoding="utf-8")
    call = [
        *(sys.executable, "-m", "transduce", "clean", "--source", str(sides[0])),
        *("--target", str(sides[1]), "--out", str(tmp_path / "out")),
        *("--processes", "2"),
    ]
    process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    unfinished = tmp_path / ".out.transduce-new"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers: list[str] = []
    while process.poll() is None and len(workers) < 2:
        time.sleep(0.01)
        workers = children.read_text().split() if children.exists() else []
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert (
        process.returncode
        == {
            signal.SIGINT: 2,
            signal.SIGTERM: 128 + signal.SIGTERM,
            signal.SIGKILL: -signal.SIGKILL,
        }[number]
    ), said.decode()
    assert b"Traceback" not in said
    assert not (tmp_path / "out").exists()
    assert unfinished.exists() == (number == signal.SIGKILL)
    wait_until(lambda: not any(runs(int(each)) for each in workers))
    for path in sides:
        path.write_text("one and more\n", encoding="utf-8")
    succeeds("clean", "--source", sides[0], "--target", sides[1], *call[-4:])
    assert not unfinished.exists()


def test_python_and_the_command_write_the_same_files(
    succeeds: Callable[..., str],
    my_corpus: tuple[object, ...],
    model: Path,
    tmp_path: Path,
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    options = ("--model", model, "--device", "cpu", "--worst", 0.5)
    succeeds("clean", *my_corpus, "--out", one, "--off", "markup", *options)
    report = transduce.clean(
        *(tmp_path / "my.en", str(tmp_path / "my.de"), str(other)),
        config=CleaningConfig(off=("markup",)),
        model=model,
        device="cpu",
        worst=0.5,
    )
    assert report.dropped == {"duplicate": 1, "low-score": 1}
    assert {path.name for path in one.iterdir()} == {p.name for p in other.iterdir()}
    for path in one.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes()
    with pytest.raises(ConfigError, match="Both sides of a corpus must be given"):
        transduce.clean((), (), tmp_path / "third")


def test_a_corpus_without_a_good_pair_ends_with_an_error_beside_the_reasons(
    command: Callable[..., Any], my_corpus: tuple[object, ...], tmp_path: Path
) -> None:
    (tmp_path / "my.en").write_text("<b>one</b> cat\n" * len(PAIRS), encoding="utf-8")
    out = tmp_path / "out"
    outcome = command("clean", *my_corpus, "--out", out)
    assert outcome.code == 2
    assert outcome.err == (
        f"transduce: {out}: no pair is kept, as the rules drop all of them; the "
        "reasons are in dropped.jsonl. Switch rules off by --off, or change their "
        "thresholds by --set.\n"
    )
    assert "4 pairs  dropped: markup (100.0 %)" in outcome.out
    assert len((out / "dropped.jsonl").read_text().splitlines()) == len(PAIRS)
    outcome = command("clean", *my_corpus, "--out", out, "--force", "--json")
    assert (outcome.code, json.loads(outcome.out)["kept"]) == (2, 0)
