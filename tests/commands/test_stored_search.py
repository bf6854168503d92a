"""Options override a model's own search settings, and the rest is kept.

Settings that an option makes meaningless are dropped with a message. Meaningless
options are refused or reported.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import transduce
from transduce.checkpoint import Checkpoint, save_model
from transduce.errors import TransduceWarning
from transduce.search_config import SearchConfig

LINE = b"one two three\n"
OWN = SearchConfig(
    num_best=3, coverage_penalty=0.3, patience=1.0, diversity=0.2, max_length=30
)


@pytest.fixture(scope="module")
def searching(
    trained_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Folder of a model with its own search settings."""
    folder = tmp_path_factory.mktemp("searching") / "model"
    save_model(replace(trained_checkpoint, search=OWN), folder)
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "source").write_bytes(LINE)
    (folder / "target").write_text("eins zwei drei\n")
    return folder


TOLD = (
    "Warning: The model's own `search.num_best` of 3 is used only when a call asks for "
    "it, and is left out.\n"
)


def test_a_model_of_several_best_translates_one_line_for_one_line(
    command: Callable[..., Any], searching: Path, texts: Path
) -> None:
    lines = LINE + b"\n" + LINE
    config = replace(OWN, num_best=1)
    sources = lines.decode().splitlines()
    expected = list(transduce.load(searching).translate_stream(sources, config))
    outcome = command("translate", searching, stdin=lines)
    assert (outcome.code, outcome.err) == (0, TOLD)
    assert outcome.out.split("\n") == [*(each.text for each in expected), ""]
    outcome = command("translate", searching, "--jsonl", stdin=lines)
    assert (outcome.code, outcome.err) == (0, TOLD)
    found = [json.loads(line) for line in outcome.out.splitlines()]
    assert [len(each["hypotheses"]) for each in found] == [1, 0, 1]
    assert [each["score"] for each in found] == pytest.approx(
        [each.score for each in expected], abs=1e-5
    )
    files = ("--source", texts / "source", "--reference", texts / "target")
    outcome = command("evaluate", searching, *files)
    assert (outcome.code, outcome.err) == (0, TOLD)


def test_a_stored_beam_beyond_the_bounds_is_reported_with_its_place(
    refuses: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    content = json.loads((folder / "config.json").read_text())
    content["search"] = {"beam_size": 2_000}
    (folder / "config.json").write_text(json.dumps(content))
    assert refuses("translate", folder, stdin=LINE) == (
        f"{folder}/config.json: `search.beam_size` must be at most 1,000, but is 2000. "
        "Correct it there."
    )


def test_an_option_overrides_the_models_own(
    succeeds: Callable[..., str], searching: Path
) -> None:
    assert succeeds("translate", searching, "--nbest", 1, stdin=LINE).count("\n") == 1
    several = succeeds(
        "translate", searching, "--nbest", 5, "--beam-size", 6, stdin=LINE
    )
    assert several.count("\n") == 5


@pytest.mark.parametrize("name", ["translate", "evaluate", "attention"])
def test_dropped_settings_of_greedy_search_give_a_warning(
    command: Callable[..., Any], searching: Path, texts: Path, tmp_path: Path, name: str
) -> None:
    options: dict[str, tuple[object, ...]] = {
        "translate": (),
        "evaluate": ("--source", texts / "source", "--reference", texts / "target"),
        "attention": ("--source", "one two", "--out", tmp_path / "page.html"),
    }
    outcome = command(name, searching, *options[name], "--beam-size", 1, stdin=LINE)
    assert outcome.code == 0
    said = outcome.err.splitlines()
    assert len(said) == 4
    for setting in ("num_best", "patience", "coverage_penalty", "diversity"):
        assert any(f"model's own `search.{setting}` of" in line for line in said)
    with pytest.warns(TransduceWarning, match=r"own `search\.\w+` of .* left out"):
        transduce.load(searching).translate(["one"], beam_size=1)


def test_a_parser_heeds_its_coverage_penalty(
    succeeds: Callable[..., str], parsing_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    search = SearchConfig(beam_size=4, length_penalty=0.3, extra_length=20)
    covered = replace(search, coverage_penalty=5.0)
    name = "decoder_layers.0.cross_attention.project_query.weight"
    weights = dict(parsing_checkpoint.weights)
    weights[name] = 9 * weights[name]
    scores = []
    for config in (search, covered):
        folder = tmp_path / str(config.coverage_penalty)
        save_model(replace(parsing_checkpoint, weights=weights, search=config), folder)
        translator = transduce.load(folder)
        [free] = translator.parse(["the dog runs ."])
        [tree] = translator.parse(["the dog runs ."], constrained=True)
        assert succeeds("parse", folder, stdin=b"the dog runs .\n") == f"{free.tree}\n"
        scores.append((free.score, tree.score))
    assert scores[1][0] < scores[0][0]
    assert scores[1][1] < scores[0][1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--beam-size", 1, "--length-penalty", 1),
            "--length-penalty changes only the",
        ),
        (("--beam-size", 1, "--penalty", "power"), "--penalty changes only the scores"),
        (
            ("--length-penalty", 0, "--penalty", "power"),
            "--penalty changes nothing where the length penalty is 0.",
        ),
    ],
)
def test_options_without_effect_give_a_warning(
    command: Callable[..., Any], model: Path, options: tuple[object, ...], said: str
) -> None:
    outcome = command("translate", model, *options, stdin=LINE)
    assert outcome.code == 0
    assert outcome.err.startswith(f"Warning: {said}")


