"""All that is known of how a model reads and translates one sentence."""

from dataclasses import dataclass
from typing import Literal

import torch

from transduce.analysis.attention_maps import (
    AttentionKind,
    AttentionMaps,
    attention_maps,
)
from transduce.analysis.figures import LabelledHeads
from transduce.analysis.search_tree import SearchTree, watch_search
from transduce.analysis.words import between_words, groups_of, word_starts
from transduce.decoding.parsing.penn_words import penn_words
from transduce.decoding.search import require_numbers
from transduce.decoding.search_config import SearchConfig
from transduce.errors import RequestError
from transduce.model.transformer import Transformer
from transduce.parsing.trees import without_brackets
from transduce.parsing.vocabulary import SymbolVocabulary
from transduce.special_ids import BOS, EOS
from transduce.text.tokenizer import Tokenizer, normalize

MAX_TOKENS = 128
"""Of either side: maps grow with its square, and nobody reads larger ones."""
BEGIN, END = "<s>", "</s>"
CONTINUED = "·"

Granularity = Literal["words", "sub-words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokens of an axis of a map."""

    pieces: tuple[str, ...]
    """A word's first begins with a space; begin and end of the text are among them."""
    starts: tuple[int, ...]
    """Where words begin, the begin and the end being words too."""

    @property
    def labels(self) -> list[str]:
        """The pieces for people to read, a mark before what goes on with a word."""
        return [
            piece.strip() or "␣" if i in self.starts else CONTINUED + piece
            for i, piece in enumerate(self.pieces)
        ]

    @property
    def words(self) -> list[str]:
        ends = [*self.starts[1:], len(self.pieces)]
        return [
            "".join(self.pieces[start:end]).strip()
            for start, end in zip(self.starts, ends, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceAttention:
    """A source, a translation, what attends to what, and the search."""

    source_text: str
    target_text: str
    is_forced: bool
    """Whether the translation was given, and not the model's own."""
    source: Tokens
    target_in: Tokens
    """What the decoder reads."""
    target_out: Tokens
    """What it writes at the same positions."""
    maps: AttentionMaps
    search: SearchTree
    found: tuple[str, ...]
    """The texts of the hypotheses of the search."""
    tokens: dict[int, str]
    """The pieces of the ids in the search."""

    def heads_of(self, kind: AttentionKind, granularity: Granularity) -> LabelledHeads:
        """All heads of one of the three attentions."""
        queries, keys = self._axes(kind)
        weights = self.maps.of(kind)
        if granularity == "sub-words":
            return LabelledHeads(
                weights=weights, queries=tuple(queries.labels), keys=tuple(keys.labels)
            )
        groups = [groups_of(axis.starts, len(axis.pieces)) for axis in (queries, keys)]
        return LabelledHeads(
            weights=between_words(weights, *groups),
            queries=tuple(queries.words),
            keys=tuple(keys.words),
        )

    def _axes(self, kind: AttentionKind) -> tuple[Tokens, Tokens]:
        match kind:
            case "encoder":
                return self.source, self.source
            case "decoder":
                return self.target_in, self.target_in
            case "encoder-decoder":
                return self.target_out, self.source


def look_into(
    model: Transformer,
    tokenizer: Tokenizer,
    symbols: SymbolVocabulary | None,
    source_text: str,
    target_text: str | None,
    config: SearchConfig,
) -> SentenceAttention:
    """Translate, or read a given translation, and keep what the model attends to.

    A model that parses has symbols: it writes them of raw English, which is cut as the
    Penn Treebank is, and reads them where it is given a tree.
    `RequestError` if a text is empty or too long, `CheckpointError` if the model puts
    out no numbers.
    """
    written: Tokenizer | SymbolVocabulary = tokenizer
    if symbols is not None:
        written = symbols
        source_text = " ".join(map(without_brackets, penn_words(source_text)))
    source_ids = tokenizer.encode(source_text)
    _check_length(source_ids, "source")
    target_ids = None
    if target_text is not None:
        (target_ids,) = written.encode_targets([target_text])
        _check_length(target_ids, "target")
    device = next(model.parameters()).device
    source = torch.tensor([[*source_ids, EOS]], device=device)
    search = watch_search(model, source, config)
    require_numbers(search.hypotheses)
    if target_ids is None:
        target_ids = list(search.hypotheses[0].ids)
    target_in = torch.tensor([[BOS, *target_ids]], device=device)
    (maps,) = attention_maps(model, source, target_in)
    target_pieces = written.pieces(target_ids)
    ids = {branch.token for branches in search.steps for branch in branches}
    ids |= {i for hypothesis in search.hypotheses for i in hypothesis.ids}
    return SentenceAttention(
        source_text=normalize(source_text),
        target_text=written.decode(target_ids),
        is_forced=target_text is not None,
        source=_tokens(tokenizer.pieces(source_ids), last=END),
        target_in=_tokens(target_pieces, first=BEGIN),
        target_out=_tokens(target_pieces, last=END),
        maps=maps,
        search=search,
        found=tuple(written.decode(h.ids) for h in search.hypotheses),
        tokens=dict(zip(ids, written.pieces(ids), strict=True)),
    )


def _check_length(ids: list[int], side: str) -> None:
    if not ids:
        raise RequestError(f"The {side} must have at least one word, but is empty.")
    if len(ids) > MAX_TOKENS:
        raise RequestError(
            f"The {side} must have at most {MAX_TOKENS} tokens, as attention maps grow "
            f"with its square, but has {len(ids):,}; give one sentence of it."
        )


def _tokens(pieces: list[str], first: str = "", last: str = "") -> Tokens:
    before, after = [first] if first else [], [last] if last else []
    starts = [len(before) + start for start in word_starts(pieces)]
    ends = [len(before) + len(pieces)] if last else []
    return Tokens(
        pieces=(*before, *pieces, *after),
        starts=(*range(len(before)), *starts, *ends),
    )
