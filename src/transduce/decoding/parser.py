"""Constituency parsing (section 6.3).

A parser translates the words of a sentence into the symbols of a linearized tree.
`trees.penn_words` cuts raw English text into words.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int64

from transduce.decoding.backend import start_search
from transduce.decoding.beam_search import Excluded
from transduce.decoding.search import (
    DecodingModel,
    Hypothesis,
    JoinableDecoder,
    RunningSearch,
    SearchResult,
    SearchTask,
    StepRows,
    coverage_of,
    require_numbers,
    start_decoder,
)
from transduce.decoding.translations import Pace, in_order, listed
from transduce.errors import RequestError, counted, shortened, warn_caller
from transduce.search_config import SearchConfig
from transduce.settings import require_config, require_flag, shown
from transduce.text.vocabulary import BOS, EOS
from transduce.trees.bracket_f1 import (
    BracketScore,
    bracket_f1,
    percentage,
    with_tags_of,
)
from transduce.trees.linearization import (
    NEVER_WRITTEN,
    Allowed,
    PartialTree,
    Repairs,
    Symbol,
    SymbolVocabulary,
    delinearize,
    partial_tree,
    symbols_needed,
)
from transduce.trees.penn_words import penn_words
from transduce.trees.trees import Tree, is_word

if TYPE_CHECKING:
    import transduce.decoding.translator

MAX_SOURCE_TOKENS = 1_000
"""Tokens of a sentence above which it is not parsed: no treebank has such sentences."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Parse:
    """The tree of a sentence, and how it was made."""

    tree: Tree
    """Tree over exactly the words of the sentence; `NOTHING` if there are none."""
    repairs: Repairs
    """Repairs of the symbols that the model generated, to make them a tree."""
    score: float
    """Log-probability divided by the length penalty; 0 without a search."""
    is_overlong: bool = False
    """Whether the sentence was too long for the model, so that its tree is flat."""

    def __repr__(self) -> str:
        shown = [f"tree={shortened(str(self.tree))}", f"score={self.score:z.3f}"]
        if self.repairs.total:
            shown.append(f"repairs={self.repairs.total}")
        if self.is_overlong:
            shown.append("is_overlong=True")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sentence:
    words: Sequence[str]
    source: list[int]

    @property
    def is_parsed(self) -> bool:
        # The source of words such as a no-break space is empty, but they have a tree.
        return bool(self.words) and len(self.source) <= MAX_SOURCE_TOKENS

    def limit(self, config: SearchConfig) -> int:
        """Return the most symbols of its tree, the end included; some tree fits."""
        minimum = symbols_needed(len(self.words), 0) + 1
        return config.limit(len(self.source) + 1, minimum)


RunSearch = Callable[
    [SearchTask[Sequence[DecodingModel], Any], Callable[[], object] | None],
    Iterator[list[SearchResult]],
]
"""Function of a task, and of a callback between steps, that yields its results."""


