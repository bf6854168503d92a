import json
from collections.abc import Callable
from pathlib import Path

import pytest


def test_the_built_in_corpus_tells_all(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "heads"
    printed = succeeds("heads", model, "--out", out, "--sentences", "20")
    for heading in (
        "Heads that follow positions",
        "What each head does",
        "Pronouns and syntax",
        "Alignment",
        "Without a head",
    ):
        assert f"\n{heading}\n" in printed
    found = json.loads((out / "heads.json").read_text(encoding="utf-8"))
    assert found["num_pairs"] == 20
    assert len(found["statistics"]) == len(found["pruned"]) == 12
    assert len(found["alignment"]) == 30
    for name in ("heads.md", "heads.html", "positions.png", "pruning.png"):
        assert (out / name).is_file()


def test_a_corpus_of_ones_own_tells_what_it_can(
    succeeds: Callable[..., str],
    model: Path,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    files = ("--source", corpus_files[0], "--target", corpus_files[1])
    printed = succeeds("heads", model, *files, "--out", tmp_path / "heads")
    assert printed.startswith(f"The heads of {model} on 40 pairs")
    assert "Without a head" in printed
    assert "Alignment" not in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sentences", "0"), "`sentences` must be at least 1, but is 0."),
        (("--source", "no"), "Both sides of a corpus must be given, but only no is."),
        (("--source", "no", "--target", "no"), "no: the file cannot be read"),
        (("--source", "empty", "--target", "empty"), "The corpus must have a pair of"),
        (("--out", "."), ".: the output folder must be new or empty, but is not"),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, tuple) else "",
)
def test_a_mistake_ends_with_one_sentence_and_writes_nothing(
    refuses: Callable[..., str],
    model: Path,
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    out = () if "--out" in options else ("--out", "heads")
    assert refuses("heads", model, *options, *out).startswith(message)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
