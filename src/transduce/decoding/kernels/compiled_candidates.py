"""The likeliest ways to go on, by a kernel of our own."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int64

from transduce.decoding.kernels.fields import CandidateSearchFields
from transduce.decoding.kernels.library import kernels, loaded_kernels, require_done
from transduce.kernels.loading import address

NOT_FORCED = -1
"""Of a sentence that may go on with any token."""


def for_kernel(
    logits: Float[Any, "sentences group vocab"],
) -> Float32[np.ndarray, "sentences group vocab"] | None:
    """Logits as the kernel takes them; None if it cannot, or is not there."""
    if kernels() is None:
        return None
    if not isinstance(logits, np.ndarray):
        if logits.device.type != "cpu" or not logits.dtype.is_floating_point:
            return None
        if logits.dtype.itemsize != np.dtype(np.float32).itemsize:
            return None
        logits = logits.detach().numpy()
    return logits if logits.dtype == np.float32 else None


class CompiledCandidates:
    """`count` of each sentence, none of them by the tokens that may never come."""

    def __init__(self, count: int, never: Sequence[int], diversity: float) -> None:
        self._library = loaded_kernels()
        self._never = np.array(never, dtype=np.int64)
        self._fields = CandidateSearchFields(
            never=address(self._never, np.int64),
            num_never=len(never),
            diversity=diversity,
            count=count,
        )
        none = np.empty((3, 0, count), dtype=np.int64)
        self._found = none[0].view(np.float64), none[1], none[2]

    def __call__(
        self,
        logits: Float32[np.ndarray, "sentences group vocab"],
        totals: Float64[np.ndarray, "sentences group"],
        mask: Bool[np.ndarray, "sentences group vocab"] | None,
        forced: Int64[np.ndarray, " sentences"] | None,
    ) -> tuple[
        Float64[np.ndarray, "sentences candidates"],
        Int64[np.ndarray, "sentences candidates"],
        Int64[np.ndarray, "sentences candidates"],
    ]:
        """Their log-probabilities, hypotheses and tokens, good until the next call.

        What the mask has may not come either.
        """
        logits, totals = np.ascontiguousarray(logits), np.ascontiguousarray(totals)
        fields = self._fields
        sentences, fields.group, fields.vocab = logits.shape
        assert totals.shape == logits.shape[:2]
        assert mask is None or mask.shape == logits.shape
        assert forced is None or forced.shape == logits.shape[:1]
        self._hold(sentences)
        if mask is not None:
            mask = np.ascontiguousarray(mask)
        fields.totals = address(totals, np.float64)
        fields.mask = None if mask is None else address(mask, np.bool_)
        fields.forced = None if forced is None else address(forced, np.int64)
        search = self._library.transduce_candidates
        require_done(search(ctypes.byref(fields), address(logits)))
        return self._found

    def asked_of(self, sentences: int, group: int, vocab: int) -> CandidateSearchFields:
        """For a kernel that computes the logits of so many; nothing is masked."""
        fields = self._fields
        self._hold(sentences)
        fields.group, fields.vocab, fields.mask = group, vocab, None
        return fields

    def _hold(self, sentences: int) -> None:
        """Have places for what is found of so many."""
        self._fields.sentences = sentences  # which steps together may have lowered
        if len(self._found[0]) == sentences:
            return
        found = np.empty((3, sentences, self._fields.count), dtype=np.int64)
        totals, parents, tokens = found[0].view(np.float64), found[1], found[2]
        self._found = totals, parents, tokens
        self._fields.found_totals = address(totals, np.float64)
        self._fields.found_parents = address(parents, np.int64)
        self._fields.found_tokens = address(tokens, np.int64)
