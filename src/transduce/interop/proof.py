"""Proof that a model of another library computes the same as this package's.

The other model translates greedily and returns its logits at each step. Then this
package's model reads the same targets: its logits must be equal within a tolerance, and
each chosen token must be its own first choice. So its greedy translation is the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from transduce.checkpoint import Checkpoint
from transduce.decoding.translations import MAX_SOURCE_TOKENS
from transduce.errors import DataError, TransduceError, counted
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import BOS, EOS, PAD

TOLERANCE = 1e-3
"""Tolerance of logits, for sums in another order and norms with another epsilon."""
MAX_LENGTH = 64
"""Number of tokens of a translation that are compared."""


class ProofError(TransduceError):
    """Two models that should be equal compute different results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyOutput:
    """Greedy translation by another library."""

    ids: list[int]
    """Ids of the translation, including the end token if generated."""
    logits: Float[Tensor, "steps vocab"]
    """Logits from which each id was chosen."""


@runtime_checkable
class OtherModel(Protocol):
    """Model run by another library, with this package's ids."""

    def greedy(self, source: list[int], max_length: int) -> GreedyOutput:
        """Translate ids without special tokens; `PAD` and `BOS` are never generated."""
        ...


@runtime_checkable
class OtherTokenizer(Protocol):
    """Tokenizer of another library, with this package's ids, without special tokens."""

    def encode_source(self, text: str) -> list[int]: ...

    def encode_target(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Size of a successful comparison."""

    num_sentences: int
    num_tokens: int
    """Number of tokens chosen alike by both in greedy search."""
    max_difference: float
    """Largest difference between two logits of the same token."""

    def __str__(self) -> str:
        return (
            f"{counted(self.num_tokens, 'token')} of "
            f"{counted(self.num_sentences, 'sentence')} are the same by greedy "
            f"search, and no logit differs by more than "
            f"{self.max_difference:.1e}"
        )


def require_short(
    sentences: Sequence[str], tokenizer: Tokenizer, max_positions: int
) -> None:
    """Raise `DataError` if a sentence, with its end token, exceeds the limit."""
    longest = min(MAX_SOURCE_TOKENS, max_positions - 1)
    for number, sentence in enumerate(sentences, start=1):
        if (length := len(tokenizer.encode(sentence))) > longest:
            raise DataError(
                f"A sentence of the sample must have at most {longest} tokens, but "
                f"number {number} ({shorten(sentence, 40, placeholder='...')}) has "
                f"{length:,}; take it out."
            )


@torch.no_grad()
def prove(
    model: OtherModel,
    tokenizer: OtherTokenizer,
    checkpoint: Checkpoint,
    sentences: Sequence[str],
) -> Proof:
    """Compare another library's model with this one; `ProofError` if they differ."""
    ours = checkpoint.build_transformer()
    num_tokens, max_difference = 0, 0.0
    for sentence in sentences:
        _require_same_tokenizer(tokenizer, checkpoint.tokenizer, sentence)
        source = checkpoint.tokenizer.encode(sentence)
        output = model.greedy(source, MAX_LENGTH)
        logits = _logits(ours, source, output.ids)
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
    # The other library may have excluded tokens that are never generated.
    theirs, ours = output.logits[:, EOS:], logits[:, EOS:]
    difference = float((theirs - ours).abs().max())
    if not difference <= TOLERANCE:
        raise ProofError(
            f"Both models must have the same logits within {TOLERANCE}, but they "
            f"differ by {difference:.2g} for the sentence {sentence!r}; nothing was "
            "written."
        )
    return difference


def _require_first_choices(
    ids: list[int], logits: Float[Tensor, "steps vocab"], sentence: str
) -> None:
    chosen: Int64[Tensor, " steps"] = torch.tensor(ids)
    logits[:, [PAD, BOS]] = -torch.inf
    behind = logits.amax(dim=-1) - logits.gather(-1, chosen[:, None]).squeeze(-1)
    # Equal within the tolerance: either may come first.
    if bool((behind > TOLERANCE).any()):
        raise ProofError(
            "Both models must choose the same tokens, but do not for the sentence "
            f"{sentence!r}; nothing was written."
        )


def _require_same_tokenizer(
    theirs: OtherTokenizer, ours: Tokenizer, sentence: str
) -> None:
    source = ours.encode(sentence)
    [target] = ours.encode_targets([sentence])
    same = (
        theirs.encode_source(sentence) == source
        and theirs.encode_target(sentence) == target
        and all(theirs.decode(ids) == ours.decode(ids) for ids in (source, target))
    )
    if not same:
        raise ProofError(
            "Both tokenizers must give the same ids and text, but do not for the "
            f"sentence {sentence!r}; nothing was written."
        )
