"""Reads a synchronous grammar: lexemes and rules with two linked sides.

The notation is explained at the top of the data file. Nothing here knows a
language: words, agreement and word order are all in the file.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from transduce.errors import DataError

CHOICE = re.compile(r"\?(\w+) in ([\w|?.]+)(?:\[(.*?)\])?(?: with \?(\w+))?$")
HEAD = re.compile(r"(\w+)(?:\[(.*)\])?$")
ITEM = re.compile(r"\((?P<label>\S+)|(?P<close>\))|(?P<word>(?:[^\s()\[]|\[[^\]]*\])+)")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Lexeme:
    """One row of the lexicon; `features` is what rules may ask about it."""

    lemma: str
    tags: Any
    english: Any
    german: Any
    features: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """`?noun.agreement.?number`: steps with a question mark are variables."""

    root: str
    steps: tuple[tuple[bool, str], ...]


Term = str | tuple[str, ...] | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One parameter of a rule: a name and what its value must or must not be."""

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
    """A table, the values themselves, or what is known already."""
    filters: tuple[tuple[str, Term], ...]
    partner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word on either side; words with the same link are aligned."""

    text: str | Path
    link: str
    anaphor_of: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A phrase on the English side: `name:Symbol[term term]`."""

    name: str
    symbol: str
    terms: tuple[Term, ...]
    arguments: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    """What the terms are, from all that the rule has in its `Rule.bindings`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """A labelled constituent of the English tree."""

    label: str
    opens_clause: bool
    children: tuple["Bracket | Call | Word", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A German field of a phrase that the English side has called: `VP.finite`."""

    name: str
    field: str


German = tuple[tuple[Word | Reference, ...], ...]
"""Slots in order; what stands in one slot is written as one word."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rule:
    """How one phrase is said in both languages."""

    symbol: str
    weight: float
    parameters: tuple[Pattern, ...]
    names: tuple[str, ...]
    """Of the parameters."""
    constants: dict[str, Term]
    """What the rule passes on as it stands, by key."""
    features: tuple[tuple[str, Path], ...]
    """What the rule passes on of its variables, by key."""
    choices: tuple[Choice, ...]
    english: tuple[Bracket | Call | Word, ...]
    german: dict[str, German]
    others: str
    """The called phrase whose remaining German fields are passed on, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarFile:
    """A data file, read and checked."""

    tables: dict[str, tuple[Lexeme, ...]]
    rules: dict[str, tuple[Rule, ...]]
    contractions: dict[str, str]


