"""Lookup of the rules and words of a synchronous grammar, and their number.

The state of the sentence being derived is in `derivation`.
"""

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from random import Random
from typing import Any

from transduce.grammar.rules import (
    Choice,
    GrammarFile,
    Lexeme,
    Path,
    Rule,
    Term,
)

Combination = tuple[str, str]
"""Two lemmas that a rule combines, in alphabetical order."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Referent:
    """Noun of the sentence to which a later pronoun may refer."""

    lexeme: Lexeme
    position: int
    features: dict[str, Any]

    @property
    def lemma(self) -> str:
        return self.lexeme.lemma


Value = str | tuple[str, ...] | Lexeme | Referent
Variables = dict[str, Value]


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
    """Grammar file with cached lookups.

    Combinations for which `is_excluded` is true are never offered.
    """

    def __init__(
        self,
        grammar: GrammarFile,
        is_excluded: Callable[[Combination], bool] = lambda _: False,
    ) -> None:
        self.rules = grammar.rules
        self._tables = grammar.tables
        self._is_excluded = is_excluded
        self._tested = {
            symbol: _tested_positions(rules) for symbol, rules in grammar.rules.items()
        }
        self._selections: dict[tuple[Value, ...], Selection] = {}
        self._candidates: dict[tuple[object, ...], Sequence[Lexeme]] = {}

    def selection(self, symbol: str, arguments: Sequence[Value]) -> Selection:
        """Return the rules of a symbol whose parameters accept the arguments."""
        tested = self._tested[symbol]
        key = (symbol, *[arguments[position] for position in tested])
        if key not in self._selections:
            fitting = [
                rule
                for rule in self.rules[symbol]
                if all(rule.parameters[at].matches(arguments[at]) for at in tested)
            ]
            self._selections[key] = Selection(fitting)
        return self._selections[key]

    def candidates(self, choice: Choice, variables: Variables) -> Sequence[Lexeme]:
        """Return the rows of the choice's table that pass its filters."""
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
        """Return whether two words may be combined."""
        combination = combination_of(partner, value)
        return combination is None or not self._is_excluded(combination)


def _tested_positions(rules: Sequence[Rule]) -> Sequence[int]:
    positions = range(len(rules[0].parameters))
    return [at for at in positions if any(rule.parameters[at].value for rule in rules)]


def bind(rule: Rule, arguments: Sequence[Value]) -> Variables:
    """Return the variables of a rule that its caller sets."""
    return dict(zip(rule.names, arguments))  # noqa: B905


def derive(rule: Rule, variables: Variables) -> Variables:
    """Add the constants and features that a rule passes to its phrases."""
    variables.update(rule.constants)
    for key, path in rule.features:
        variables[key] = value_of(path, variables)
    return variables


def value_of(term: Term, variables: Variables) -> Value:
    """Return the value of a constant, a variable or a feature of a variable."""
    if not isinstance(term, Path):
        return term
    value: Any = variables[term.root]
    found: Value = form_at(value.features, term, variables) if term.steps else value
    return found


def alternatives(value: Value) -> Sequence[Value]:
    """Return the values of a feature as a sequence."""
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


Position = tuple[str, int]
"""Symbol with one of its parameters."""


class Count:
    """Numbers of derivations of phrases.

    The count of a rule is the sum over its choices of the product over its phrases.
    Rules with pronouns do not count, since a pronoun depends on the sentence before it;
    so the count is a lower bound.
    """

    def __init__(self, book: RuleBook) -> None:
        self._book = book
        self._deciding = _deciding_positions(book.rules)
        self._counts: dict[tuple[Value, ...], int] = {}

    def of(self, symbol: str, arguments: Sequence[Value] = ()) -> int:
        """Return the number of derivations of a phrase without pronouns."""
        deciding = [
            value
            for position, value in enumerate(arguments)
            if (symbol, position) in self._deciding
        ]
        key = (symbol, *deciding)
        if key not in self._counts:
            rules = self._book.selection(symbol, arguments).rules
            self._counts[key] = sum(self._of_rule(rule, arguments) for rule in rules)
        return self._counts[key]

    def _of_rule(self, rule: Rule, arguments: Sequence[Value]) -> int:
        return sum(
            prod(self.of(call.symbol, call.arguments(variables)) for call in rule.calls)
            for variables in self._bindings(rule, bind(rule, arguments), 0)
        )

    def _bindings(
        self, rule: Rule, variables: Variables, start: int
    ) -> Iterator[Variables]:
        if start == len(rule.choices):
            yield derive(rule, variables)
            return
        choice = rule.choices[start]
        for value in self._values(choice, variables):
            yield from self._bindings(
                rule, {**variables, choice.name: value}, start + 1
            )

    def _values(self, choice: Choice, variables: Variables) -> Iterable[Value]:
        match choice.source:
            case "antecedent" | "possessor":
                return ()
            case str():
                return self._book.candidates(choice, variables)
            case Path():
                return alternatives(value_of(choice.source, variables))
            case atoms:
                return dict.fromkeys(atoms)


def _deciding_positions(rules: Mapping[str, tuple[Rule, ...]]) -> set[Position]:
    """Return the parameters that counts depend on.

    Others, such as a verb passed to its object, only restrict combinations.
    """
    deciding: set[Position] = set()
    size = -1
    while len(deciding) > size:
        size = len(deciding)
        for group in rules.values():
            for rule in group:
                deciding |= _decided_by(rule, deciding)
    return deciding


def _decided_by(rule: Rule, deciding: set[Position]) -> set[Position]:
    names = {name for choice in rule.choices for name in _names_in(choice)}
    names |= {name for _, path in rule.features for name in _names_of(path)}
    for call in rule.calls:
        for position, term in enumerate(call.terms):
            if (call.symbol, position) in deciding:
                names |= _names_of(term)
    return {
        (rule.symbol, position)
        for position, parameter in enumerate(rule.parameters)
        if parameter.value or parameter.name in names
    }


def _names_in(choice: Choice) -> set[str]:
    terms = [term for _, term in choice.filters]
    return set().union(*map(_names_of, [choice.source, *terms]))


def _names_of(term: Term) -> set[str]:
    if not isinstance(term, Path):
        return set()
    return {term.root, *[step for is_variable, step in term.steps if is_variable]}
