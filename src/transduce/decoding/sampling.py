"""Sampling: each token is drawn at random by its probability.

Sums run in the order of the vocabulary, or of falling probability, so that equal logits
and random numbers always give equal tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64

from transduce.decoding.search import (
    Decoder,
    Hypothesis,
    Sentence,
    log_softmax,
    run_search,
)
from transduce.search_config import SamplingConfig


def sample(
    decoder: Decoder,
    max_lengths: Sequence[int],
    seeds: Sequence[tuple[int, ...]],
    config: SamplingConfig,
    *,
    bos: int,
    eos: int,
    excluded: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Return `config.number` samples of each sentence, likeliest first.

    The random numbers of a sentence depend on `config.seed` and its entry of `seeds`,
    not on other sentences. Scores are log-probabilities of the model itself, without
    temperature, `top_k` and `top_p`.
    """
    search = Sampling(max_lengths, seeds, config, eos, excluded)
    return run_search(decoder, search, bos)


class Sampling:
    """Samples of several sentences that grow together."""

    def __init__(
        self,
        max_lengths: Sequence[int],
        seeds: Sequence[tuple[int, ...]],
        config: SamplingConfig,
        eos: int,
        excluded: Sequence[int] = (),
    ) -> None:
        """Prepare the first step; each sentence has random numbers of its own seed."""
        each = zip(max_lengths, seeds, strict=True)
        self.live = [_Samples(limit, seed, config, eos) for limit, seed in each]
        """Sentences that are not done."""
        self._config = config
        self._excluded = list(excluded)

    def grow(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> tuple[Int64[np.ndarray, "kept samples"], Int64[np.ndarray, "kept samples"]]:
        """Draw a token for each sample.

        Returns the rows that continue and the token of each. A sample that is done
        continues, with tokens that are ignored, until its sentence is done.
        """
        group_size, count = logits.shape[1], self._config.number
        uniforms = np.stack([each.uniforms() for each in self.live])
        tokens, log_probs = self._draw(logits, uniforms)
        drawn = zip(self.live, tokens.tolist(), log_probs.tolist(), strict=True)
        for each, row, row_log_probs in drawn:
            each.append(row, row_log_probs)
        kept = [i for i, each in enumerate(self.live) if not each.hypotheses]
        self.live = [self.live[i] for i in kept]
        parents = np.minimum(np.arange(count), group_size - 1)
        first = np.array(kept, dtype=np.int64)[:, None] * group_size
        return first + parents, tokens[kept]

    def join(self, other: "Sampling") -> None:
        """Append the sentences of another search; both must have taken a step."""
        self.live = [*self.live, *other.live]

    def _draw(
        self,
        logits: Float[Any, "sentences group vocab"],
        uniforms: Float64[np.ndarray, "sentences samples"],
    ) -> tuple[
        Int64[np.ndarray, "sentences samples"], Float32[np.ndarray, "sentences samples"]
    ]:
        """Return the token of each sample and its log-probability among all tokens."""
        if not isinstance(logits, np.ndarray):
            # Imported late: PyTorch takes a second to load, and here it is loaded.
            from transduce.decoding.torch_candidates import draw_by_torch

            return draw_by_torch(logits, uniforms, self._config, self._excluded)
        tokens = np.empty(uniforms.shape, dtype=np.int64)
        log_probs = np.empty(uniforms.shape, dtype=np.float32)
        # One sentence at a time, whose logits then stay in the processor's cache.
        each = zip(logits, uniforms, strict=True)
        for number, (group_logits, group_uniforms) in enumerate(each):
            tokens[number], log_probs[number] = self._draw_for_sentence(
                group_logits, group_uniforms
            )
        return tokens, log_probs

    def _draw_for_sentence(
        self,
        logits: Float[np.ndarray, "group vocab"],
        uniforms: Float64[np.ndarray, " samples"],
    ) -> tuple[Int64[np.ndarray, " samples"], Float32[np.ndarray, " samples"]]:
        """Return the token of each sample of one sentence and its log-probability."""
        log_probs = log_softmax(logits)
        allowed = logits.astype(np.float32)  # a copy: the decoder may reuse its logits
        allowed[:, self._excluded] = -np.inf
        if len(allowed) == 1:  # in the first step all samples share one hypothesis
            tokens = draw(allowed[0], uniforms, self._config)
            return tokens, log_probs[0, tokens]
        each = zip(allowed, uniforms[:, None], strict=True)
        tokens = np.concatenate([draw(*row, self._config) for row in each])
        return tokens, log_probs[np.arange(len(tokens)), tokens]


def draw(
    logits: Float32[np.ndarray, " vocab"],
    uniforms: Float64[np.ndarray, " draws"],
    config: SamplingConfig,
) -> Int64[np.ndarray, " draws"]:
    """Return a token for each random number, uniform in [0, 1).

    It is the first token whose cumulative probability exceeds the number. With `top_k`
    or `top_p`, only the likeliest tokens remain, sorted by falling probability;
    otherwise tokens are in the order of the vocabulary. Tokens with a logit of minus
    infinity are drawn only if there are no others.
    """
    values = logits / np.float32(config.temperature)
    weights = np.exp(values - values.max())  # probabilities times a constant
    tokens = _likeliest(weights, config.top_k)
    if config.top_p < 1:
        tokens = _nucleus(weights, tokens, config.top_p)
    cumulative = np.cumsum(weights[tokens], dtype=np.float64)
    # A product with a double below 1 rounds to less than the total, so that no token of
    # probability 0 is drawn.
    places = np.searchsorted(cumulative, uniforms * cumulative[-1], side="right")
    return tokens[np.minimum(places, len(cumulative) - 1)]  # NaN sorts last


def _likeliest(
    weights: Float32[np.ndarray, " vocab"], top_k: int | None
) -> Int64[np.ndarray, " tokens"]:
    """Return the `top_k` likeliest tokens, likeliest first; without it, all by id.

    Of equal tokens, those of lower ids come first.
    """
    if top_k is None or top_k >= len(weights):
        return np.arange(len(weights))
    smallest = np.partition(weights, len(weights) - top_k)[-top_k]
    found = np.flatnonzero(~(weights < smallest))  # keeps NaN
    return _by_likelihood(weights, found)[:top_k]


def _nucleus(
    weights: Float32[np.ndarray, " vocab"],
    tokens: Int64[np.ndarray, " tokens"],
    top_p: float,
) -> Int64[np.ndarray, " nucleus"]:
    """Return the fewest likeliest tokens with a share `top_p` of the total."""
    weights_of_tokens = weights[tokens]
    total = weights_of_tokens.sum(dtype=np.float64)
    # All tokens below this bound have less probability together than is left out.
    bound = (1 - top_p) * total / len(tokens)
    found = _by_likelihood(weights, tokens[~(weights_of_tokens < bound)])  # keeps NaN
    cumulative = np.cumsum(weights[found], dtype=np.float64)
    # The token at which the sum reaches the share belongs to the nucleus.
    return found[: np.searchsorted(cumulative, top_p * total) + 1]


def _by_likelihood(
    weights: Float32[np.ndarray, " vocab"], tokens: Int64[np.ndarray, " tokens"]
) -> Int64[np.ndarray, " tokens"]:
    """Sort tokens, likeliest first; equal ones stay in their order."""
    return tokens[np.argsort(-weights[tokens], kind="stable")]


class _Samples(Sentence):
    """A sentence with its samples so far."""

    def __init__(
        self,
        max_length: int,
        seed: tuple[int, ...],
        config: SamplingConfig,
        eos: int,
    ) -> None:
        super().__init__()
        self._random = np.random.default_rng((config.seed, *seed))
        self._ids: list[list[int]] = [[] for _ in range(config.number)]
        self._log_probs: list[list[float]] = [[] for _ in range(config.number)]
        self._max_length = max_length
        self._eos = eos

    def uniforms(self) -> Float64[np.ndarray, " samples"]:
        """Return a random number in [0, 1) for the next token of each sample."""
        return self._random.random(len(self._ids))

    def append(self, tokens: list[int], log_probs: list[float]) -> None:
        """Append drawn tokens to the samples that are not done."""
        each = zip(self._ids, self._log_probs, tokens, log_probs, strict=True)
        for ids, so_far, token, log_prob in each:
            if not self._is_done(ids):
                ids.append(token)
                so_far.append(log_prob)
        if all(map(self._is_done, self._ids)):
            self.hypotheses = self._sorted()

    def _sorted(self) -> list[Hypothesis]:
        found = [
            Hypothesis(
                ids=tuple(i for i in ids if i != self._eos),
                log_probability=sum(log_probs),
                token_log_probabilities=tuple(log_probs),
                score=sum(log_probs),
                is_finished=ids[-1] == self._eos,
            )
            for ids, log_probs in zip(self._ids, self._log_probs, strict=True)
        ]
        return sorted(found, key=lambda h: h.score, reverse=True)

    def _is_done(self, ids: list[int]) -> bool:
        return len(ids) >= self._max_length or (bool(ids) and ids[-1] == self._eos)
