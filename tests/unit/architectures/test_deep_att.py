"""Deep-Att against independent formulas, and what its decoder must not see."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from rival_variants import DEEP_ATT
from transduce.architectures.config import DeepAttConfig, num_parameters
from transduce.architectures.deep_att import (
    DeepAtt,
    DeepAttMemory,
    FastForwardLayer,
)
from transduce.checkpoint import build
from transduce.errors import ConfigError
from transduce.experiments.presets import PRESETS

SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 4, 2, 0, 0], [3, 2, 0, 0, 0]])
TARGET = torch.tensor([[1, 11, 12, 13], [1, 14, 15, 0], [1, 16, 17, 18]])

Array = np.ndarray


@pytest.fixture
def model() -> DeepAtt:
    torch.manual_seed(3)
    model = build(DEEP_ATT)
    assert isinstance(model, DeepAtt)
    return model.eval()


def numpy_of(tensor: torch.Tensor) -> Array:
    return tensor.detach().double().numpy()


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm(module: FastForwardLayer, fs: Array) -> Array:
    """Outputs of a layer for the feed-forward vectors of one sentence."""
    recurrent = numpy_of(module.recurrent.weight)
    size = recurrent.shape[1]
    h, c, outputs = np.zeros(size), np.zeros(size), []
    for f in fs:
        gates = f + recurrent @ h
        i, k, g, o = (gates[n * size : (n + 1) * size] for n in range(4))
        c = sigmoid(k) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.array(outputs)


def affine(module: torch.nn.Linear, x: Array) -> Array:
    return x @ numpy_of(module.weight).T + numpy_of(module.bias)


def encoded(
    model: DeepAtt, ids: list[int], directions: list[list[int]], kept: float = 1.0
) -> Array:
    """Projected top vectors by the paper's equations, one sentence at a time.

    `kept` is the factor in the places of dropout.
    """
    tops = []
    for column, steps in zip(model.columns, directions, strict=True):
        inputs = numpy_of(model.embedding.weight)[ids]
        for module, step in zip(column, steps, strict=True):
            f = affine(module.feed_forward, inputs)
            h = lstm(module, f[::step])[::step]
            inputs = np.concatenate([f[:, : 2 * DEEP_ATT.d_model], kept * h], axis=1)
        tops += [h, f]
    return affine(model.project_top, np.concatenate(tops, axis=1))


def test_the_encoder_computes_interleaved_columns_with_fast_forward_connections(
    model: DeepAtt,
) -> None:
    memory = model.encode(SOURCE)
    for row, ids in enumerate(SOURCE.tolist()):
        words = [i for i in ids if i]
        expected = encoded(model, words, [[1, -1, 1], [-1, 1, -1]])
        values = numpy_of(memory.values[row, : len(words)])
        np.testing.assert_allclose(values, expected, atol=1e-5)


def test_columns_that_are_not_interleaved_keep_their_directions() -> None:
    torch.manual_seed(3)
    model = DeepAtt(replace(DEEP_ATT, interleaved=False)).eval()
    expected = encoded(model, [5, 6, 7, 8, 2], [[1, 1, 1], [-1, -1, -1]])
    values = numpy_of(model.encode(SOURCE[:1]).values[0])
    np.testing.assert_allclose(values, expected, atol=1e-5)


def decoded(model: DeepAtt, memory: DeepAttMemory, kept: float = 1.0) -> Array:
    """Outputs of the top layer for the first target, by the paper's equations."""
    values, keys = numpy_of(memory.values[0]), numpy_of(memory.keys[0])
    first, *others = model.decoder_layers
    recurrent, score = numpy_of(first.recurrent.weight), numpy_of(model.score.weight)[0]
    query = numpy_of(model.project_query.weight)
    size = DEEP_ATT.d_model
    h, c, fs, hs = np.zeros(size), np.zeros(size), [], []
    for y in numpy_of(model.embedding.weight)[TARGET[0].tolist()]:
        scores = np.tanh(query @ h + keys) @ score
        weights = np.exp(scores) / np.exp(scores).sum()
        f = affine(first.feed_forward, np.concatenate([y, weights @ values]))
        i, k, g, o = np.split(f + recurrent @ h, 4)
        c = sigmoid(k) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        fs.append(f)
        hs.append(h)
    f, h = np.array(fs), np.array(hs)
    for layer in others:
        inputs = np.concatenate([f[:, : 2 * size], kept * h], axis=1)
        f = affine(layer.feed_forward, inputs)
        h = lstm(layer, f)
    return kept * h


