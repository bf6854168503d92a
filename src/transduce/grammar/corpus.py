"""The built-in corpora: English with its German or Chinese, from a grammar.

A synchronous grammar for each pair, written by hand in a data file, derives each
sentence in both languages at once. The English sentence determines its translation, and
the derivation also gives tree, word alignment and antecedents. It runs from left to
right over the English side, so that a pronoun refers only backwards. Words and
phenomena are in the data file; the top of the English-German file explains the
notation.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from random import Random
from typing import Any, Literal, NamedTuple
from zlib import crc32

from transduce.errors import DataError
from transduce.grammar.rules import (
    Bracket,
    Call,
    Choice,
    Combination,
    GrammarFile,
    Lexeme,
    Path,
    Reference,
    Referent,
    Rule,
    RuleBook,
    Target,
    Value,
    Variables,
    Word,
    alternatives,
    bind,
    combination_of,
    derive,
    form_at,
    passes,
    read_grammar,
    value_of,
)
from transduce.trees.trees import Tree, read_trees


class TargetWord(NamedTuple):
    """Word of the target, and the positions of the English words that it translates."""

    text: str
    sources: tuple[int, ...]


Fields = dict[str, list[TargetWord]]


class Derivation:
    """State of one sentence during its derivation."""

    def __init__(self, book: RuleBook, rng: Random) -> None:
        self.words: list[str] = []
        self.tree: list[str] = []
        """Pieces of the tree: brackets and words, each with the space before it."""
        self.combinations: list[Combination] = []
        self.antecedents: list[tuple[int, int]] = []
        self._leaves: list[int] = []
        self._referents: list[Referent] = []
        self._mentioned: list[list[Referent]] = [[]]
        self._book = book
        self._rng = rng

    def expand(self, symbol: str, arguments: Sequence[Value] = ()) -> "Expansion":
        """Derive one phrase: extend the English sentence, and return the target."""
        expansion = Expansion(self, *self._draw(symbol, arguments))
        expansion.generate()
        expansion.translate()
        return expansion

    def add_bracket(self, bracket: Bracket) -> None:
        self.tree.append(bracket.text)
        if bracket.opens_clause:
            self._mentioned.append([])
        elif bracket.closes_clause:
            self._mentioned.pop()

    def add_word(self, text: str) -> int:
        """Append a word to the English sentence and return its position."""
        self._leaves.append(len(self.tree))
        self.tree.append(f" {text}")
        self.words.append(text)
        return len(self.words) - 1

    def put(self, position: int, text: str) -> None:
        """Replace the form of a word."""
        self.words[position] = text
        self.tree[self._leaves[position]] = f" {text}"

    def introduce(self, lexeme: Lexeme, number: str, position: int) -> None:
        """Make a noun available as antecedent of later pronouns."""
        features = lexeme.features
        pronoun = features["pronoun"] if number == "singular" else "they"
        referent = Referent(
            lexeme=lexeme,
            position=position,
            features={
                "number": number,
                "pronoun": pronoun,
                "agreement": features["agreement"][number],
                "classes": features["classes"],
            },
        )
        self._referents.append(referent)
        self._mentioned[-1].append(referent)

    def refer(self, value: Value, position: int) -> None:
        """Record the antecedent of the pronoun at a position."""
        referent = value if isinstance(value, Referent) else self._latest(value)
        self._mentioned[-1].append(referent)
        self.antecedents.append((position, referent.position))

    def _latest(self, value: Value) -> Referent:
        return next(
            referent
            for referent in reversed(self._referents)
            if referent.lexeme is value
        )

    def _draw(self, symbol: str, arguments: Sequence[Value]) -> tuple[Rule, Variables]:
        selection = self._book.selection(symbol, arguments)
        while selection.rules:
            rule = selection.draw(self._rng)
            variables = bind(rule, arguments)
            start = len(self.combinations)
            for choice in rule.choices:
                if not self._choose(choice, variables):
                    break
            else:
                return rule, derive(rule, variables)
            del self.combinations[start:]
            selection = selection.without(rule)
        raise DataError(
            f"the grammar must have a rule for this `{symbol}`, but has none."
        )

    def _choose(self, choice: Choice, variables: Variables) -> bool:
        candidates = self._values(choice, variables)
        if not candidates:
            return False
        value = candidates[int(self._rng.random() * len(candidates))]
        variables[choice.name] = value
        if choice.partner:
            combination = combination_of(variables[choice.partner], value)
            self.combinations += [combination] if combination else []
        return True

    def _values(self, choice: Choice, variables: Variables) -> Sequence[Value]:
        source = choice.source
        if isinstance(source, tuple):
            return source
        if isinstance(source, Path):
            return alternatives(value_of(source, variables))
        if source == "antecedent":
            candidates = self._unambiguous(choice, variables)
            return [one for one in candidates if one not in self._mentioned[-1]]
        if source == "possessor":
            return self._unambiguous(choice, variables)
        return self._book.candidates(choice, variables)

    def _unambiguous(self, choice: Choice, variables: Variables) -> Sequence[Referent]:
        """Return the referents whose pronoun fits no other referent."""
        wanted = [value_of(term, variables) for _, term in choice.filters]
        partner = variables[choice.partner] if choice.partner else ""
        pronouns = [referent.features["pronoun"] for referent in self._referents]
        return [
            referent
            for referent, pronoun in zip(self._referents, pronouns, strict=True)
            if pronoun != "none" and pronouns.count(pronoun) == 1
            if passes(choice, wanted, referent.features)
            if self._book.allows(partner, referent)
        ]


class Expansion:
    """Application of a rule, with its variables, words and phrases."""

    __slots__ = ("_derivation", "_links", "_phrases", "_rule", "_variables", "fields")

    def __init__(
        self, derivation: Derivation, rule: Rule, variables: Variables
    ) -> None:
        self.fields: Fields = {}
        self._rule = rule
        self._derivation = derivation
        self._variables = variables
        self._links: dict[str, tuple[int, ...]] = {}
        self._phrases: dict[str, Fields] = {}

    def generate(self) -> None:
        """Derive the English side."""
        for item in self._rule.english:
            if isinstance(item, Call):
                self._generate_phrase(item)
            elif isinstance(item, Bracket):
                self._derivation.add_bracket(item)
            else:
                self._generate_word(item)

    def _generate_phrase(self, call: Call) -> None:
        arguments = call.arguments(self._variables)
        phrase = self._derivation.expand(call.symbol, arguments)
        self._phrases[call.name] = phrase.fields
        names = phrase._rule.names
        for name, positions in phrase._links.items():
            if name in names:
                self._link(call.keys[names.index(name)], *positions)

    def _generate_word(self, word: Word) -> None:
        if isinstance(word.text, str):
            self._link(word.link, self._derivation.add_word(word.text))
            return
        lexeme: Any = self._variables[word.text.root]
        text = lexeme.english
        if not isinstance(text, str):
            text = form_at(text, word.text, self._variables)
        if text:
            self._generate_form(word, lexeme, text)

    def _generate_form(self, word: Word, lexeme: Lexeme, text: str) -> None:
        derivation, path = self._derivation, word.text
        assert isinstance(path, Path)
        derivation.tree.append(" (" + form_at(lexeme.tags, path, self._variables))
        position = derivation.add_word(text)
        derivation.tree.append(")")
        self._link(word.link, position)
        if word.anaphor_of:
            derivation.refer(self._variables[word.anaphor_of], position)
        elif "pronoun" in lexeme.features:
            number = self._variables["number"] if path.steps else "singular"
            derivation.introduce(lexeme, str(number), position)

    def _link(self, link: str, *positions: int) -> None:
        self._links[link] = (*self._links.get(link, ()), *positions)

    def translate(self) -> None:
        """Fill the fields of the target, once the English is derived."""
        if self._rule.others:
            self.fields.update(self._phrases[self._rule.others])
        for name, target in self._rule.target.items():
            self.fields[name] = self._field(target)

    def _field(self, target: Target) -> list[TargetWord]:
        words: list[TargetWord] = []
        for slot in target:
            if len(slot) == 1:
                words += self._part(slot[0])
                continue
            parts = [word for part in slot for word in self._part(part)]
            words += parts if len(parts) < 2 else [joined(parts)]
        return words

    def _part(self, part: Word | Reference) -> Sequence[TargetWord]:
        if isinstance(part, Reference):
            return self._phrases[part.name].get(part.field, ())
        text = part.text
        if isinstance(text, Path):
            lexeme: Any = self._variables[text.root]
            text = form_at(lexeme.target, text, self._variables)
            if not text:
                return ()
        return [TargetWord(str(text), self._links.get(part.link, ()))]


def joined(words: Sequence[TargetWord]) -> TargetWord:
    """Join words into one: aus + schaltet."""
    sources = {source for word in words for source in word.sources}
    return TargetWord("".join(word.text for word in words), tuple(sorted(sources)))


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
