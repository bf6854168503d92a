"""The built-in corpus: its German by hand, and what holds for every sentence."""

import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from itertools import islice
from random import Random
from typing import Any

import pytest

from transduce.errors import DataError
from transduce.text.grammar import BUILT_IN, Grammar, GrammarSentence, is_held_out
from transduce.text.grammar_book import RuleBook
from transduce.text.grammar_derivation import Derivation
from transduce.text.grammar_rules import GrammarFile, Lexeme, read_grammar

BY_HAND = {
    # pronouns: gender by the antecedent
    "The lamp fell because it was old.": "Die Lampe fiel um, weil sie alt war.",
    "The tree fell because it was old.": "Der Baum fiel um, weil er alt war.",
    "The bicycle fell because it was old.": "Das Fahrrad fiel um, weil es alt war.",
    "The man bought the lamp because it was new.": (
        "Der Mann kaufte die Lampe, weil sie neu war."
    ),
    "Because the key is small, the boy loses it.": (
        "Weil der Schlüssel klein ist, verliert der Junge ihn."
    ),
    "The farmer sold the car, but it was broken.": (
        "Der Bauer verkaufte das Auto, aber es war kaputt."
    ),
    "When the women danced, the children saw them.": (
        "Als die Frauen tanzten, sahen die Kinder sie."
    ),
    "The dog bites its child.": "Der Hund beißt sein Kind.",
    "The cat bites its child.": "Die Katze beißt ihr Kind.",
    # separable verbs
    "The teacher turns off the lamp.": "Der Lehrer schaltet die Lampe aus.",
    "If the lamp is old, the teacher turns it off.": (
        "Wenn die Lampe alt ist, schaltet der Lehrer sie aus."
    ),
    "The woman sings because the teacher turns off the radio.": (
        "Die Frau singt, weil der Lehrer das Radio ausschaltet."
    ),
    "The teacher tries to turn off the lamp.": (
        "Der Lehrer versucht, die Lampe auszuschalten."
    ),
    "The queen planned to visit the museum.": (
        "Die Königin plante, das Museum zu besuchen."
    ),
    "Anna wakes up.": "Anna wacht auf.",
    # subordinate clauses, tense, inversion
    "When the train left, Peter woke up.": "Als der Zug abfuhr, wachte Peter auf.",
    "When the train leaves, Peter wakes up.": (
        "Wenn der Zug abfährt, wacht Peter auf."
    ),
    "Although the exam was long, the student laughed.": (
        "Obwohl die Prüfung lang war, lachte der Student."
    ),
    "Maria knows that the king sleeps.": "Maria weiß, dass der König schläft.",
    "The doctor asked if the girl came back.": (
        "Der Arzt fragte, ob das Mädchen zurückkam."
    ),
    "Yesterday, the baker saw an old house.": (
        "Gestern sah der Bäcker ein altes Haus."
    ),
    "After the party, every guest was tired.": (
        "Nach der Feier war jeder Gast müde."
    ),
    # relative clauses
    "The man who sees the dog laughs.": "Der Mann, der den Hund sieht, lacht.",
    "The dog that the man sees sleeps.": "Der Hund, den der Mann sieht, schläft.",
    "The woman whom the students help works.": (
        "Die Frau, der die Studenten helfen, arbeitet."
    ),
    "The children whom the teacher thanks laugh.": (
        "Die Kinder, denen der Lehrer dankt, lachen."
    ),
    "The bus for which the boy waits is red.": (
        "Der Bus, auf den der Junge wartet, ist rot."
    ),
    # modal verbs and negation
    "The girl wants to open the box.": "Das Mädchen will die Kiste öffnen.",
    "The thief could not open the door.": "Der Dieb konnte die Tür nicht öffnen.",
    "The thief cannot steal this ring.": "Der Dieb kann diesen Ring nicht stehlen.",
    "The mother does not turn on the radio.": (
        "Die Mutter schaltet das Radio nicht ein."
    ),
    "My brother does not wait for the train.": (
        "Mein Bruder wartet nicht auf den Zug."
    ),
    "The soldier bought no hat.": "Der Soldat kaufte keinen Hut.",
    "The soup is not fresh.": "Die Suppe ist nicht frisch.",
    # cases and adjectives
    "Paul gives the old woman a new book.": "Paul gibt der alten Frau ein neues Buch.",
    "The king helps his tired friend.": "Der König hilft seinem müden Freund.",
    "Two big dogs saw my small cat.": "Zwei große Hunde sahen meine kleine Katze.",
    "Anna's old dog saw many red cars.": "Annas alter Hund sah viele rote Autos.",
    "The brother of the king laughed.": "Der Bruder des Königs lachte.",
    "The man and the woman laugh.": "Der Mann und die Frau lachen.",
    "The boy listens to the student.": "Der Junge hört dem Studenten zu.",
    "The girl lives with the neighbour.": "Das Mädchen wohnt beim Nachbarn.",
    "The farmer hurries to the church.": "Der Bauer eilt zur Kirche.",
    "The guests participate in the game.": "Die Gäste nehmen am Spiel teil.",
    "The chair is as old as the table.": "Der Stuhl ist so alt wie der Tisch.",
    # two-way prepositions
    "The cat lies under the bed.": "Die Katze liegt unter dem Bett.",
    "The cat runs under the bed.": "Die Katze läuft unter das Bett.",
    "The student goes into the school.": "Der Student geht in die Schule.",
    "The student lives in the house.": "Der Student wohnt im Haus.",
    "The dog sits in the garden.": "Der Hund sitzt im Garten.",
    "The man carried the box into the house.": "Der Mann trug die Kiste ins Haus.",
    # adverbs of time
    "The doctor never wears the black coat.": (
        "Der Arzt trägt den schwarzen Mantel nie."
    ),
    "The baker sold a cake today.": "Der Bäcker verkaufte heute einen Kuchen.",
}


