"""Synchronous grammars: lexemes, rules with two linked sides, and lookup in them.

The top of the English-German data file explains the notation. Words, agreement and word
order of the languages are all in the data files.
"""

import re
import tomllib
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from random import Random
from typing import Any

from transduce.errors import DataError

CHOICE = re.compile(r"\?(\w+) in ([\w|?.]+)(?:\[(.*?)\])?(?: with \?(\w+))?$")
HEAD = re.compile(r"(\w+)(?:\[(.*)\])?$")
ITEM = re.compile(r"\((?P<label>\S+)|(?P<close>\))|(?P<word>(?:[^\s()\[]|\[[^\]]*\])+)")
REFERENT_TABLES = ("antecedent", "possessor")
"""Tables of nouns that occur earlier in the sentence, not in the lexicon."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Lexeme:
    """Row of the lexicon; rules test its `features`."""

    lemma: str
    tags: Any
    english: Any
    target: Any
    features: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """`?noun.agreement.?number`: steps with a question mark are variables."""

    root: str
    steps: tuple[tuple[bool, str], ...]


Term = str | tuple[str, ...] | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Parameter of a rule: its name, and required or excluded values."""

    name: str
    value: str = ""
    is_negated: bool = False

    def matches(self, value: object) -> bool:
        return not self.value or (value == self.value) != self.is_negated


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """`?noun in noun[classes=?class] with ?verb`: a variable and its candidates."""

    name: str
    source: "str | tuple[str, ...] | Path"
    """Table, explicit values, or a known feature."""
    filters: tuple[tuple[str, Term], ...]
    partner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """Word on either side; words with the same link are aligned."""

    text: str | Path
    link: str
    anaphor_of: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Phrase on the English side: `name:Symbol[term term]`."""

    name: str
    symbol: str
    terms: tuple[Term, ...]
    keys: tuple[str, ...]
    """Keys of the terms among a rule's variables."""
    arguments: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    """Function from the calling rule's variables to the values of the terms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """Start or end of a constituent of the English tree."""

    text: str
    opens_clause: bool = False
    closes_clause: bool = False


English = tuple[Bracket | Call | Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Target field of a phrase on the English side, such as `VP.finite`."""

    name: str
    field: str


Target = tuple[tuple[Word | Reference, ...], ...]
"""Slots in order; the parts of a slot are joined into one word."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rule:
    """Rule that derives a phrase in both languages."""

    symbol: str
    weight: float
    parameters: tuple[Pattern, ...]
    names: tuple[str, ...]
    """Names of the parameters."""
    constants: dict[str, str | tuple[str, ...]]
    """Constants that the rule passes to its phrases, by key."""
    features: tuple[tuple[str, Path], ...]
    """Features of variables that the rule passes to its phrases, by key."""
    choices: tuple[Choice, ...]
    english: English
    calls: tuple[Call, ...]
    target: dict[str, Target]
    others: str
    """Phrase whose remaining target fields are passed on, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarFile:
    """Parsed data file."""

    tables: dict[str, tuple[Lexeme, ...]]
    rules: dict[str, tuple[Rule, ...]]
    contractions: dict[str, str]
    spaced: bool
    """Whether the target has spaces between words."""


def read_grammar(text: str, name: str) -> GrammarFile:
    """Parse the text of a data file; errors state its `name`."""
    try:
        return _read(tomllib.loads(text))
    except ValueError as error:
        raise DataError(f"{name}: {error}") from error


def _read(data: Mapping[str, Any]) -> GrammarFile:
    for key in ("contractions", "lexicon", "rule"):
        if key not in data:
            raise ValueError(f"the file must have the entry `{key}`, but has not.")
    tables = {
        table: tuple(_lexemes(table, entry)) for table, entry in data["lexicon"].items()
    }
    rules: dict[str, tuple[Rule, ...]] = {}
    for entry in data["rule"]:
        rule = _rule(entry)
        rules[rule.symbol] = (*rules.get(rule.symbol, ()), rule)
    _check_names(rules, tables)
    return GrammarFile(
        tables=tables,
        rules=rules,
        contractions=data["contractions"],
        spaced=data.get("spaced", True),
    )


