"""Every row of Table 3 at every scale."""

from dataclasses import replace

import pytest

from transduce.errors import ConfigError
from transduce.experiments.presets import BASE, TABLE_3, RunConfig
from transduce.experiments.run_processes import changes, settings
from transduce.experiments.table3_rows import (
    base_for,
    require_rows,
    row_config,
    scaled_base,
)
from transduce.model.sizes import count_parameters

SCALES = [part / 8 for part in range(1, 9)]
SIZES = {"model.d_model", "model.d_ff", "model.d_k", "model.d_v"} | {
    "model.num_heads",
    "model.num_layers",
    "training.steps",
}


def without_averaging(config: RunConfig) -> RunConfig:
    return replace(config, training=replace(config.training, keep_checkpoints=1))


@pytest.mark.parametrize("row", TABLE_3)
def test_a_row_at_full_scale_has_the_papers_settings(row: str) -> None:
    assert row_config(scaled_base(), row) == without_averaging(TABLE_3[row])


@pytest.mark.parametrize("scale", SCALES)
def test_the_scaled_base_differs_in_its_dimensions_only(scale: float) -> None:
    base = scaled_base(scale)
    assert changes(base, without_averaging(BASE)) == (
        {}
        if scale == 1
        else {
            "tokenizer.vocab_size": 37_000 * scale,
            "model.d_model": 512 * scale,
            "model.d_ff": 2048 * scale,
            "model.d_k": 64 * scale,
            "model.d_v": 64 * scale,
        }
    )


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("row", [row for row in TABLE_3 if row != "base"])
def test_a_row_changes_the_same_at_every_scale(row: str, scale: float) -> None:
    base = scaled_base(scale, 3_000)
    ours = changes(row_config(base, row), base)
    theirs = changes(without_averaging(TABLE_3[row]), without_averaging(BASE))
    assert ours.keys() == theirs.keys()
    before = settings(base)
    paper = settings(BASE)
    for name, value in ours.items():
        if name in SIZES:
            assert value / before[name] == theirs[name] / paper[name]
        else:
            assert value == theirs[name]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("row", ["A-h1", "A-h4", "A-h16", "A-h32"])
def test_the_number_of_heads_does_not_change_the_parameters(
    row: str, scale: float
) -> None:
    base = scaled_base(scale)
    assert count_parameters(row_config(base, row).model) == count_parameters(base.model)


@pytest.mark.parametrize("corpus", ["wmt14-en-de", None])
def test_the_base_without_a_scale_has_the_papers_settings(corpus: str | None) -> None:
    assert base_for(corpus, None, None) == scaled_base()
    assert base_for(corpus, None, 50) == scaled_base(1.0, 50)


def test_multi30k_has_a_base_of_its_own_unless_a_scale_is_named() -> None:
    base = base_for("multi30k", None, None)
    assert (base.model.d_model, base.model.num_layers) == (128, 3)
    assert (base.training.steps, base.batching.target_tokens) == (2_000, 1_024)
    assert base_for("multi30k", None, 50).training.steps == 50
    for row in TABLE_3:
        row_config(base, row)  # must not raise an error
    assert base_for("multi30k", 1.0, None) == scaled_base()


def test_big_trains_three_times_as_long() -> None:
    assert row_config(scaled_base(0.25, 2_000), "big").training.steps == 6_000


@pytest.mark.parametrize(
    ("steps", "warmup_steps"), [(100_000, 4_000), (20_000, 4_000), (500, 100), (3, 1)]
)
def test_fewer_steps_warm_up_for_a_fifth_of_them(steps: int, warmup_steps: int) -> None:
    training = scaled_base(1.0, steps).training
    assert (training.steps, training.warmup_steps) == (steps, warmup_steps)


@pytest.mark.parametrize("scale", [0.0, -1.0, 0.1, 1.125, 2.0, float("nan")])
def test_a_scale_that_gives_odd_dimensions_is_refused(scale: float) -> None:
    pattern = r"`scale` must be a multiple of 1/8 from 1/8 to 1, but is "
    with pytest.raises(ConfigError, match=pattern + f"{scale:g}"):
        scaled_base(scale)


def test_a_base_that_gives_fractional_sizes_is_refused() -> None:
    base = scaled_base(0.125)
    base = replace(base, model=replace(base.model, num_layers=4))
    pattern = r"`num_layers` of row C-N2 must be .* but is 1/3 of the base's 4; leave"
    with pytest.raises(ConfigError, match=pattern):
        row_config(base, "C-N2")


def test_a_row_that_changes_nothing_is_refused() -> None:
    base = scaled_base()
    base = replace(base, model=replace(base.model, dropout=0.2))
    with pytest.raises(ConfigError, match=r"Row D-drop0\.2 must differ from base, but"):
        row_config(base, "D-drop0.2")


def test_rows_are_in_the_papers_order_after_base() -> None:
    assert require_rows(("C-N2", "A-h1")) == ["base", "A-h1", "C-N2"]
    assert require_rows(()) == list(TABLE_3)


def test_an_unknown_row_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="A row must be .* is 'A-h2'; did you mean"):
        require_rows(("base", "A-h2"))
