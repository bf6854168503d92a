"""Translations drawn at random, each token by its probability."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from transduce.decoding.hypotheses import Hypothesis
from transduce.decoding.search import Decoding, NextTokenModel
from transduce.sampling_config import SamplingConfig


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
    """So many hypotheses of each sentence, likeliest first.

    What is drawn for a sentence depends on the seed and its name, not on the others.
    Log-probabilities are the model's own, whatever was drawn from; they are the score.
    """
    search = Sampling(max_lengths, names, config, eos, excluded)
    sentences = list(search.live)
    Decoding(model, search, bos).finish()
    return [each.hypotheses() for each in sentences]


class Sampling:
    """Sentences that grow together by what is drawn."""

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
        self._excluded = excluded

    @torch.inference_mode()
    def grow(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> tuple[Int64[np.ndarray, "kept samples"], Int64[np.ndarray, "kept samples"]]:
        """Draw a token for each sample; the rows that go on, and what they read."""
        logits = torch.as_tensor(logits).float()
        group_size, count = logits.size(1), self._config.number
        log_probs = logits.log_softmax(dim=-1)
        logits = logits.clone()  # as those before are the model's own
        logits[..., list(self._excluded)] = -torch.inf
        # At first each sentence has one hypothesis, from which all its samples begin.
        shape = (len(self.live), count, logits.size(-1))
        chances = torch.from_numpy(np.stack([each.chances() for each in self.live]))
        tokens = _draw(logits.expand(shape), chances, self._config)
        gains = log_probs.expand(shape).gather(-1, tokens[..., None]).squeeze(-1)
        drawn = zip(self.live, tokens.tolist(), gains.tolist(), strict=True)
        for each, row, gain in drawn:
            each.append(row, gain)
        kept = [i for i, each in enumerate(self.live) if not each.are_done]
        self.live = [self.live[i] for i in kept]
        parents = np.minimum(np.arange(count), group_size - 1)
        first = np.array(kept, dtype=np.int64)[:, None] * group_size
        return first + parents, tokens[kept].cpu().numpy()

    def join(self, other: "Sampling") -> None:
        """Put the sentences of another behind one's own."""
        self.live = [*self.live, *other.live]


def _draw(
    logits: Float[Tensor, "sentences samples vocab"],
    chances: Float64[Tensor, "sentences samples"],
    config: SamplingConfig,
) -> Int[Tensor, "sentences samples"]:
    """The token where the summed probabilities, likeliest first, pass the chance."""
    vocab_size = logits.size(-1)
    count = vocab_size if config.top_k is None else min(config.top_k, vocab_size)
    values, tokens = (logits / config.temperature).topk(count)
    probabilities = values.double().softmax(dim=-1)
    reached = probabilities.cumsum(dim=-1)
    # The token that reaches the nucleus's probability belongs to it.
    is_outside = reached - probabilities >= config.top_p
    probabilities = probabilities.masked_fill(is_outside, 0.0)
    reached = probabilities.cumsum(dim=-1)
    aims = chances.to(logits.device)[..., None] * reached[..., -1:]
    last = (~is_outside).sum(dim=-1, keepdim=True) - 1
    index = torch.searchsorted(reached, aims, right=True).minimum(last)
    return tokens.gather(-1, index).squeeze(-1)


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
        """From 0 to 1, one for each sample's next token."""
        return self._random.random(len(self._ids))

    def append(self, tokens: list[int], gains: list[float]) -> None:
        """Add what has been drawn to the samples that have not ended."""
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
