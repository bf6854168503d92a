"""All that is known of how a model reads and translates one sentence."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from transduce.analysis.attention_maps import AttentionMaps, attention_maps
from transduce.analysis.figures import LabelledHeads
from transduce.analysis.search_tree import SearchTree, watch_search
from transduce.analysis.word_links import (
    between_words,
    groups_of,
    spelt_letters,
    word_starts,
)
from transduce.decoding.search import require_numbers
from transduce.decoding.translator import EXCLUDED, Translator
from transduce.errors import RequestError, TooLongError
from transduce.model.config import AttentionKind
from transduce.search_config import SearchConfig
from transduce.text.tokenizer import normalize
from transduce.text.vocabulary import BOS, EOS
from transduce.trees.normalization import normalized
from transduce.trees.penn_words import penn_words
from transduce.trees.trees import parse_tree, without_brackets
from transduce.trees.vocabulary import NEVER_WRITTEN

MAX_TOKENS = 128
"""Of either side: maps grow with its square, and nobody reads larger ones."""
BEGIN, END = " <s>", " </s>"
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
        """Readable pieces; those that continue a word have a mark before them.

        The first byte of a letter shows the letter; its other bytes show the mark only.
        """
        return [
            text.strip() or "␣" if i in self.starts else CONTINUED + text
            for i, text in enumerate(spelt_letters(self.pieces))
        ]

    @property
    def words(self) -> list[str]:
        ends = [*self.starts[1:], len(self.pieces)]
        letters = spelt_letters(self.pieces)
        return [
            "".join(letters[start:end]).strip()
            for start, end in zip(self.starts, ends, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairAttention:
    """A source and a target, and what attends to what."""

    source_text: str
    target_text: str
    source: Tokens
    target_in: Tokens
    """What the decoder reads."""
    target_out: Tokens
    """What it writes at the same positions."""
    maps: AttentionMaps

    def axes(self, kind: AttentionKind) -> tuple[Tokens, Tokens]:
        """What attends, and what is attended to."""
        match kind:
            case "encoder":
                return self.source, self.source
            case "decoder":
                return self.target_in, self.target_in
            case "encoder-decoder":
                return self.target_out, self.source

    def heads_of(self, kind: AttentionKind, granularity: Granularity) -> LabelledHeads:
        """All heads of one of the three attentions."""
        queries, keys = self.axes(kind)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceAttention:
    """A source with its translation, and the search for it."""

    pair: PairAttention
    is_forced: bool
    """Whether the translation was given, and not the model's own."""
    is_parse: bool
    """Whether what was written are the symbols of a tree."""
    search: SearchTree
    found: tuple[str, ...]
    """The texts of the hypotheses of the search."""
    tokens: dict[int, str]
    """The pieces of the ids in the search."""


def attend(translator: Translator, source_text: str, target_text: str) -> PairAttention:
    """Let the first model read a source and a target.

    The source of a model that parses is raw English, which is cut as the Penn Treebank
    is, and the target a tree in brackets. `RequestError` if a text is empty or too
    long, `DataError` if a tree must be one and is none.
    """
    source = _Source.read(translator, source_text)
    return _attend(translator, source, _target_ids(translator, target_text))


