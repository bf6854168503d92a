"""Presets have the paper's settings and numbers of parameters."""

import re
from dataclasses import asdict, replace

import pytest
import torch

from transduce.errors import ConfigError
from transduce.experiments.presets import (
    BASE,
    BIG,
    PRESETS,
    RIVALS,
    TABLE_3,
    fitting_preset,
    preset,
    require_task,
    small_rival,
)
from transduce.model.config import count_parameters
from transduce.model.transformer import Transformer
from transduce.training.optimizer import scheduled_rate

BASE_PARAMETERS = 63_082_496
# Computed from Table 3 for 37,000 shared sub-words, with biases on all projections and
# feed-forward networks. The paper's column counts 40,960 sub-words.
PARAMETERS = {
    "base": BASE_PARAMETERS,
    "A-h1": BASE_PARAMETERS,
    "A-h4": BASE_PARAMETERS,
    "A-h16": BASE_PARAMETERS,
    "A-h32": BASE_PARAMETERS,
    "B-dk16": 55_990_784,
    "B-dk32": 58_354_688,
    "C-N2": 33_656_832,
    "C-N4": 48_369_664,
    "C-N8": 77_795_328,
    "C-d256": 26_834_944,
    "C-d1024": 163_889_152,
    "C-ff1024": 50_487_296,
    "C-ff4096": 88_272_896,
    "D-drop0": BASE_PARAMETERS,
    "D-drop0.2": BASE_PARAMETERS,
    "D-smooth0": BASE_PARAMETERS,
    "D-smooth0.2": BASE_PARAMETERS,
    "E-learned": BASE_PARAMETERS + 1024 * 512,
    "big": 214_245_376,
}
PAPER_MILLIONS = {
    **dict.fromkeys(PARAMETERS, 65),
    "B-dk16": 58,
    "B-dk32": 60,
    "C-N2": 36,
    "C-N4": 50,
    "C-N8": 80,
    "C-d256": 28,
    "C-d1024": 168,
    "C-ff1024": 53,
    "C-ff4096": 90,
    "big": 213,
}
"""Last column of Table 3; rows without a number are as large as base."""
BASE_FIELDS = {
    "tokenizer.kind": "bpe",
    "tokenizer.vocab_size": 37_000,
    "model.num_layers": 6,
    "model.d_model": 512,
    "model.d_ff": 2048,
    "model.num_heads": 8,
    "model.d_k": 64,
    "model.d_v": 64,
    "model.dropout": 0.1,
    "model.attention_dropout": 0.0,
    "model.relu_dropout": 0.0,
    "model.positions": "sinusoidal",
    "model.norm": "post",
    "model.scores": "scaled",
    "model.neighbourhood": None,
    "batching.source_tokens": 25_000,
    "batching.target_tokens": 25_000,
    "training.steps": 100_000,
    "training.warmup_steps": 4_000,
    "training.learning_rate_scale": 1.0,
    "training.beta1": 0.9,
    "training.beta2": 0.98,
    "training.epsilon": 1e-9,
    "training.label_smoothing": 0.1,
    "training.checkpoint_minutes": 10.0,
    "training.checkpoint_steps": 1_500,
    "training.keep_checkpoints": 5,
    "search.beam_size": 4,
    "search.length_penalty": 0.6,
    "search.extra_length": 50,
}
BIG_FIELDS = BASE_FIELDS | {
    "model.d_model": 1024,
    "model.d_ff": 4096,
    "model.num_heads": 16,
    "model.dropout": 0.3,
    "training.steps": 300_000,
    "training.checkpoint_steps": 600,
    "training.keep_checkpoints": 20,
}
# Changes of each row from base, as Table 3 prints them.
ROWS = {
    "A-h1": {"num_heads": 1, "d_k": 512, "d_v": 512},
    "A-h4": {"num_heads": 4, "d_k": 128, "d_v": 128},
    "A-h16": {"num_heads": 16, "d_k": 32, "d_v": 32},
    "A-h32": {"num_heads": 32, "d_k": 16, "d_v": 16},
    "B-dk16": {"d_k": 16},
    "B-dk32": {"d_k": 32},
    "C-N2": {"num_layers": 2},
    "C-N4": {"num_layers": 4},
    "C-N8": {"num_layers": 8},
    "C-d256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "C-d1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "C-ff1024": {"d_ff": 1024},
    "C-ff4096": {"d_ff": 4096},
    "D-drop0": {"dropout": 0.0},
    "D-drop0.2": {"dropout": 0.2},
    "E-learned": {"positions": "learned"},
}


def field(config: object, key: str) -> object:
    part, name = key.split(".")
    return getattr(getattr(config, part), name)