class Parser:
    """A translator whose models were trained on trees, as a parser.

    `Translator.parser` returns it.
    """

    def __init__(
        self,
        translator: "transduce.decoding.translator.Translator",
        symbols: SymbolVocabulary,
        run_search: RunSearch,
    ) -> None:
        self._translator = translator
        self._run_search = run_search
        self._vocabulary = symbols
        self._symbols = symbols.symbols

    def parse(self, texts: Iterable[str], *, constrained: bool = False) -> list[Parse]:
        """Parse raw English sentences; return one parse for each, in order."""
        words = map(penn_words, listed(texts))
        return list(self.parse_stream(words, constrained=constrained))

    def parse_stream(
        self,
        sentences: Iterable[Sequence[str]],
        config: SearchConfig | None = None,
        *,
        constrained: bool = False,
        pace: Pace | None = None,
    ) -> Iterator[Parse]:
        """Parse tokenized sentences, each a list of words in Penn Treebank style.

        Yields each parse as soon as it and all before it are done. The default config
        is the model's own. Constrained search generates only trees over the words,
        which need no repairs; settings that exclude symbols are left out, with a
        warning. Raises `RequestError` if a sentence is no list of words, or a word is
        empty or has white space.
        """
        if not isinstance(sentences, Iterable):
            raise RequestError(
                "Sentences must be given as lists of words, but are given as "
                f"{type(sentences).__name__}."
            )
        pace = Pace() if pace is None else pace
        require_config("pace", pace, Pace)
        config = self._translator.search.given({}) if config is None else config
        require_config("config", config, SearchConfig)
        require_flag("constrained", constrained)
        if constrained:
            config = _without_exclusions(config)
        start = partial(
            _start, config=config, symbols=self._vocabulary, constrained=constrained
        )
        for window in pace.windows(map(_required_words, sentences)):
            parses = self._parses(self._encoded(window), start, config.beam_size, pace)
            yield from in_order(parses)

    def close(self) -> None:
        """End the other processes."""
        self._translator.close()

    def _encoded(self, window: list[Sequence[str]]) -> list[_Sentence]:
        read_word = self._vocabulary.read_word
        lines = [" ".join(map(read_word, words)) for words in window]
        encoded = self._translator.tokenizer.encode_sources(lines)
        return [
            _Sentence(words=words, source=source)
            for words, source in zip(window, encoded, strict=True)
        ]

    def _parses(
        self,
        sentences: Sequence[_Sentence],
        start: Callable[[Sequence[DecodingModel], list[_Sentence]], RunningSearch],
        beam_size: int,
        pace: Pace,
    ) -> Iterator[tuple[int, Parse]]:
        """Yield the number and the parse of each sentence as soon as it is done."""
        parsed = [i for i, each in enumerate(sentences) if each.is_parsed]
        for i, each in enumerate(sentences):
            if not each.is_parsed:
                pace.on_line()
                yield i, self._parse(each, None)
        task = SearchTask(
            sentences=[sentences[i] for i in parsed],
            lengths=[len(sentences[i].source) + 1 for i in parsed],
            capacity=self._translator.batch_positions // beam_size,
            start=start,
            step_rows=StepRows(beam_size, self._translator.models[0].step_overhead),
        )
        found = self._run_search(task, pace.on_step)
        for i, hypotheses in chain.from_iterable(found):
            require_numbers([each.log_probability for each in hypotheses])
            pace.on_line()
            yield parsed[i], self._parse(sentences[parsed[i]], hypotheses[0])

    def _parse(self, sentence: _Sentence, found: Hypothesis | None) -> Parse:
        symbols = [] if found is None else [self._symbols[i] for i in found.ids]
        tree, repairs = delinearize(symbols, sentence.words, self._vocabulary.style)
        return Parse(
            tree=tree,
            repairs=repairs,
            score=0.0 if found is None else found.score,
            is_overlong=len(sentence.source) > MAX_SOURCE_TOKENS,
        )


def _required_words(words: object) -> Sequence[str]:
    """Return the words of a sentence; `RequestError` if they are no list of words."""
    # A set has no order, and an iterator would be read to its end here.
    if (
        not isinstance(words, Sequence)
        or isinstance(words, str)
        or not all(map(is_word, words))
    ):
        raise RequestError(
            "A sentence must be a list of words without white space, but is "
            f"{shown(words)}; cut text into words, or pass it to `Translator.parse`."
        )
    return words


def _without_exclusions(config: SearchConfig) -> SearchConfig:
    """Return a config whose settings never exclude all symbols that a tree allows."""
    default = SearchConfig()
    names = ("min_length", "no_repeat_ngram", "bad_words")
    excluding = [n for n in names if getattr(config, n) != getattr(default, n)]
    for name in excluding:
        warn_caller(
            f"`search.{name}` does not apply to a constrained search, in which it "
            "could exclude all symbols that continue a tree, and is left out."
        )
    return replace(config, **{name: getattr(default, name) for name in excluding})


