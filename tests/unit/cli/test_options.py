"""Options that commands share: settings, and files of text or of trees."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from transduce.cli.options import (
    changed_by_options,
    run_config,
    run_files,
    text_files,
)
from transduce.data.corpus_files import CorpusFiles
from transduce.data.treebank import TreebankFiles
from transduce.errors import ConfigError
from transduce.experiments.presets import BASE
from transduce.search_config import SearchConfig


@pytest.mark.parametrize(
    ("settings", "minutes", "steps"),
    [
        ((), 10.0, 1_500),
        (("training.checkpoint_minutes=10",), 10.0, None),
        (("training.checkpoint_minutes=2",), 2.0, None),
        (("training.checkpoint_steps=70",), 10.0, 70),
        (("training.checkpoint_steps=none",), 10.0, None),
        (("training.checkpoint_steps=1500",), 10.0, 1_500),
        (("training.checkpoint_minutes=5", "training.checkpoint_steps=7"), 5.0, 7),
    ],
    ids=str,
)
def test_given_minutes_replace_a_presets_steps(
    tmp_path: Path, settings: tuple[str, ...], minutes: float, steps: int | None
) -> None:
    table = tmp_path / "settings.toml"
    names = [each.removeprefix("training.") for each in settings]
    # TOML has no null value.
    in_a_file = "\n".join(["[training]", *(n for n in names if "none" not in n)])
    table.write_text(in_a_file, encoding="utf-8")
    ways = [run_config("base", None, settings).training]
    if not any("none" in each for each in settings):
        ways.append(run_config("base", table, ()).training)
    for training in ways:
        assert (training.checkpoint_minutes, training.checkpoint_steps) == (
            minutes,
            steps,
        )


@pytest.mark.parametrize(
    ("settings", "patience"),
    [
        ((), 1.0),
        (("beam_size=1",), None),
        (("beam_size=1", "patience=2"), 2.0),
        (("beam_size=1", "patience=1"), 1.0),  # as before, but given
    ],
    ids=str,
)
def test_a_greedy_search_has_only_the_settings_of_a_beam_that_are_given(
    settings: tuple[str, ...], patience: float | None
) -> None:
    patient = replace(BASE, search=SearchConfig(patience=1.0))
    assignments = tuple(f"search.{each}" for each in settings)
    found = changed_by_options(patient, None, assignments).search
    assert found.patience == patience


TREES = {
    "on a line": b"(TOP (S (NP (DT the) (NN dog))))\n",
    "without a label": b"\n( (S (NP (DT the) (NN dog))))\n",
    "over lines": b"(TOP\n  (S\n    (NP (NN dog))))\n",
    "zipped": gzip.compress(b"(S (NN dog) (VBZ barks))\n"),
}
TEXTS = {
    "a sentence": b"A dog runs.\n",
    "a remark": b"(laughs) Well (really), no.\n",
    "a remark within another": b"(See there (and here).)\n",
    "brackets apart": b"( a ) ( b )\n",
    "nothing": b"",
    "not UTF-8": b"\xff\xfe\n",
}


@pytest.mark.parametrize("side", range(4))
@pytest.mark.parametrize("content", TREES.values(), ids=TREES)
def test_trees_are_refused_as_text_with_the_option_for_them(
    content: bytes, side: int, tmp_path: Path
) -> None:
    text, trees = tmp_path / "text", tmp_path / "trees"
    text.write_bytes(b"A dog runs.\n")
    trees.write_bytes(content)
    sides = [(trees if number == side else text,) for number in range(4)]
    option = "--trees" if side < 2 else "--dev-trees"
    with pytest.raises(ConfigError, match=f"{trees}: .* give them by {option}, "):
        text_files(*sides)


@pytest.mark.parametrize("content", TEXTS.values(), ids=TEXTS)
def test_text_with_brackets_is_not_taken_for_trees(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    assert text_files((path,), (path,), (), ()).source == (path,)


@pytest.mark.parametrize("part", ["trees", "dev_trees"])
def test_text_is_refused_as_trees_with_the_options_for_it(
    part: str, tmp_path: Path
) -> None:
    text, trees = tmp_path / "text", tmp_path / "trees"
    text.write_bytes(b"\nA dog runs.\n")
    trees.write_bytes(TREES["over lines"])
    files = TreebankFiles(**{"trees": (trees,), "dev_trees": (trees,), part: (text,)})
    none = CorpusFiles(source=(), target=(), dev_source=(), dev_target=())
    with pytest.raises(ConfigError, match="with `A`; .* give text .* by --source and"):
        run_files(none, files)
