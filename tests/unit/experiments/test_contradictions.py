"""Contradicting settings are refused before training, and useless ones reported."""

from dataclasses import asdict
from pathlib import Path

import pytest

from transduce.architectures.config import CONFIGS
from transduce.data.corpus_files import CorpusFiles
from transduce.data.treebank import TreebankFiles
from transduce.errors import ConfigError
from transduce.experiments.contradictions import (
    UNREAD_SETTINGS,
    refuse_contradictions,
    settings_without_effect,
)
from transduce.experiments.presets import PRESETS, RunConfig
from transduce.experiments.run_corpus import RunFiles
from transduce.settings import apply_assignments, flattened

SIDE = (Path("text"),)
TEXT = CorpusFiles(source=SIDE, target=SIDE)
TEXT_WITH_DEV = CorpusFiles(source=SIDE, target=SIDE, dev_source=SIDE, dev_target=SIDE)
TREES = TreebankFiles(trees=SIDE)
TREES_WITH_DEV = TreebankFiles(trees=SIDE, dev_trees=SIDE)
BASE = PRESETS["multi30k"]
NONE_HELD_OUT = "evaluation.hold_out=false"
PLATEAU = [
    "training.schedule=plateau",
    "training.learning_rate=0.25",
    "training.learning_rate_scale=1",
]
LATE_SGD = ["training.sgd_from_step=9", "training.sgd_learning_rate=0.5"]
BY_REWARD = ["training.reward=gleu", "training.reward_steps=100"]
HALVING = [*PLATEAU, "training.schedule=halving", "training.decay_steps=1"]


