"""Decoding step by step equals one pass over the whole target."""

import pytest
import torch
from torch import Tensor

from transduce.architectures.interface import DecoderState, Stepper
from transduce.decoding.torch_decoder import FusedStep
from transduce.model.transformer import Transformer
from transduce.text.vocabulary import PAD

SOURCE = torch.tensor([[5, 9, 4, 17, 2], [8, 2, PAD, PAD, PAD], [3, 12, 20, 2, PAD]])
LENGTH = 7


def whole_pass(model: Transformer, source: Tensor, target_in: Tensor) -> Tensor:
    """Logits of all positions, with a copy of the source for each hypothesis."""
    num_sentences, group_size, length = target_in.shape
    sources = source.repeat_interleave(group_size, dim=0)
    logits = model(sources, target_in.flatten(0, 1))
    return logits.view(num_sentences, group_size, length, -1)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.fixture(params=["cached", "plain"])
def stepper(request: pytest.FixtureRequest, model: Transformer) -> Stepper:
    """The step with a cache, and the model's own step without one."""
    return FusedStep(model) if request.param == "cached" else model


def test_decoding_steps_equal_one_full_pass(model, stepper):
    target_in = torch.randint(1, 23, (len(SOURCE), 1, LENGTH))
    state = stepper.start(model.encode(SOURCE))
    stepped = [stepper.step(target_in[..., i], state) for i in range(LENGTH)]
    assert state.lengths.tolist() == [LENGTH] * len(SOURCE)
    assert_close(torch.stack(stepped, dim=2), whole_pass(model, SOURCE, target_in))


ROWS = [
    [[0, 1], [2, 3], [4, 5]],
    [[1, 0], [3, 3], [4, 4]],
    [[5, 4], [1, 0]],
    [[3, 2]],
    [[4, 4], [1, 1], [2, 3]],
    [[4, 4, 5], [1, 0, 1]],
    [[3], [4]],
]


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_reordered_hypotheses_keep_their_own_past(model, stepper, rows):
    first = torch.randint(1, 23, (len(SOURCE), 1))
    state = stepper.start(model.encode(SOURCE))
    stepper.step(first, state)
    state.reorder(torch.tensor([[0, 0], [1, 1], [2, 2]]))
    past = torch.randint(1, 23, (len(SOURCE), 2, 3))
    for token in past.unbind(2):
        stepper.step(token, state)
    state.reorder(torch.tensor(rows))
    future = torch.randint(1, 23, (len(rows), len(rows[0]), 3))
    stepped = [stepper.step(token, state) for token in future.unbind(2)]
    begun = torch.cat([first[:, None].expand(-1, 2, -1), past], dim=2)
    target_in = torch.cat([begun.flatten(0, 1)[torch.tensor(rows)], future], dim=2)
    source = SOURCE[[group[0] // 2 for group in rows]]
    expected = whole_pass(model, source, target_in)[:, :, 4:]
    assert_close(torch.stack(stepped, dim=2), expected)


def test_sentences_may_end_at_different_steps(model, stepper):
    target_in = torch.randint(1, 23, (len(SOURCE), 1, LENGTH))
    expected = whole_pass(model, SOURCE, target_in)
    state = stepper.start(model.encode(SOURCE))
    assert_close(stepper.step(target_in[..., 0], state), expected[:, :, 0])
    state.reorder(torch.tensor([[0], [2]]))
    assert_close(stepper.step(target_in[[0, 2], :, 1], state), expected[[0, 2], :, 1])
    state.reorder(torch.tensor([[1]]))
    assert_close(stepper.step(target_in[[2], :, 2], state), expected[[2], :, 2])


def test_decoding_can_start_again_from_the_same_memory(model, stepper):
    memory = model.encode(SOURCE)
    ids = torch.tensor([[4], [5], [6]])
    first = stepper.step(ids, stepper.start(memory))
    again = stepper.step(ids, stepper.start(memory))
    assert torch.equal(first, again)


@pytest.mark.parametrize("steps_before", [1, 3])
@pytest.mark.parametrize("steps_together", [1, 40])
def test_joining_sentences_keep_their_own_past(
    model, stepper, steps_before, steps_together
):
    if not isinstance(stepper, FusedStep):  # there is no cache that must grow
        steps_together = min(steps_together, 8)
    length = steps_before + steps_together
    first = torch.randint(1, 23, (2, 2, length))
    late = torch.randint(1, 23, (2, 2, 1 + steps_together))
    for tokens in (first, late):
        tokens[:, 1, 0] = tokens[
            :, 0, 0
        ]  # all hypotheses of a sentence begin with the same token
    state = stepper.start(model.encode(SOURCE[:2]))
    _read(stepper, state, first[..., :steps_before])
    newcomers = stepper.start(model.encode(SOURCE[2:].repeat(2, 1)))
    _read(stepper, newcomers, late[..., :1])
    state.join(newcomers)
    future = torch.cat([first[..., steps_before:], late[..., 1:]])
    stepped = torch.stack([stepper.step(t, state) for t in future.unbind(2)], dim=2)
    expected = whole_pass(model, SOURCE[:2], first)
    assert_close(stepped[:2], expected[:, :, steps_before:])
    expected = whole_pass(model, SOURCE[2:].repeat(2, 1), late)
    assert_close(stepped[2:], expected[:, :, 1:])


def _read(stepper: Stepper, state: DecoderState, tokens: Tensor) -> None:
    """Read tokens; the first belongs to the hypothesis that all others continue."""
    stepper.step(tokens[:, :1, 0], state)
    state.reorder(torch.arange(len(tokens))[:, None].expand(-1, tokens.size(1)))
    for token in tokens[..., 1:].unbind(2):
        stepper.step(token, state)
