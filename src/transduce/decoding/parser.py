"""Words in, trees out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64

from transduce.decoding.candidates import Excluded
from transduce.decoding.native_search import start_search
from transduce.decoding.processes import (
    Beginning,
    SearchProcesses,
    SearchTask,
)
from transduce.decoding.ready_model import ReadyModel
from transduce.decoding.search import (
    Decoding,
    Hypothesis,
    JoinableDecoder,
    require_numbers,
)
from transduce.decoding.streaming import Pace, StepRows, batch_positions, in_order
from transduce.decoding.translations import require_lists
from transduce.errors import counted, shortened
from transduce.search_config import SearchConfig
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import BOS, EOS
from transduce.trees.automaton import Allowed, PartialTree, partial_tree, symbols_needed
from transduce.trees.bracket_f1 import (
    BracketScore,
    bracket_f1,
    percentage,
    with_tags_of,
)
from transduce.trees.delinearization import Repairs, delinearize
from transduce.trees.linearization import Symbol
from transduce.trees.penn_words import penn_words
from transduce.trees.trees import Tree, without_brackets
from transduce.trees.vocabulary import NEVER_WRITTEN, SymbolVocabulary

Group = list[PartialTree | None]
"""Trees of the hypotheses of a sentence; None for one that is impossible."""


class TreeWatcher:
    """An incremental decoder with the tree that each hypothesis has begun."""

    def __init__(
        self,
        decoder: JoinableDecoder,
        trees: Sequence[PartialTree],
        symbols: Mapping[int, Symbol],
        eos: int,
    ) -> None:
        """Begin with one empty tree for each sentence; `symbols` are by their ids."""
        self._decoder = decoder
        self._groups: list[Group] = [[tree] for tree in trees]
        self._is_begun = False
        self._symbols = symbols
        self._eos = eos
        self._masks: dict[Allowed | None, Bool[np.ndarray, " vocab"]] = {}

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float[Any, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        if self._is_begun:
            self._groups = [
                [self._after(tree, i) for tree, i in zip(group, ids, strict=True)]
                for group, ids in zip(self._groups, last_ids.tolist(), strict=True)
            ]
        self._is_begun = True  # the first token only begins the sequence
        return self._decoder.step(last_ids)

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses, in this order."""
        flat = [tree for group in self._groups for tree in group]
        self._groups = [[flat[row] for row in kept] for kept in rows.tolist()]
        self._decoder.reorder(rows)

    def join(self, other: "TreeWatcher") -> None:
        """Append the sentences of another decoder."""
        self._groups += other._groups
        self._decoder.join(other._decoder)

    def excluded(self) -> Bool[np.ndarray, "sentences group vocab"]:
        """Return a mask of the tokens that may not come next."""
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