def test_each_unread_setting_is_one_of_an_architecture() -> None:
    """A renamed setting would make its row, of names, dead."""
    models = [flattened(asdict(config())) for config in CONFIGS.values()]
    for name, other, _ in UNREAD_SETTINGS:
        assert any(name in model and other in model for model in models), name


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
            "`training.patience` needs a dev corpus, but there is none; give dev "
            r"files, or hold out a part of the corpus \(`evaluation\.hold_out`\)\.",
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
        (
            TEXT,
            [*PLATEAU, NONE_HELD_OUT],
            '`training.schedule` is "plateau", which needs a dev corpus',
        ),
        (TEXT, ["training.learning_rate=1"], "`training.learning_rate` is 1, but the"),
        (TEXT, ["training.schedule=constant"], "needs a learning rate; set `train"),
        (
            TEXT,
            ["training.schedule=constant", "training.learning_rate=1"],
            '_scale` is 1.77, but has no effect on the schedule "constant"',
        ),
        (
            TEXT,
            [*PLATEAU, "training.hold_steps=1"],
            '`training.hold_steps` is a setting of the schedule "warm-hold-decay", but',
        ),
        (
            TEXT,
            [*PLATEAU, "training.learning_rate=9e-5"],
            "`training.learning_rate` must be at least .*, 0.0001, .* but is 9e-05; ra",
        ),
        (TEXT, ["training.decay_from=1"], '`training.decay_from` .* "halving", but'),
        (TEXT, ["training.decay_factor=0.5"], '`training.decay_factor` .* "plateau"'),
        (
            TEXT,
            [*PLATEAU, "training.schedule=halving", "training.decay_from=9"],
            'schedule` is "halving", which needs `training.decay_steps`',
        ),
        (TEXT, ["training.optimizer=nesterov"], "needs a momentum above 0; set"),
        (TEXT, ["training.momentum=0.9"], ' has no effect on the optimizer "muon"'),
        (TEXT, ["training.sgd_from_step=9"], "needs `training.sgd_learning_rate`"),
        (TEXT, ["training.sgd_learning_rate=9"], "needs `training.sgd_from_step`"),
        (TEXT, LATE_SGD, "`training.sgd_from_step` is 9, but the rate of equation 3"),
        (
            TEXT,
            [*PLATEAU, *LATE_SGD, "training.optimizer=sgd"],
            '`training.optimizer` is "sgd" from the first update on',
        ),
        (TEXT, ["training.reward=gleu"], 'is "gleu", which needs the number of updat'),
        (
            TEXT,
            ["training.reward=gleu", "training.reward_steps=999_999"],
            "`training.reward_steps` must be at most `training.steps`, .* is 999,999",
        ),
        (TEXT, ["training.reward_steps=9"], "`training.reward_steps` is a setting of"),
    ],
)
def test_a_contradiction_is_refused(
    files: RunFiles, assignments: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        refuse_contradictions(apply_assignments(BASE, assignments), files)


@pytest.mark.parametrize(
    ("preset", "files", "assignment", "message"),
    [
        (
            "bytenet-multi30k",
            TEXT,
            "search.coverage_penalty=0.2",
            "`search.coverage_penalty` must be 0 for .*bytenet.* but is 0.2",
        ),
        (
            "bytenet-multi30k",
            TREES,
            "treebank.guidance=0.5",
            "`treebank.guidance` must be 0 for .*bytenet.* but is 0.5",
        ),
        (
            "convs2s-multi30k",
            TREES,
            "model.dropout=0.1",
            "`model.shared_embedding` must be false for a parser",
        ),
        (
            "gnmt-multi30k",
            TEXT,
            "model.residual_from=4",
            "`model.residual_from` must be at most the number of layers, 3, but is 4",
        ),
        (
            "rnnsearch-multi30k",
            TEXT,
            "model.input_feeding=false",
            '`model.input_feeding` is false, but .* set the query to "current"',
        ),
    ],
)
def test_a_contradiction_to_the_architecture_is_refused(
    preset: str, files: RunFiles, assignment: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        refuse_contradictions(apply_assignments(PRESETS[preset], [assignment]), files)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_vocabulary_of_words_needs_a_language_with_spaces(side: str) -> None:
    words = PRESETS["deep-att-multi30k"]
    chinese = apply_assignments(words, [f"languages.{side}=zh-TW"])
    message = f"the {side} language is Chinese .Taiwan., which has none; set it to bpe"
    with pytest.raises(ConfigError, match=message):
        refuse_contradictions(chinese, TEXT)
    refuse_contradictions(apply_assignments(chinese, ["tokenizer.kind=bpe"]), TEXT)
    refuse_contradictions(apply_assignments(words, ["languages.target=zh-Latn"]), TEXT)


@pytest.mark.parametrize("preset", ["multi30k", "moe-ffn-multi30k"])
def test_learned_positions_of_any_transformer_must_reach_the_longest_sentence(
    preset: str,
) -> None:
    short = ["model.positions=learned", "model.max_positions=99"]
    config = apply_assignments(PRESETS[preset], short)
    with pytest.raises(ConfigError, match="`model.max_positions` must be at least"):
        refuse_contradictions(config, TEXT)


def test_residual_connections_of_the_decoder_alone_are_accepted() -> None:
    deeper = ["model.encoder_layers=2", "model.residual_from=3"]
    config = apply_assignments(PRESETS["gnmt-multi30k"], deeper)
    refuse_contradictions(config, TEXT)


@pytest.mark.parametrize(
    "assignments",
    [
        ["training.checkpoint_minutes=5", "training.checkpoint_steps=none"],
        ["model.positions=learned", "model.max_positions=256"],
        ["search.coverage_penalty=0.2", "search.patience=1", "search.num_best=2"],
        [*PLATEAU, "training.optimizer=nesterov", "training.momentum=0.99"],
        [*PLATEAU, *LATE_SGD, "training.clip_norm=5"],
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
            "The learning rate's cooldown begins before its warm-up ends",
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
            ["training.consistency=3", "model.dropout=0"],
            "`training.consistency` is 3, which has no effect but takes twice the time",
        ),
        (
            ["search.penalty=power", "search.length_penalty=0"],
            "`search.penalty` has no effect, as `search.length_penalty` is 0",
        ),
        (
            [*PLATEAU, *LATE_SGD, "training.sgd_from_step=999_999"],
            "`training.sgd_from_step` is 999,999, which has no effect on a training",
        ),
        (
            [*HALVING, "training.decay_from=999_999"],
            "`training.decay_from` is 999,999, which has no effect on a training of",
        ),
        (
            [
                *PLATEAU,
                "training.schedule=warm-hold-decay",
                "training.hold_steps=999_999",
            ],
            "The learning rate never decays, as it is held up to update 1,001,499 of",
        ),
        (
            [
                "training.patience=5",
                "training.checkpoint_steps=400",
                "training.steps=2000",
            ],
            "`training.patience` is 5, which has no effect: with a checkpoint every",
        ),
        (
            [*BY_REWARD, *HALVING, "training.decay_from=10_950"],
            "`training.decay_from` is 10,950, which has no effect: updates by reward,",
        ),
        (
            [*BY_REWARD, "training.best_by=loss"],
            '`training.best_by` is "loss", which updates by reward may raise',
        ),
        (
            ["training.optimizer=sgd", "training.beta2=0.9"],
            '`training.beta2` has no effect on the optimizer "sgd"',
        ),
    ],
)
def test_settings_without_effect_are_reported(
    assignments: list[str], message: str
) -> None:
    config = apply_assignments(BASE, assignments)
    refuse_contradictions(config, TEXT)
    assert any(each.startswith(message) for each in settings_without_effect(config))


def test_mixtures_differ_between_passes_without_dropout() -> None:
    config = apply_assignments(
        PRESETS["moe-multi30k"], ["training.consistency=3", "model.dropout=0"]
    )
    assert not any("consistency" in each for each in settings_without_effect(config))


@pytest.mark.parametrize(
    ("preset", "assignments", "message"),
    [
        (
            "gnmt-multi30k",
            ["model.cell=gru", "model.forget_bias=1"],
            '`model.forget_bias` has no effect, as `model.cell` is "gru".',
        ),
        (
            "rnnsearch-multi30k",
            ["model.initial_weights=orthogonal", "model.initial_range=0.1"],
            '`model.initial_range` has no effect, as `model.initial_weights` is "ortho',
        ),
        (
            "gnmt-multi30k",
            ["model.readout_width=8"],
            '`model.readout_width` has no effect, as `model.readout` is "state".',
        ),
        (
            "gnmt-multi30k",
            ["model.attention=general", "model.attention_width=8"],
            '`model.attention_width` has no effect, as `model.attention` is "general".',
        ),
        (
            "moe-multi30k",
            ["model.experts.load_weight=0.1"],
            "`model.experts.load_weight` has no effect, as `model.experts.gating` is",
        ),
    ],
)
def test_unread_settings_of_a_rival_are_reported(
    preset: str, assignments: list[str], message: str
) -> None:
    config = apply_assignments(PRESETS[preset], assignments)
    refuse_contradictions(config, TEXT)
    assert any(each.startswith(message) for each in settings_without_effect(config))


@pytest.mark.parametrize("preset", ["gnmt-multi30k", "moe-multi30k"])
def test_an_embedding_that_a_parser_cannot_share_is_reported(preset: str) -> None:
    config = PRESETS[preset]
    assert settings_without_effect(config, TEXT) == []
    [warning] = settings_without_effect(config, TREES)
    assert warning.startswith("`model.shared_embedding` has no effect")


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
