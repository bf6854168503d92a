"""The output of a sentence depends neither on its batch nor on hooks."""

import pytest
import torch
from torch import Tensor

from transduce.model.attention import MultiHeadAttention
from transduce.model.transformer import Transformer
from transduce.text.vocabulary import PAD

SOURCES = [[5, 9, 4, 17, 2], [8, 2], [3, 12, 20, 2], [2]]
TARGETS = [[1, 6], [1, 11, 22, 7, 9], [1], [1, 3, 4]]


def padded(rows: list[list[int]], extra: int = 0) -> Tensor:
    width = max(map(len, rows)) + extra
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("row", range(len(SOURCES)))
def test_a_batch_of_n_equals_n_batches_of_one(model, row):
    together = model(padded(SOURCES), padded(TARGETS))
    alone = model(torch.tensor([SOURCES[row]]), torch.tensor([TARGETS[row]]))
    assert_close(together[row, : len(TARGETS[row])], alone[0])


@pytest.mark.parametrize("extra", [1, 30])
def test_padding_does_not_change_the_output(model, extra):
    source, target_in = torch.tensor([SOURCES[0]]), torch.tensor([TARGETS[0]])
    expected = model(source, target_in)
    longer = model(padded([SOURCES[0]], extra), padded([TARGETS[0]], extra))
    assert_close(longer[:, : target_in.size(1)], expected)


def test_the_embedding_of_padding_does_not_matter(model):
    rows = torch.tensor([True, False, True])
    source, target_in = padded(SOURCES[:3]), padded([TARGETS[1]] * 3)
    before = model(source, target_in)
    model.embedding.weight[PAD] += 100
    after = model(source, target_in)
    words = torch.arange(before.size(-1)) != PAD
    assert_close(after[rows][..., words], before[rows][..., words])


def test_the_order_of_the_rows_does_not_matter(model):
    order = [2, 0, 3, 1]
    together = model(padded(SOURCES), padded(TARGETS))
    shuffled = model(
        padded([SOURCES[i] for i in order]), padded([TARGETS[i] for i in order])
    )
    assert_close(shuffled, together[order])


def test_the_memory_of_a_sentence_does_not_depend_on_its_batch(model):
    memory = model.encode(padded(SOURCES)).states
    alone = model.encode(torch.tensor([SOURCES[1]])).states
    assert_close(memory[1, :2], alone[0])


def attentions(model: Transformer) -> list[MultiHeadAttention]:
    return [m for m in model.modules() if isinstance(m, MultiHeadAttention)]


def test_hooks_on_the_weights_do_not_change_the_output(model):
    source, target_in = padded(SOURCES), padded(TARGETS)
    expected = model(source, target_in)
    seen: list[Tensor] = []
    for attention in attentions(model):
        attention.weights_tap.register_forward_hook(
            lambda _, __, weights: seen.append(weights)
        )
    listened = model(source, target_in)
    config = model.config
    assert len(seen) == config.num_layers + 2 * config.num_decoder_layers
    rows, positions = (padded(TARGETS) != PAD).nonzero(as_tuple=True)
    assert_close(listened[rows, positions], expected[rows, positions])


def test_weights_of_every_head_sum_to_one_and_are_zero_on_padding(model):
    seen: list[Tensor] = []
    for attention in attentions(model):
        attention.weights_tap.register_forward_hook(
            lambda _, __, weights: seen.append(weights)
        )
    source = padded(SOURCES[:3])
    model.encode(source)
    assert len(seen) == model.config.num_layers
    is_token = source != PAD
    weights = torch.stack(seen).transpose(2, 3)[
        :, is_token
    ]  # (layers, tokens, heads, keys)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    padding = (~is_token)[is_token.nonzero()[:, 0]]  # (tokens, keys)
    assert not (weights * padding[:, None, :]).any()