MAX_SOURCE_TOKENS = 1_000
"""A longer sentence is not read: no treebank has such."""
PAPER_SEARCH = SearchConfig(beam_size=21, length_penalty=0.3, extra_length=300)
"""Section 6.3."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Parse:
    """The tree of a sentence, and what it was made of."""

    tree: Tree
    """Over exactly the words of the sentence; of no words `NOTHING`."""
    repairs: Repairs
    """What had to be mended of what the model wrote; nothing if it was a tree."""
    score: float
    """Log-probability over the length penalty."""
    is_overlong: bool = False
    """Whether the sentence was too long to be read, so that its tree is flat."""

    def __repr__(self) -> str:
        shown = [f"tree={shortened(str(self.tree))}", f"score={self.score:.3f}"]
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
    def is_legible(self) -> bool:
        return 0 < len(self.source) <= MAX_SOURCE_TOKENS

    def limit(self, config: SearchConfig) -> int:
        """Tokens of its tree at most, the end counted; there is room for some tree."""
        least = symbols_needed(len(self.words), 0) + 1
        return config.limit(len(self.source) + 1, least)


class Parser:
    """A model that writes trees as symbols."""

    def __init__(
        self,
        model: ReadyModel,
        tokenizer: Tokenizer,
        symbols: SymbolVocabulary,
        device: str,
        search: SearchConfig = PAPER_SEARCH,
        *,
        num_processes: int = 1,
    ) -> None:
        """It searches so, unless it is told otherwise.

        `RequestError` if the device cannot compute in several processes.
        """
        self._model = model
        self._tokenizer = tokenizer
        self._style = symbols.style
        self._symbols = symbols.symbols
        self._device = device
        self._search = search
        self._processes = SearchProcesses(self, num_processes, device)

    def parse(self, texts: Sequence[str], *, constrained: bool = False) -> list[Parse]:
        """Parse raw English sentences; one tree for each."""
        require_lists(texts)
        words = map(penn_words, texts)
        return list(self.parse_stream(words, constrained=constrained))

    def parse_stream(
        self,
        sentences: Iterable[Sequence[str]],
        config: SearchConfig | None = None,
        *,
        constrained: bool = False,
        pace: Pace | None = None,
    ) -> Iterator[Parse]:
        """Parse sentences of words, each as soon as it and all before it are done.

        Constrained search finds nothing but trees over the words.
        """
        pace = pace or Pace()
        config = self._search.given({}) if config is None else config
        begin = partial(Parser._begin, config=config, constrained=constrained)
        for window in pace.windows(sentences):
            encoded = self._encoded(window)
            found = self._found(encoded, begin, config.beam_size, pace.on_step)
            yield from in_order(pace.told(found))

    def close(self) -> None:
        """End the other processes."""
        self._processes.close()

    def _encoded(self, window: list[Sequence[str]]) -> list[_Sentence]:
        lines = [" ".join(map(without_brackets, words)) for words in window]
        encoded = self._tokenizer.encode_sources(lines)
        return [
            _Sentence(words=words, source=source)
            for words, source in zip(window, encoded, strict=True)
        ]

    def _found(
        self,
        sentences: Sequence[_Sentence],
        begin: Beginning["Parser", _Sentence],
        beam_size: int,
        on_step: Callable[[], object] | None,
    ) -> Iterator[tuple[int, Parse]]:
        """The parses by their number, as soon as they are done."""
        legible = [i for i, each in enumerate(sentences) if each.is_legible]
        for i, each in enumerate(sentences):
            if not each.is_legible:
                yield i, self._tree(each, None)
        task = SearchTask(
            sentences=[sentences[i] for i in legible],
            lengths=[len(sentences[i].source) + 1 for i in legible],
            room=batch_positions(self._device) // beam_size,
            step_rows=StepRows(beam_size, self._model.rows_of_any_step),
            begin=begin,
        )
        for i, hypotheses in self._processes.found(task, on_step):
            number = legible[i]
            yield number, self._tree(sentences[number], _best(hypotheses))

    def _begin(
        self,
        sentences: Sequence[_Sentence],
        config: SearchConfig,
        *,
        constrained: bool,
    ) -> Decoding:
        limits = [each.limit(config) for each in sentences]
        sources = [[*each.source, EOS] for each in sentences]
        decoder, coverage = self._model.read_for(config, sources)
        excluded: Excluded = NEVER_WRITTEN
        if constrained:
            # Unlike the paper: only what can become a tree over the words is written,
            # if that is asked for; scores stay those of the model.
            decoder = self._watched(decoder, sentences, limits)
            excluded = decoder.excluded
        search = start_search(
            limits, config, EOS, excluded, coverage=coverage, max_hypotheses=1
        )
        return Decoding(decoder, search, BOS)

    def _watched(
        self,
        decoder: JoinableDecoder,
        sentences: Sequence[_Sentence],
        limits: list[int],
    ) -> TreeWatcher:
        trees = [
            partial_tree(len(each.words), limit - 1, self._style)
            for each, limit in zip(sentences, limits, strict=True)
        ]
        return TreeWatcher(decoder, trees, self._symbols, EOS)

    def _tree(self, sentence: _Sentence, found: Hypothesis | None) -> Parse:
        symbols = [] if found is None else [self._symbols[i] for i in found.ids]
        tree, repairs = delinearize(symbols, sentence.words, self._style)
        return Parse(
            tree=tree,
            repairs=repairs,
            score=0.0 if found is None else found.score,
            is_overlong=len(sentence.source) > MAX_SOURCE_TOKENS,
        )


def _best(hypotheses: list[Hypothesis]) -> Hypothesis:
    require_numbers([each.log_probability for each in hypotheses])
    return hypotheses[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseScore:
    """The score of a parser's trees, which have the tags of the gold ones."""

    brackets: BracketScore
    mended: float
    """Sentences whose symbols were no tree over their words, in percent."""
    repairs: Repairs
    """Of all sentences."""

    def __str__(self) -> str:
        figures = self.brackets.all
        return (
            f"F1 = {figures.f1:.2f} (recall {figures.recall:.2f}, precision "
            f"{figures.precision:.2f}, complete match {figures.complete_match:.2f}, "
            f"{figures.valid} of {counted(figures.sentences, 'sentence')}, "
            f"{self.mended:.2f} % "
            "mended)"
        )


def score_parses(gold: Sequence[Tree], parses: Sequence[Parse]) -> ParseScore:
    """Score parses of the words of the gold trees."""
    trees = [parse.tree for parse in parses]
    mended = sum(parse.repairs.total > 0 for parse in parses)
    return ParseScore(
        brackets=bracket_f1(gold, list(map(with_tags_of, gold, trees))),
        mended=percentage(mended, len(parses)),
        repairs=reduce(add, (parse.repairs for parse in parses)),
    )
