"""Recurrent models: cells, attention, and decoding against equations written out."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from transduce.architectures.config import RecurrentConfig
from transduce.architectures.models import CachedState, TransductionModel, build
from transduce.architectures.recurrent import RecurrentModel
from transduce.nn.fuse import fuse
from transduce.text.vocabulary import PAD

VOCAB = 30
SMALL = RecurrentConfig(
    vocab_size=VOCAB,
    encoder_layers=2,
    decoder_layers=2,
    d_model=12,
    dropout=0.0,
    residual_from=3,
    initial_range=0.4,
)
LUONG = replace(
    SMALL,
    attention="general",
    attention_query="current",
    readout="attentional",
    bidirectional=False,
    residual_from=None,
    initial_state="encoder",
)
RNNSEARCH = replace(
    SMALL,
    cell="gru",
    encoder_layers=1,
    decoder_layers=1,
    embedding_width=10,
    attention_width=7,
    readout_width=6,
    readout="maxout",
    residual_from=None,
    initial_state="projected",
)
VARIANTS = {
    "gnmt": SMALL,
    "deep": replace(
        SMALL,
        encoder_layers=4,
        decoder_layers=4,
        attention="normed-additive",
        forget_bias=1.0,
    ),
    "gnmt-v2": replace(SMALL, attention_query="current"),
    "unfed": replace(
        SMALL, decoder_layers=3, attention_query="current", input_feeding=False
    ),
    "last-states": replace(SMALL, initial_state="encoder"),
    "luong": LUONG,
    "luong-unfed": replace(LUONG, input_feeding=False, readout_width=5),
    "luong-residual": replace(LUONG, residual_from=2, bidirectional=False),
    "rnnsearch": RNNSEARCH,
    "rnnsearch-lstm": replace(RNNSEARCH, cell="lstm", attention_query="current"),
    "projected-gru": replace(SMALL, cell="gru", initial_state="projected"),
    "tied": replace(
        SMALL, shared_embedding=True, tied_output=True, attention="tanh-product"
    ),
    "own-target": replace(SMALL, target_vocab_size=17, shared_embedding=True),
}
SOURCE = torch.tensor([[5, 6, 7, 8, 9, 2], [10, 11, 12, 2, 0, 0], [13, 2, 0, 0, 0, 0]])
TARGET = torch.tensor([[1, 5, 6, 7, 8], [1, 9, 10, 11, 12], [1, 13, 14, 15, 16]])


@pytest.fixture(params=VARIANTS, name="model")
def _model(request: pytest.FixtureRequest) -> RecurrentModel:
    model = build(VARIANTS[request.param]).eval()
    assert isinstance(model, RecurrentModel)
    for name, parameter in model.named_parameters():
        if "bias" in name:
            nn.init.uniform_(parameter, -0.3, 0.3)
    return model


def every_step(
    model: RecurrentModel, ids: Tensor, state: CachedState
) -> Iterator[Tensor]:
    for column in ids.split(1, dim=1):
        yield model.step(column, state)


def test_a_recurrent_model_has_the_members_of_a_model(model: RecurrentModel) -> None:
    assert isinstance(model, TransductionModel)


def test_steps_equal_a_pass_over_the_whole_target(model: RecurrentModel) -> None:
    memory = model.encode(SOURCE)
    whole = model.logits(model.decode(TARGET, memory))
    stepped = list(every_step(model, TARGET, model.start(memory)))
    torch.testing.assert_close(torch.cat(stepped, dim=1), whole)


def test_a_batch_equals_its_sentences_alone(model: RecurrentModel) -> None:
    together = model(SOURCE, TARGET)
    for row, target, found in zip(SOURCE, TARGET, together, strict=True):
        alone = model(row[row != PAD][None], target[None])
        torch.testing.assert_close(found, alone[0])


def test_padding_has_no_influence(model: RecurrentModel) -> None:
    padded = nn.functional.pad(SOURCE, (0, 4))
    torch.testing.assert_close(model(padded, TARGET), model(SOURCE, TARGET))
    with torch.no_grad():
        model.embedding.weight[PAD] += 5
    before = model(SOURCE[2:, :2], TARGET[2:])
    torch.testing.assert_close(model(padded, TARGET)[2:], before)


def test_no_later_token_has_influence(model: RecurrentModel) -> None:
    embedded: list[Tensor] = []
    embedding = model.target_embedding or model.embedding
    embedding.register_forward_hook(lambda _, __, found: embedded.append(found))
    memory = model.encode(SOURCE)
    states = model.decode(TARGET, memory)
    [gradient] = torch.autograd.grad(states[:, 2].sum(), embedded[-1])
    assert (gradient[:, :3] != 0).any(dim=-1).all()
    assert (gradient[:, 3:] == 0).all()


def test_the_fused_model_computes_the_same(model: RecurrentModel) -> None:
    fused = fuse(model)
    torch.testing.assert_close(fused(SOURCE, TARGET), model(SOURCE, TARGET))
    shared = {id(parameter) for parameter in model.parameters()}
    assert {id(parameter) for parameter in fused.parameters()} == shared


def test_the_number_of_parameters_follows_from_the_settings(
    model: RecurrentModel,
) -> None:
    assert model.num_parameters() == model.config.num_parameters