class Astray(Exception):
    """The derivation says another sentence than the wanted one."""


class Guided(Derivation):
    """Stops as soon as its English is not the wanted one."""

    def __init__(self, book: RuleBook, rng: Random, wanted: tuple[str, ...]) -> None:
        super().__init__(book, rng)
        self.wanted = wanted

    def add_word(self, text: str) -> int:
        if self.wanted[len(self.words)] != text.lower():
            raise Astray
        return super().add_word(text)


class Repeated(Random):
    """Repeats given numbers before it draws new ones."""

    def __init__(self, numbers: list[float]) -> None:
        super().__init__(str(numbers))
        self.numbers = numbers
        self.used: list[float] = []

    def random(self) -> float:
        position = len(self.used)
        is_given = position < len(self.numbers)
        number = self.numbers[position] if is_given else super().random()
        self.used.append(number)
        return number


def from_grammar(file: GrammarFile, source: str) -> GrammarSentence:
    """Derive a given sentence.

    The lexicon is cut down to its words, and a random derivation changed for as long
    as it gets no less far.
    """
    words = re.findall(r"'s|\w+|[,.]", source.lower().replace("cannot", "can not"))
    wanted = tuple("a" if word == "an" else word for word in words)
    tables = {
        name: tuple(lexeme for lexeme in table if may_occur(lexeme, wanted))
        for name, table in file.tables.items()
    }
    restricted = replace(file, tables=tables)
    grammar, book, rng = Grammar(restricted), RuleBook(restricted), Random(0)
    best: list[float] = []
    farthest = 0
    for attempt in range(50_000):
        if attempt % 1_500 == 0:
            best, farthest = [], 0
        repeated = Repeated(changed(best, rng))
        derivation = Guided(book, repeated, wanted)
        with suppress(Astray, DataError):
            return grammar.derive(derivation)
        if len(derivation.words) >= farthest:
            best, farthest = repeated.used, len(derivation.words)
    raise AssertionError(f"the grammar does not say `{source}`")


def changed(numbers: list[float], rng: Random) -> list[float]:
    """Draw one number anew, and sometimes all after it."""
    position = rng.randrange(len(numbers) + 1)
    rest = numbers[position + 1 :] if rng.random() < 0.5 else []
    return [*numbers[:position], rng.random(), *rest]


def may_occur(lexeme: Lexeme, words: tuple[str, ...]) -> bool:
    forms = set(forms_in(lexeme.english)) - {""}
    return not forms or any(form.lower() in words for form in forms)


def forms_in(forms: Any) -> list[str]:
    if isinstance(forms, str):
        return [forms]
    return [form for inner in forms.values() for form in forms_in(inner)]


@pytest.fixture(scope="module")
def grammar_file() -> GrammarFile:
    text = files("transduce.text").joinpath(BUILT_IN).read_text(encoding="utf-8")
    return read_grammar(text, BUILT_IN)


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    return Grammar.built_in()


@pytest.mark.parametrize(("source", "target"), BY_HAND.items())
def test_the_german_is_what_a_german_would_write(
    grammar_file: GrammarFile, source: str, target: str
) -> None:
    sentence = from_grammar(grammar_file, source)
    assert (sentence.source, sentence.target) == (source, target)
