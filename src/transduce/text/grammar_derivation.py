"""Derives sentences from the rules of a synchronous grammar, and counts them.

A derivation runs from left to right over the English side, so that a pronoun can
only look back. Knows no word and no phenomenon: these are in the data file.
"""

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from random import Random
from typing import Any, NamedTuple

from transduce.text.grammar_rules import (
    Bracket,
    Call,
    Choice,
    German,
    GrammarFile,
    Lexeme,
    Path,
    Reference,
    Rule,
    Term,
    Word,
    calls_of,
)

Combination = tuple[str, str]
"""Two lemmas that one rule brings together, in alphabetical order."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Referent:
    """A noun of the sentence, which a later pronoun may stand for."""

    lexeme: Lexeme
    position: int
    features: dict[str, Any]

    @property
    def lemma(self) -> str:
        return self.lexeme.lemma


Value = str | tuple[str, ...] | Lexeme | Referent
Variables = dict[str, Value]


class TargetWord(NamedTuple):
    """A German word and the positions of the English words that it translates."""

    text: str
    sources: tuple[int, ...]


Fields = dict[str, list[TargetWord]]


class Selection:
    """Rules to draw from by weight."""

    __slots__ = ("_limits", "rules")

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = rules
        self._limits = list(accumulate(rule.weight for rule in rules))

    def draw(self, rng: Random) -> Rule:
        if len(self.rules) == 1:
            return self.rules[0]
        return self.rules[bisect(self._limits, rng.random() * self._limits[-1])]

    def without(self, rule: Rule) -> "Selection":
        return Selection([other for other in self.rules if other is not rule])


class RuleBook:
    """A grammar file, with what is looked up in it again and again kept at hand.

    It offers no combination that `is_excluded` names.
    """

    def __init__(
        self,
        grammar: GrammarFile,
        is_excluded: Callable[[Combination], bool] = lambda _: False,
    ) -> None:
        self._rules = grammar.rules
        self._tables = grammar.tables
        self._is_excluded = is_excluded
        self._tested = {
            symbol: _tested_positions(rules) for symbol, rules in grammar.rules.items()
        }
        self._selections: dict[tuple[Value, ...], Selection] = {}
        self._candidates: dict[tuple[object, ...], Sequence[Lexeme]] = {}
        self._counts: dict[tuple[Value, ...], int] = {}

    def selection(self, symbol: str, arguments: Sequence[Value]) -> Selection:
        """The rules of a symbol whose parameters take the arguments."""
        tested = self._tested[symbol]
        key = (symbol, *[arguments[position] for position in tested])
        if key not in self._selections:
            fitting = [
                rule
                for rule in self._rules[symbol]
                if all(rule.parameters[at].matches(arguments[at]) for at in tested)
            ]
            self._selections[key] = Selection(fitting)
        return self._selections[key]

    def candidates(self, choice: Choice, variables: Variables) -> Sequence[Lexeme]:
        """The rows of the choice's table that pass its filters."""
        wanted = tuple([value_of(term, variables) for _, term in choice.filters])
        if not choice.partner:
            return self._rows(choice, wanted)
        partner = variables[choice.partner]
        key = (id(choice), partner, wanted)
        if key not in self._candidates:
            rows = self._rows(choice, wanted)
            allowed = [lexeme for lexeme in rows if self.allows(partner, lexeme)]
            self._candidates[key] = allowed
        return self._candidates[key]

    def _rows(self, choice: Choice, wanted: tuple[Value, ...]) -> Sequence[Lexeme]:
        key = (id(choice), wanted)
        if key not in self._candidates:
            self._candidates[key] = [
                lexeme
                for lexeme in self._tables[str(choice.source)]
                if passes(choice, wanted, lexeme.features)
            ]
        return self._candidates[key]

    def allows(self, partner: Value, value: Value) -> bool:
        """Whether two words may come together."""
        combination = combination_of(partner, value)
        return combination is None or not self._is_excluded(combination)

    def count(self, symbol: str, arguments: tuple[Value, ...] = ()) -> int:
        """The number of derivations of a phrase without pronouns."""
        key = (symbol, *arguments)
        if key not in self._counts:
            self._counts[key] = sum(
                prod(
                    self.count(call.symbol, call.arguments(variables))
                    for call in calls_of(rule.english)
                )
                for rule in self.selection(symbol, arguments).rules
                for chosen in self._bindings(rule.choices, bind(rule, arguments))
                for variables in [derive(rule, chosen)]
            )
        return self._counts[key]

    def _bindings(
        self, choices: Sequence[Choice], variables: Variables
    ) -> Iterator[Variables]:
        if not choices:
            yield variables
            return
        for value in self._countable(choices[0], variables):
            bound = {**variables, choices[0].name: value}
            yield from self._bindings(choices[1:], bound)

    def _countable(self, choice: Choice, variables: Variables) -> Iterable[Value]:
        match choice.source:
            case "antecedent" | "possessor":
                return ()
            case str():
                return self.candidates(choice, variables)
            case Path():
                return alternatives(value_of(choice.source, variables))
            case atoms:
                return dict.fromkeys(atoms)


