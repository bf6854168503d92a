"""Steps of every export: what a target needs of a model, and a proof of the result.

The proof is that the model of the other library computes the same as this package's.
The other model translates greedily and returns its logits at each step. Then this
package's model reads the same targets: its logits must be equal within a tolerance, and
each chosen token must be its own first choice. So its greedy translation is the same.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from textwrap import shorten
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from transduce.architectures.config import require_transformer
from transduce.checkpoint import EXPORT, Checkpoint
from transduce.decoding.translations import max_source_tokens
from transduce.errors import (
    DataError,
    RequestError,
    TransduceError,
    counted,
    warn_caller,
)
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search_config import NOT_GREEDY, SearchConfig
from transduce.settings import shown_json
from transduce.text.sentence_pieces import SentencePieceTokenizer
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import BOS, EOS, PAD


def weights_for_scaled_scores(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the weights for a library that always divides scores by sqrt(d_k).

    The query maps of a model with unscaled scores are multiplied by sqrt(d_k).
    """
    config = checkpoint.transformer_config
    if config.scores != "unscaled":
        return dict(checkpoint.weights)
    scale = math.sqrt(config.d_k)
    return {
        name: weight * scale if ".project_query." in name else weight
        for name, weight in checkpoint.weights.items()
    }


def embedding_names(checkpoint: Checkpoint) -> tuple[str, str, str]:
    """Return the names of the embeddings of source and target, and of the output."""
    config = checkpoint.transformer_config
    target = "embedding" if config.target_vocab_size is None else "target_embedding"
    return "embedding", target, target if config.tied_output else "output"


def require(target: str, config: ModelConfig, **settings: object) -> None:
    """Raise `RequestError` unless the model has the settings that the target
    supports."""
    for name, value in settings.items():
        if (actual := getattr(config, name)) != value:
            raise RequestError(
                f"A model for {target} must have `model.{name}` = {_shown(value)}, but "
                f"has {_shown(actual)}; it cannot be exported there."
            )


def require_text(target: str, checkpoint: Checkpoint) -> None:
    """Raise `RequestError` unless the model is a Transformer that translates into text.

    This comes before the tokenizer, which would have to change for nothing.
    """
    require_transformer(checkpoint.config, EXPORT)
    if checkpoint.symbols is not None:
        raise RequestError(
            f"A model for {target} must translate into text, but this one parses; it "
            "cannot be exported there."
        )


def differences(search: SearchConfig, written: SearchConfig) -> list[str]:
    """Return the names of settings in which two searches differ."""
    unused = {"num_best"}  # a model's own never counts
    if search.beam_size == 1:
        unused |= {*NOT_GREEDY, "penalty", "length_penalty"}
    return [
        field.name
        for field in fields(SearchConfig)
        if field.name not in unused
        and getattr(search, field.name) != getattr(written, field.name)
    ]


def lost_search(target: str, checkpoint: Checkpoint) -> str:
    """Return the sentence about the model's search, for a folder that has none.

    It names beam size and length penalty even if they are the defaults here, as those
    of another program may differ, and other settings that differ from the defaults.
    """
    search = checkpoint.search or SearchConfig()
    names = ["beam_size"]
    if search.beam_size > 1:
        names += ["penalty", "length_penalty"]
    names += (n for n in differences(search, SearchConfig()) if n not in names)
    settings = ", ".join(
        f"`search.{name}` = {shown_json(getattr(search, name))}" for name in names
    )
    return (
        f"A folder for {target} has no settings of search; give the corresponding "
        f"options to the program that translates: {settings}."
    )


def warn_of_lost_shortlist(target: str, checkpoint: Checkpoint) -> None:
    """Warn of the model's shortlist, for a folder that has none."""
    if checkpoint.shortlist is not None:
        warn_caller(
            f"A folder for {target} has no shortlist, so that of the model is not in "
            "it; all tokens are candidates there."
        )