def _lexemes(table: str, entry: Mapping[str, Any]) -> Iterator[Lexeme]:
    if not {"columns", "rows"} <= entry.keys():
        raise ValueError(f"lexicon.{table} must have `columns` and `rows`.")
    columns = [column.split("+") for column in entry["columns"].split()]
    for line in entry["rows"].strip().splitlines():
        cells = line.replace("|", " ").split()
        if not cells or line.startswith("#"):
            continue
        if len(cells) != len(columns):
            raise ValueError(
                f"the row `{cells[0]}` of lexicon.{table} must have {len(columns)} "
                f"cells, but has {len(cells)}."
            )
        yield _lexeme(columns, cells, entry)


def _lexeme(
    columns: list[list[str]], cells: list[str], entry: Mapping[str, Any]
) -> Lexeme:
    forms = {"features": deepcopy(entry.get("features", {}))}
    for paths, cell in zip(columns, cells, strict=True):
        for path in paths:
            _put(forms, path.split("."), _cell(cell, path))
    return Lexeme(
        lemma=cells[0],
        tags=entry.get("tags", ""),
        english=forms.get("english", ""),
        target=forms.get("target", ""),
        features=forms["features"],
    )


def _put(forms: dict[str, Any], steps: list[str], cell: str | tuple[str, ...]) -> None:
    for step in steps[:-1]:
        forms = forms.setdefault(step, {})
    forms[steps[-1]] = cell


def _cell(cell: str, path: str) -> str | tuple[str, ...]:
    if path.startswith("features."):
        return tuple(cell.split(",")) if "," in cell else cell
    return "" if cell == "-" else cell


def _rule(entry: Mapping[str, Any]) -> Rule:
    try:
        return _read_rule(entry)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"the rule `{entry.get('head')}` must have a readable head, english and "
            f"target, but {error}."
        ) from error


def _read_rule(entry: Mapping[str, Any]) -> Rule:
    symbol, parameters = _head(entry["head"])
    english = tuple(_english(entry["english"]))
    calls = tuple(item for item in english if isinstance(item, Call))
    terms = {_key_of(term): term for call in calls for term in call.terms}
    target = entry.get("target", {})
    fields = {"all": target} if isinstance(target, str) else dict(target)
    others = fields.pop("others", "")
    names = {call.name for call in calls}
    return Rule(
        symbol=symbol,
        weight=float(entry.get("weight", 1)),
        parameters=parameters,
        names=tuple(parameter.name for parameter in parameters),
        choices=tuple(map(_choice, _split(entry.get("choose", "")))),
        constants={
            key: term for key, term in terms.items() if not isinstance(term, Path)
        },
        features=tuple(
            (key, term)
            for key, term in terms.items()
            if isinstance(term, Path) and term.steps
        ),
        english=english,
        calls=calls,
        target={field: _target(text, names) for field, text in fields.items()},
        others=others,
    )


def _head(text: str) -> tuple[str, tuple[Pattern, ...]]:
    match = HEAD.match(text)
    if match is None:
        raise ValueError(f"`{text}` is no symbol")
    return match[1], tuple(map(_pattern, (match[2] or "").split()))


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _pattern(text: str) -> Pattern:
    match = re.match(r"(?:\?(\w+))?([=!])?([\w-]+)?$", text)
    if match is None:
        raise ValueError(f"`{text}` is no parameter")
    name, sign, value = match.groups()
    return Pattern(name=name or "", value=value or "", is_negated=sign == "!")


def _choice(text: str) -> Choice:
    match = CHOICE.match(text)
    if match is None:
        raise ValueError(f"`{text}` is no choice")
    name, source, filters, partner = match.groups()
    pairs = [item.split("=") for item in (filters or "").split()]
    return Choice(
        name=name,
        source=_path(source) if source[0] == "?" else _alternatives(source, "|"),
        filters=tuple((feature, _term(value)) for feature, value in pairs),
        partner=partner or "",
    )