def look_into(
    translator: Translator,
    source_text: str,
    target_text: str | None,
    config: SearchConfig | None = None,
) -> SentenceAttention:
    """Translate, or read a given translation as `attend` does, and watch the search.

    It is the model's own by default. `CheckpointError` if the model puts out no
    numbers.
    """
    source = _Source.read(translator, source_text)
    given = None if target_text is None else _target_ids(translator, target_text)
    search = watch_search(
        translator.models[0].operators.model,
        _row([*source.ids, EOS], translator),
        config or translator.search,
        EXCLUDED if translator.symbols is None else NEVER_WRITTEN,
    )
    require_numbers([each.log_probability for each in search.hypotheses])
    target_ids = given or list(search.hypotheses[0].ids)
    written = translator.symbols or translator.tokenizer
    ids = {branch.token for branches in search.steps for branch in branches}
    ids |= {i for hypothesis in search.hypotheses for i in hypothesis.ids}
    return SentenceAttention(
        pair=_attend(translator, source, target_ids),
        is_forced=given is not None,
        is_parse=translator.symbols is not None,
        search=search,
        found=tuple(written.decode(h.ids) for h in search.hypotheses),
        tokens=dict(zip(ids, written.pieces(ids), strict=True)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    text: str
    ids: list[int]

    @classmethod
    def read(cls, translator: Translator, text: str) -> "_Source":
        if translator.symbols is not None:
            text = " ".join(map(without_brackets, penn_words(text)))
        (ids,) = translator.tokenizer.encode_sources([text])
        _require_length(ids, "source")
        return cls(text=normalize(text), ids=ids)


def _target_ids(translator: Translator, text: str) -> list[int]:
    symbols = translator.symbols
    if symbols is None:
        (ids,) = translator.tokenizer.encode_targets([text])
    else:
        line = symbols.target_line(normalized(parse_tree(text)))
        (ids,) = symbols.encode_targets([line])
    _require_length(ids, "target")
    return ids


def _require_length(ids: list[int], side: str) -> None:
    if not ids:
        raise RequestError(f"The {side} must have at least one word, but is empty.")
    if len(ids) > MAX_TOKENS:
        raise TooLongError(
            f"The {side} must have at most {MAX_TOKENS} tokens, as attention maps grow "
            f"with its square, but has {len(ids):,}; give one sentence of it."
        )


def _attend(
    translator: Translator, source: _Source, target_ids: list[int]
) -> PairAttention:
    (maps,) = attention_maps(
        translator.models[0].operators.model,
        _row([*source.ids, EOS], translator),
        _row([BOS, *target_ids], translator),
    )
    written = translator.symbols or translator.tokenizer
    target_pieces = written.pieces(target_ids)
    return PairAttention(
        source_text=source.text,
        target_text=written.decode(target_ids),
        source=_tokens(translator.tokenizer.pieces(source.ids), last=END),
        target_in=_tokens(target_pieces, first=BEGIN),
        target_out=_tokens(target_pieces, last=END),
        maps=maps,
    )


def _row(ids: list[int], translator: Translator) -> Int[Tensor, "1 length"]:
    return torch.tensor([ids], device=translator.device)


def _tokens(pieces: list[str], first: str = "", last: str = "") -> Tokens:
    before, after = [first] if first else [], [last] if last else []
    starts = [len(before) + start for start in word_starts(pieces)]
    ends = [len(before) + len(pieces)] if last else []
    return Tokens(
        pieces=(*before, *pieces, *after),
        starts=(*range(len(before)), *starts, *ends),
    )


STEP, LANE, MARGIN = 110, 46, 24
"""Pixels from step to step, from rank to rank, and around."""


def draw_tree(tree: SearchTree, tokens: dict[int, str]) -> str:
    """An SVG: a column for each step, in it the hypotheses that went on, best first.

    Below a token stands the log-probability of all up to it. Under them all stand the
    ends of those that were found, with their scores.
    """
    best = set(enumerate(tree.path(tree.hypotheses[0])))
    num_lanes = max(map(len, tree.steps), default=1)
    shapes = [
        *_branches(tree, tokens, best),
        *_ends(tree, num_lanes),
        _node(_place(0, 0), None, "<s>", "", is_best=False),
    ]
    ended = Counter(len(hypothesis.ids) for hypothesis in tree.hypotheses)
    width = MARGIN * 2 + STEP * (max([len(tree.steps), *ended]) + 2)
    height = MARGIN * 2 + LANE * (num_lanes + max(ended.values()))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="Tree of the search; '
        f'the table below has what it found">{"".join(shapes)}</svg>'
    )


def _branches(
    tree: SearchTree, tokens: dict[int, str], best: set[tuple[int, int]]
) -> Iterator[str]:
    for step, branches in enumerate(tree.steps):
        for lane, branch in enumerate(branches):
            if branch.token == EOS:  # has ended, and only fills the beam up
                continue
            yield _node(
                _place(step + 1, lane),
                _place(step, branch.parent or 0),
                tokens[branch.token].strip() or "␣",
                f"{branch.total:.2f}",
                is_best=(step, lane) in best,
            )


def _ends(tree: SearchTree, num_lanes: int) -> Iterator[str]:
    ended: Counter[int] = Counter()
    for hypothesis in tree.hypotheses:
        last, path = len(hypothesis.ids), tree.path(hypothesis)
        yield _node(
            _place(last + 1, num_lanes + ended[last]),
            _place(len(path), path[-1] if path else 0),
            "</s>" if hypothesis.is_finished else "cut short",
            f"score {hypothesis.score:.3f}",
            is_best=hypothesis is tree.hypotheses[0],
        )
        ended[last] += 1


def _node(
    place: tuple[int, int],
    parent: tuple[int, int] | None,
    label: str,
    figure: str,
    is_best: bool,
) -> str:
    x, y = place
    line = ""
    if parent is not None:
        from_x, from_y = parent
        line = f'<line x1="{from_x + 62}" y1="{from_y}" x2="{x - 6}" y2="{y}"/>'
    return (
        f"<g{' class=best' if is_best else ''}>{line}"
        f'<text x="{x}" y="{y}">{escape(label)}</text>'
        f'<text class="quiet" x="{x}" y="{y + 14}">{figure}</text></g>'
    )


def _place(step: int, lane: int) -> tuple[int, int]:
    return MARGIN + STEP * step, MARGIN + LANE * lane + LANE // 4
