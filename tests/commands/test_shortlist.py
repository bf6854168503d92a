"""`transduce shortlist`, and the commands that use what it makes."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transduce.checkpoint import Checkpoint, load_model, save_model
from transduce.cli.serve import loaded
from transduce.experiments.dev_corpus import DevScoring
from transduce.model_folder import open_model
from transduce.text.shortlist import (
    FREQUENT,
    MAX_PIECES,
    PER_PIECE,
    SHORTLIST_FILE,
)
from transduce.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def text(
    corpus: tuple[list[str], list[str]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("text")
    for name, lines in zip(("en", "de"), corpus, strict=True):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "en", folder / "de"


@pytest.fixture
def plain(trained_checkpoint: Checkpoint, tmp_path: Path) -> Path:
    """A model without a shortlist."""
    save_model(trained_checkpoint, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def listed(plain: Path, text: tuple[Path, Path], succeeds: Callable[..., str]) -> Path:
    succeeds("shortlist", plain, "--source", text[0], "--target", text[1])
    return plain


def test_a_shortlist_is_made_from_text(
    plain: Path, text: tuple[Path, Path], succeeds: Callable[..., str]
) -> None:
    out = succeeds(
        "shortlist", plain, "--source", text[0], "--target", text[1],
        "--frequent", 3, "--per-piece", 2,
    )  # fmt: skip
    assert out.splitlines()[0] == "Sentence pairs: 40"
    assert out.splitlines()[1].endswith(" of 333 pieces on average")
    assert out.splitlines()[2] == f"Shortlist: {plain / SHORTLIST_FILE}"
    made = open_model(plain).shortlist
    assert made is not None
    assert (len(made.frequent), made.per_piece) == (3, 2)


def test_the_default_sizes_are_those_of_the_library(listed: Path) -> None:
    made = open_model(listed).shortlist
    assert made is not None
    assert len(made.frequent) <= FREQUENT
    assert made.per_piece <= PER_PIECE


def test_a_run_needs_no_text(
    run: Path, text: tuple[Path, Path], tmp_path: Path, succeeds: Callable[..., str]
) -> None:
    own = tmp_path / "run"
    shutil.copytree(run, own)
    succeeds("shortlist", own)
    found = open_model(own).shortlist
    assert found is not None
    assert len(found.targets) > 0


@pytest.mark.parametrize("steps", [20, 30])
@pytest.mark.parametrize("is_best", [False, True], ids=["averaged", "best"])
def test_a_resumed_run_keeps_its_search_and_its_shortlist(
    run: Path,
    tmp_path: Path,
    command: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    is_best: bool,
) -> None:
    own = tmp_path / "run"
    shutil.copytree(run, own)
    assert command("shortlist", own, "--make-default").code == 0
    before = open_model(own)
    monkeypatch.setattr(DevScoring, "is_chosen", lambda *_: is_best)
    more = ("--set", f"training.steps={steps}")
    assert command("train", "--out", own, "--resume", *more).code == 0
    after = open_model(own / ("best" if is_best else "averaged"))
    assert (own / "averaged").exists() != is_best
    assert before.search is not None
    assert before.search.shortlist
    assert after.search == before.search
    for model in (before, after):
        assert model.shortlist is not None
        model.shortlist.save(tmp_path / f"{model is before}")
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()


def test_alignments_take_the_place_of_the_aligner(
    plain: Path,
    text: tuple[Path, Path],
    tokenizer: Tokenizer,
    tmp_path: Path,
    succeeds: Callable[..., str],
    refuses: Callable[..., str],
) -> None:
    lines = [
        " ".join(f"{i}-{i}" for i in range(len(line.split())))
        for line in text[0].read_text(encoding="utf-8").splitlines()
    ]
    links = tmp_path / "links"
    links.write_text("\n".join(lines) + "\n")
    files = ("--source", text[0], "--target", text[1], "--alignments", links)
    succeeds("shortlist", plain, *files, "--frequent", 0, "--per-piece", 4)
    made = open_model(plain).shortlist
    assert made is not None
    found = set(made.candidates(tokenizer.encode("three")).tolist())
    assert set(tokenizer.encode("drei")) <= found
    before = (plain / SHORTLIST_FILE).read_bytes()
    links.write_text("\n".join(lines[:-1]) + "\n")
    assert "the alignments end before line 40" in refuses("shortlist", plain, *files)
    assert (plain / SHORTLIST_FILE).read_bytes() == before


def test_aligned_pairs_of_any_length_are_counted(
    plain: Path, tmp_path: Path, succeeds: Callable[..., str]
) -> None:
    for name, word in (("en", "three "), ("de", "drei ")):
        (tmp_path / name).write_text(f"{word}\n{word * (MAX_PIECES + 1)}\n")
    (tmp_path / "links").write_text("0-0\n0-0\n")
    files = ("--source", tmp_path / "en", "--target", tmp_path / "de")
    out = succeeds("shortlist", plain, *files, "--alignments", tmp_path / "links")
    assert out.splitlines()[0] == "Sentence pairs: 2"
    assert succeeds("shortlist", plain, *files).startswith("Sentence pairs: 1\n")


@pytest.mark.parametrize("beam_size", [1, 4])
def test_translations_are_nearly_the_same(
    listed: Path, succeeds: Callable[..., str], beam_size: int
) -> None:
    given = b"one two three\n\nfour five\nseven\n"
    options = ("translate", listed, "--beam-size", beam_size)
    without = succeeds(*options, stdin=given)
    assert succeeds(*options, "--shortlist", stdin=given) == without
    assert succeeds(*options, "--no-shortlist", stdin=given) == without


def test_scores_are_over_the_candidates(
    listed: Path, succeeds: Callable[..., str]
) -> None:
    options = ("translate", listed, "--jsonl")
    without = json.loads(succeeds(*options, stdin=b"one two\n"))
    with_it = json.loads(succeeds(*options, "--shortlist", stdin=b"one two\n"))
    assert with_it["score"] > without["score"]


def test_lines_with_a_prefix_use_all_pieces(
    listed: Path, command: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "prefixes").write_text("zwei\n")
    options = ("translate", listed, "--prefixes", tmp_path / "prefixes")
    given = command(*options, "--shortlist", stdin=b"one two\n")
    assert given.code == 0
    assert given.err == (
        "Warning: Lines with a prefix are translated with the whole vocabulary, not "
        "with the shortlist.\n"
    )
    assert given.out == command(*options, stdin=b"one two\n").out


def test_a_setting_without_a_shortlist_warns(
    plain: Path, command: Callable[..., Any]
) -> None:
    content = json.loads((plain / "config.json").read_text())
    content["search"] = {"shortlist": True}
    (plain / "config.json").write_text(json.dumps(content))
    given = command("translate", plain, stdin=b"one two\n")
    assert given.err.startswith("Warning: `search.shortlist` is set, but the model has")
    without = command("translate", plain, "--no-shortlist", stdin=b"one two\n")
    assert (given.out, without.err) == (without.out, "")


def test_a_model_without_a_shortlist_is_refused(
    plain: Path, refuses: Callable[..., str]
) -> None:
    said = refuses("translate", plain, "--shortlist", stdin=b"one\n")
    assert said == (
        f"{plain}: --shortlist needs a model with a shortlist, but this one has none; "
        "make one with `transduce shortlist`."
    )
    assert "--shortlist needs" in refuses("serve", plain, "--shortlist", "--port", 0)


def test_a_shortlist_can_be_the_default_of_a_model(
    listed: Path, text: tuple[Path, Path], succeeds: Callable[..., str]
) -> None:
    usual = succeeds("translate", listed, "--jsonl", "--shortlist", stdin=b"one two\n")
    without = succeeds("translate", listed, "--jsonl", stdin=b"one two\n")
    assert without != usual
    files = ("--source", text[0], "--target", text[1])
    succeeds("shortlist", listed, *files, "--make-default")
    assert succeeds("translate", listed, "--jsonl", stdin=b"one two\n") == usual
    off = succeeds("translate", listed, "--jsonl", "--no-shortlist", stdin=b"one two\n")
    assert off == without


@pytest.mark.parametrize("is_wanted", [None, True, False])
def test_the_option_of_a_server_sets_its_search(
    listed: Path, is_wanted: bool | None
) -> None:
    translator = loaded([listed], "cpu", "fp32", 1, {"shortlist": is_wanted})
    assert translator.search.shortlist is (is_wanted or False)


def test_a_damaged_shortlist_is_reported_in_one_sentence(
    listed: Path, text: tuple[Path, Path], refuses: Callable[..., str],
    succeeds: Callable[..., str],
) -> None:  # fmt: skip
    path = listed / SHORTLIST_FILE
    path.write_bytes(path.read_bytes()[:-9])
    said = refuses("translate", listed, stdin=b"one\n")
    assert said.startswith(f"{path}: the shortlist is damaged")
    # It can be made anew.
    succeeds("shortlist", listed, "--source", text[0], "--target", text[1])
    succeeds("translate", listed, stdin=b"one\n")


def test_copies_of_a_model_keep_the_shortlist(
    listed: Path, tmp_path: Path, succeeds: Callable[..., str]
) -> None:
    save_model(load_model(listed), tmp_path / "copy")
    succeeds("quantize", listed, "--out", tmp_path / "int8")
    own = open_model(listed).shortlist
    for name in ("copy", "int8"):
        copied = open_model(tmp_path / name).shortlist
        assert own is not None
        assert copied is not None
        assert copied.digest() == own.digest()


def test_an_output_is_not_resumed_with_another_shortlist(
    listed: Path, text: tuple[Path, Path], tmp_path: Path,
    command: Callable[..., object], refuses: Callable[..., str],
    succeeds: Callable[..., str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from transduce.decoding.translator import Translator

    whole = Translator.translate_stream

    def breaks_off(*given: object, **named: object) -> object:
        yield next(iter(whole(*given, **named)))  # type: ignore[arg-type]
        raise KeyboardInterrupt

    out = tmp_path / "out"
    options = ("translate", listed, "--shortlist", "--input", text[0], "--output", out)
    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate_stream", breaks_off)
        command(*options)
    assert not out.exists()
    files = ("--source", text[0], "--target", text[1])
    succeeds("shortlist", listed, *files, "--frequent", 1, "--per-piece", 1)
    assert "shortlist" in refuses(*options, "--resume")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--source", "x"], "but only x is; add --target."),
        (["--per-piece", "0"], "`per_piece` must be at least 1, but is 0"),
        (["--frequent", "-1"], "`frequent` must be at least 0, but is -1"),
        (["--alignments", "x"], "--alignments needs the text that is aligned"),
        (
            ["--source", "-", "--target", "x", "--alignments", "y"],
            "Aligned text must be in files, as it is read several times, but `-` is",
        ),
        ([], "a model without the text of its run needs --source and --target"),
        (["--source", "no", "--target", "no"], "no"),
    ],
)
def test_wrong_options_are_refused(
    plain: Path, refuses: Callable[..., str], options: list[str], message: str
) -> None:
    assert message in refuses("shortlist", plain, *options)
    assert not (plain / SHORTLIST_FILE).exists()


def test_aligned_text_must_be_in_files(
    plain: Path, tmp_path: Path, refuses: Callable[..., str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    files = ("--source", tmp_path / "pipe", "--target", tmp_path / "pipe")
    message = refuses("shortlist", plain, *files, "--alignments", "x")
    assert message.startswith(f"{tmp_path}/pipe: aligned text must be a file, since")


def test_a_model_that_cannot_be_written_is_refused_before_the_work(
    plain: Path, text: tuple[Path, Path], refuses: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("os.access", lambda path, _: path != plain)
    monkeypatch.delattr("transduce.cli.shortlist.learn_shortlist")
    message = refuses("shortlist", plain, "--source", text[0], "--target", text[1])
    assert message.startswith(f"{plain / SHORTLIST_FILE}: the output must be in a")


def test_text_without_usable_pairs_is_refused(
    plain: Path, tmp_path: Path, refuses: Callable[..., str]
) -> None:
    (tmp_path / "en").write_text("\n\n")
    (tmp_path / "de").write_text("eins\n\n")
    files = ("--source", tmp_path / "en", "--target", tmp_path / "de")
    assert "must be learned from sentence pairs" in refuses("shortlist", plain, *files)