def _tested_positions(rules: Sequence[Rule]) -> Sequence[int]:
    positions = range(len(rules[0].parameters))
    return [at for at in positions if any(rule.parameters[at].value for rule in rules)]


def bind(rule: Rule, arguments: Sequence[Value]) -> Variables:
    """The variables of a rule that its caller sets."""
    return dict(zip(rule.names, arguments))  # noqa: B905


def derive(rule: Rule, variables: Variables) -> Variables:
    """Add what the rule passes on to its phrases."""
    variables.update(rule.constants)
    for key, path in rule.features:
        variables[key] = value_of(path, variables)
    return variables


def value_of(term: Term, variables: Variables) -> Value:
    """The value of a constant, a variable or a feature of a variable."""
    if not isinstance(term, Path):
        return term
    value: Any = variables[term.root]
    return form_at(value.features, term, variables) if term.steps else value


def alternatives(value: Value) -> Sequence[Value]:
    """The values to choose from: those of a feature that has several."""
    return value if isinstance(value, tuple) else (value,)


def form_at(forms: Any, path: Path, variables: Variables) -> Any:
    """Follow the steps of a path until they end or the form is the same for all."""
    for is_variable, step in path.steps:
        if isinstance(forms, str):
            break
        forms = forms[variables[step] if is_variable else step]
    return forms


def passes(choice: Choice, wanted: Sequence[Value], features: dict[str, Any]) -> bool:
    """Whether features share a value with each filter of a choice."""
    return all(
        not _set(value).isdisjoint(_set(features.get(feature, "")))
        for (feature, _), value in zip(choice.filters, wanted, strict=True)
    )


def _set(value: Any) -> frozenset[str]:
    return frozenset((value,) if isinstance(value, str) else value)


def combination_of(partner: Value, value: Value) -> Combination | None:
    """The lemmas of two words, if both are words."""
    if isinstance(partner, str | tuple) or isinstance(value, str | tuple):
        return None
    first, second = sorted((partner.lemma, value.lemma))
    return first, second


