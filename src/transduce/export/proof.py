"""The proof of an export: what it puts out, held against the model itself.

The exported model translates greedily and says its logits at each step. Then the model
itself reads the same targets: its logits must be the same, and at each step the token
that was chosen must be its own first choice. So its own greedy translation is the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from transduce.checkpoint import Checkpoint
from transduce.errors import TransduceError
from transduce.model.transformer import Transformer
from transduce.special_ids import BOS, EOS, PAD
from transduce.text.tokenizer import Tokenizer

TOLERANCE = 1e-3
"""By which logits may differ: sums in another order, norms with another epsilon."""
MAX_LENGTH = 64
"""Tokens of a translation that are compared."""


class ExportError(TransduceError):
    """An exported model does not put out what it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyOutput:
    """A greedy translation by an exported model."""

    ids: list[int]
    """The end token counted, if it came."""
    logits: Float[Tensor, "steps vocab"]
    """What each was chosen by."""


@runtime_checkable
class ExportedModel(Protocol):
    """An exported model, run by the library that it is for."""

    def greedy(self, source: list[int], max_length: int) -> GreedyOutput:
        """Translate ids without special tokens; `PAD` and `BOS` are never put out."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids by the tokenizer beside it, without special tokens."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Text by the tokenizer beside it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was compared, and found equal."""

    num_sentences: int
    num_tokens: int
    """Chosen by greedy search, the same by both."""
    max_difference: float
    """Between any two logits of the same token."""

    def __str__(self) -> str:
        return (
            f"{self.num_tokens:,} tokens of {self.num_sentences} sentences are the "
            f"same by greedy search, and no logit differs by more than "
            f"{self.max_difference:.1e}"
        )


@torch.no_grad()
def prove(
    exported: ExportedModel, checkpoint: Checkpoint, sentences: Sequence[str]
) -> Proof:
    """Compare an exported model with its origin; `ExportError` if they differ."""
    model = checkpoint.build()
    num_tokens, max_difference = 0, 0.0
    for sentence in sentences:
        source = checkpoint.tokenizer.encode(sentence)
        _require_same_tokenizer(exported, checkpoint.tokenizer, sentence)
        output = exported.greedy(source, MAX_LENGTH)
        logits = _logits(model, source, output.ids)
        max_difference = max(max_difference, _difference(output, logits, sentence))
        _require_first_choices(output.ids, logits, sentence)
        num_tokens += len(output.ids)
    return Proof(
        num_sentences=len(sentences),
        num_tokens=num_tokens,
        max_difference=max_difference,
    )


def _logits(
    model: Transformer, source: list[int], target: list[int]
) -> Float[Tensor, "steps vocab"]:
    read = torch.tensor([[BOS, *target[:-1]]])
    return model(torch.tensor([[*source, EOS]]), read)[0]


def _difference(
    output: GreedyOutput, logits: Float[Tensor, "steps vocab"], sentence: str
) -> float:
    # Exported models may have shut out what is never put out.
    theirs, ours = output.logits[:, EOS:], logits[:, EOS:]
    difference = float((theirs - ours).abs().max())
    if not difference <= TOLERANCE:
        raise ExportError(
            f"The exported model must have the same logits within {TOLERANCE}, but "
            f"they differ by {difference:.2g} for the sentence {sentence!r}; nothing "
            "was exported."
        )
    return difference


def _require_first_choices(
    ids: list[int], logits: Float[Tensor, "steps vocab"], sentence: str
) -> None:
    chosen: Int64[Tensor, " steps"] = torch.tensor(ids)
    logits[:, [PAD, BOS]] = -torch.inf
    behind = logits.amax(dim=-1) - logits.gather(-1, chosen[:, None]).squeeze(-1)
    # Equals within the tolerance: either may come first.
    if bool((behind > TOLERANCE).any()):
        raise ExportError(
            "The exported model must choose the same tokens, but does not for the "
            f"sentence {sentence!r}; nothing was exported."
        )


def _require_same_tokenizer(
    exported: ExportedModel, tokenizer: Tokenizer, sentence: str
) -> None:
    ids = tokenizer.encode(sentence)
    if exported.encode(sentence) != ids or exported.decode(ids) != tokenizer.decode(
        ids
    ):
        raise ExportError(
            "The exported tokenizer must give the same ids and text, but does not for "
            f"the sentence {sentence!r}; nothing was exported."
        )
