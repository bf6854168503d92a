"""Contradicting settings are refused before training, and useless ones reported."""

from pathlib import Path

import pytest

from transduce.data.corpus_files import CorpusFiles
from transduce.data.treebank import TreebankFiles
from transduce.errors import ConfigError
from transduce.experiments.contradictions import (
    refuse_contradictions,
    settings_without_effect,
)
from transduce.experiments.presets import PRESETS, RunConfig
from transduce.experiments.run_folder import RunFiles
from transduce.settings import apply_assignments

SIDE = (Path("text"),)
TEXT = CorpusFiles(source=SIDE, target=SIDE)
TEXT_WITH_DEV = CorpusFiles(source=SIDE, target=SIDE, dev_source=SIDE, dev_target=SIDE)
TREES = TreebankFiles(trees=SIDE)
TREES_WITH_DEV = TreebankFiles(trees=SIDE, dev_trees=SIDE)
BASE = PRESETS["multi30k"]
NONE_HELD_OUT = "evaluation.hold_out=false"


@pytest.mark.parametrize("name", PRESETS)
def test_no_preset_has_contradicting_settings(name: str) -> None:
    is_parser = name.startswith("parsing")
    for files in (TREES, TREES_WITH_DEV) if is_parser else (TEXT, TEXT_WITH_DEV):
        refuse_contradictions(PRESETS[name], files)
    assert settings_without_effect(PRESETS[name]) == []


@pytest.mark.parametrize(
    ("files", "assignments", "message"),
    [
        (
            TEXT,
            ["training.patience=3", NONE_HELD_OUT],
            "`training.patience` needs a dev corpus",
        ),
        (
            TEXT,
            ["training.best_by=loss", NONE_HELD_OUT],
            '`training.best_by` is "loss", which needs',
        ),
        (
            TREES,
            ["training.best_by=loss", NONE_HELD_OUT],
            '`training.best_by` is "loss", which needs',
        ),
        (
            TEXT_WITH_DEV,
            ["training.best_by=f1"],
            '"loss" on this dev corpus, but is "f',
        ),
        (TREES_WITH_DEV, ["training.best_by=bleu"], 'corpus, but is "bleu"'),
        (TEXT, ["treebank.style=pos"], "`treebank.style` is a setting of parsers, but"),
        (
            TEXT,
            ["treebank.guidance=0.5"],
            "`treebank.guidance` is a setting of parsers",
        ),
        (TEXT, ["treebank.augmentation.copies=2"], "`treebank.augmentation` is a sett"),
        (
            TEXT,
            ["model.positions=learned", "model.max_positions=99"],
            r"must be at least `batching.max_length`, 256, .* but is 99; raise the",
        ),
        (TEXT, ["model.max_positions=2000"], "is 2,000, but sinusoidal positions"),
        (
            TEXT,
            ["training.checkpoint_minutes=5"],
            "`training.checkpoint_minutes` is 5, but `training.checkpoint_steps` is",
        ),
        (
            TEXT,
            ["search.beam_size=1", "search.diversity=1"],
            "`search.diversity` has",
        ),
        (
            TEXT,
            ["search.beam_size=1", "search.patience=1"],
            "`search.patience` has",
        ),
    ],
)
def test_a_contradiction_is_refused(
    files: RunFiles, assignments: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        refuse_contradictions(apply_assignments(BASE, assignments), files)


@pytest.mark.parametrize(
    "assignments",
    [
        ["training.checkpoint_minutes=5", "training.checkpoint_steps=none"],
        ["model.positions=learned", "model.max_positions=256"],
        ["search.coverage_penalty=0.2", "search.patience=1", "search.num_best=2"],
    ],
)
def test_consistent_settings_are_accepted(assignments: list[str]) -> None:
    refuse_contradictions(apply_assignments(BASE, assignments), TEXT)


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["training.steps=1000"], "The warm-up of 1,500 updates is longer than the"),
        (
            ["training.cooldown_share=0.95"],
            "The learning rate's cool-down begins before its warm-up ends",
        ),
        (
            ["training.steps=2000", "training.checkpoint_steps=3000"],
            "With a checkpoint every 3,000 updates, a training of 2,000 updates has",
        ),
        (
            ["batching.batch_tokens=4096"],
            "Updates may be larger than",
        ),
        (
            ["model.neighbourhood=400"],
            "`model.neighbourhood` is 400, which has no effect",
        ),
        (
            ["search.num_best=2"],
            "`search.num_best` is 2, which has no effect: a line gets one",
        ),
        (
            ["search.penalty=power", "search.length_penalty=0"],
            "`search.penalty` has no effect, as `search.length_penalty` is 0",
        ),
    ],
)
def test_settings_without_effect_are_reported(
    assignments: list[str], message: str
) -> None:
    config = apply_assignments(BASE, assignments)
    refuse_contradictions(config, TEXT)
    assert any(each.startswith(message) for each in settings_without_effect(config))


def test_the_base_settings_give_no_warning() -> None:
    refuse_contradictions(RunConfig(), TEXT)
    assert settings_without_effect(RunConfig()) == []


@pytest.mark.parametrize("setting", ["cut=0.5", "seed=5"])
def test_settings_of_variants_without_variants_are_reported(setting: str) -> None:
    config = apply_assignments(
        PRESETS["parsing-small"],
        ["treebank.augmentation.copies=0", f"treebank.augmentation.{setting}"],
    )
    refuse_contradictions(config, TREES)
    [warning] = settings_without_effect(config)
    assert "has no effect, as `treebank.augmentation.copies` is 0." in warning