@pytest.mark.parametrize(("row", "parameters"), PARAMETERS.items())
def test_a_row_of_table_3_has_its_number_of_parameters(
    row: str, parameters: int
) -> None:
    with torch.device("meta"):
        model = Transformer(replace(TABLE_3[row].model, vocab_size=37_000))
    assert model.num_parameters() == parameters


def test_the_tests_cover_every_row_of_table_3() -> None:
    assert set(PARAMETERS) == set(TABLE_3) == set(PAPER_MILLIONS)


@pytest.mark.parametrize(("row", "millions"), PAPER_MILLIONS.items())
def test_the_papers_own_vocabulary_gives_the_papers_column(
    row: str, millions: int
) -> None:
    model = replace(TABLE_3[row].model, vocab_size=40_960)
    counted = count_parameters(model)
    # The paper's code also learned a vector for each of 32 target languages, which our
    # models do not have.
    total = counted.total + 32 * model.d_model
    difference = 40_960 - 37_000
    assert counted.total == PARAMETERS[row] + difference * model.d_model
    if row == "big":
        # Only a vocabulary of about 36,000 sub-words would give the paper's 213.
        assert total == 218_333_184
    elif row == "E-learned":
        # The paper does not give the number of learned positions.
        assert total - counted.positions == 65_126_400
    else:
        assert round(total / 1e6) == millions


@pytest.mark.parametrize(("key", "value"), BASE_FIELDS.items())
def test_the_base_preset_has_the_papers_settings(key: str, value: object) -> None:
    assert field(BASE, key) == value


@pytest.mark.parametrize(("key", "value"), BIG_FIELDS.items())
def test_the_big_preset_has_the_papers_settings(key: str, value: object) -> None:
    assert field(BIG, key) == value


@pytest.mark.parametrize(("row", "changes"), ROWS.items())
def test_a_row_changes_only_the_settings_in_table_3(
    row: str, changes: dict[str, object]
) -> None:
    assert asdict(TABLE_3[row]) == asdict(BASE) | {
        "model": asdict(BASE.model) | changes
    }


@pytest.mark.parametrize(
    ("row", "smoothing"), [("D-smooth0", 0.0), ("D-smooth0.2", 0.2)]
)
def test_rows_of_label_smoothing_change_only_that(row: str, smoothing: float) -> None:
    training = replace(BASE.training, label_smoothing=smoothing)
    assert TABLE_3[row] == replace(BASE, training=training)


# Settings of section 6.3. The learning rate and both dropout rates are those of the
# paper's code; all else is the base model's.
PARSING_CHANGES = {
    "model.num_layers": 4,
    "model.d_model": 1024,
    "model.d_k": 128,
    "model.d_v": 128,
    "model.dropout": 0.2,
    "model.attention_dropout": 0.2,
    "tokenizer.vocab_size": 16_000,
    "training.warmup_steps": 16_000,
    "training.learning_rate_scale": 0.5,
    "search.beam_size": 21,
    "search.length_penalty": 0.3,
    "search.extra_length": 300,
}
SEMI_CHANGES = PARSING_CHANGES | {
    "model.dropout": 0.1,
    "model.attention_dropout": 0.0,
    "tokenizer.vocab_size": 32_000,
    "training.warmup_steps": 4_000,
}


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        (name, key, value)
        for name, changes in (
            ("parsing-wsj", PARSING_CHANGES),
            ("parsing-semi", SEMI_CHANGES),
        )
        for key, value in (BASE_FIELDS | changes).items()
    ],
)
def test_a_parsing_preset_has_the_papers_settings(
    name: str, key: str, value: object
) -> None:
    assert field(PRESETS[name], key) == value


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("parsing-wsj", 100_443_136), ("parsing-semi", 116_827_136)],
)
def test_a_parser_has_its_number_of_parameters(name: str, parameters: int) -> None:
    # Source sub-words and 53 symbols with four special ones, biases everywhere.
    run = PRESETS[name]
    with torch.device("meta"):
        model = Transformer(
            replace(
                run.model, vocab_size=run.tokenizer.vocab_size, target_vocab_size=57
            )
        )
    attention = 4 * 1024 * 1024 + 4 * 1024
    feed_forward = 2 * 1024 * 2048 + 2048 + 1024
    layers = 4 * (3 * attention + 2 * feed_forward + 5 * 2 * 1024)
    vocabularies = (run.tokenizer.vocab_size + 57) * 1024
    assert model.num_parameters() == layers + vocabularies == parameters


