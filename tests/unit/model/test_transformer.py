"""The model equals the paper's formulas, and its sizes those of Table 3."""

import math
import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.nn.fuse import fuse
from transduce.text.vocabulary import BOS, EOS, PAD

SOURCE = torch.tensor([[5, 9, 4, 17, 2], [8, 2, PAD, PAD, PAD]])
TARGET_IN = torch.tensor([[1, 6, 22, 7], [1, 11, PAD, PAD]])

VARIANTS = {
    "the paper's": {},
    "widths of heads apart": {"num_heads": 3, "d_k": 6, "d_v": 7},
    "one head": {"num_heads": 1, "d_k": 16, "d_v": 16},
    "pre-norm": {"norm": "pre"},
    "learned positions": {"positions": "learned"},
    "fewer positions than tokens": {"positions": "learned", "max_positions": 3},
    "unscaled": {"scores": "unscaled"},
    "additive": {"scores": "additive"},
    "neighbourhood": {"neighbourhood": 1},
    "silu": {"activation": "silu"},
    "a shallow decoder": {"decoder_layers": 1},
    "an output bias": {"output_bias": True},
    "another epsilon": {"norm_epsilon": 0.1},
}


class PaperModel:
    """Section 3 by loops over pairs, heads and positions in double precision."""

    def __init__(self, model: Transformer) -> None:
        self.config = model.config
        self.weights = {
            name: weight.detach().numpy().astype(np.float64)
            for name, weight in model.state_dict().items()
        }

    def logits(self, source: list[int], target_in: list[int]) -> np.ndarray:
        memory = [self.embed(token, i) for i, token in enumerate(source)]
        for n in range(self.config.num_layers):
            memory = self.encoder_layer(memory, f"encoder_layers.{n}")
        if self.config.norm == "pre":
            memory = [self.layer_norm(x, "encoder_norm") for x in memory]
        states = [self.embed(token, i) for i, token in enumerate(target_in)]
        for n in range(self.config.num_decoder_layers):
            states = self.decoder_layer(states, memory, f"decoder_layers.{n}")
        if self.config.norm == "pre":
            states = [self.layer_norm(x, "decoder_norm") for x in states]
        bias = self.weights.get("embedding.bias", 0)
        return np.array([self.weights["embedding.weight"] @ x + bias for x in states])

    def embed(self, token: int, position: int) -> np.ndarray:
        d_model = self.config.d_model
        embedded = self.weights["embedding.weight"][token] * math.sqrt(d_model)
        if self.config.positions == "learned":
            row = min(position, self.config.max_positions - 1)
            return embedded + self.weights["positions.weight"][row] * math.sqrt(d_model)
        encoding = []
        for i in range(d_model // 2):
            angle = position / 10_000 ** (2 * i / d_model)
            encoding += [math.sin(angle), math.cos(angle)]
        return embedded + np.array(encoding)

    def encoder_layer(self, xs: list[np.ndarray], name: str) -> list[np.ndarray]:
        def attend(ys: list[np.ndarray]) -> list[np.ndarray]:
            return [
                self.attention(y, ys, self.near(i, len(ys)), f"{name}.self_attention")
                for i, y in enumerate(ys)
            ]

        xs = self.residual(xs, attend, f"{name}.after_self_attention")
        return self.residual(xs, self.network(name), f"{name}.after_feed_forward")

    def decoder_layer(
        self, xs: list[np.ndarray], memory: list[np.ndarray], name: str
    ) -> list[np.ndarray]:
        def attend_to_past(ys: list[np.ndarray]) -> list[np.ndarray]:
            return [
                self.attention(y, ys, self.near(i, i + 1), f"{name}.self_attention")
                for i, y in enumerate(ys)
            ]

        def attend_to_memory(ys: list[np.ndarray]) -> list[np.ndarray]:
            everywhere = range(len(memory))
            return [
                self.attention(y, memory, everywhere, f"{name}.cross_attention")
                for y in ys
            ]

        xs = self.residual(xs, attend_to_past, f"{name}.after_self_attention")
        xs = self.residual(xs, attend_to_memory, f"{name}.after_cross_attention")
        return self.residual(xs, self.network(name), f"{name}.after_feed_forward")

    def near(self, position: int, end: int) -> range:
        if (r := self.config.neighbourhood) is None:
            return range(end)
        return range(max(0, position - r), min(end, position + r + 1))

    def attention(
        self, x: np.ndarray, memory: list[np.ndarray], seen: range, name: str
    ) -> np.ndarray:
        h, d_k, d_v = self.config.num_heads, self.config.d_k, self.config.d_v
        queries = self.linear(x, f"{name}.project_query")
        both = [self.linear(y, f"{name}.project_key_value") for y in memory]
        heads = []
        for head in range(h):
            query = queries[head * d_k :][:d_k]
            keys = [row[head * d_k :][:d_k] for row in both]
            values = [row[h * d_k + head * d_v :][:d_v] for row in both]
            scores = [self.score(query, keys[j], head, name) for j in seen]
            total = sum(math.exp(score) for score in scores)
            heads.append(
                sum(
                    math.exp(score) / total * values[j]
                    for score, j in zip(scores, seen, strict=True)
                )
            )
        return self.linear(np.concatenate(heads), f"{name}.project_output")

    def score(self, query: np.ndarray, key: np.ndarray, head: int, name: str) -> float:
        match self.config.scores:
            case "additive":
                vector = self.weights[f"{name}.additive_weight"][head]
                return float(vector @ np.tanh(query + key))
            case "unscaled":
                return float(query @ key)
            case _:
                return float(query @ key) / math.sqrt(self.config.d_k)

    def network(self, name: str):
        def feed_forward(xs: list[np.ndarray]) -> list[np.ndarray]:
            inner = [self.linear(x, f"{name}.feed_forward.inner") for x in xs]
            return [
                self.linear(self.activated(x), f"{name}.feed_forward.outer")
                for x in inner
            ]

        return feed_forward

    def activated(self, x: np.ndarray) -> np.ndarray:
        if self.config.activation == "silu":
            return x / (1 + np.exp(-x))
        return np.maximum(0, x)

    def residual(self, xs: list[np.ndarray], sublayer, name: str) -> list[np.ndarray]:
        if self.config.norm == "pre":
            ys = sublayer([self.layer_norm(x, f"{name}.norm") for x in xs])
            return [x + y for x, y in zip(xs, ys, strict=True)]
        ys = sublayer(xs)
        return [
            self.layer_norm(x + y, f"{name}.norm") for x, y in zip(xs, ys, strict=True)
        ]

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return self.weights[f"{name}.weight"] @ x + self.weights[f"{name}.bias"]

    def layer_norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean()
        variance = (centred**2).mean()
        normal = centred / math.sqrt(variance + self.config.norm_epsilon)
        return normal * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def config(request, tiny):
    return replace(tiny, **request.param)


def random_model(config: ModelConfig) -> Transformer:
    """Model with random biases and gains too, so that a missing one is noticed."""
    model = Transformer(config)
    for name, parameter in model.named_parameters():
        if not name.endswith(("embedding.weight", "positions.weight")):
            nn.init.normal_(parameter, std=0.3)
    return model.eval()


@torch.no_grad()
def test_the_model_equals_the_papers_formulas(config):
    model = random_model(config)
    logits = model(SOURCE, TARGET_IN)
    paper = PaperModel(model)
    first = paper.logits([5, 9, 4, 17, 2], [1, 6, 22, 7])
    second = paper.logits([8, 2], [1, 11])
    expected = torch.from_numpy(np.concatenate([first, second])).float()
    actual = torch.cat([logits[0], logits[1, :2]])
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_later_target_token_changes_nothing_before_it(config):
    model = random_model(config)
    changed = TARGET_IN.clone()
    changed[0, 2] = 13
    before, after = model(SOURCE, TARGET_IN)[0], model(SOURCE, changed)[0]
    torch.testing.assert_close(before[:2], after[:2], atol=0, rtol=0)
    assert not torch.allclose(before[2:], after[2:])


@torch.no_grad()
def test_every_source_token_changes_the_output(config):
    model = random_model(config)
    before = model(SOURCE, TARGET_IN)[0]
    changed = SOURCE.clone()
    changed[0, 4] = 3
    assert not torch.allclose(before, model(changed, TARGET_IN)[0])


def test_padding_gives_no_infinite_gradients(config):
    model = random_model(config).train()
    model(SOURCE, TARGET_IN)[TARGET_IN != PAD].logsumexp(-1).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def count(**sizes: object) -> int:
    with torch.device("meta"):
        return Transformer(ModelConfig(**sizes)).num_parameters()


BIG = {"d_model": 1024, "d_ff": 4096, "num_heads": 16}
TABLE_3 = [
    ("base", {}, 63_082_496, 65_126_400),
    ("A, h=1", {"num_heads": 1, "d_k": 512, "d_v": 512}, 63_082_496, 65_126_400),
    ("A, h=4", {"num_heads": 4, "d_k": 128, "d_v": 128}, 63_082_496, 65_126_400),
    ("A, h=16", {"num_heads": 16, "d_k": 32, "d_v": 32}, 63_082_496, 65_126_400),
    ("A, h=32", {"num_heads": 32, "d_k": 16, "d_v": 16}, 63_082_496, 65_126_400),
    ("B, d_k=16", {"d_k": 16}, 55_990_784, 58_034_688),
    ("B, d_k=32", {"d_k": 32}, 58_354_688, 60_398_592),
    ("C, N=2", {"num_layers": 2}, 33_656_832, 35_700_736),
    ("C, N=4", {"num_layers": 4}, 48_369_664, 50_413_568),
    ("C, N=8", {"num_layers": 8}, 77_795_328, 79_839_232),
    ("C, d=256", {"d_model": 256, "d_k": 32, "d_v": 32}, 26_834_944, 27_856_896),
    ("C, d=1024", {"d_model": 1024, "d_k": 128, "d_v": 128}, 163_889_152, 167_976_960),
    ("C, ff=1024", {"d_ff": 1024}, 50_487_296, 52_531_200),
    ("C, ff=4096", {"d_ff": 4096}, 88_272_896, 90_316_800),
    ("big", BIG, 214_245_376, 218_333_184),
]
ROWS = [row[0] for row in TABLE_3]


@pytest.mark.parametrize(
    ("sizes", "expected"), [(sizes, n) for _, sizes, n, _ in TABLE_3], ids=ROWS
)
def test_models_of_table_3_with_37000_tokens_have_these_sizes(sizes, expected):
    assert count(vocab_size=37_000, **sizes) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"), [(sizes, n) for _, sizes, _, n in TABLE_3], ids=ROWS
)
def test_models_of_table_3_with_the_papers_vocabulary_have_its_sizes(sizes, expected):
    # The paper's code had 32 more rows, one for each kind of target text; we have none.
    width = sizes.get("d_model", 512)
    assert count(vocab_size=40_960, **sizes) == expected - 32 * width


