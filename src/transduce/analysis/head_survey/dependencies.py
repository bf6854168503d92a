"""Which word depends on which, read off a constituency tree in the manner of Collins.

Only what the built-in grammar's trees have plenty of.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from transduce.parsing.trees import Constituent, Tree

NOUNS = ("NN", "NNS", "NNP", "PRP")
MODIFIERS = {
    "DT": "determiner → noun",
    "PRP$": "determiner → noun",
    "JJ": "adjective → noun",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """A word that is to find another."""

    kind: str
    query: int
    key: int


def dependencies(tree: Tree) -> Iterator[Dependency]:
    """Modifiers to nouns, verbs to subjects, objects to verbs."""
    phrases = _Phrases(tree)
    yield from _of_modifiers(phrases)
    for verb, phrase in phrases.verbs():
        yield from _of_verb(phrases, verb, phrase)


class _Phrases:
    """A tree whose leaves know the phrase that they stand in."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.inner = [self._innermost(i) for i in range(len(tree.leaves))]

    def _innermost(self, position: int) -> Constituent:
        around = (c for c in self.tree.constituents if c.start <= position < c.end)
        *_, inner = around
        return inner

    def nouns(self) -> Iterator[tuple[int, Constituent]]:
        """Each noun phrase with the noun that it is about: its own, or its first's."""
        for phrase in self.tree.constituents:
            noun = self._noun(phrase)
            if phrase.label == "NP" and noun is not None:
                yield noun, phrase

    def _noun(self, phrase: Constituent) -> int | None:
        inside = range(phrase.start, phrase.end)
        tags = [leaf.tag for leaf in self.tree.leaves]
        own = [i for i in inside if self.inner[i] is phrase and tags[i] in NOUNS]
        first = [i for i in inside if self.inner[i] is self.inner[phrase.start]]
        found = own or [i for i in first if tags[i] in NOUNS]
        return found[-1] if found else None

    def verbs(self) -> Iterator[tuple[int, Constituent]]:
        """The verbs that begin their phrase."""
        for phrase in self.tree.constituents:
            tag = self.tree.leaves[phrase.start].tag
            if phrase.label == "VP" and tag.startswith("V"):
                yield phrase.start, phrase


def _of_modifiers(phrases: _Phrases) -> Iterator[Dependency]:
    nouns = {phrase: noun for noun, phrase in phrases.nouns()}
    for position, leaf in enumerate(phrases.tree.leaves):
        noun = nouns.get(phrases.inner[position])
        if leaf.tag in MODIFIERS and noun is not None:
            yield Dependency(kind=MODIFIERS[leaf.tag], query=position, key=noun)


def _of_verb(phrases: _Phrases, verb: int, phrase: Constituent) -> Iterator[Dependency]:
    before = [(n, p) for n, p in phrases.nouns() if p.end == phrase.start]
    after = [n for n, p in phrases.nouns() if p.start == verb + 1]
    if before:
        # The longest: one that has a clause about it, not one within that.
        subject = min(before, key=lambda each: each[1].start)[0]
        yield Dependency(kind="verb → subject", query=verb, key=subject)
    for noun in after[:1]:
        yield Dependency(kind="object → verb", query=noun, key=verb)
