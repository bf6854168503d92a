"""The likeliest ways to go on, by a kernel of our own."""

import ctypes
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from transduce.decoding.kernels.fields import CandidateSearchFields
from transduce.decoding.kernels.library import kernels, loaded_kernels, require_done
from transduce.kernels.loading import address

NOT_FORCED = -1
"""Of a sentence that may go on with any token."""


def can_find_candidates(logits: Tensor) -> bool:
    """Whether the kernel takes these."""
    is_plain = logits.dtype == torch.float32 and logits.is_cpu
    return is_plain and kernels() is not None


class CompiledCandidates:
    """`count` of each sentence, none of them by the tokens that may never come."""

    def __init__(self, count: int, never: Sequence[int], diversity: float) -> None:
        self._library = loaded_kernels()
        self._never = torch.tensor(never, dtype=torch.int64)
        self._fields = CandidateSearchFields(
            never=address(self._never, torch.int64),
            num_never=len(never),
            diversity=diversity,
            count=count,
        )
        self._hold(0)

    def __call__(
        self,
        logits: Float[Tensor, "sentences group vocab"],
        totals: Float64[Tensor, "sentences group"],
        mask: Bool[Tensor, "sentences group vocab"] | None,
        forced: Int64[Tensor, " sentences"] | None,
    ) -> tuple[
        Float64[Tensor, "sentences candidates"],
        Int64[Tensor, "sentences candidates"],
        Int64[Tensor, "sentences candidates"],
    ]:
        """Their log-probabilities, hypotheses and tokens, good until the next call.

        What the mask has may not come either.
        """
        logits, totals, fields = logits.contiguous(), totals.contiguous(), self._fields
        sentences, fields.group, fields.vocab = logits.shape
        assert totals.shape == logits.shape[:2]
        assert mask is None or mask.shape == logits.shape
        assert forced is None or forced.shape == logits.shape[:1]
        if sentences != fields.sentences:
            self._hold(sentences)
        if mask is not None:
            mask = mask.cpu().contiguous()
        fields.logits = address(logits)
        fields.totals = address(totals, torch.float64)
        fields.mask = None if mask is None else address(mask, torch.bool)
        fields.forced = None if forced is None else address(forced, torch.int64)
        require_done(self._library.transduce_candidates(ctypes.byref(fields)))
        return self._found

    def asked_of(self, sentences: int, group: int, vocab: int) -> CandidateSearchFields:
        """For a kernel that fills in logits of so many; nothing is masked."""
        fields = self._fields
        if sentences != fields.sentences:
            self._hold(sentences)
        fields.group, fields.vocab, fields.mask = group, vocab, None
        return fields

    def _hold(self, sentences: int) -> None:
        """Have places for what is found of so many."""
        found = torch.empty(3, sentences, self._fields.count, dtype=torch.int64)
        totals, parents, tokens = found
        self._found = totals.view(torch.float64), parents, tokens
        self._fields.sentences = sentences
        self._fields.found_totals = address(totals.view(torch.float64), torch.float64)
        self._fields.found_parents = address(parents, torch.int64)
        self._fields.found_tokens = address(tokens, torch.int64)