def test_learned_positions_and_final_norms_count_as_parameters():
    assert count(positions="learned", max_positions=100) == 63_082_496 + 100 * 512
    assert count(norm="pre") == 63_082_496 + 2 * 2 * 512


def test_only_pre_norm_normalizes_after_the_stacks(tiny):
    assert isinstance(Transformer(tiny).encoder_norm, nn.Identity)
    assert isinstance(Transformer(tiny).decoder_norm, nn.Identity)
    assert isinstance(Transformer(replace(tiny, norm="pre")).decoder_norm, nn.LayerNorm)


@torch.no_grad()
def test_the_initial_loss_is_that_of_uniform_guessing():
    config = ModelConfig(
        vocab_size=4_000,
        num_layers=4,
        d_model=128,
        d_ff=256,
        num_heads=4,
        d_k=32,
        d_v=32,
    )
    model = Transformer(config).eval()
    ids = torch.randint(3, 4_000, (8, 12))
    logits = model(ids, ids.roll(1))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).item()
    assert loss == pytest.approx(math.log(4_000) + 0.5, abs=0.25)


def test_dropout_applies_to_the_sum_of_embedding_and_position(tiny):
    model = Transformer(replace(tiny, dropout=0.5, num_layers=1)).train()
    seen = []
    model.encoder_layers[0].register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs)
    )
    model.encode(SOURCE)
    model.eval()
    model.encode(SOURCE)
    (dropped, _), (whole, _) = seen
    kept = dropped != 0
    assert 0.2 < kept.float().mean() < 0.8
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])


