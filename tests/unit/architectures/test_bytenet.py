"""ByteNet equals its formulas, and no character depends on a later one."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rival_variants import BYTENET, BYTENETS
from transduce.architectures.bytenet import ByteNet
from transduce.architectures.config import ByteNetConfig
from transduce.checkpoint import Checkpoint, average, load_model, save_model
from transduce.decoding.translator import Translator
from transduce.errors import ConfigError, RequestError
from transduce.experiments.presets import PRESETS
from transduce.search_config import SearchConfig
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import PAD

SOURCE = torch.tensor([[5, 9, 4, 17, 2], [8, 2, PAD, PAD, PAD]])
TARGET_IN = torch.tensor([[1, 6, 22, 7, 3, 9, 4, 4], [1, 11, 5, 8, PAD, PAD, PAD, PAD]])


@pytest.fixture(params=BYTENETS.values(), ids=BYTENETS)
def model(request: pytest.FixtureRequest) -> ByteNet:
    """Model with random gains and biases of its norms."""
    model = ByteNet(request.param).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


class PaperModel:
    """The paper's formulas by loops over positions in double precision.

    `kept` is the factor in the places of dropout.
    """

    def __init__(self, model: ByteNet, kept: float = 1.0) -> None:
        self.config = model.config
        self.kept = kept
        self.weights = {
            name: weight.detach().numpy().astype(np.float64)
            for name, weight in model.state_dict().items()
        }

    def logits(self, source: list[int], target_in: list[int]) -> np.ndarray:
        config, zeros = self.config, np.zeros(self.config.d_model)
        xs = [self.weights["source_embedding.weight"][token] for token in source]
        xs += [zeros] * (math.ceil(config.unfolding * len(source)) - len(source))
        rounds = [2**i for i in range(config.largest_dilation.bit_length())]
        for n in range(config.num_blocks):
            dilation = rounds[n % len(rounds)]
            first = -((config.kernel - 1) // 2) * dilation
            xs = self.block(xs, f"encoder_blocks.{n}", first, dilation)
        below = [*xs, *[zeros] * len(target_in)]
        ys = []
        for token, x in zip(target_in, below, strict=False):
            embedded = self.weights["target_embedding.weight"][token]
            if config.stacking == "added":
                ys.append(embedded + x)
            else:
                ys.append(self.linear(np.concatenate([embedded, x]), "joining"))
        for n in range(config.decoder_blocks or config.num_blocks):
            dilation = rounds[n % len(rounds)]
            first = -(config.kernel - 1) * dilation
            ys = self.block(ys, f"decoder_blocks.{n}", first, dilation)
        last = [np.maximum(0, self.linear(y, "last")) for y in ys]
        return np.array([self.linear(y, "output") for y in last])

    def block(
        self, xs: list[np.ndarray], name: str, first: int, dilation: int
    ) -> list[np.ndarray]:
        inner = [
            self.activated(
                self.linear(self.activated(x, f"{name}.norm"), f"{name}.reduce"),
                f"{name}.reduced_norm",
            )
            for x in xs
        ]
        zeros, result = np.zeros(self.config.d_hidden), []
        for i, x in enumerate(xs):
            places = [i + first + j * dilation for j in range(self.config.kernel)]
            window = [inner[p] if 0 <= p < len(xs) else zeros for p in places]
            y = self.linear(np.concatenate(window), f"{name}.convolution")
            y = self.activated(y, f"{name}.convolved_norm")
            result.append(x + self.kept * self.linear(y, f"{name}.restore"))
        return result

    def activated(self, x: np.ndarray, name: str) -> np.ndarray:
        """ReLU(LayerNorm(x))."""
        normal = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        scaled = self.weights[f"{name}.weight"] * normal + self.weights[f"{name}.bias"]
        return np.maximum(0, scaled)

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return self.weights[f"{name}.weight"] @ x + self.weights[f"{name}.bias"]


@torch.no_grad()
def test_the_model_equals_the_formulas(model: ByteNet) -> None:
    paper, logits = PaperModel(model), model(SOURCE, TARGET_IN)
    for source, target_in, found in zip(SOURCE, TARGET_IN, logits, strict=True):
        tokens = target_in[target_in != PAD].tolist()
        expected = paper.logits(source[source != PAD].tolist(), tokens)
        np.testing.assert_allclose(found[: len(tokens)], expected, atol=1e-4)


@torch.no_grad()
def test_dropout_is_at_the_outputs_of_residual_blocks(model: ByteNet) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda _, __, kept: 0.5 * kept)
    expected = PaperModel(model, kept=0.5).logits(SOURCE[0].tolist(), [1, 6, 22])
    found = model(SOURCE[:1], TARGET_IN[:1, :3])[0]
    np.testing.assert_allclose(found, expected, atol=1e-4)


@torch.no_grad()
def test_the_encoder_unfolds_to_the_length_of_the_paper() -> None:
    states = ByteNet(BYTENET).encode(SOURCE).states
    assert states.shape == (2, 6, BYTENET.d_model)  # ceil(1.2 x 5)
    assert (states[0].abs().sum(-1) > 0).all()
    assert (states[1].abs().sum(-1) > 0).tolist() == [True] * 3 + [False] * 3


def dependence(
    model: ByteNet, embedding: nn.Embedding, length: int, position: int
) -> list[bool]:
    """Whether the logits at a position depend on each embedding of a sequence."""
    embedded: list[torch.Tensor] = []

    def keep(_: nn.Module, __: object, output: torch.Tensor) -> None:
        output.retain_grad()
        embedded.append(output)

    hook = embedding.register_forward_hook(keep)
    ids = torch.arange(length)[None] % 20 + 5
    model(ids, ids)[0, position].square().sum().backward()
    hook.remove()
    [gradient] = [each.grad[0].abs().sum(dim=-1) for each in embedded]
    return (gradient > 0).tolist()


@pytest.mark.parametrize("blocks", [1, 3, 5, 7])
def test_the_receptive_field_is_that_of_the_dilations(blocks: int) -> None:
    config = replace(BYTENET, num_blocks=1, decoder_blocks=blocks, largest_dilation=8)
    field = 1 + 2 * sum([1, 2, 4, 8, 1, 2, 4][:blocks])
    model, length = ByteNet(config), 50
    found = dependence(model, model.target_embedding, length, 45)
    assert found == [45 - field < i <= 45 for i in range(length)]


def test_the_encoder_depends_on_both_sides() -> None:
    config = replace(BYTENET, num_blocks=3, decoder_blocks=1, largest_dilation=4)
    model, length = ByteNet(config), 40
    found = dependence(model, model.source_embedding, length, 20)
    # 7 positions to either side, and 2 earlier ones of the decoder.
    assert found[:length] == [11 <= i <= 27 for i in range(length)]


def test_the_paper_s_decoder_depends_on_373_characters() -> None:
    dilations = ByteNetConfig().decoder_dilations
    assert dilations == (1, 2, 4, 8, 16) * 6
    # The paper states 315.
    assert 1 + 2 * sum(dilations) == 373


def test_there_is_no_attention_to_sum(tokenizer: Tokenizer) -> None:
    config = replace(BYTENET, vocab_size=tokenizer.vocab_size)
    model = ByteNet(config)
    assert not model.cross_attention_taps
    kept = Checkpoint(
        config=config, weights=model.state_dict(), tokenizer=tokenizer, step=3
    )
    translator = Translator(kept, torch.device("cpu"))
    search = SearchConfig(coverage_penalty=0.2)
    with pytest.raises(RequestError, match='architecture "bytenet" has none'):
        list(translator.translate_stream(["one"], search))


@torch.inference_mode()
def test_the_model_computes_in_bf16() -> None:
    model = ByteNet(BYTENET).eval()
    exact = model(SOURCE, TARGET_IN)
    model.bfloat16()
    torch.testing.assert_close(
        model(SOURCE, TARGET_IN).float(), exact, atol=0.05, rtol=0.05
    )
    state = model.start(model.encode(SOURCE))
    assert model.step(TARGET_IN[:, :1], state).dtype == torch.bfloat16


def test_presets_have_the_sizes_of_the_paper() -> None:
    model = PRESETS["bytenet-en-de"].model
    assert isinstance(model, ByteNetConfig)
    # Computed from the paper's sizes, as it states no number: 269.4 million in the 60
    # blocks, the rest in embeddings and output.
    blocks = 60 * (
        2 * 800 * 1600 + 3 * 800**2 + 2 * 800 + 1600 + 2 * (1600 + 800 + 800)
    )
    assert blocks == 269_376_000
    tables = 2 * 700 * 1600 + 1601 * (1600 + 700)
    assert model.num_parameters == blocks + tables
    small = PRESETS["bytenet-multi30k"]
    assert replace(small.model, vocab_size=400).num_parameters == 2_232_976


def test_flops_are_those_of_all_matrix_products(model: ByteNet) -> None:
    lengths = np.array([5]), np.array([8])
    with FlopCounterMode(display=False) as counter:
        model(SOURCE[:1], TARGET_IN[:1])
    assert model.update_flops(*lengths) == 3 * counter.get_total_flops()


def test_a_folder_and_an_average_hold_the_model(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = replace(BYTENET, vocab_size=tokenizer.vocab_size)
    model = ByteNet(config).eval()
    kept = Checkpoint(
        config=config, weights=model.state_dict(), tokenizer=tokenizer, step=3
    )
    save_model(kept, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.config == config
    mean = average([loaded, loaded]).build()
    torch.testing.assert_close(mean(SOURCE, TARGET_IN), model(SOURCE, TARGET_IN))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"largest_dilation": 12}, "must be a power of two, .* but is 12"),
        ({"stacking": "summed"}, '"added" or "joined", but is "summed"'),
        ({"unfolding": 0.9}, "`model.unfolding` must be at least 1, but is 0.9"),
        ({"kernel": 0}, "`model.kernel` must be at least 1, but is 0"),
        ({"dropout": -0.1}, "`model.dropout` must be at least 0 and below 1"),
        ({"d_hidden": 2**20}, "`model.d_hidden` must be at most 32,768"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_sizes_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ByteNetConfig(**settings)  # type: ignore[arg-type] # wrong on purpose
