"""Translations drawn at random, each token by its probability."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64

from transduce.decoding.candidates import draw, log_softmax
from transduce.decoding.search import Decoding, Hypothesis, NextTokenModel
from transduce.search_config import SamplingConfig


def sample(
    model: NextTokenModel,
    max_lengths: Sequence[int],
    names: Sequence[tuple[int, ...]],
    config: SamplingConfig,
    *,
    bos: int,
    eos: int,
    excluded: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """`config.number` hypotheses of each sentence, likeliest first.

    The draws of a sentence depend on the seed and its name, not on other sentences.
    Log-probabilities are the model's own, whatever was drawn from; they are the score.
    """
    search = Sampling(max_lengths, names, config, eos, excluded)
    sentences = list(search.live)
    Decoding(model, search, bos).finish()
    return [each.hypotheses() for each in sentences]


class Sampling:
    """Sentences that grow together by drawn tokens."""

    def __init__(
        self,
        max_lengths: Sequence[int],
        names: Sequence[tuple[int, ...]],
        config: SamplingConfig,
        eos: int,
        excluded: Sequence[int] = (),
    ) -> None:
        each = zip(max_lengths, names, strict=True)
        self.live = [_Draws(limit, name, config, eos) for limit, name in each]
        self._config = config
        self._excluded = list(excluded)

    def grow(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> tuple[Int64[np.ndarray, "kept samples"], Int64[np.ndarray, "kept samples"]]:
        """Draw a token for each sample; return the rows that go on, and what they read.

        Logits are an array, or a tensor on any device.
        """
        group_size, count = logits.shape[1], self._config.number
        chances = np.stack([each.chances() for each in self.live])
        tokens, gains = self._drawn(logits, chances)
        drawn = zip(self.live, tokens.tolist(), gains.tolist(), strict=True)
        for each, row, gain in drawn:
            each.append(row, gain)
        kept = [i for i, each in enumerate(self.live) if not each.are_done]
        self.live = [self.live[i] for i in kept]
        parents = np.minimum(np.arange(count), group_size - 1)
        first = np.array(kept, dtype=np.int64)[:, None] * group_size
        return first + parents, tokens[kept]

    def join(self, other: "Sampling") -> None:
        """Append the sentences of another."""
        self.live = [*self.live, *other.live]

    def _drawn(
        self,
        logits: Float[Any, "sentences group vocab"],
        chances: Float64[np.ndarray, "sentences samples"],
    ) -> tuple[
        Int64[np.ndarray, "sentences samples"], Float32[np.ndarray, "sentences samples"]
    ]:
        """Token of each sample, and its log-probability among all tokens."""
        if not isinstance(logits, np.ndarray):
            # PyTorch is loaded then, and takes a second to load otherwise.
            from transduce.decoding.torch_logits import draw_by_torch

            return draw_by_torch(logits, chances, self._config, self._excluded)
        tokens = np.empty(chances.shape, dtype=np.int64)
        gains = np.empty(chances.shape, dtype=np.float32)
        # A sentence at a time, as its logits then stay in the processor's cache.
        for i, (of_sentence, aims) in enumerate(zip(logits, chances, strict=True)):
            tokens[i], gains[i] = self._drawn_for(of_sentence, aims)
        return tokens, gains

    def _drawn_for(
        self,
        logits: Float[np.ndarray, "group vocab"],
        chances: Float64[np.ndarray, " samples"],
    ) -> tuple[Int64[np.ndarray, " samples"], Float32[np.ndarray, " samples"]]:
        """Token of each sample of one sentence, and its log-probability."""
        log_probs = log_softmax(logits)
        allowed = logits.astype(np.float32)  # the model may use its logits again
        allowed[:, self._excluded] = -np.inf
        if len(allowed) == 1:  # at first all samples go on from one hypothesis
            tokens = draw(allowed[0], chances, self._config)
            return tokens, log_probs[0, tokens]
        each = zip(allowed, chances[:, None], strict=True)
        tokens = np.concatenate([draw(*row, self._config) for row in each])
        return tokens, log_probs[np.arange(len(tokens)), tokens]


class _Draws:
    """The samples of one sentence."""

    def __init__(
        self,
        max_length: int,
        name: tuple[int, ...],
        config: SamplingConfig,
        eos: int,
    ) -> None:
        self._random = np.random.default_rng((config.seed, *name))
        self._ids: list[list[int]] = [[] for _ in range(config.number)]
        self._gains: list[list[float]] = [[] for _ in range(config.number)]
        self._max_length = max_length
        self._eos = eos

    def chances(self) -> Float64[np.ndarray, " samples"]:
        """Numbers from 0 to 1, one for each sample's next token."""
        return self._random.random(len(self._ids))

    def append(self, tokens: list[int], gains: list[float]) -> None:
        """Add drawn tokens to the samples that have not ended."""
        each = zip(self._ids, self._gains, tokens, gains, strict=True)
        for ids, so_far, token, gain in each:
            if not self._is_done(ids):
                ids.append(token)
                so_far.append(gain)

    @property
    def are_done(self) -> bool:
        return all(map(self._is_done, self._ids))

    def hypotheses(self) -> list[Hypothesis]:
        """The samples, likeliest first."""
        found = [
            Hypothesis(
                ids=tuple(i for i in ids if i != self._eos),
                log_probability=sum(gains),
                token_log_probabilities=tuple(gains),
                score=sum(gains),
                is_finished=ids[-1] == self._eos,
            )
            for ids, gains in zip(self._ids, self._gains, strict=True)
        ]
        return sorted(found, key=lambda h: h.score, reverse=True)

    def _is_done(self, ids: list[int]) -> bool:
        return len(ids) >= self._max_length or (bool(ids) and ids[-1] == self._eos)
