"""Invariants that the decoders of all architectures share."""

from collections.abc import Sequence
from itertools import chain

import pytest
import torch
from torch import Tensor, nn

from rival_variants import VARIANTS
from transduce.architectures.config import num_parameters
from transduce.architectures.interface import TransductionModel
from transduce.checkpoint import build
from transduce.data.tensors import pad_rows
from transduce.nn.fuse import fuse
from transduce.text.vocabulary import PAD

SOURCES = [[5, 6, 7, 8, 9, 2], [10, 11, 12, 2], [3, 2]]
TARGETS = [[1, 5, 6, 7, 8, 9, 4, 4, 12], [1, 9, 10, 11, 12, 3], [1, 7, 8]]
SOURCE, TARGET = pad_rows(SOURCES), pad_rows(TARGETS)


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS)
def model(request: pytest.FixtureRequest) -> TransductionModel:
    """Model with random biases and gains, and with gates that choose differently."""
    torch.manual_seed(1)
    model = build(request.param).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn_like(weight)
            if "gates" in name:
                weight.add_(0.1 * noise if "threshold" in name else noise)
            elif weight.dim() == 1:
                weight.add_(0.3 * noise)
    return model


def logits_of(model: TransductionModel, source: Tensor, target: Tensor) -> Tensor:
    return model.logits(model.decode(target, model.encode(source)))


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_call_of_a_model_returns_the_logits_of_each_next_token(
    model: TransductionModel,
) -> None:
    assert isinstance(model, nn.Module)
    assert torch.equal(model(SOURCE, TARGET), logits_of(model, SOURCE, TARGET))


class Hypotheses:
    """Hypotheses in a decoder's state, with the source and the tokens of each.

    After each step, the logits of each must be those of a pass over its own tokens.
    """

    def __init__(self, model: TransductionModel, *sources: list[int]) -> None:
        self.model = model
        self.state = model.start(model.encode(pad_rows(list(sources))))
        self.groups: list[list[tuple[list[int], list[int]]]] = [
            [(source, [])] for source in sources
        ]

    def step(self, *ids: Sequence[int]) -> None:
        found = self.model.step(torch.tensor(ids), self.state)
        for logits, group, group_ids in zip(found, self.groups, ids, strict=True):
            for row, (source, read), token in zip(
                logits, group, group_ids, strict=True
            ):
                read.append(token)
                alone = torch.tensor([source]), torch.tensor([read])
                assert_close(row, logits_of(self.model, *alone)[0, -1])

    def reorder(self, *rows: Sequence[int]) -> None:
        self.state.reorder(torch.tensor(rows))
        before = list(chain.from_iterable(self.groups))
        self.groups = [
            [(before[row][0], list(before[row][1])) for row in group] for group in rows
        ]

    def join(self, other: "Hypotheses") -> None:
        self.state.join(other.state)
        self.groups += other.groups


def test_the_model_has_the_members_of_a_model(model: TransductionModel) -> None:
    assert isinstance(model, TransductionModel)
    assert isinstance(fuse(model), TransductionModel)


@torch.no_grad()
def test_steps_equal_a_pass_over_the_whole_target(model: TransductionModel) -> None:
    whole, state = logits_of(model, SOURCE, TARGET), model.start(model.encode(SOURCE))
    stepped = [model.step(column, state) for column in TARGET.split(1, dim=1)]
    is_token = TARGET != PAD
    assert_close(torch.cat(stepped, dim=1)[is_token], whole[is_token])


@torch.no_grad()
def test_reordered_and_joined_hypotheses_continue_as_alone(
    model: TransductionModel,
) -> None:
    first, second = Hypotheses(model, *SOURCES[:2]), Hypotheses(model, SOURCES[2])
    first.step([1], [1])
    first.reorder([0, 0], [1, 1])
    first.step([6, 9], [8, 4])
    first.reorder([1, 0], [3, 3])  # one hypothesis continues twice
    first.step([5, 11], [12, 4])
    first.reorder([3, 2])  # the first sentence ends
    second.step([1])
    second.reorder([0, 0])
    first.join(second)  # which has read fewer tokens, from a shorter source
    first.step([7, 3], [10, 9])
    first.reorder([3, 2], [0, 1])  # the sentences change places
    first.step([4, 5], [6, 4])
    first.reorder([1, 0])  # the sentence that joined ends
    first.step([3, 12])


