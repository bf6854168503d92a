"""`transduce tune` chooses a search on dev text, kept in the model."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marian_folder import change_settings
from transduce.experiments.tuning import Tuning, tune_translation
from transduce.model_folder import change_search, open_model
from transduce.search_config import SearchConfig

POOR = {"beam_size": 1, "max_length": 3, "length_penalty": 0.0, "num_best": 1}
FEW = ("--beam-sizes", 2, 3, "--length-penalties", 0.0, 1.0)


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    """Copy of a model folder with its own search settings."""
    return shutil.copytree(model, tmp_path / "model")


@pytest.fixture
def dev(corpus_files: tuple[Path, Path]) -> tuple[object, ...]:
    source, target = corpus_files
    return ("--dev-source", source, "--dev-target", target)


def search(model: Path) -> SearchConfig | None:
    return open_model(model).search


def scores(succeeds: Callable[..., str], *arguments: object) -> dict[str, float]:
    """Scores of `transduce evaluate` by the names that `transduce tune` uses."""
    first, *_, last = json.loads(succeeds("evaluate", *arguments, "--json"))
    return {"BLEU": first["score"], "chrF": last["score"]}


def test_the_best_of_the_grid_becomes_the_models_search(
    succeeds: Callable[..., str],
    folder: Path,
    dev: tuple[object, ...],
    corpus_files: tuple[Path, Path],
) -> None:
    options = ("--processes", 1, "--json")
    found = json.loads(succeeds("tune", folder, *dev, *FEW, *options))
    assert list(found)[-1] == "cells"  # the long list, below all else
    cells = {
        (c["search"]["beam_size"], c["search"]["length_penalty"]): c["score"]
        for c in found["cells"]
    }
    # The paper's settings, 4 and 0.6, are tried with all others.
    assert set(cells) == {(b, p) for b in (2, 3, 4) for p in (0.0, 0.6, 1.0)}
    best = found["best"]["search"]
    assert found["best"]["score"] == pytest.approx(max(cells.values()), abs=0.005)
    assert found["is_written"]
    kept = search(folder)
    assert kept is not None
    assert (kept.beam_size, kept.length_penalty) == (
        best["beam_size"],
        best["length_penalty"],
    )
    source, target = corpus_files
    for (beam, penalty), expected in cells.items():
        chosen = ("--beam-size", beam, "--length-penalty", penalty)
        files = ("--source", source, "--reference", target, "--processes", 1)
        evaluated = scores(succeeds, folder, *files, *chosen)[found["metric"]]
        assert evaluated == pytest.approx(expected)


def test_a_better_search_changes_only_the_search_settings(
    succeeds: Callable[..., str], folder: Path, dev: tuple[object, ...]
) -> None:
    stored = {**POOR, "beam_size": 2, "length_penalty": 9.0, "diversity": 4.0}
    del stored["max_length"]
    change_settings(
        folder / "config.json", search={**stored, "extra_length": 3}, mine=[1]
    )
    os.chmod(folder / "config.json", 0o640)
    before = json.loads((folder / "config.json").read_text())
    out = succeeds("tune", folder, *dev, *FEW, "--processes", 1)
    assert f"It is now the search of {folder}." in out
    assert "(p = " in out
    after = json.loads((folder / "config.json").read_text())
    assert after.pop("search") != before.pop("search")
    assert after == before
    kept = search(folder)
    assert kept is not None
    assert (kept.extra_length, kept.diversity) == (3, 4.0)
    assert stat.S_IMODE((folder / "config.json").stat().st_mode) == 0o640
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "model.safetensors", "tokenizer.json"),
    }
    # A second run finds no better search than the model's own.
    again = succeeds("tune", folder, *dev, *FEW, "--processes", 1)
    assert "The model's own search" in again
    assert f"{folder} stays as it is." in again


def test_a_dry_run_leaves_the_model_as_it_is(
    succeeds: Callable[..., str], folder: Path, dev: tuple[object, ...]
) -> None:
    stored = {"beam_size": 2, "length_penalty": 9.0, "diversity": 4.0}
    change_settings(folder / "config.json", search=stored)
    before = (folder / "config.json").read_bytes()
    out = succeeds("tune", folder, *dev, *FEW, "--dry-run", "--processes", 1)
    assert f"{folder} stays as it is." in out
    assert (folder / "config.json").read_bytes() == before


def test_the_score_of_greedy_search_alone_is_printed(
    succeeds: Callable[..., str], folder: Path, dev: tuple[object, ...]
) -> None:
    change_search(folder, lambda _: SearchConfig(beam_size=1))
    greedy = ("--beam-sizes", 1, "--length-penalties", 0.6)
    out = succeeds("tune", folder, *dev, *greedy, "--dry-run", "--processes", 1)
    [row] = [line.split() for line in out.splitlines() if line.split()[:1] == ["1"]]
    score = float(row[1].rstrip("*"))
    assert f"is the best of these: {score:.2f}." in out


def test_greedy_search_that_a_coverage_penalty_excludes_is_named(
    command, folder: Path, dev: tuple[object, ...]
) -> None:
    change_search(folder, lambda _: SearchConfig(beam_size=2, coverage_penalty=0.1))
    grid = ("--length-penalties", 0.6, "--dry-run", "--processes", 1)
    outcome = command("tune", folder, *dev, "--beam-sizes", 1, 2, *grid)
    assert outcome.err.startswith("Warning: Greedy search is not tried")
    outcome = command("tune", folder, *dev, "--beam-sizes", 2, *grid)
    assert outcome.err == ""


def test_a_change_of_the_search_during_the_tuning_is_kept(
    succeeds: Callable[..., str],
    folder: Path,
    dev: tuple[object, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = {"beam_size": 2, "length_penalty": 9.0, "diversity": 4.0}
    change_settings(folder / "config.json", search=stored)

    def tune_while_another_command_writes(*arguments: Any) -> Tuning:
        change_search(folder, lambda search: replace(search, extra_length=5))
        return tune_translation(*arguments)

    monkeypatch.setattr(
        "transduce.cli.tune.tune_translation", tune_while_another_command_writes
    )
    out = succeeds("tune", folder, *dev, *FEW, "--processes", 1)
    assert f"It is now the search of {folder}." in out
    kept = search(folder)
    assert kept is not None
    assert kept.extra_length == 5
    assert kept.length_penalty != 9.0


def test_scores_are_printed_even_if_the_choice_cannot_be_written(
    command, folder: Path, dev: tuple[object, ...]
) -> None:
    stored = {"beam_size": 2, "length_penalty": 9.0, "diversity": 4.0}
    change_settings(folder / "config.json", search=stored)
    (folder / ".config.json.transduce-new").mkdir()  # nothing can be written there
    outcome = command("tune", folder, *dev, *FEW, "--processes", 1)
    assert outcome.code == 2
    assert "cannot be written" in outcome.err
    assert f"{folder} stays as it is." in outcome.out


def test_the_printed_grid_has_greedy_search_once(
    succeeds: Callable[..., str], folder: Path, dev: tuple[object, ...]
) -> None:
    few = ("--beam-sizes", 1, 2, "--length-penalties", 0, 1, "--patiences", 1)
    out = succeeds("tune", folder, *dev, *few, "--dry-run", "--processes", 1)
    lines = [line.split() for line in out.splitlines()]
    heads = [line for line in lines if line[:1] == ["beam"]]
    assert heads == [["beam", "0", "0.6", "1"]] * 2
    assert "Patience 1" in out
    assert "|tok:13a|" in out or "chrF" in out
    rows = [line for line in lines if line[:1] == ["1"]]
    assert len(rows) == 1
    assert len(set(rows[0][1:])) == 1
    found = json.loads(
        succeeds("tune", folder, *dev, *few, "--dry-run", "--json", "--processes", 1)
    )
    greedy = [c for c in found["cells"] if c["search"]["beam_size"] == 1]
    assert len(greedy) == 1


def test_the_served_model_of_a_run_is_tuned(
    succeeds: Callable[..., str], run: Path, tmp_path: Path, dev: tuple[object, ...]
) -> None:
    copied = shutil.copytree(run, tmp_path / "run")
    found = json.loads(succeeds("tune", copied, *dev, *FEW, "--json", "--processes", 1))
    assert found["model"] == str(copied / "averaged")


def test_parsers_are_tuned_by_f1(
    succeeds: Callable[..., str], parsing_model: Path, tmp_path: Path
) -> None:
    trees = tmp_path / "trees"
    trees.write_text("(S (NP (DT the) (NN dog)) (VP (VBZ runs)))\n" * 3)
    few = ("--beam-sizes", 1, 2, "--length-penalties", 0.0)
    out = succeeds("tune", parsing_model, "--dev-trees", trees, *few, "--dry-run")
    assert out.startswith("F1 of 3 sentences\n")
    assert "as EVALB counts them" in out
    assert "constrained" not in out


def test_a_parser_is_tuned_for_constrained_search(
    succeeds: Callable[..., str], parsing_model: Path, tmp_path: Path
) -> None:
    trees = tmp_path / "trees"
    trees.write_text("(S (NP (DT the) (NN dog)) (VP (VBZ runs)))\n" * 3)
    few = ("--beam-sizes", 1, "--length-penalties", 0.0, "--dry-run", "--json")
    call = ("tune", parsing_model, "--dev-trees", trees, *few, "--constrained")
    found = json.loads(succeeds(*call))
    assert found["protocol"].endswith("searches constrained to trees")
    for cell in found["cells"]:
        beam, penalty = (cell["search"][n] for n in ("beam_size", "length_penalty"))
        search = [f"--beam-size={beam}"]
        if beam > 1:
            search.append(f"--length-penalty={penalty}")
        model = ("--model", parsing_model, *search, "--constrained", "--json")
        scored = json.loads(succeeds("evaluate-parses", trees, *model))
        assert cell["score"] == pytest.approx(scored["all"]["f1"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "Dev text must be given: either --dev-source and --dev-target"),
        (("--dev-source", "x"), "but only x is; add --dev-target."),
        (("--beam-sizes", 0), "`search.beam_size` must be "),
        (("--length-penalties", -1), "`search.length_penalty` must be at least 0"),
        (("--patiences", 0), "`search.patience` must be "),
        (("--tokenize", "words"), 'Invalid value "words"'),
        (("--constrained",), "--constrained is for the trees of a parser, but text"),
        (("--dev-trees", "x"), "Dev text must be given: either --dev-source"),
    ],
    ids=str,
)
def test_a_mistake_is_reported_before_any_search(
    refuses: Callable[..., str],
    folder: Path,
    dev: tuple[object, ...],
    options: tuple[object, ...],
    message: str,
) -> None:
    given = dev if options and options[0] != "--dev-source" else ()
    assert message in refuses("tune", folder, *given, *options)


@pytest.mark.parametrize("blank", ["source", "target"])
def test_a_blank_dev_text_is_refused(
    refuses: Callable[..., str], folder: Path, tmp_path: Path, blank: str
) -> None:
    texts = {"source": "a dog\n", "target": "ein Hund\n", blank: "\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    dev = ("--dev-source", tmp_path / "source", "--dev-target", tmp_path / "target")
    message = refuses("tune", folder, *dev)
    path = tmp_path / blank
    assert message == f"{path}: at least one line must have text, but none has."


def test_trees_have_no_tokenizer_of_sacrebleu(
    refuses: Callable[..., str], folder: Path
) -> None:
    message = refuses("tune", folder, "--dev-trees", "x", "--tokenize", "13a")
    assert message == (
        "--tokenize is for the BLEU of a text, but --dev-trees are scored by F1; leave "
        "it out."
    )


def test_a_parser_is_not_tuned_on_text(
    refuses: Callable[..., str], parsing_model: Path, dev: tuple[object, ...]
) -> None:
    assert "this one parses" in refuses("tune", parsing_model, *dev, "--dry-run")


def test_a_translator_is_not_tuned_on_trees(
    refuses: Callable[..., str], folder: Path, tmp_path: Path
) -> None:
    trees = tmp_path / "trees"
    trees.write_text("(S (NP (NN dog)))\n")
    said = refuses("tune", folder, "--dev-trees", trees)
    assert "this one translates" in said


def test_a_choice_that_cannot_be_printed_is_no_success(
    folder: Path, dev: tuple[object, ...]
) -> None:
    given = ("tune", folder, *dev, "--dry-run", "--beam-sizes", 1, "--device", "cpu")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "transduce", *map(str, given)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    assert (done.returncode, done.stderr) == (
        2,
        "transduce: The output: cannot be read or written (No space left on device); "
        "free some space and try again.\n",
    )
