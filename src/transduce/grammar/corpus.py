"""The built-in corpora: English with its German or Chinese, from a grammar.

A synchronous grammar for each pair, written by hand in a data file, derives each
sentence in both languages at once. So the translation is a function of the English, and
tree, word alignment and antecedents come with it. The top of the English-German file
explains the notation.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from random import Random
from typing import Literal
from zlib import crc32

from transduce.grammar.derivation import Derivation, TargetWord, joined
from transduce.grammar.lexicon import Combination, Count, RuleBook
from transduce.grammar.rules import GrammarFile, read_grammar
from transduce.trees.trees import Tree, read_trees

Pair = Literal["en-de", "en-zh"]
BUILT_IN: dict[Pair, str] = {
    "en-de": "en_de.toml",
    "en-zh": "en_zh.toml",
}
"""Data file of each language pair."""
START = "Sentence"
HELD_OUT_PERCENT = 6
CLITIC = "~"
"""Prefix of an article that contracts with the preposition before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSentence:
    """A sentence in both languages; words are counted from 0, punctuation included."""

    source: str
    target: str
    tree: str
    """The English constituents in one line, in the manner of the Penn Treebank."""
    source_words: tuple[str, ...]
    """The leaves of the tree."""
    target_words: tuple[str, ...]
    alignment: tuple[tuple[int, int], ...]
    """Pairs of a source and a target word."""
    antecedents: tuple[tuple[int, int], ...]
    """Pairs of a pronoun and the noun it stands for, both in the source."""
    combinations: tuple[Combination, ...] = ()
    """Verb and subject, verb and object, adjective and noun; each pair in order."""


class Grammar:
    """Synchronous grammar that generates sentence pairs."""

    def __init__(self, file: GrammarFile) -> None:
        self._book = RuleBook(file)
        self._training_book = RuleBook(file, is_excluded=is_held_out)
        self._contractions = file.contractions
        self._space = " " if file.spaced else ""

    @classmethod
    def built_in(cls, pair: Pair = "en-de") -> "Grammar":
        """Load the built-in grammar of a language pair."""
        name = BUILT_IN[pair]
        text = files("transduce.grammar").joinpath(name).read_text(encoding="utf-8")
        return cls(read_grammar(text, name))

    def training_sentences(self, seed: int) -> Iterator[GrammarSentence]:
        """Yield endless sentences without held-out combinations; few are equal."""
        return self._sentences(self._training_book, Random(seed))

    def held_out_sentences(self, seed: int) -> Iterator[GrammarSentence]:
        """Yield endless distinct sentences, all with a held-out combination."""
        seen: set[str] = set()
        for sentence in self._sentences(self._book, Random(seed)):
            is_new = sentence.source not in seen
            if is_new and any(map(is_held_out, sentence.combinations)):
                seen.add(sentence.source)
                yield sentence

    def num_sentences(self) -> int:
        """Return a lower bound: the number of derivations without pronouns."""
        return Count(self._book).of(START)

    def _sentences(self, book: RuleBook, rng: Random) -> Iterator[GrammarSentence]:
        while True:
            yield self.derive(Derivation(book, rng))

    def derive(self, derivation: Derivation) -> GrammarSentence:
        """Generate the sentence of a new derivation."""
        target = derivation.expand(START).fields["all"]
        return _sentence(derivation, self._written(target), self._space)

    def _written(self, words: list[TargetWord]) -> list[TargetWord]:
        """Contract articles, and merge adjacent commas."""
        written: list[TargetWord] = []
        for word in words:
            last = written[-1].text if written else ""
            if last == "," and word.text in (",", "."):
                word = joined([TargetWord("", written.pop().sources), word])
            elif word.text.startswith(CLITIC):
                word = self._article(word, written)
            written.append(word)
        return written

    def _article(self, word: TargetWord, written: list[TargetWord]) -> TargetWord:
        article = word.text.removeprefix(CLITIC)
        pair = f"{written[-1].text} {article}" if written else article
        if pair not in self._contractions:
            return TargetWord(article, word.sources)
        sources = (*written.pop().sources, *word.sources)
        return TargetWord(self._contractions[pair], sources)


def _sentence(
    derivation: Derivation, target: list[TargetWord], space: str
) -> GrammarSentence:
    _adapt_articles(derivation)
    derivation.put(0, _capitalised(derivation.words[0]))
    first, *others = [word.text for word in target]
    target_words = (_capitalised(first), *others)
    return GrammarSentence(
        source=_written_out(derivation.words),
        target=_written_out(target_words) if space else "".join(target_words),
        tree=f"(TOP{''.join(derivation.tree)})",
        source_words=tuple(derivation.words),
        target_words=target_words,
        alignment=_alignment(target),
        antecedents=tuple(sorted(derivation.antecedents)),
        combinations=tuple(derivation.combinations),
    )


def _adapt_articles(derivation: Derivation) -> None:
    """Replace "a" by "an" before a vowel."""
    for position, (word, following) in enumerate(pairwise(derivation.words)):
        if word == "a" and following[0] in "aeiou":
            derivation.put(position, "an")


def _capitalised(word: str) -> str:
    return word[0].upper() + word[1:]


def _alignment(target: list[TargetWord]) -> tuple[tuple[int, int], ...]:
    pairs = {
        (source, target)
        for target, word in enumerate(target)
        for source in word.sources
    }
    return tuple(sorted(pairs))


def _written_out(words: Sequence[str]) -> str:
    text = " ".join(words)
    for tokens, written in ((" ,", ","), (" .", "."), (" ?", "?"), (" 's", "'s")):
        text = text.replace(tokens, written)
    return text.replace("can not", "cannot")


def is_held_out(combination: Combination) -> bool:
    """Return whether training excludes a combination: about one pair in sixteen."""
    digest = crc32("+".join(combination).encode())
    return digest % 100 < HELD_OUT_PERCENT


def training_trees(seed: int) -> Iterator[Tree]:
    """Yield the trees of `Grammar.training_sentences`, endlessly."""
    return _trees(Grammar.built_in().training_sentences(seed))


def held_out_trees(seed: int) -> Iterator[Tree]:
    """Yield the distinct trees of `Grammar.held_out_sentences`, endlessly."""
    return _trees(Grammar.built_in().held_out_sentences(seed))


def _trees(sentences: Iterable[GrammarSentence]) -> Iterator[Tree]:
    return read_trees((sentence.tree for sentence in sentences), "built-in grammar")