def _start(
    models: Sequence[DecodingModel],
    sentences: list[_Sentence],
    config: SearchConfig,
    symbols: SymbolVocabulary,
    *,
    constrained: bool,
) -> RunningSearch:
    """Encode sentences and start the search for their trees."""
    limits = [each.limit(config) for each in sentences]
    sources = [[*each.source, EOS] for each in sentences]
    decoder = start_decoder(models, sources, config)
    coverage = coverage_of(decoder, config)
    excluded: Excluded = NEVER_WRITTEN
    if constrained:
        # Unlike the paper: symbols that lead to no tree over the words can be excluded.
        # Trees keep the unconstrained model's scores. Off by default: `--constrained`.
        trees = [
            partial_tree(len(each.words), limit - 1, symbols.style)
            for each, limit in zip(sentences, limits, strict=True)
        ]
        decoder = TreeDecoder(decoder, trees, symbols.symbols, EOS)
        excluded = decoder.excluded
    search = start_search(
        limits, config, EOS, excluded, coverage=coverage, max_hypotheses=1
    )
    return RunningSearch(decoder, search, BOS)


Group = list[PartialTree | None]
"""Trees of a sentence's hypotheses; None for one that no tree begins with."""


class TreeDecoder:
    """A decoder that tracks the partial tree of each hypothesis."""

    def __init__(
        self,
        decoder: JoinableDecoder,
        trees: Sequence[PartialTree],
        symbols: Mapping[int, Symbol],
        eos: int,
    ) -> None:
        """Start with an empty tree for each sentence; `symbols` are keyed by id."""
        self._decoder = decoder
        self._groups: list[Group] = [[tree] for tree in trees]
        self._has_started = False
        self._symbols = symbols
        self._eos = eos
        self._masks: dict[Allowed | None, Bool[np.ndarray, " vocab"]] = {}

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Any, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        if self._has_started:
            self._groups = [
                [self._after(tree, i) for tree, i in zip(group, ids, strict=True)]
                for group, ids in zip(self._groups, last_ids.tolist(), strict=True)
            ]
        self._has_started = True  # the first token is the start token, not a symbol
        return self._decoder.step(last_ids)

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order."""
        flat = [tree for group in self._groups for tree in group]
        self._groups = [[flat[row] for row in kept] for kept in rows.tolist()]
        self._decoder.reorder(rows)

    def join(self, other: "TreeDecoder") -> None:
        """Append the sentences of another decoder."""
        self._groups += other._groups
        self._decoder.join(other._decoder)

    def excluded(self) -> Bool[np.ndarray, "sentences group vocab"]:
        """Return a mask of the tokens that must not come next."""
        return np.array([list(map(self._mask, group)) for group in self._groups])

    def _after(self, tree: PartialTree | None, i: int) -> PartialTree | None:
        symbol = self._symbols.get(i)
        if tree is None or symbol is None or not tree.allowed().permits(symbol):
            return None
        return tree.after(symbol)

    def _mask(self, tree: PartialTree | None) -> Bool[np.ndarray, " vocab"]:
        allowed = None if tree is None else tree.allowed()
        if allowed not in self._masks:
            self._masks[allowed] = self._excluded(allowed)
        return self._masks[allowed]

    def _excluded(self, allowed: Allowed | None) -> Bool[np.ndarray, " vocab"]:
        mask = np.ones(max(self._symbols) + 1, dtype=np.bool_)
        if allowed is not None:
            mask[self._eos] = not allowed.end
            for i, symbol in self._symbols.items():
                mask[i] = not allowed.permits(symbol)
        return mask


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseScore:
    """Score of a parser's trees, which have the tags of the gold trees."""

    brackets: BracketScore
    mended: float
    """Percentage of sentences repaired to be a tree (`mended` in files too)."""
    repairs: Repairs
    """Repairs of all sentences."""

    def __str__(self) -> str:
        figures = self.brackets.all
        return (
            f"F1 = {figures.f1:.2f} (recall {figures.recall:.2f}, precision "
            f"{figures.precision:.2f}, complete match {figures.complete_match:.2f}, "
            f"{figures.valid} of {counted(figures.sentences, 'sentence')}, "
            f"{self.mended:.2f} % repaired)"
        )


def score_parses(gold: Sequence[Tree], parses: Sequence[Parse]) -> ParseScore:
    """Score parses of the words of the gold trees."""
    trees = [parse.tree for parse in parses]
    num_repaired = sum(parse.repairs.total > 0 for parse in parses)
    return ParseScore(
        brackets=bracket_f1(gold, list(map(with_tags_of, gold, trees))),
        mended=percentage(num_repaired, len(parses)),
        repairs=reduce(add, (parse.repairs for parse in parses)),
    )