class Derivation:
    """One sentence while it grows."""

    def __init__(self, book: RuleBook, rng: Random) -> None:
        self.words: list[str] = []
        self.tree: list[str] = []
        """Brackets and, at `leaves[i]`, the word at position i."""
        self.leaves: list[int] = []
        self.combinations: list[Combination] = []
        self.antecedents: list[tuple[int, int]] = []
        self._referents: list[Referent] = []
        self._mentioned: list[list[Referent]] = [[]]
        self._book = book
        self._rng = rng

    def expand(self, symbol: str, arguments: Sequence[Value]) -> Fields:
        """Say one phrase: English goes to the sentence, German to the caller."""
        rule, variables = self._draw(symbol, arguments)
        expansion = Expansion(self, variables)
        expansion.say(rule.english)
        return expansion.translate(rule)

    def open_clause(self) -> None:
        self._mentioned.append([])

    def close_clause(self) -> None:
        self._mentioned.pop()

    def add_leaf(self, text: str) -> int:
        """Write a word at the end of the English and return its position."""
        self.leaves.append(len(self.tree))
        self.tree.append(text)
        self.words.append(text)
        return len(self.words) - 1

    def put(self, position: int, text: str) -> None:
        """Write another form of a word that is there."""
        self.words[position] = self.tree[self.leaves[position]] = text

    def bracketed(self) -> str:
        """The tree in one line."""
        return "".join(part if part == ")" else f" {part}" for part in self.tree)

    def introduce(self, lexeme: Lexeme, number: str, position: int) -> None:
        """Let later pronouns stand for a noun."""
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
        """Note that the pronoun at a position stands for what has been said before."""
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
        while True:
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
        """The referents whose pronoun fits no other referent."""
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
    """One use of a rule: its variables, and what its words and phrases became."""

    __slots__ = ("_derivation", "_links", "_phrases", "_variables")

    def __init__(self, derivation: Derivation, variables: Variables) -> None:
        self._derivation = derivation
        self._variables = variables
        self._links: dict[str, tuple[int, ...]] = {}
        self._phrases: dict[str, Fields] = {}

    def say(self, items: Sequence[Bracket | Call | Word]) -> None:
        """Say an English side, or a part of it."""
        for item in items:
            if isinstance(item, Word):
                self._say_word(item)
            elif isinstance(item, Call):
                arguments = item.arguments(self._variables)
                phrase = self._derivation.expand(item.symbol, arguments)
                self._phrases[item.name] = phrase
            else:
                self._say_bracket(item)

    def _say_bracket(self, bracket: Bracket) -> None:
        if bracket.opens_clause:
            self._derivation.open_clause()
        self._derivation.tree.append("(" + bracket.label)
        self.say(bracket.children)
        self._derivation.tree.append(")")
        if bracket.opens_clause:
            self._derivation.close_clause()

    def _say_word(self, word: Word) -> None:
        if isinstance(word.text, str):
            self._link(word.link, self._derivation.add_leaf(word.text))
            return
        lexeme: Any = self._variables[word.text.root]
        text = lexeme.english
        if not isinstance(text, str):
            text = form_at(text, word.text, self._variables)
        if text:
            self._say_form(word, lexeme, text)

    def _say_form(self, word: Word, lexeme: Lexeme, text: str) -> None:
        derivation, path = self._derivation, word.text
        assert isinstance(path, Path)
        derivation.tree.append("(" + form_at(lexeme.tags, path, self._variables))
        position = derivation.add_leaf(text)
        derivation.tree.append(")")
        self._link(word.link, position)
        if word.anaphor_of:
            derivation.refer(self._variables[word.anaphor_of], position)
        elif "pronoun" in lexeme.features:
            number = self._variables["number"] if path.steps else "singular"
            derivation.introduce(lexeme, str(number), position)

    def _link(self, link: str, position: int) -> None:
        self._links[link] = (*self._links.get(link, ()), position)

    def translate(self, rule: Rule) -> Fields:
        """The German fields of the rule, once its English is said."""
        fields = {name: self._field(german) for name, german in rule.german.items()}
        return {**self._phrases[rule.others], **fields} if rule.others else fields

    def _field(self, german: German) -> list[TargetWord]:
        words: list[TargetWord] = []
        for slot in german:
            if len(slot) == 1:
                words += self._part(slot[0])
            else:
                words += joined([word for part in slot for word in self._part(part)])
        return words

    def _part(self, part: Word | Reference) -> Sequence[TargetWord]:
        if isinstance(part, Reference):
            return self._phrases[part.name].get(part.field, ())
        text = part.text
        if isinstance(text, Path):
            lexeme: Any = self._variables[text.root]
            form = lexeme.german
            text = form if isinstance(form, str) else form_at(form, text, self._variables)
        return [TargetWord(text, self._links.get(part.link, ()))] if text else ()


def joined(words: Sequence[TargetWord]) -> list[TargetWord]:
    """Write words as one: aus + schaltet."""
    if not words:
        return []
    sources = sorted({source for word in words for source in word.sources})
    return [TargetWord("".join(word.text for word in words), tuple(sources))]