@pytest.mark.parametrize(
    "options",
    [
        ("--diversity", 0.5),
        ("--patience", 1),
        ("--nbest", 2),
        ("--coverage-penalty", 1),
    ],
)
def test_options_for_beams_are_refused_in_greedy_search(
    refuses: Callable[..., str], model: Path, options: tuple[object, ...]
) -> None:
    message = refuses("translate", model, "--beam-size", 1, *options, stdin=LINE)
    assert "greedy search" in message or "beam size 1" in message


@pytest.mark.parametrize(
    "options",
    [
        ("--beam-size", 4),
        ("--length-penalty", 1),
        ("--length-penalty", 0),
        ("--device", "cpu"),
        ("--precision", "int8"),
        ("--processes", 1),
    ],
)
def test_search_options_are_refused_without_a_model(
    refuses: Callable[..., str], texts: Path, options: tuple[object, ...]
) -> None:
    source, target = texts / "source", texts / "target"
    given = ("--hypothesis", source, "--reference", target)
    expected = f"{options[0]} is for a model's search, but there is no model; leave it"
    assert refuses("evaluate", *given, *options).startswith(expected)
    trees = texts / "trees"
    trees.write_text("(S (NP (DT the) (NN dog)) (VP (VBZ runs)))\n")
    assert refuses("evaluate-parses", trees, trees, *options).startswith(expected)


@pytest.mark.parametrize("option", ["--normalize", "--gold-tags", "--allow-dropped"])
def test_options_for_predicted_trees_are_refused_with_a_model(
    refuses: Callable[..., str], parsing_model: Path, texts: Path, option: str
) -> None:
    trees = texts / "trees"
    trees.write_text("(S (NP (DT the) (NN dog)) (VP (VBZ runs)))\n")
    message = refuses("evaluate-parses", trees, "--model", parsing_model, option)
    assert message.startswith("--normalize, --gold-tags and --allow-dropped are for pr")


@pytest.mark.parametrize("numbers", [(), ("--json",)], ids=["page", "numbers"])
@pytest.mark.parametrize(
    "options",
    [
        ("--view", "maps"),
        ("--kind", "encoder"),
        ("--layer", 1),
        ("--heads", 1),
        ("--token", "one"),
    ],
)
def test_options_for_a_picture_are_refused_without_one(
    refuses: Callable[..., str],
    model: Path,
    tmp_path: Path,
    options: tuple[object, ...],
    numbers: tuple[str, ...],
) -> None:
    page = ("--source", "one two", "--out", tmp_path / "page.html")
    message = refuses("attention", model, *page, *options, *numbers)
    assert message == (
        "--view, --kind, --layer, --heads and --token choose what a picture shows, but "
        "there is no --figure; add it, or leave them out: the page and the numbers are "
        "of everything."
    )
    assert not (tmp_path / "page.html").exists()


def test_the_units_of_a_page_alone_cannot_be_chosen(
    refuses: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    page = ("--source", "one two", "--out", tmp_path / "page.html")
    message = refuses("attention", model, *page, "--granularity", "sub-words")
    assert message == (
        "--granularity chooses the units of a picture or of numbers, but there is no "
        "--figure and no --json; add one of them, or leave it out: the page shows both."
    )
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("translate", "--beam-size", 100_000),
            "`search.beam_size` must be at most 1,0",
        ),
        (
            ("translate", "--extra-length", 10**12),
            "`search.extra_length` must be at mo",
        ),
        (
            ("translate", "--min-length", 10**9),
            "`search.min_length` must be at most 10",
        ),
        (
            ("translate", "--max-length", 2**70),
            "`search.max_length` must be at most 10",
        ),
        (("translate", "--patience", 1e300), "`search.patience` must be above 0 and"),
        (
            ("translate", "--processes", 100_000),
            "The number of processes must be at mos",
        ),
        (
            ("sample", "--number", 10**9),
            "`number` must be at most 100,000, but is 1000",
        ),
        (
            ("sample", "--seed", 2**70),
            "`seed` must be at most 9,223,372,036,854,775,80",
        ),
        (("sample", "--top-k", 10**12), "`top_k` must be at most 10,000,000, but is"),
    ],
)
def test_searches_beyond_any_machine_are_refused(
    refuses: Callable[..., str], model: Path, options: tuple[object, ...], message: str
) -> None:
    name, *others = options
    assert refuses(name, model, *others, stdin=LINE).startswith(message)
