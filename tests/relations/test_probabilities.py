"""numpy and PyTorch compute the same probabilities, draws and scores."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float32

from transduce.checkpoint import Checkpoint
from transduce.data.tensors import pad_rows
from transduce.decoding.sampling import draw
from transduce.decoding.search import (
    log_likelihoods,
    log_mean,
    log_softmax,
    score_pairs,
)
from transduce.decoding.torch_candidates import draw_by_torch, log_mean_by_torch
from transduce.decoding.torch_model import score_targets
from transduce.decoding.translator import Translator
from transduce.errors import CheckpointError
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search_config import SamplingConfig
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import EOS

ROWS, VOCAB = 40, 300
RESTRICTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 30.0},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": VOCAB},
    {"top_p": 0.01},
    {"top_p": 0.6},
    {"top_k": 20, "top_p": 0.9, "temperature": 2.0},
]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"positions": "learned", "max_positions": 5},
    {"norm": "pre"},
    {"neighbourhood": 2},
    {"scores": "unscaled"},
    {"scores": "additive"},
    {"d_k": 4, "d_v": 5},
    {"activation": "silu", "output_bias": True},
]


@pytest.fixture
def logits() -> Float32[np.ndarray, "rows vocab"]:
    random = np.random.default_rng(3)
    return (4 * random.standard_normal((ROWS, VOCAB))).astype(np.float32)


def test_log_probabilities_by_numpy_equal_pytorchs(
    logits: Float32[np.ndarray, "rows vocab"],
):
    expected = torch.from_numpy(logits).double().log_softmax(dim=-1).numpy()
    assert log_softmax(logits) == pytest.approx(expected, abs=1e-5)
    tokens = np.arange(ROWS)
    chosen = log_likelihoods(logits, tokens)
    assert chosen == pytest.approx(expected[tokens, tokens], abs=1e-5)


def test_the_mean_over_models_equals_pytorchs(
    logits: Float32[np.ndarray, "rows vocab"],
):
    several = [logits, 30 * logits[::-1].copy(), logits - 1_000]
    found = log_mean(list(map(log_softmax, several)))
    expected = log_mean_by_torch(several).numpy()
    assert found == pytest.approx(expected, abs=1e-4, rel=1e-5)
    assert np.exp(found.astype(np.float64)).sum(-1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("restriction", RESTRICTIONS, ids=str)
def test_numpy_draws_tokens_as_often_as_pytorch(
    logits: Float32[np.ndarray, "rows vocab"], restriction: dict[str, Any]
) -> None:
    """Evenly spaced random numbers measure the probability of each token."""
    config = SamplingConfig(**restriction)
    chances = (np.arange(2_000) + 0.5) / 2_000
    for row in logits[:5]:
        ours = np.bincount(draw(row, chances, config), minlength=VOCAB)
        tensor = torch.from_numpy(row)[None, None]
        [theirs], _ = draw_by_torch(tensor, chances[None], config, ())
        # In another order of tokens the bounds between them differ.
        assert np.abs(ours - np.bincount(theirs, minlength=VOCAB)).max() <= 1


@pytest.mark.parametrize(
    "restriction",
    [{}, {"top_k": 7}, {"top_k": VOCAB}, {"top_k": 2 * VOCAB}, {"top_p": 0.6}],
    ids=str,
)
def test_numpy_and_pytorch_draw_the_same_tokens(
    logits: Float32[np.ndarray, "rows vocab"], restriction: dict[str, Any]
) -> None:
    config = SamplingConfig(**restriction)
    chances = np.random.default_rng(1).random(500)
    for row in logits[:5]:
        ours = draw(row, chances, config)
        tensor = torch.from_numpy(row)[None, None]
        [theirs], _ = draw_by_torch(tensor, chances[None], config, ())
        assert (ours == theirs).mean() > 0.99  # bounds are rounded differently


@pytest.mark.parametrize("chance", [0.0, 0.5, 1 - 2**-53])
def test_pytorch_never_draws_an_excluded_token(
    logits: Float32[np.ndarray, "rows vocab"], chance: float
) -> None:
    excluded = [0, VOCAB - 1]
    chances = np.full((1, 3), chance)
    for row in logits[:5]:
        tensor = torch.from_numpy(row)[None, None]
        tokens, _ = draw_by_torch(tensor, chances, SamplingConfig(), excluded)
        assert not np.isin(tokens, excluded).any()


@pytest.mark.parametrize("restriction", RESTRICTIONS, ids=str)
@pytest.mark.parametrize("chance", [0.0, 0.5, 1 - 2**-53])
def test_an_impossible_token_is_never_drawn(
    logits: Float32[np.ndarray, "rows vocab"],
    restriction: dict[str, Any],
    chance: float,
) -> None:
    logits[:, 10:] = -np.inf
    logits[:, 0] = -np.inf
    config = SamplingConfig(**restriction)
    drawn = [int(draw(row, np.array([chance]), config)[0]) for row in logits]
    assert set(drawn) <= set(range(1, 10))


def test_drawing_from_nan_logits_does_not_fail() -> None:
    logits = np.full(5, np.nan, dtype=np.float32)
    for restriction in RESTRICTIONS:
        [token] = draw(logits, np.array([0.5]), SamplingConfig(**restriction))
        assert 0 <= token < 5


def pairs_of(config: ModelConfig, count: int) -> list[tuple[list[int], list[int]]]:
    random = np.random.default_rng(7)

    def sentence(longest: int) -> list[int]:
        size = int(random.integers(0, longest))
        ids: list[int] = random.integers(4, config.vocab_size, size).tolist()
        return ids

    return [(sentence(20), sentence(40)) for _ in range(count)]


@pytest.fixture
def make_checkpoint(tokenizer: Tokenizer) -> Callable[[ModelConfig], Checkpoint]:
    def make(config: ModelConfig) -> Checkpoint:
        torch.manual_seed(2)
        config = replace(config, vocab_size=tokenizer.vocab_size)
        weights = Transformer(config).state_dict()
        return Checkpoint(config=config, weights=weights, tokenizer=tokenizer, step=1)

    return make


def by_torch(
    checkpoint: Checkpoint, pairs: Sequence[tuple[list[int], list[int]]]
) -> list[float]:
    sources, targets = [[*source, EOS] for source, _ in pairs], [t for _, t in pairs]
    found = score_targets(checkpoint.build(), pad_rows(sources), targets)
    return [score.log_probability for score in found]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_target_read_token_by_token_has_pytorchs_score(
    tiny: ModelConfig,
    make_checkpoint: Callable[[ModelConfig], Checkpoint],
    variant: dict[str, Any],
) -> None:
    checkpoint = make_checkpoint(replace(tiny, **variant))
    pairs = pairs_of(checkpoint.config, 60)
    [model] = Translator(checkpoint, "cpu").models
    found = dict(score_pairs([model], *zip(*pairs, strict=True), positions=300))
    assert sorted(found) == list(range(60))
    scores = [found[i].log_probability for i in range(60)]
    assert scores == pytest.approx(by_torch(checkpoint, pairs), abs=1e-4)
    assert [found[i].num_tokens for i in range(60)] == [len(t) + 1 for _, t in pairs]


def test_many_short_targets_are_scored_in_several_batches(
    tiny: ModelConfig, make_checkpoint: Callable[[ModelConfig], Checkpoint]
) -> None:
    checkpoint = make_checkpoint(tiny)
    pairs = [([5, 6], [7 + i % 5]) for i in range(700)]
    [model] = Translator(checkpoint, "cpu").models
    found = dict(score_pairs([model], *zip(*pairs, strict=True), positions=100_000))
    scores = [found[i].log_probability for i in range(700)]
    assert scores == pytest.approx(by_torch(checkpoint, pairs), abs=1e-4)


def test_a_model_that_outputs_nan_is_refused(
    tiny: ModelConfig, make_checkpoint: Callable[[ModelConfig], Checkpoint]
) -> None:
    checkpoint = make_checkpoint(tiny)
    weights = dict(checkpoint.weights)
    name = "embedding.weight"
    weights[name] = torch.full_like(weights[name], math.nan)
    translator = Translator(replace(checkpoint, weights=weights), "cpu")
    with pytest.raises(CheckpointError, match="outputs NaN"):
        translator.score("one", "two")
    with pytest.raises(CheckpointError, match="outputs NaN"):
        translator.sample("one", SamplingConfig(top_p=0.5))
