"""`transduce align` writes word alignments in Pharaoh format."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

from transduce.checkpoint import Checkpoint, save_model
from transduce.decoding.alignment import MAX_ALIGNED_TOKENS
from transduce.decoding.translator import load


def test_each_pair_has_a_line_of_links(
    succeeds: Callable[..., str], model: Path, corpus_files: tuple[Path, Path]
) -> None:
    source, target = corpus_files
    lines = succeeds("align", model, "--source", source, "--target", target)
    texts = [each.read_text("utf-8").splitlines() for each in corpus_files]
    expected = load(model, device="cpu").align(*texts)
    assert lines.splitlines() == list(map(str, expected))
    assert lines.startswith("0-")


def test_links_are_written_to_a_file_that_only_force_replaces(
    succeeds: Callable[..., str],
    refuses: Callable[..., str],
    model: Path,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    source, target = corpus_files
    pair = ("--source", source, "--target", target)
    out = tmp_path / "links"
    assert succeeds("align", model, *pair, "--output", out) == ""
    assert out.read_text() == succeeds("align", model, *pair)
    assert "must be new or empty" in refuses("align", model, *pair, "--output", out)
    succeeds("align", model, *pair, "--output", out, "--force")
    assert "is the same" in refuses("align", model, *pair, "--output", source)


def test_a_shortlist_can_be_counted_from_the_links(
    succeeds: Callable[..., str],
    model: Path,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    pair = ("--source", corpus_files[0], "--target", corpus_files[1])
    copy = tmp_path / "model"
    copytree(model, copy)
    succeeds("align", copy, *pair, "--output", tmp_path / "links")
    succeeds("shortlist", copy, *pair, "--alignments", tmp_path / "links")
    assert load(copy).shortlist is not None


def test_pairs_that_cannot_be_aligned_are_blank_and_named(
    command: Callable[..., object], model: Path, tmp_path: Path
) -> None:
    long = " ".join(["one"] * MAX_ALIGNED_TOKENS)
    (tmp_path / "source").write_text(f"one\n{long}\n\n{long}\n")
    (tmp_path / "target").write_text("eins\neins\n\neins\n")
    files = ("--source", tmp_path / "source", "--target", tmp_path / "target")
    outcome = command("align", model, *files)
    assert outcome.code == 0
    assert outcome.out == "0-0\n\n\n\n"
    assert "no links for 2 lines, the first of them line 2: a side has" in outcome.err


def test_files_of_unequal_length_are_refused(
    refuses: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "source").write_text("one\ntwo\n")
    (tmp_path / "target").write_text("eins\n")
    files = ("--source", tmp_path / "source", "--target", tmp_path / "target")
    out = tmp_path / "links"
    refuses("align", model, *files, "--output", out)
    assert not out.exists()


def test_a_parser_is_refused(
    refuses: Callable[..., str], parsing_model: Path, corpus_files: tuple[Path, Path]
) -> None:
    source, target = corpus_files
    said = refuses("align", parsing_model, "--source", source, "--target", target)
    assert "this one parses" in said


def test_the_ending_of_the_targets_chooses_the_language(
    succeeds: Callable[..., str], tagged_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    save_model(tagged_checkpoint, tmp_path / "model")
    (tmp_path / "a.en").write_text("one two three\n")
    (tmp_path / "a.fr").write_text("eins zwei\n")
    files = ("--source", tmp_path / "a.en", "--target", tmp_path / "a.fr")
    translator = load(tmp_path / "model", target_language="fr")
    expected = str(translator.align("one two three", "eins zwei"))
    assert succeeds("align", tmp_path / "model", *files) == f"{expected}\n"
