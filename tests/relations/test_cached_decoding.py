"""Decoding step by step gives what one pass over the whole target gives."""

import pytest
import torch
from torch import Tensor

from transduce.model.transformer import Transformer
from transduce.special_ids import PAD

SOURCE = torch.tensor([[5, 9, 4, 17, 2], [8, 2, PAD, PAD, PAD], [3, 12, 20, 2, PAD]])
LENGTH = 7


def whole_pass(model: Transformer, source: Tensor, target_in: Tensor) -> Tensor:
    """Logits of all positions, each row beside its own copy of the source."""
    beam_size = len(target_in) // len(source)
    return model(source.repeat_interleave(beam_size, dim=0), target_in)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_step_by_step_is_one_full_pass(model, beam_size):
    target_in = torch.randint(1, 23, (len(SOURCE) * beam_size, LENGTH))
    state = model.start(model.encode(SOURCE), beam_size)
    stepped = [model.step(target_in[:, i], state) for i in range(LENGTH)]
    assert state.length == LENGTH
    assert_close(torch.stack(stepped, dim=1), whole_pass(model, SOURCE, target_in))


@pytest.mark.parametrize(
    "rows",
    [[0, 1, 2, 3, 4, 5], [1, 0, 3, 3, 4, 4], [5, 4, 1, 0], [3, 2], [4, 4, 1, 1, 2, 3]],
    ids=str,
)
def test_reordered_rows_go_on_from_their_own_past(model, rows):
    beam_size = 2
    past = torch.randint(1, 23, (len(SOURCE) * beam_size, 3))
    future = torch.randint(1, 23, (len(rows), 3))
    state = model.start(model.encode(SOURCE), beam_size)
    for token in past.unbind(1):
        model.step(token, state)
    state.reorder(torch.tensor(rows))
    stepped = [model.step(token, state) for token in future.unbind(1)]
    target_in = torch.cat([past[rows], future], dim=1)
    source = SOURCE[[row // beam_size for row in rows[::beam_size]]]
    expected = whole_pass(model, source, target_in)[:, 3:]
    assert_close(torch.stack(stepped, dim=1), expected)


def test_sentences_may_end_one_after_the_other(model):
    target_in = torch.randint(1, 23, (len(SOURCE), LENGTH))
    expected = whole_pass(model, SOURCE, target_in)
    state = model.start(model.encode(SOURCE), beam_size=1)
    assert_close(model.step(target_in[:, 0], state), expected[:, 0])
    state.reorder(torch.tensor([0, 2]))
    assert_close(model.step(target_in[[0, 2], 1], state), expected[[0, 2], 1])
    state.reorder(torch.tensor([1]))
    assert_close(model.step(target_in[[2], 2], state), expected[[2], 2])


def test_decoding_can_begin_again_from_one_memory(model):
    memory = model.encode(SOURCE)
    ids = torch.tensor([4, 5, 6])
    first = model.step(ids, model.start(memory, beam_size=1))
    again = model.step(ids, model.start(memory, beam_size=1))
    assert torch.equal(first, again)
