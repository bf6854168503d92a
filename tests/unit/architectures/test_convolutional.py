"""ConvS2S equals the formulas of Gehring et al. (2017), whole and step by step."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from rival_variants import CONVOLUTIONAL, CONVOLUTIONALS
from transduce.architectures.config import (
    Convolution,
    ConvolutionalConfig,
    convolutions,
)
from transduce.architectures.convolutional import (
    Convolutional,
    EncoderBlock,
    NormalizedLinear,
    scaled_gradient,
    windows,
)
from transduce.checkpoint import Checkpoint, average, load_model, save_model
from transduce.errors import ConfigError
from transduce.experiments.presets import PRESETS
from transduce.nn.fuse import fuse
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import PAD

SOURCE = torch.tensor([[5, 9, 4, 17, 2], [8, 2, PAD, PAD, PAD]])
TARGET_IN = torch.tensor([[1, 6, 22, 7, 3], [1, 11, PAD, PAD, PAD]])


@pytest.fixture(params=CONVOLUTIONALS.values(), ids=CONVOLUTIONALS)
def model(request: pytest.FixtureRequest) -> Convolutional:
    """Model with random gains, biases and embeddings of size one."""
    model = Convolutional(request.param).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.weight.mul_(10)
    return model


class PaperModel:
    """Section 3 by loops over positions in double precision.

    `kept` is the factor in the places of dropout.
    """

    def __init__(self, model: Convolutional, kept: float = 1.0) -> None:
        self.config = model.config
        self.kept = kept
        self.weights = {
            name: weight.detach().numpy().astype(np.float64)
            for name, weight in model.state_dict().items()
        }

    def logits(self, source: list[int], target_in: list[int]) -> np.ndarray:
        e = [self.embed("source", w, i) for i, w in enumerate(source)]
        z = [self.linear(x, "encoder_input") for x in e]
        for n, (_, kernel) in enumerate(self.config.encoder_convolutions):
            name, before = f"encoder_blocks.{n}", (kernel - 1) // 2
            z = [
                math.sqrt(0.5) * (self.gated(z, i - before, kernel, name) + residual)
                for i, residual in enumerate(self.residuals(z, name))
            ]
        z = [self.linear(x, "encoder_output") for x in z]
        g = [self.embed("target", w, i) for i, w in enumerate(target_in)]
        h = [self.linear(x, "decoder_input") for x in g]
        for n, (_, kernel) in enumerate(self.config.decoder_convolutions):
            name, before = f"decoder_blocks.{n}", kernel - 1
            states = [self.gated(h, i - before, kernel, name) for i in range(len(h))]
            states = [
                self.attend(x, g[i], z, e, f"{name}.attention")
                for i, x in enumerate(states)
            ]
            h = [
                math.sqrt(0.5) * (x + residual)
                for x, residual in zip(states, self.residuals(h, name), strict=True)
            ]
        states = [self.kept * self.linear(x, "decoder_output") for x in h]
        if self.config.shared_embedding:
            matrix = self.weights["embedding.weight"]
            return np.array([matrix @ x + self.weights["shared_bias"] for x in states])
        return np.array([self.linear(x, "output") for x in states])

    def embed(self, side: str, token: int, position: int) -> np.ndarray:
        has_own = side == "target" and not self.config.shared_embedding
        tokens = "own_target_embedding" if has_own else "embedding"
        row = min(position, self.config.max_positions - 1)
        positions = self.weights[f"{side}_positions.table.weight"]
        return self.kept * (self.weights[f"{tokens}.weight"][token] + positions[row])

    def gated(
        self, xs: list[np.ndarray], first: int, kernel: int, name: str
    ) -> np.ndarray:
        zeros = np.zeros_like(xs[0])
        inside = [
            xs[i] if 0 <= i < len(xs) else zeros for i in range(first, first + kernel)
        ]
        window = self.kept * np.concatenate(inside)
        a, b = np.split(self.linear(window, f"{name}.convolution"), 2)
        return a / (1 + np.exp(-b))

    def residuals(self, xs: list[np.ndarray], name: str) -> list[np.ndarray]:
        if f"{name}.residual.weight" not in self.weights:
            return xs
        return [self.linear(x, f"{name}.residual") for x in xs]

    def attend(
        self,
        x: np.ndarray,
        g: np.ndarray,
        z: list[np.ndarray],
        e: list[np.ndarray],
        name: str,
    ) -> np.ndarray:
        d = math.sqrt(0.5) * (self.linear(x, f"{name}.project_query") + g)
        exponentials = [math.exp(d @ each) for each in z]
        context = sum(
            a / sum(exponentials) * math.sqrt(0.5) * (z_j + e_j)
            for a, z_j, e_j in zip(exponentials, z, e, strict=True)
        )
        context = context * len(z) * math.sqrt(1 / len(z))
        return math.sqrt(0.5) * (x + self.linear(context, f"{name}.project_output"))

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        rows = [
            gain * row / np.sqrt((row**2).sum())
            for gain, row in zip(
                self.weights[f"{name}.gain"],
                self.weights[f"{name}.weight"],
                strict=True,
            )
        ]
        return np.array(rows) @ x + self.weights[f"{name}.bias"]


def test_the_model_equals_the_formulas(model: Convolutional) -> None:
    paper = PaperModel(model)
    with torch.no_grad():
        logits = model(SOURCE, TARGET_IN)
    for source, target_in, found in zip(SOURCE, TARGET_IN, logits, strict=True):
        tokens = target_in[target_in != PAD].tolist()
        expected = paper.logits(source[source != PAD].tolist(), tokens)
        np.testing.assert_allclose(found[: len(tokens)], expected, atol=1e-4)


def test_dropout_is_at_embeddings_convolution_inputs_and_outputs(
    model: Convolutional,
) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda _, __, kept: 0.5 * kept)
    expected = PaperModel(model, kept=0.5).logits(SOURCE[0].tolist(), [1, 6, 22])
    with torch.no_grad():
        found = model(SOURCE[:1], TARGET_IN[:1, :3])[0]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_weight_normalization_equals_that_of_torch() -> None:
    layer, x = NormalizedLinear(7, 5), torch.randn(2, 3, 7)
    layer.gain.data.copy_(torch.rand(5) + 0.5)
    weight, gain = (
        each.detach().clone().requires_grad_() for each in (layer.weight, layer.gain)
    )
    expected = functional.linear(
        x, torch._weight_norm(weight, gain[:, None], 0), layer.bias
    )
    for y in (expected, layer(x)):
        (y * torch.arange(5)).sum().backward()
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer.weight.grad, weight.grad)
    torch.testing.assert_close(layer.gain.grad, gain.grad)


def test_weight_normalization_does_not_change_the_initial_weights() -> None:
    layer = NormalizedLinear(64, 2_000, variance=4.0, dropout=0.2)
    torch.testing.assert_close(layer.matrix, layer.weight)
    assert float(layer.weight.detach().std()) == pytest.approx(
        math.sqrt(4 * 0.8 / 64), rel=0.02
    )


def test_initial_weights_have_the_deviations_of_section_3_5() -> None:
    # N(0, sqrt(4 p / n)) before gates, N(0, sqrt(p / n)) where inputs are dropped with
    # rate 1 - p, and N(0, sqrt(1 / n)) elsewhere.
    model = Convolutional(
        ConvolutionalConfig(
            vocab_size=90, encoder_blocks="1x80k3", d_embedding=70, dropout=0.5
        )
    )
    found = {
        name: module.weight.std().item() * module.in_features**0.5
        for name, module in model.named_modules()
        if isinstance(module, NormalizedLinear)
    }
    dropped = dict.fromkeys(("encoder_input", "decoder_input", "output"), 0.5**0.5)
    gates = ("encoder_blocks.0.convolution", "decoder_blocks.0.convolution")
    expected = dict.fromkeys(found, 1.0) | dropped | dict.fromkeys(gates, 2**0.5)
    assert found == pytest.approx(expected, rel=0.05)
    for name in ("embedding", "own_target_embedding", "target_positions.table"):
        assert model.get_submodule(name).weight.std().item() == pytest.approx(
            0.1, rel=0.05
        )


def test_a_kept_matrix_follows_changes_of_the_weights() -> None:
    layer, x = NormalizedLinear(4, 3).eval(), torch.randn(2, 4)
    with torch.no_grad():
        before = layer(x)
        assert layer.matrix is layer.matrix
        layer.gain.mul_(2)
        torch.testing.assert_close(layer(x) - layer.bias, 2 * (before - layer.bias))
        layer.train()  # fused optimizers change weights unseen
        layer.gain.data.mul_(2)
        layer.eval()
        torch.testing.assert_close(layer(x) - layer.bias, 4 * (before - layer.bias))


def test_a_kept_matrix_follows_another_gain() -> None:
    layer, x = NormalizedLinear(4, 3).eval(), torch.randn(2, 4)
    with torch.no_grad():
        before = layer(x)
        layer.gain = nn.Parameter(2 * layer.gain)
        torch.testing.assert_close(layer(x), 2 * before)


@pytest.mark.parametrize(("kernel", "before"), [(3, 1), (3, 2), (2, 0), (5, 4), (1, 0)])
def test_a_map_of_windows_is_a_convolution(kernel: int, before: int) -> None:
    x, weight = torch.randn(2, 6, 4), torch.randn(5, kernel * 4)
    padded = functional.pad(x, (0, 0, before, kernel - 1 - before)).transpose(1, 2)
    taps = weight.unflatten(1, (kernel, 4)).transpose(1, 2)
    expected = functional.conv1d(padded, taps).transpose(1, 2)
    torch.testing.assert_close(windows(x, kernel, before) @ weight.T, expected)


def test_a_block_keeps_the_variance_of_its_input() -> None:
    block = EncoderBlock(64, Convolution(64, 3), dropout=0.0)
    x = torch.randn(8, 50, 64)
    with torch.no_grad():
        y = block(x, torch.ones(8, 50, 1, dtype=torch.bool))
    assert float(y.std()) == pytest.approx(1.0, abs=0.1)


def test_gradients_are_scaled_but_not_values() -> None:
    x = torch.randn(3, requires_grad=True)
    y = scaled_gradient(x, 0.25)
    assert torch.equal(y, x)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 0.25))


def test_the_encoder_receives_the_mean_gradient_of_half_of_all_attentions() -> None:
    model = Convolutional(CONVOLUTIONAL)
    memory = model.encode(SOURCE)
    memory.keys.retain_grad()
    (memory.keys.sum() + memory.values.sum()).backward()
    whole = 1 + math.sqrt(0.5)
    num_tokens = int((SOURCE != PAD).sum())
    share = whole / (2 * len(CONVOLUTIONAL.decoder_convolutions))
    expected = torch.full((CONVOLUTIONAL.d_embedding,), num_tokens * share)
    torch.testing.assert_close(model.encoder_output.bias.grad, expected)


def test_each_decoder_block_has_a_tap(model: Convolutional) -> None:
    num_blocks = len(model.config.decoder_convolutions)
    assert len(model.cross_attention_taps) == num_blocks


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_model_computes_in_other_precisions(dtype: torch.dtype) -> None:
    model = Convolutional(CONVOLUTIONAL).eval()
    exact = model(SOURCE, TARGET_IN)
    with torch.inference_mode():
        found = fuse(model).to(dtype)(SOURCE, TARGET_IN)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), exact, atol=0.1, rtol=0.1)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # Computed from fairseq's sizes; neither the paper nor the code states them.
        ("convs2s-en-de", 209_569_920),
        ("convs2s-en-fr", 258_111_616),
        ("convs2s-multi30k", 2_159_472),
    ],
)
def test_presets_have_the_sizes_of_their_source(name: str, count: int) -> None:
    config = PRESETS[name]
    model = replace(config.model, vocab_size=config.tokenizer.vocab_size)
    assert isinstance(model, ConvolutionalConfig)
    assert model.num_parameters == count


def test_flops_are_those_of_all_matrix_products(model: Convolutional) -> None:
    lengths = np.array([5]), np.array([4])
    with FlopCounterMode(display=False) as counter:
        model(SOURCE[:1], TARGET_IN[:1, :4])
    assert model.update_flops(*lengths) == 3 * counter.get_total_flops()


@pytest.mark.parametrize("variant", ["widths that change", "a shared matrix"])
def test_a_folder_and_an_average_hold_the_model(
    variant: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = replace(CONVOLUTIONALS[variant], vocab_size=tokenizer.vocab_size)
    model = Convolutional(config).eval()
    kept = Checkpoint(
        config=config, weights=model.state_dict(), tokenizer=tokenizer, step=3
    )
    save_model(kept, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.config == config
    mean = average([loaded, loaded]).build()
    torch.testing.assert_close(mean(SOURCE, TARGET_IN), model(SOURCE, TARGET_IN))


def test_blocks_are_written_in_runs_of_equal_ones() -> None:
    found = convolutions("encoder_blocks", "2x512k3, 64k1")
    assert found == ((512, 3), (512, 3), (64, 1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder_blocks": "512"}, "`model.encoder_blocks` must be blocks as in"),
        ({"encoder_blocks": ""}, "`model.encoder_blocks` must be blocks as in"),
        ({"decoder_blocks": "2x4k3;"}, "`model.decoder_blocks` must be blocks as in"),
        ({"decoder_blocks": "4k0"}, "kernel in `model.decoder_blocks` must be from 1"),
        (
            {"encoder_blocks": "0x4k3"},
            "number of blocks in .* from 1 to 1,000, but is 0",
        ),
        ({"encoder_blocks": "999999999x4k3"}, "number of blocks in .* to 1,000"),
        (
            {"dropout": 1.0},
            "`model.dropout` must be at least 0 and below 1, but is 1.0",
        ),
        ({"d_output": 0}, "`model.d_output` must be at least 1, but is 0"),
        (
            {"shared_embedding": True, "d_output": 512},
            "`model.d_output` must be none or .*, 768, .* but is 512",
        ),
        (
            {"shared_embedding": True, "target_vocab_size": 9},
            "`model.shared_embedding` must be false",
        ),
    ],
)
def test_bad_sizes_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        ConvolutionalConfig(**settings)  # type: ignore[arg-type] # wrong on purpose
    assert str(raised.value).count(".") <= 4  # one sentence