@torch.no_grad()
def test_a_batch_equals_its_sentences_and_padding_has_no_influence(
    model: TransductionModel,
) -> None:
    """The embeddings of padding are far from zero, so that it could be seen."""
    for name, weight in model.named_parameters():
        if name.endswith("embedding.weight"):
            weight[PAD] += 5
    batch = logits_of(model, SOURCE, TARGET)
    padded = [nn.functional.pad(each, (0, 3)) for each in (SOURCE, TARGET)]
    more_padding = logits_of(model, *padded)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        [alone] = logits_of(model, torch.tensor([source]), torch.tensor([target]))
        assert_close(batch[row, : len(target)], alone)
        assert_close(more_padding[row, : len(target)], alone)


def test_no_position_depends_on_a_later_token(model: TransductionModel) -> None:
    embedded: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        if inputs and inputs[0] is TARGET and isinstance(output, Tensor):
            embedded.append(output)

    memory = model.encode(SOURCE)
    for _, module in model.named_modules():
        module.register_forward_hook(keep)
    states = model.decode(TARGET, memory)
    assert embedded
    numbers = torch.arange(1.0, 1 + states.size(-1))
    for found in torch.autograd.grad((states[:, 1] * numbers).sum(), embedded):
        assert (found[:, :2] != 0).any(dim=-1).all()
        assert (found[:, 2:] == 0).all()


@torch.no_grad()
def test_a_fused_model_has_the_same_weights_and_logits(
    model: TransductionModel,
) -> None:
    fused = fuse(model)
    assert_close(logits_of(fused, SOURCE, TARGET), logits_of(model, SOURCE, TARGET))
    shared = {id(parameter) for parameter in model.parameters()}
    assert {id(parameter) for parameter in fused.parameters()} == shared


def test_the_number_of_parameters_is_that_of_the_formula(
    model: TransductionModel,
) -> None:
    assert model.num_parameters() == num_parameters(model.config)


@torch.no_grad()
def test_taps_get_the_same_weights_in_steps_and_in_whole_sequences(
    model: TransductionModel,
) -> None:
    """The weights are distributions over the source without its padding."""
    taps = model.cross_attention_taps
    assert bool(taps) == model.config.has_cross_attention
    recorded: list[list[Tensor]] = [[] for _ in taps]
    for tap, found in zip(taps, recorded, strict=True):
        tap.register_forward_hook(lambda _, __, weights, to=found: to.append(weights))
    memory = model.encode(SOURCE)
    model.decode(TARGET, memory)
    state = model.start(memory)
    state.reorder(torch.tensor([[0, 0], [1, 1], [2, 2]]))
    for column in TARGET.split(1, dim=1):
        model.step(column.expand(-1, 2), state)
    is_token = (TARGET != PAD)[:, None, :, None]
    for whole, *steps in recorded:
        heads = whole.size(1)
        assert whole.shape == (len(SOURCE), heads, TARGET.size(1), SOURCE.size(1))
        assert_close(whole.sum(-1), torch.ones(whole.shape[:-1]))
        assert (whole.masked_select(SOURCE[:, None, None] == PAD) == 0).all()
        assert len(steps) == TARGET.size(1)
        for hypothesis in range(2):
            stepped = torch.cat([each[:, :, [hypothesis]] for each in steps], dim=2)
            assert_close(stepped.where(is_token, 0), whole.where(is_token, 0))


@pytest.mark.parametrize("fused", [False, True])
def test_a_source_of_padding_has_finite_logits_and_gradients(
    model: TransductionModel, fused: bool
) -> None:
    """A query that may attend to no token attends to all positions equally."""
    one, no_token = fuse(model) if fused else model, torch.full((1, 3), PAD)
    source, target = torch.cat([SOURCE[1:2, :3], no_token]), TARGET[:2, :3]
    logits = logits_of(one, source, target)
    logits.sum().backward()
    assert logits.isfinite().all()
    for parameter in one.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()
    state = one.start(one.encode(source))
    assert_close(one.step(target[:, :1], state), logits[:, :1].detach())


@torch.no_grad()
@pytest.mark.parametrize("fused", [False, True])
def test_a_batch_without_sentences_has_logits_of_none(
    model: TransductionModel, fused: bool
) -> None:
    one = fuse(model) if fused else model
    vocabulary = logits_of(one, SOURCE, TARGET).size(-1)
    no_source, no_target = SOURCE[:0], TARGET[:0]
    assert logits_of(one, no_source, no_target).shape == (*no_target.shape, vocabulary)
    state = one.start(one.encode(no_source))
    assert one.step(no_target[:, :1], state).shape == (0, 1, vocabulary)


@torch.no_grad()
def test_sequences_without_positions_are_read(model: TransductionModel) -> None:
    nothing = SOURCE[:, :0]
    logits = logits_of(model, nothing, TARGET)
    assert logits.isfinite().all()
    assert logits.shape == logits_of(model, SOURCE, TARGET).shape
    assert logits_of(model, SOURCE, nothing).shape == (3, 0, logits.size(-1))
