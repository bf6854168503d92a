"""Words in, trees out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from transduce.data.batches import pad_rows
from transduce.decoding.beam_search import BeamSearch
from transduce.decoding.greedy_search import GreedySearch
from transduce.decoding.next_token_models.incremental import IncrementalDecoder
from transduce.decoding.next_token_models.quantization import PreparedModel
from transduce.decoding.next_token_models.tree_watcher import TreeWatcher
from transduce.decoding.search import (
    BATCH_POSITIONS,
    WINDOW_LINES,
    Decoding,
    Hypothesis,
    JoinableModel,
    search_all,
)
from transduce.decoding.search_config import SearchConfig
from transduce.parsing.automaton import partial_tree, symbols_needed
from transduce.parsing.delinearization import Repairs, delinearize
from transduce.parsing.trees import Tree, without_brackets
from transduce.parsing.vocabulary import NEVER_WRITTEN, SymbolVocabulary
from transduce.special_ids import BOS, EOS
from transduce.text.tokenizer import Tokenizer

MAX_SOURCE_TOKENS = 1_000
"""A longer sentence is not read: no treebank has such."""
PAPER_SEARCH = SearchConfig(beam_size=21, length_penalty=0.3, extra_length=300)
"""Section 6.3."""


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sentence:
    words: Sequence[str]
    source: list[int]

    def max_length(self, extra_length: int) -> int:
        """Tokens of its tree at most; the end token counts on both sides."""
        return len(self.source) + 1 + extra_length


class Parser:
    """A model that writes trees as symbols."""

    def __init__(
        self,
        model: PreparedModel,
        tokenizer: Tokenizer,
        symbols: SymbolVocabulary,
        device: torch.device,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._style = symbols.style
        self._symbols = symbols.symbols
        self._device = device

    def parse_stream(
        self,
        sentences: Iterable[Sequence[str]],
        config: SearchConfig = PAPER_SEARCH,
        *,
        constrained: bool = False,
    ) -> Iterator[Parse]:
        """Parse sentences of words, in order, a window of them at a time.

        Constrained search finds nothing but trees over the words. (In the paper it is
        not.)
        """
        stream = iter(sentences)
        while window := list(islice(stream, WINDOW_LINES)):
            yield from self._parse(window, config, constrained=constrained)

    @torch.inference_mode()
    def _parse(
        self, window: list[Sequence[str]], config: SearchConfig, *, constrained: bool
    ) -> Iterator[Parse]:
        lines = [without_brackets(" ".join(words)) for words in window]
        encoded = self._tokenizer.encode_batch(lines)
        sentences = [
            _Sentence(words=words, source=source)
            for words, source in zip(window, encoded, strict=True)
        ]
        legible = [s for s in sentences if 0 < len(s.source) <= MAX_SOURCE_TOKENS]
        begin = self._constrained if constrained else self._plain
        found = search_all(
            [len(sentence.source) + 1 for sentence in legible],
            BATCH_POSITIONS // config.beam_size,
            lambda numbers: begin([legible[i] for i in numbers], config),
        )
        best = {
            id(sentence): hypotheses[0]
            for sentence, hypotheses in zip(legible, found, strict=True)
        }
        return iter([self._tree(s, best.get(id(s))) for s in sentences])

    def _plain(self, sentences: list[_Sentence], config: SearchConfig) -> Decoding:
        limits = [each.max_length(config.extra_length) for each in sentences]
        decoder = self._read(sentences)
        if config.beam_size == 1:
            greedy = GreedySearch(limits, config, EOS, NEVER_WRITTEN)
            return Decoding(decoder, greedy, BOS)
        return Decoding(decoder, BeamSearch(limits, config, EOS, NEVER_WRITTEN), BOS)

    def _constrained(
        self, sentences: list[_Sentence], config: SearchConfig
    ) -> Decoding:
        limits = [
            max(each.max_length(config.extra_length), _least_length(each))
            for each in sentences
        ]
        trees = [
            partial_tree(len(each.words), limit - 1, self._style)
            for each, limit in zip(sentences, limits, strict=True)
        ]
        watcher = TreeWatcher(self._read(sentences), trees, self._symbols, EOS)
        if config.beam_size == 1:
            greedy = GreedySearch(limits, config, EOS, watcher.excluded)
            return Decoding(watcher, greedy, BOS)
        return Decoding(watcher, BeamSearch(limits, config, EOS, watcher.excluded), BOS)

    def _read(self, sentences: list[_Sentence]) -> JoinableModel:
        source = pad_rows([[*each.source, EOS] for each in sentences])
        model = self._model.model
        memory = model.encode(source.to(self._device))
        return IncrementalDecoder(model, memory, self._model.step)

    def _tree(self, sentence: _Sentence, found: Hypothesis | None) -> Parse:
        symbols = [] if found is None else [self._symbols[i] for i in found.ids]
        tree, repairs = delinearize(symbols, sentence.words, self._style)
        return Parse(
            tree=tree,
            repairs=repairs,
            score=0.0 if found is None else found.score,
            is_overlong=len(sentence.source) > MAX_SOURCE_TOKENS,
        )


def _least_length(sentence: _Sentence) -> int:
    """Of a tree over its words, the end token counted."""
    return symbols_needed(len(sentence.words), 0) + 1
