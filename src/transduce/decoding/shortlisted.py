"""Decoding among the candidates of a shortlist.

Log-probabilities are then normalized over the candidates of a sentence. These depend on
its source alone, and so its translations do not depend on the batch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int32, Int64

from transduce.decoding.native_model import NativeDecoder
from transduce.decoding.search import CoverageDecoder, Ensemble, JoinableDecoder

Candidates = Int32[np.ndarray, " _"] | None
"""Tokens that may come next, by rising id; None for the whole vocabulary."""


def with_candidates(
    decoder: JoinableDecoder, candidates: Sequence[Candidates]
) -> JoinableDecoder:
    """Let each sentence of a decoder choose among its candidates.

    The native library computes the logits of candidates only. Elsewhere those of all
    other tokens are set to minus infinity. The models of an ensemble have the same
    candidates.
    """
    if isinstance(decoder, Ensemble):
        return Ensemble([with_candidates(each, candidates) for each in decoder.members])
    if isinstance(decoder, NativeDecoder):
        decoder.set_shortlists(candidates)
        return decoder
    return ShortlistedDecoder(decoder, candidates)


class ShortlistedDecoder:
    """A decoder whose logits are minus infinity except for each sentence's
    candidates."""

    def __init__(
        self, decoder: JoinableDecoder, candidates: Sequence[Candidates]
    ) -> None:
        self._decoder = decoder
        self.candidates = list(candidates)
        """Candidates of each sentence; None for the whole vocabulary."""
        self._group = 1

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Any, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        self._group = last_ids.shape[1]
        logits = self._decoder.step(last_ids)
        if isinstance(logits, np.ndarray):
            kept = np.full_like(logits, -np.inf)
            for row, own, found in zip(kept, self.candidates, logits, strict=True):
                chosen = slice(None) if own is None else own
                row[:, chosen] = found[:, chosen]
            return kept
        from transduce.decoding.torch_model import keep_candidates

        return keep_candidates(logits, self.candidates)

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order."""
        sentences = (rows[:, 0] // self._group).tolist()
        self.candidates = [self.candidates[each] for each in sentences]
        self._decoder.reorder(rows)

    def join(self, other: "ShortlistedDecoder") -> None:
        """Append the sentences of another decoder."""
        self._decoder.join(other._decoder)
        self.candidates += other.candidates

    def coverage(self) -> Float64[np.ndarray, "sentences group"]:
        """Return the sum of log(min(attention, 1)) over the source, end included."""
        assert isinstance(self._decoder, CoverageDecoder)
        return self._decoder.coverage()