@torch.no_grad()
def test_dropout_is_active_in_training_only(tiny):
    model = Transformer(replace(tiny, dropout=0.3))
    trained = [model.train()(SOURCE, TARGET_IN) for _ in range(2)]
    evaluated = [model.eval()(SOURCE, TARGET_IN) for _ in range(2)]
    assert not torch.equal(*trained)
    assert torch.equal(*evaluated)


@torch.no_grad()
def test_forward_is_encoding_decoding_and_logits(tiny):
    model = Transformer(tiny).eval()
    states = model.decode(TARGET_IN, model.encode(SOURCE))
    assert torch.equal(model(SOURCE, TARGET_IN), model.logits(states))


@torch.no_grad()
def test_sentences_may_be_longer_than_any_before(tiny):
    model = Transformer(tiny).eval()
    short = model(SOURCE, TARGET_IN)
    model(torch.full((1, 300), 5), torch.full((1, 400), 6))
    assert torch.equal(model(SOURCE, TARGET_IN), short)


def test_the_memory_has_a_padding_mask(tiny):
    memory = Transformer(tiny).encode(SOURCE)
    assert memory.states.shape == (2, 5, tiny.d_model)
    assert torch.equal(memory.mask[:, 0, 0, :], SOURCE != PAD)


def test_loading_weights_again_adds_no_hook(tiny: ModelConfig) -> None:
    model = Transformer(replace(tiny, learned_start=False))
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    for assign in (False, False, True, True):
        model.load_state_dict(weights, assign=assign)
        hooks = model.output_embedding.weight._backward_hooks
        assert hooks is not None
        assert len(hooks) == 1