def require_plain_attention(target: str, config: ModelConfig) -> None:
    """Raise `RequestError` unless attention is a dot product with d_k = d_v =
    d_model/h.

    It must have no neighbourhood. Unscaled dot products are supported: the scale goes
    into the queries.
    """
    width = config.d_model / config.num_heads
    require(target, config, d_k=width, d_v=width, neighbourhood=None)
    if config.scores == "additive":
        require(target, config, scores="scaled")


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


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
    """Tokenizer of another library, with this package's ids, without special tokens.

    It decodes ids of targets; other ids only if there is one vocabulary.
    """

    def encode_source(self, text: str) -> list[int]: ...

    def encode_target(self, text: str) -> list[int]: ...

    def known_to_source(self, ids: list[int]) -> list[int]:
        """Return ids of a source with one id for all pieces that it does not know."""
        ...

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
    longest = max_source_tokens(tokenizer, max_positions)
    for number, sentence in enumerate(sentences, start=1):
        if (length := len(tokenizer.encode(sentence))) > longest:
            raise DataError(
                f"A sentence of the sample must have at most {longest} tokens, but "
                f"number {number} ({shorten(sentence, 40, placeholder='...')}) has "
                f"{length:,}; take it out."
            )


def marked_texts(tokenizer: Tokenizer) -> list[str]:
    """Return texts with each language tag and each added token of a tokenizer.

    A proof needs them, because sample sentences rarely have such tokens.
    """
    tags = [f"{tag} one two" for tag in tokenizer.language_tags]
    added = tokenizer.added if isinstance(tokenizer, SentencePieceTokenizer) else ()
    return [*tags, *(f"one {token} two {token}" for token in added)]


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
    has_two = checkpoint.transformer_config.target_vocab_size is not None
    for text in marked_texts(checkpoint.tokenizer):
        _require_same_tokenizer(tokenizer, checkpoint.tokenizer, text, has_two)
    for sentence in sentences:
        _require_same_tokenizer(tokenizer, checkpoint.tokenizer, sentence, has_two)
        source = checkpoint.tokenizer.encode(sentence)
        if not source:  # some libraries translate none
            continue
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


@torch.no_grad()
def prove_choices(
    greedy_ids: Callable[[list[int]], list[int]],
    checkpoint: Checkpoint,
    sentences: Sequence[str],
    candidates: Callable[[list[int]], list[int] | np.ndarray] | None = None,
) -> int:
    """Raise `ProofError` unless another library chooses the tokens that we choose.

    `greedy_ids` translates a source there: each token must be the first choice of this
    package's model, among those that `candidates` returns of the source if it is given.
    Returns the number of tokens.
    """
    ours = checkpoint.build_transformer()
    num_tokens = 0
    for sentence in sentences:
        source = checkpoint.tokenizer.encode(sentence)
        if not source:
            continue
        ids = greedy_ids(source)
        logits = _logits(ours, source, ids)
        if candidates is not None:
            is_left_out = torch.ones(logits.size(-1), dtype=torch.bool)
            is_left_out[torch.as_tensor(candidates(source))] = False
            logits[:, is_left_out] = -torch.inf
        _require_first_choices(ids, logits, sentence)
        num_tokens += len(ids)
    return num_tokens


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
    theirs: OtherTokenizer, ours: Tokenizer, sentence: str, has_two: bool
) -> None:
    source = ours.encode(sentence)
    [target] = ours.encode_targets([sentence])
    decoded = (target,) if has_two else (source, target)
    same = (
        theirs.encode_source(sentence) == theirs.known_to_source(source)
        and theirs.encode_target(sentence) == target
        and all(theirs.decode(ids) == ours.decode(ids) for ids in decoded)
    )
    if not same:
        raise ProofError(
            "Both tokenizers must give the same ids and text, but do not for the "
            f"sentence {sentence!r}; nothing was written."
        )
