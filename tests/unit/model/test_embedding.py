"""Embeddings and positions against the paper's formulas by hand."""

import math

import pytest
import torch

from transduce.model.embedding import (
    LearnedPositions,
    SharedEmbedding,
    SinusoidalPositions,
    sinusoids,
)

CPU = torch.device("cpu")


def test_sinusoids_of_four_dimensions_equal_values_by_hand():
    # Pair 0 turns by 1 a position, pair 1 by 1 / 10000^(2 / 4) = 1 / 100.
    expected = [
        [0.0, 1.0, 0.0, 1.0],
        [0.84147098, 0.54030231, 0.00999983, 0.99995000],
        [0.90929743, -0.41614684, 0.01999867, 0.99980001],
        [0.14112001, -0.98999250, 0.02999550, 0.99955003],
    ]
    torch.testing.assert_close(
        sinusoids(4, 4), torch.tensor(expected), atol=1e-7, rtol=1e-6
    )


@pytest.mark.parametrize("position", [0, 1, 7, 1_000, 50_000])
@pytest.mark.parametrize("pair", [0, 1, 7, 15])
def test_sinusoids_equal_the_formula_of_section_3_5(position, pair):
    angle = position / 10_000 ** (2 * pair / 32)
    told = sinusoids(position + 1, 32)[position, 2 * pair : 2 * pair + 2]
    expected = torch.tensor([math.sin(angle), math.cos(angle)])
    torch.testing.assert_close(told, expected, atol=1e-6, rtol=0)


def test_wavelengths_grow_from_two_pi_towards_ten_thousand_times_that():
    even = sinusoids(2, 512)[1, 0::2].double().asin()
    assert even[0] == pytest.approx(1.0, abs=1e-6)
    assert even[-1] == pytest.approx(10_000 ** (-510 / 512), rel=1e-6)


@pytest.mark.parametrize(
    "lengths", [[3], [1, 200, 500, 10], [128, 129, 1_000]], ids=str
)
def test_positions_of_any_length_are_the_sinusoids(lengths):
    positions = SinusoidalPositions(8)
    known = [positions(0, length, CPU) for length in lengths]
    expected = [sinusoids(length, 8) for length in lengths]
    torch.testing.assert_close(known, expected, atol=0, rtol=0)


def test_positions_may_start_at_an_offset():
    positions = SinusoidalPositions(8)
    torch.testing.assert_close(positions(150, 3, CPU), sinusoids(153, 8)[150:])


def test_positions_are_on_the_device_of_the_model():
    positions = SinusoidalPositions(8)
    assert positions(0, 2, torch.device("meta")).device.type == "meta"
    torch.testing.assert_close(positions(0, 2, CPU), sinusoids(2, 8))


def test_sinusoids_are_not_learned_and_not_saved():
    positions = SinusoidalPositions(8)
    positions(0, 5, CPU)
    assert not positions.state_dict()


def test_embeddings_are_rows_times_the_root_of_d_model():
    embedding = SharedEmbedding(vocab_size=7, d_model=9, bias=False)
    ids = torch.tensor([[1, 6], [6, 0]])
    torch.testing.assert_close(embedding(ids), 3 * embedding.weight[ids])


def test_logits_are_products_with_the_same_matrix():
    embedding = SharedEmbedding(vocab_size=7, d_model=9, bias=False)
    states = torch.randn(2, 3, 9)
    expected = torch.einsum("bld,vd->blv", states, embedding.weight)
    torch.testing.assert_close(embedding.logits(states), expected)


def test_a_bias_is_added_to_logits_only():
    embedding = SharedEmbedding(vocab_size=3, d_model=4, bias=True)
    assert not embedding.bias.any()
    torch.nn.init.normal_(embedding.bias)
    states = torch.randn(2, 4)
    expected = states @ embedding.weight.T + embedding.bias
    torch.testing.assert_close(embedding.logits(states), expected)
    ids = torch.tensor([[2]])
    torch.testing.assert_close(embedding(ids), 2 * embedding.weight[ids])


def test_embeddings_start_with_rows_of_norm_one():
    embedding = SharedEmbedding(vocab_size=2_000, d_model=64, bias=False)
    assert embedding.weight.norm(dim=1).mean().item() == pytest.approx(1.0, abs=0.02)
    assert embedding.weight.mean().item() == pytest.approx(0.0, abs=0.002)


def test_learned_positions_are_rows_times_the_root_of_d_model():
    positions = LearnedPositions(max_positions=6, d_model=4)
    torch.testing.assert_close(positions(2, 3, CPU), 2 * positions.weight[2:5])


def test_learned_positions_beyond_the_table_share_its_last_row():
    positions = LearnedPositions(max_positions=3, d_model=4)
    rows = positions(1, 4, CPU)
    torch.testing.assert_close(rows, 2 * positions.weight[[1, 2, 2, 2]])


def test_learned_positions_start_with_rows_of_norm_one():
    positions = LearnedPositions(max_positions=2_000, d_model=64)
    assert positions.weight.norm(dim=1).mean().item() == pytest.approx(1.0, abs=0.02)