def _term(text: str) -> Term:
    if text.startswith("?"):
        return _path(text)
    return _alternatives(text, "/")


def _alternatives(text: str, separator: str) -> str | tuple[str, ...]:
    return tuple(text.split(separator)) if separator in text else text


def _path(text: str) -> Path:
    root, *steps = text.removeprefix("?").split(".")
    return Path(
        root=root,
        steps=tuple((step.startswith("?"), step.removeprefix("?")) for step in steps),
    )


def _word(text: str) -> Word:
    text, _, anaphor_of = text.partition("^")
    text, _, link = text.partition("~")
    if text == "?" or not text.startswith("?"):
        return Word(text=text, link=link)
    path = _path(text)
    return Word(text=path, link=link or path.root, anaphor_of=anaphor_of)


def _english(text: str) -> Iterator[Bracket | Call | Word]:
    labels: list[str] = []
    for match in ITEM.finditer(text):
        if label := match["label"]:
            labels.append(label)
            name = label.removesuffix("*")
            yield Bracket(text=f" ({name}", opens_clause=label != name)
        elif match["close"]:
            yield Bracket(text=")", closes_clause=labels.pop().endswith("*"))
        else:
            yield _call(match["word"]) or _word(match["word"])
    if labels:
        raise ValueError(f"`({labels[-1]}` is not closed")


def _call(text: str) -> Call | None:
    match = re.match(r"(?:(\w+):)?([A-Z]\w+)\[(.*)\]$", text)
    if match is None:
        return None
    terms = tuple(map(_term, match[3].split()))
    keys = tuple(map(_key_of, terms))
    return Call(
        name=match[1] or match[2],
        symbol=match[2],
        terms=terms,
        keys=keys,
        arguments=_arguments(keys),
    )


def _key_of(term: Term) -> str:
    """Return the key of a term among a rule's variables."""
    if not isinstance(term, Path):
        return f"={term}"
    steps = [
        f".?{step}" if is_variable else f".{step}" for is_variable, step in term.steps
    ]
    return term.root + "".join(steps)


def _arguments(keys: tuple[str, ...]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    # One call in C for all of them: derivations spend most of their time here.
    match keys:
        case ():
            return lambda _: ()
        case (key,):
            return lambda variables: (variables[key],)
        case _:
            return itemgetter(*keys)


def _target(text: str, names: set[str]) -> Target:
    return tuple(
        tuple(_target_part(part, names) for part in slot.split("+"))
        for slot in text.split()
    )


def _target_part(text: str, names: set[str]) -> Word | Reference:
    name, _, field = text.partition(".")
    if name in names:
        return Reference(name=name, field=field or "all")
    return _word(text)


def _check_names(
    rules: Mapping[str, tuple[Rule, ...]], tables: Mapping[str, tuple[Lexeme, ...]]
) -> None:
    for rule in (rule for group in rules.values() for rule in group):
        for call in rule.calls:
            _check_call(rule, call, rules)
        for choice in rule.choices:
            source = choice.source
            if isinstance(source, str) and source not in {*tables, *REFERENT_TABLES}:
                raise ValueError(
                    f"the rule `{rule.symbol}` must choose from a table of the "
                    f"lexicon, but chooses from `{source}`."
                )


def _check_call(rule: Rule, call: Call, rules: Mapping[str, tuple[Rule, ...]]) -> None:
    who = f"the rule `{rule.symbol}` must"
    if call.symbol not in rules:
        raise ValueError(f"{who} call a symbol that has a rule, not `{call.symbol}`.")
    expected, given = len(rules[call.symbol][0].parameters), len(call.terms)
    if given != expected:
        raise ValueError(
            f"{who} give `{call.symbol}` {expected} values, but gives {given}."
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
