"""Recurrent models: cells, attention, and decoding against equations written out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rival_variants import LUONG, RECURRENT, RECURRENTS, RNNSEARCH
from transduce.architectures.config import num_parameters
from transduce.architectures.recurrent import (
    Attention,
    RecurrentLayer,
    RecurrentMemory,
    RecurrentModel,
    RecurrentStack,
    build_attention,
    initialize_uniform,
    reversed_order,
)
from transduce.checkpoint import build
from transduce.errors import ConfigError
from transduce.experiments.presets import PRESETS
from transduce.text.vocabulary import PAD

SOURCE = torch.tensor([[5, 6, 7, 8, 9, 2], [10, 11, 12, 2, 0, 0], [13, 2, 0, 0, 0, 0]])


# Reference equations, for one sentence in numpy

Array = np.ndarray
Cell = Callable[[Array, Array], Array]


def numbers(tensor: Tensor) -> Array:
    return tensor.detach().double().numpy()


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def cell_of(layer: RecurrentLayer) -> Cell:
    """Function of an input and a state that returns the next state."""
    rnn = layer.rnn
    w, u = numbers(rnn.weight_ih_l0), numbers(rnn.weight_hh_l0)
    b, c = numbers(rnn.bias_ih_l0), numbers(rnn.bias_hh_l0)
    size = rnn.hidden_size

    def lstm(x: Array, state: Array) -> Array:
        hidden, cell = np.split(state, [-size])
        i, f, g, o = np.split(w @ x + u @ hidden + b + c, 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
        if rnn.proj_size:
            hidden = numbers(rnn.weight_hr_l0) @ hidden
        return np.concatenate([hidden, cell])

    def gru(x: Array, state: Array) -> Array:
        (r, z, n), (ur, uz, un) = (
            np.split(w @ x + b, 3),
            np.split(u @ state + c, 3),
        )
        r, z = sigmoid(r + ur), sigmoid(z + uz)
        return (1 - z) * np.tanh(n + r * un) + z * state

    return gru if isinstance(rnn, nn.GRU) else lstm


def run(layer: RecurrentLayer, xs: list[Array], state: Array) -> list[Array]:
    """Hidden states of a layer."""
    cell, states = cell_of(layer), []
    for x in xs:
        state = cell(x, state)
        states.append(state[: layer.output_width])
    return states


@pytest.mark.parametrize(
    ("cell", "projection"), [("lstm", None), ("lstm", 3), ("gru", None)]
)
def test_a_layer_computes_the_equations_of_its_cell(cell, projection) -> None:
    layer = RecurrentLayer(cell, 4, 5, projection)
    initialize_uniform(layer, 0.5)
    x, state = torch.randn(2, 6, 4), torch.randn(2, layer.state_width)
    outputs, last = layer(x, state)
    assert last.shape == state.shape
    for row in range(2):
        found = run(layer, list(numbers(x[row])), numbers(state[row]))
        np.testing.assert_allclose(numbers(outputs[row]), found, atol=1e-6)
    np.testing.assert_allclose(
        numbers(last[:, : layer.output_width]), numbers(outputs[:, -1])
    )
    part = outputs
    first, middle = layer(x[:, :2], state)
    rest, _ = layer(x[:, 2:], middle)
    torch.testing.assert_close(torch.cat([first, rest], dim=1), part)


def test_last_states_are_those_at_the_lengths() -> None:
    layer = RecurrentLayer("lstm", 4, 5)
    x, lengths = torch.randn(3, 6, 4), torch.tensor([2, 6, 3])
    outputs, last = layer(x, None, lengths)
    for row, length in enumerate(lengths):
        alone, state = layer(x[row : row + 1, :length])
        torch.testing.assert_close(outputs[row : row + 1, :length], alone)
        torch.testing.assert_close(last[row : row + 1], state)


def test_rows_are_reversed_within_their_lengths() -> None:
    order = reversed_order(torch.tensor([4, 2, 1]), 4)
    assert order.tolist() == [[3, 2, 1, 0], [1, 0, 2, 3], [0, 1, 2, 3]]


def scores_of(attention: Attention, query: Array, states: Array) -> Array:
    parameters = {name: numbers(p) for name, p in attention.named_parameters()}
    keys = states @ parameters["project_keys.weight"].T
    if "project_query.weight" not in parameters:
        return keys @ query
    query = parameters["project_query.weight"] @ query
    vector = parameters["vector"]
    match type(attention).__name__:
        case "AdditiveAttention":
            return np.tanh(keys + query) @ vector
        case "NormedAdditiveAttention":
            vector = parameters["gain"] * vector / np.sqrt((vector**2).sum())
            return np.tanh(keys + query + parameters["bias"]) @ vector
        case _:
            return np.tanh(keys) @ (vector * np.tanh(query))


def attend(attention: Attention, query: Array, states: list[Array]) -> Array:
    scores = np.exp(scores_of(attention, query, np.array(states)))
    return scores / scores.sum() @ np.array(states)


@pytest.mark.parametrize(
    "kind", ["additive", "normed-additive", "general", "tanh-product"]
)
def test_attention_computes_the_equations_of_its_score(kind) -> None:
    config = replace(RECURRENT, attention=kind, attention_width=7)
    attention = build_attention(config)
    initialize_uniform(attention, 0.7)
    states, query = torch.randn(1, 5, 12), torch.randn(1, 2, 12)
    memory = RecurrentMemory(
        states=states,
        keys=attention.keys(states),
        mask=torch.tensor([True, True, True, False, True])[None, None, None],
        initial=torch.zeros(1, 1, 24),
    )
    weights = attention.weights(query, memory)
    assert (weights[..., 3] == 0).all()
    kept = [0, 1, 2, 4]
    for place in range(2):
        found = numbers(weights[0, 0, place, kept])
        scores = scores_of(
            attention, numbers(query[0, place]), numbers(states[0, kept])
        )
        np.testing.assert_allclose(
            found, np.exp(scores) / np.exp(scores).sum(), atol=1e-6
        )


def encoded(model: RecurrentModel, source: list[int]) -> list[Array]:
    """States of the encoder, its residual connections from the third layer on."""
    encoder, config = model.encoder, model.config
    xs = list(numbers(model.embedding.weight[source]))
    zero = np.zeros(encoder.lowest.state_width)
    states = run(encoder.lowest, xs, zero)
    if encoder.backward_layer is not None:
        backward = run(encoder.backward_layer, xs[::-1], zero)[::-1]
        states = [np.concatenate(both) for both in zip(states, backward, strict=True)]
    upper = [] if encoder.upper is None else encoder.upper.layers
    for number, layer in enumerate(upper, start=2):
        outputs = run(layer, states, zero)
        is_residual = number >= (config.residual_from or 99)
        states = (
            [x + y for x, y in zip(states, outputs, strict=True)]
            if is_residual
            else outputs
        )
    return states


def embedded(model: RecurrentModel, target: list[int]) -> list[Array]:
    embedding = model.target_embedding or model.embedding
    return list(numbers(embedding.weight[target]))


@pytest.mark.parametrize("name", ["deep", "gnmt-v2", "unfed"])
def test_gnmt_computes_its_equations(name: str) -> None:
    model = build(RECURRENTS[name]).eval()
    initialize_uniform(model, 0.4)
    source, target = [5, 6, 7, 2], [1, 8, 9, 10]
    memory, attention = encoded(model, source), model.attentive.attention
    [lowest], upper = model.attentive.stack.layers, model.upper.layers
    size = model.config.d_model
    states = [np.zeros(2 * size) for _ in range(1 + len(upper))]
    context, outputs = np.zeros(size), []
    for x in embedded(model, target):
        if name == "deep":  # the first version: the query is the state before
            context = attend(attention, states[0][:size], memory)
        inputs = x if name == "unfed" else np.concatenate([x, context])
        states[0] = cell_of(lowest)(inputs, states[0])
        y = states[0][:size]
        if name != "deep":
            context = attend(attention, y, memory)
        for number, layer in enumerate(upper, start=2):
            states[number - 1] = cell_of(layer)(
                np.concatenate([y, context]), states[number - 1]
            )
            y = states[number - 1][:size] + (y if number >= 3 else 0)
        outputs.append(numbers(model.output_weight) @ y)
    found = model(torch.tensor([source]), torch.tensor([target]))
    np.testing.assert_allclose(numbers(found[0]), outputs, atol=1e-5)


@pytest.mark.parametrize("is_fed", [True, False])
def test_the_model_of_luong_computes_its_equations(is_fed: bool) -> None:
    config = replace(LUONG, input_feeding=is_fed, readout_width=5, initial_state="zero")
    model = build(config).eval()
    initialize_uniform(model, 0.4)
    source, target = [5, 6, 7, 2], [1, 8, 9, 10]
    memory, attention = encoded(model, source), model.attentive.attention
    states, fed, outputs = [np.zeros(24), np.zeros(24)], np.zeros(5), []
    for x in embedded(model, target):
        y = np.concatenate([x, fed]) if is_fed else x
        for number, layer in enumerate(model.attentive.stack.layers):
            states[number] = cell_of(layer)(y, states[number])
            y = states[number][:12]
        context = attend(attention, y, memory)
        combine = numbers(model.attentive.combine.weight)
        fed = np.tanh(combine @ np.concatenate([context, y]))
        outputs.append(numbers(model.output_weight) @ fed)
    found = model(torch.tensor([source]), torch.tensor([target]))
    np.testing.assert_allclose(numbers(found[0]), outputs, atol=1e-5)


def test_rnnsearch_computes_its_equations() -> None:
    model = build(RNNSEARCH).eval()
    initialize_uniform(model, 0.4)
    source, target = [5, 6, 7, 2], [1, 8, 9, 10]
    memory, attention = encoded(model, source), model.attentive.attention
    initial, linear = model.project_initial, model.maxout.linear
    backward = memory[0][12:]
    state = np.tanh(numbers(initial.weight) @ backward + numbers(initial.bias))
    cell, outputs = cell_of(model.attentive.stack.layers[0]), []
    for x in embedded(model, target):
        context = attend(attention, state, memory)
        read = np.concatenate([state, x, context])
        t = numbers(linear.weight) @ read + numbers(linear.bias)
        outputs.append(numbers(model.output_weight) @ np.maximum(t[::2], t[1::2]))
        state = cell(np.concatenate([x, context]), state)
    found = model(torch.tensor([source]), torch.tensor([target]))
    np.testing.assert_allclose(numbers(found[0]), outputs, atol=1e-5)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_decoder_begins_with_the_last_states_of_the_encoder(bidirectional) -> None:
    config = replace(LUONG, bidirectional=bidirectional)
    model = build(config).eval()
    initial = model.encode(SOURCE).initial
    for row, found in zip(SOURCE, initial, strict=True):
        x = model.embedding(row[row != PAD])[None]
        forward, last = model.encoder.lowest(x)
        both = forward
        if bidirectional:
            backward, last = model.encoder.backward_layer(x.flip(1))
            both = torch.cat([forward, backward.flip(1)], dim=-1)
        _, upper = model.encoder.upper.layers[0](both)
        torch.testing.assert_close(found, torch.cat([last, upper]))


# Settings and initial weights


def test_dropout_is_at_the_inputs_of_all_layers() -> None:
    widths = [4, 5, 5]
    layers = [RecurrentLayer("lstm", width, 4) for width in widths]
    stack = RecurrentStack(layers, 0.5, 1)
    seen: list[Tensor] = []
    stack.dropout.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    x, context = torch.randn(2, 5, 3), torch.randn(2, 5, 1)
    stack(x, None, context)
    assert [each.shape[-1] for each in seen] == widths
    assert all(torch.equal(each[..., -1:], context) for each in seen)


def test_initial_weights_are_uniform_in_the_range() -> None:
    model = build(replace(RECURRENTS["deep"], initial_range=0.1))
    for name, parameter in model.named_parameters():
        if "bias" in name or name.endswith("gain"):
            continue
        assert parameter.abs().max() <= 0.1
        assert parameter.abs().max() > 0.07
        assert abs(parameter.std() - 0.1 / 3**0.5) < 0.02


def test_first_biases_are_zero_but_for_forget_gates() -> None:
    model = build(RECURRENTS["deep"])
    attention = model.attentive.attention
    assert attention.gain.item() == pytest.approx(12**-0.5)
    assert (attention.bias == 0).all()
    for layer in model.modules():
        if isinstance(layer, RecurrentLayer):
            both = layer.rnn.bias_ih_l0 + layer.rnn.bias_hh_l0
            assert both.tolist() == [0.0] * 12 + [1.0] * 12 + [0.0] * 24


def test_initial_weights_of_rnnsearch_are_orthogonal_and_normal() -> None:
    config = replace(RNNSEARCH, initial_weights="orthogonal", attention_width=None)
    model = build(replace(config, d_model=64, readout_width=64))
    for gate in model.encoder.lowest.rnn.weight_hh_l0.split(64):
        torch.testing.assert_close(gate @ gate.T, torch.eye(64), atol=1e-4, rtol=0)
    assert model.embedding.weight.std().item() == pytest.approx(0.01, rel=0.2)
    attention = model.attentive.attention
    assert attention.project_query.weight.std().item() == pytest.approx(0.001, rel=0.2)
    assert (attention.vector == 0).all()


def test_normed_attention_has_a_direction_whatever_the_initial_weights() -> None:
    orthogonal = replace(RNNSEARCH, initial_weights="orthogonal")
    model = build(replace(orthogonal, attention="normed-additive"))
    ids = torch.tensor([[3, 4, 5]])
    assert model(ids, ids).isfinite().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell": "rnn"}, 'cell` must be "lstm" or "gru", but is "rnn"'),
        (
            {"attention": "dot"},
            'attention` must be "additive", "normed-additive", ',
        ),
        ({"d_model": 0}, "d_model` must be at least 1"),
        ({"encoder_layers": 10_000}, "encoder_layers` must be at most 1,000"),
        ({"dropout": 1.0}, "dropout` must be at least 0 and below 1"),
        ({"residual_from": 2}, "residual_from` must be at least 3"),
        ({"initial_range": 0.0}, "initial_range` must be at least"),
        ({"readout": "attentional"}, 'attention_query` must be "current"'),
        ({"readout": "maxout"}, "decoder_layers` must be 1"),
        ({"initial_state": "encoder", "decoder_layers": 4}, "but is 4 and not 2"),
        (
            {"initial_state": "projected", "bidirectional": False},
            "bidirectional` must be true",
        ),
        ({"attention_query": "current", "decoder_layers": 1}, "at least 2"),
        ({"tied_output": True, "embedding_width": 5}, "they are 5 and 12 wide"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match="^`model") as caught:
        replace(RECURRENT, **changes)
    assert message in str(caught.value)
    assert str(caught.value).count(". ") == 0


def num_weights(gates: int, inputs: int, width: int) -> int:
    """Weights of a recurrent layer, with the two bias vectors of PyTorch."""
    return gates * width * (inputs + width + 2)


def test_gnmt_has_the_size_of_its_paper() -> None:
    encoder = 2 * num_weights(4, 1024, 1024) + num_weights(4, 2048, 1024)
    encoder += 6 * num_weights(4, 1024, 1024)
    decoder = 8 * num_weights(4, 2048, 1024)
    attention = 2 * 1024 * 1024 + 1024 + 1024 + 1
    embeddings = 3 * 32_000 * 1024
    expected = encoder + decoder + attention + embeddings
    assert num_parameters_of("gnmt-en-de") == expected
    assert num_parameters_of("gnmt-en-fr") == expected
    # Shazeer et al. (2017) give 278 million.
    assert expected == pytest.approx(278e6, rel=0.015)


def test_rnnsearch_has_the_size_of_its_paper() -> None:
    recurrent = 2 * num_weights(3, 620, 1000) + num_weights(3, 620 + 2000, 1000)
    attention = 1000 * (1000 + 2000) + 1000
    readout = 2 * 500 * (1000 + 620 + 2000 + 1)
    embeddings = 2 * 30_000 * 620 + 30_000 * 500
    expected = recurrent + attention + readout + 1000 * 1001 + embeddings
    assert num_parameters_of("rnnsearch-en-fr") == expected


def num_parameters_of(name: str) -> int:
    preset = PRESETS[name]
    config = replace(preset.model, vocab_size=preset.tokenizer.vocab_size)
    with torch.device("meta"):
        model = build(config)
    assert model.num_parameters() == num_parameters(config)
    return model.num_parameters()


@pytest.mark.parametrize("name", ["gnmt-multi30k", "rnnsearch-multi30k"])
def test_small_presets_have_about_two_million_parameters(name: str) -> None:
    config = replace(PRESETS[name].model, vocab_size=6_000)
    assert 1.8e6 < config.num_parameters < 2.2e6


def test_the_cost_of_an_update_is_counted_by_hand() -> None:
    """Three times the forward products, of 4 + 3 source and 5 + 2 target tokens."""
    model = build(replace(RECURRENT, vocab_size=30, d_model=10, embedding_width=6))
    directions, upper = 2 * 40 * (6 + 10), 40 * (20 + 10)
    encoder, keys = directions + upper, 10 * 10
    decoder = 40 * (6 + 10 + 10) + 40 * (10 + 10 + 10)
    query, output = 10 * 10, 30 * 10
    pairs = 4 * 5 + 3 * 2
    products = 7 * (encoder + keys) + 7 * (decoder + query + output) + pairs * (10 + 10)
    found = model.update_flops(np.array([4, 3]), np.array([5, 2]))
    assert found == 3 * 2 * products


def test_the_cost_of_a_projected_first_state_is_counted_once_a_pair() -> None:
    model = build(RNNSEARCH)

    def flops(*source_lengths: int) -> int:
        lengths = np.array(source_lengths)
        return model.update_flops(lengths, np.zeros_like(lengths))

    width = RNNSEARCH.d_model
    assert flops(2, 2) - flops(4) == 3 * 2 * width * width