def read_grammar(text: str, name: str) -> GrammarFile:
    """Read the text of a data file; `name` is what errors call it."""
    try:
        return _read(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{name}: must be TOML, but {error}.") from error
    except _EntryError as error:
        raise DataError(f"{name}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{name}: an entry is missing or malformed: {error}.") from error


class _EntryError(Exception):
    """One sentence on one entry, still without the name of the file."""


def _read(data: Mapping[str, Any]) -> GrammarFile:
    tables = {
        table: tuple(_lexemes(table, entry)) for table, entry in data["lexicon"].items()
    }
    rules: dict[str, tuple[Rule, ...]] = {}
    for entry in data["rule"]:
        rule = _rule(entry)
        rules[rule.symbol] = (*rules.get(rule.symbol, ()), rule)
    _check_names(rules, tables)
    return GrammarFile(tables=tables, rules=rules, contractions=data["contractions"])


def _lexemes(table: str, entry: Mapping[str, Any]) -> Iterator[Lexeme]:
    columns = [column.split("+") for column in entry["columns"].split()]
    for line in entry["rows"].strip().splitlines():
        cells = line.replace("|", " ").split()
        if not cells or line.startswith("#"):
            continue
        if len(cells) != len(columns):
            raise _EntryError(
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
        german=forms.get("german", ""),
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
    head = HEAD.match(entry["head"])
    if head is None:
        raise _EntryError(f"the head of the rule `{entry['head']}` must be a symbol.")
    try:
        english = _english(entry["english"])
        names = {call.name for call in calls_of(english)}
        terms = {key_of(term): term for call in calls_of(english) for term in call.terms}
        parameters = tuple(map(_pattern, (head[2] or "").split()))
        german = entry.get("german", {})
        fields = {"all": german} if isinstance(german, str) else german
        return Rule(
            symbol=head[1],
            weight=float(entry.get("weight", 1)),
            parameters=parameters,
            names=tuple(parameter.name for parameter in parameters),
            constants={
                key: term for key, term in terms.items() if not isinstance(term, Path)
            },
            features=tuple(
                (key, term)
                for key, term in terms.items()
                if isinstance(term, Path) and term.steps
            ),
            choices=tuple(map(_choice, _split(entry.get("choose", "")))),
            english=english,
            german={
                field: _german(text, names)
                for field, text in fields.items()
                if field != "others"
            },
            others=fields.get("others", ""),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _EntryError(f"the rule `{entry['head']}` is malformed: {error}.") from error


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
    if not text.startswith("?"):
        return Word(text=text, link=link)
    path = _path(text)
    return Word(text=path, link=link or path.root, anaphor_of=anaphor_of)


def _english(text: str) -> tuple[Bracket | Call | Word, ...]:
    stack: list[tuple[str, list[Bracket | Call | Word]]] = [("", [])]
    for match in ITEM.finditer(text):
        if match["label"]:
            stack.append((match["label"], []))
        elif match["close"]:
            label, children = stack.pop()
            stack[-1][1].append(_bracket(label, children))
        else:
            stack[-1][1].append(_call(match["word"]) or _word(match["word"]))
    if len(stack) != 1:
        raise ValueError(f"the brackets of `{text}` must balance")
    return tuple(stack[0][1])


def _bracket(label: str, children: list[Bracket | Call | Word]) -> Bracket:
    return Bracket(
        label=label.removesuffix("*"),
        opens_clause=label.endswith("*"),
        children=tuple(children),
    )


def _call(text: str) -> Call | None:
    match = re.match(r"(?:(\w+):)?([A-Z]\w+)\[(.*)\]$", text)
    if match is None:
        return None
    terms = tuple(map(_term, match[3].split()))
    return Call(
        name=match[1] or match[2],
        symbol=match[2],
        terms=terms,
        arguments=_arguments(tuple(map(key_of, terms))),
    )


def key_of(term: Term) -> str:
    """Under which a rule's variables hold a term that it passes on."""
    if not isinstance(term, Path):
        return f"={term}"
    steps = [f".?{step}" if is_variable else f".{step}" for is_variable, step in term.steps]
    return term.root + "".join(steps)


def _arguments(keys: tuple[str, ...]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    # One C call for all of them: this is where derivations spend their time.
    match keys:
        case ():
            return lambda _: ()
        case (key,):
            return lambda variables: (variables[key],)
        case _:
            return itemgetter(*keys)


def _german(text: str, names: set[str]) -> German:
    return tuple(
        tuple(_german_part(part, names) for part in slot.split("+"))
        for slot in text.split()
    )


def _german_part(text: str, names: set[str]) -> Word | Reference:
    name, _, field = text.partition(".")
    if name in names:
        return Reference(name=name, field=field or "all")
    return _word(text)


def calls_of(items: tuple[Bracket | Call | Word, ...]) -> Iterator[Call]:
    """All phrases that an English side calls, from left to right."""
    for item in items:
        if isinstance(item, Bracket):
            yield from calls_of(item.children)
        elif isinstance(item, Call):
            yield item


def _check_names(
    rules: Mapping[str, tuple[Rule, ...]], tables: Mapping[str, tuple[Lexeme, ...]]
) -> None:
    known_tables = {*tables, "antecedent", "possessor"}
    for rule in (rule for group in rules.values() for rule in group):
        for call in calls_of(rule.english):
            if call.symbol not in rules:
                raise _EntryError(
                    f"the rule `{rule.symbol}` calls `{call.symbol}`, "
                    "which must have a rule, but has none."
                )
            if len(call.terms) != len(rules[call.symbol][0].parameters):
                raise _EntryError(
                    f"the rule `{rule.symbol}` must give `{call.symbol}` "
                    f"{len(rules[call.symbol][0].parameters)} values, "
                    f"but gives {len(call.terms)}."
                )
        for choice in rule.choices:
            if isinstance(choice.source, str) and choice.source not in known_tables:
                raise _EntryError(
                    f"the rule `{rule.symbol}` chooses from `{choice.source}`, "
                    "which must be a table of the lexicon, but is not."
                )