def test_the_decoder_attends_by_the_first_layer_and_predicts_from_the_last(
    model: DeepAtt,
) -> None:
    memory = model.encode(SOURCE[:1])
    states = numpy_of(model.decode(TARGET[:1], memory)[0])
    np.testing.assert_allclose(states, decoded(model, memory), atol=1e-5)


def test_dropout_is_at_the_outputs_that_go_to_the_next_layer(model: DeepAtt) -> None:
    model.dropout.register_forward_hook(lambda _, __, kept: 0.5 * kept)
    memory = model.encode(SOURCE[:1])
    expected = encoded(model, SOURCE[0].tolist(), [[1, -1, 1], [-1, 1, -1]], kept=0.5)
    np.testing.assert_allclose(numpy_of(memory.values[0]), expected, atol=1e-5)
    states = numpy_of(model.decode(TARGET[:1], memory)[0])
    np.testing.assert_allclose(states, decoded(model, memory, kept=0.5), atol=1e-5)


def test_first_biases_are_zero_but_for_forget_gates(model: DeepAtt) -> None:
    for layer in model.modules():
        if isinstance(layer, FastForwardLayer):
            bias = layer.feed_forward.bias.tolist()
            assert bias == [0.0] * 8 + [1.0] * 8 + [0.0] * 16


def test_the_default_sizes_are_those_of_the_paper() -> None:
    config = DeepAttConfig()
    assert (config.top_width, config.context_width) == (5_120, 1_280)
    # By hand: layers of (inputs + 512 + 1) x 2,048, of which the first of a column has
    # 256 inputs, the first of the decoder 256 + 1,280, and all others 1,024 + 512.
    column = (256 + 513 + 8 * (1_536 + 513)) * 2_048
    decoder = 7 * (1_536 + 513) * 2_048
    attention = 5_121 * 1_280 + 1_281 * 512 + 512 * 512 + 512
    words = 80_000 * (256 + 513)
    assert num_parameters(config) == 2 * column + decoder + attention + words


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("deep-att-en-de", 107.9 + 79_000 * 769 / 1e6),
        ("deep-att-multi30k", 2.08),
    ],
)
def test_presets_have_their_numbers_of_parameters(name: str, millions: float) -> None:
    config = PRESETS[name]
    assert isinstance(config.model, DeepAttConfig)
    assert config.tokenizer.kind == "word"
    model = replace(config.model, vocab_size=config.tokenizer.vocab_size)
    assert num_parameters(model) / 1e6 == pytest.approx(millions, abs=0.05)


def test_the_flops_of_an_update_grow_with_both_lengths(model: DeepAtt) -> None:
    def flops(source: int, target: int) -> int:
        return model.update_flops(np.array([source]), np.array([target]))

    cells, context = DEEP_ATT.d_model, DEEP_ATT.context_width
    by_score = 6 * (cells + context)
    assert flops(3, 2) - flops(3, 1) - (flops(2, 2) - flops(2, 1)) == by_score
    layer = (3 * cells + cells) * 4 * cells
    first = (6 + context + cells) * 4 * cells
    target = first + 2 * layer + cells * cells + cells * 20 + 3 * (cells + context)
    assert flops(3, 2) - flops(3, 1) == 6 * target


def test_flops_are_those_that_pytorch_counts(model: DeepAtt) -> None:
    source, target = torch.full((3, 5), 7), torch.full((3, 4), 8)
    with FlopCounterMode(display=False) as counter:
        model.logits(model.decode(target, model.encode(source)))
    flops = model.update_flops(np.full(3, 5), np.full(3, 4))
    assert flops == 3 * counter.get_total_flops()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": 3}, "`model.columns` must be at most 2"),
        ({"d_model": 6}, "must be a multiple of 4"),
        ({"fast_forward": "third"}, "`model.fast_forward` must be"),
        ({"dropout": 1.0}, "`model.dropout` must be"),
    ],
)
def test_settings_out_of_range_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(DEEP_ATT, **settings)
