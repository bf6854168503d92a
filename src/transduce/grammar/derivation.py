"""Derivation of a sentence pair by the rules of a synchronous grammar.

A derivation runs from left to right over the English side, so that a pronoun refers
only backwards. Words and phenomena are in the data file.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from transduce.errors import DataError
from transduce.grammar.lexicon import (
    Combination,
    Referent,
    RuleBook,
    Value,
    Variables,
    alternatives,
    bind,
    combination_of,
    derive,
    form_at,
    passes,
    value_of,
)
from transduce.grammar.rules import (
    Bracket,
    Call,
    Choice,
    Lexeme,
    Path,
    Reference,
    Rule,
    Target,
    Word,
)


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