@pytest.mark.parametrize(
    "name", [name for name in PRESETS if name.startswith("parsing-")]
)
def test_every_parsing_preset_selects_by_f1_and_searches_as_in_the_paper(
    name: str,
) -> None:
    assert PRESETS[name].training.best_by == "f1"
    assert PRESETS[name].search == PRESETS["parsing-wsj"].search


@pytest.mark.parametrize("name", ["base-en-fr", "big-en-fr"])
def test_french_presets_have_32000_word_pieces(name: str) -> None:
    assert PRESETS[name].tokenizer.kind == "word-piece"
    assert PRESETS[name].tokenizer.vocab_size == 32_000


def test_the_big_french_preset_has_less_dropout() -> None:
    assert PRESETS["big-en-fr"].model == replace(BIG.model, dropout=0.1)


def rate(name: str, step: int) -> float:
    config = preset(name)
    return scheduled_rate(step, config.model.d_model, config.training)


def test_updates_by_reward_have_a_small_rate() -> None:
    first = preset("gnmt-rl-multi30k").training.likelihood_steps + 1
    assert rate("gnmt-rl-multi30k", first) == pytest.approx(1.8e-4, rel=0.05)
    # Four halvings by likelihood, 200,000 updates from one to the next; none by reward.
    first = preset("gnmt-rl-en-de").training.likelihood_steps + 1
    rates = [rate("gnmt-rl-en-de", step) for step in (first - 1, first, 2_400_000)]
    assert rates == [13.5 / 2**4] * 3


def test_gnmt_halves_its_rate_after_so_many_updates_as_its_source() -> None:
    for halvings in range(1, 5):
        before = 1_000_000 + 200_000 * halvings
        rates = [rate("gnmt-en-de", step) for step in (before, before + 1)]
        assert rates == [13.5 / 2 ** (halvings - 1), 13.5 / 2**halvings]


def test_a_preset_is_found_by_its_name() -> None:
    assert preset("C-N2") is PRESETS["C-N2"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("mulit30k", "multi30k"), ("multi30", "multi30k"), ("c-n2", "C-N2")],
)
def test_an_unknown_preset_suggests_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as refused:
        preset(name)
    assert str(refused.value) == (
        f"There is no preset `{name}`; did you mean `{nearest}`? `transduce presets` "
        "lists all."
    )


@pytest.mark.parametrize("name", ["", "foo", "dropout"])
def test_a_preset_unlike_all_others_suggests_none(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        preset(name)
    assert str(refused.value) == (
        f"There is no preset `{name}`; `transduce presets` lists all."
    )


@pytest.mark.parametrize(
    ("tokens", "task", "fitting"),
    [
        (3_000 * 10, "translation", "multi30k"),
        (29_000 * 14, "translation", "multi30k"),
        (1_000_000 * 25, "translation", "base"),
        (4_500_000 * 30, "translation", "base"),
        (1_000 * 50, "parsing", "parsing-small"),
        (40_000 * 150, "parsing", "parsing-wsj"),
    ],
)
def test_the_size_of_a_corpus_decides_the_fitting_preset(tokens, task, fitting):
    assert fitting_preset(tokens, task) == fitting


@pytest.mark.parametrize("name", [*RIVALS])
def test_a_rival_has_a_small_preset_of_its_own_architecture(name: str) -> None:
    system = re.sub("-(en-..|multi30k)$", "", name)
    assert small_rival(PRESETS[name]) == f"{system}-multi30k"


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("task", ["translation", "parsing"])
def test_a_preset_is_for_one_task(name, task):
    is_for_parsing = PRESETS[name].training.best_by == "f1"
    if name in ("tiny", "adapt") or is_for_parsing == (task == "parsing"):
        require_task(name, task)
        return
    given, wanted = {
        "translation": (
            "text",
            "use multi30k, for tens of thousands of pairs",
        ),
        "parsing": (
            "trees",
            "use parsing-small, for thousands of trees",
        ),
    }[task]
    with pytest.raises(ConfigError) as refused:
        require_task(name, task)
    assert str(refused.value).startswith(f"The preset {name} is for ")
    assert f"but the corpus has {given}; {wanted}" in str(refused.value)


def test_an_unknown_preset_has_no_task():
    with pytest.raises(ConfigError, match="did you mean `parsing-small`"):
        require_task("parsing-smal", "translation")


@pytest.mark.parametrize("name", ["base", "big", "base-en-fr", "big-en-fr"])
def test_the_average_covers_the_papers_share_of_training(name: str) -> None:
    training, is_big = PRESETS[name].training, name.startswith("big")
    seconds = 1.0 if is_big else 0.4  # per update, as in the paper
    assert training.checkpoint_steps is not None
    assert training.checkpoint_steps * seconds == pytest.approx(600)