@pytest.mark.parametrize(
    "copied", [deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_a_copy_and_its_original_keep_the_start_that_is_not_learned(
    tiny: ModelConfig, copied: Callable[[Transformer], Transformer]
) -> None:
    model = Transformer(replace(tiny, learned_start=False))
    copy = copied(model)
    # Loading marks the start of the copy again, but not that of the original.
    copy.load_state_dict(model.state_dict())
    for each in (copied(model), copy, model):
        each(SOURCE, TARGET_IN).log_softmax(-1).square().sum().backward()
        gradient = each.output_embedding.weight.grad
        assert gradient is not None
        assert not gradient[BOS].any()
        assert gradient[EOS].any()


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("target_vocab_size", [None, 9])
def test_a_start_that_is_not_learned_stays_zero(target_vocab_size, is_loaded) -> None:
    torch.manual_seed(2)
    config = ModelConfig(
        vocab_size=12, target_vocab_size=target_vocab_size, num_layers=1, d_model=8,
        d_ff=8, num_heads=2, d_k=4, d_v=4, dropout=0.0, learned_start=False,
    )  # fmt: skip
    model = Transformer(config)
    if is_loaded:
        weights = {name: w.clone() for name, w in model.state_dict().items()}
        with torch.device("meta"):
            model = Transformer(config)
        model.load_state_dict(weights, assign=True)
    model = fuse(model)
    weight = model.output_embedding.weight
    before = weight.detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        logits = model(torch.tensor([[5, 6, EOS]]), torch.tensor([[BOS, 4, 7]]))
        logits.log_softmax(-1).square().sum().backward()
        optimizer.step()
    assert not weight[BOS].any()
    others = [i for i in range(len(weight)) if i != BOS]
    assert (weight != before)[others].any(dim=1).all()
