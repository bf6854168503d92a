"""The built-in corpus: its German by hand, and what holds for every sentence."""

import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from itertools import accumulate, islice
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
    "When the women danced, the king saw them.": (
        "Als die Frauen tanzten, sah der König sie."
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
    "After the party, every guest was tired.": ("Nach der Feier war jeder Gast müde."),
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
    "The doctor always wears the black coat.": (
        "Der Arzt trägt immer den schwarzen Mantel."
    ),
    "The baker sold a cake today.": "Der Bäcker verkaufte heute einen Kuchen.",
    "Perhaps the thief sleeps.": "Vielleicht schläft der Dieb.",
    "The bus arrives at the station.": "Der Bus kommt am Bahnhof an.",
}


class AstrayError(Exception):
    """The derivation says another sentence than the wanted one."""


class Guided(Derivation):
    """Stops as soon as its English is not the wanted one."""

    def __init__(self, book: RuleBook, rng: Random, wanted: tuple[str, ...]) -> None:
        super().__init__(book, rng)
        self.wanted = wanted

    def add_word(self, text: str) -> int:
        if self.wanted[len(self.words)] != text.lower():
            raise AstrayError
        return super().add_word(text)


class Repeated(Random):
    """Repeats given numbers before it draws new ones."""

    def repeat(self, numbers: list[float]) -> None:
        self.given = numbers
        self.used: list[float] = []

    def random(self) -> float:
        position = len(self.used)
        is_given = position < len(self.given)
        self.used.append(self.given[position] if is_given else super().random())
        return self.used[-1]


def from_grammar(file: GrammarFile, source: str) -> GrammarSentence:
    """Derive a given sentence.

    The lexicon is cut down to its words, and a random derivation changed for as long
    as it gets no less far.
    """
    words = re.findall(r"'s|\w+|[,.]", source.lower().replace("cannot", "can not"))
    wanted = tuple("a" if word == "an" else word for word in words)
    file = with_words(file, wanted)
    grammar, book = Grammar(file), RuleBook(file)
    rng, chance = Repeated(0), Random(1)
    best: list[float] = []
    farthest = 0
    for attempt in range(50_000):
        if attempt % 1_500 == 0:
            best, farthest = [], 0
        rng.repeat(changed(best, chance))
        derivation = Guided(book, rng, wanted)
        with suppress(AstrayError, DataError):
            return grammar.derive(derivation)
        if len(derivation.words) >= farthest:
            best, farthest = rng.used, len(derivation.words)
    raise AssertionError(f"the grammar does not say `{source}`")


def changed(numbers: list[float], chance: Random) -> list[float]:
    """Draw one number anew, and sometimes all after it."""
    position = chance.randrange(len(numbers) + 1)
    rest = numbers[position + 1 :] if chance.random() < 0.5 else []
    return [*numbers[:position], chance.random(), *rest]


def with_words(file: GrammarFile, words: tuple[str, ...]) -> GrammarFile:
    """Cut the lexicon down to these words."""
    tables = {
        name: tuple(lexeme for lexeme in table if may_occur(lexeme, words))
        for name, table in file.tables.items()
    }
    return replace(file, tables=tables)


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


@pytest.fixture(scope="module")
def training(grammar: Grammar) -> list[GrammarSentence]:
    return list(islice(grammar.training_sentences(1), 4_000))


@pytest.fixture(scope="module")
def held_out(grammar: Grammar) -> list[GrammarSentence]:
    return list(islice(grammar.held_out_sentences(2), 400))


@pytest.fixture(scope="module")
def sentences(
    training: list[GrammarSentence], held_out: list[GrammarSentence]
) -> list[GrammarSentence]:
    return training + held_out


def test_one_english_sentence_has_one_german_and_one_tree(
    grammar_file: GrammarFile,
) -> None:
    words = "a the this his her its man women lamp dog saw turned off old because it"
    file = with_words(grammar_file, tuple(words.split()))
    grammar, book, rng = Grammar(file), RuleBook(file), Random(3)
    said: dict[str, tuple[str, str]] = {}
    for _ in range(4_000):
        with suppress(DataError):
            sentence = grammar.derive(Derivation(book, rng))
            first = said.setdefault(sentence.source, (sentence.target, sentence.tree))
            assert first == (sentence.target, sentence.tree)
    assert len(said) < 3_500


@pytest.mark.slow
def test_a_hundred_thousand_sentences_have_one_german_each(grammar: Grammar) -> None:
    said: dict[str, str] = {}
    for sentence in islice(grammar.training_sentences(4), 100_000):
        assert said.setdefault(sentence.source, sentence.target) == sentence.target


def test_a_seed_always_gives_the_same_sentences(grammar: Grammar) -> None:
    first = list(islice(grammar.training_sentences(5), 50))
    assert first == list(islice(Grammar.built_in().training_sentences(5), 50))
    assert first != list(islice(grammar.training_sentences(6), 50))


def test_the_leaves_of_a_tree_are_the_source_words(
    sentences: list[GrammarSentence],
) -> None:
    for sentence in sentences:
        leaves = re.findall(r"([^\s()]+)\)", sentence.tree)
        assert tuple(leaves) == sentence.source_words


def test_a_tree_is_balanced_and_has_one_child_below_top(
    sentences: list[GrammarSentence],
) -> None:
    for sentence in sentences:
        depths = depths_of(sentence.tree)
        assert depths[-1] == 0
        assert 0 not in depths[:-1]
        assert depths.count(1) == 2
        assert sentence.tree.startswith("(TOP (S (")


def depths_of(tree: str) -> list[int]:
    """The depth after each bracket."""
    brackets = re.findall(r"[()]", tree)
    return list(accumulate(1 if bracket == "(" else -1 for bracket in brackets))


def test_no_constituent_is_empty(sentences: list[GrammarSentence]) -> None:
    assert not [
        sentence.tree
        for sentence in sentences
        if re.search(r"\([^\s()]*\s*\)", sentence.tree)
    ]


def test_the_words_of_a_tree_have_the_tags_of_the_treebank(
    sentences: list[GrammarSentence],
) -> None:
    tags = {
        tag
        for sentence in sentences
        for tag in re.findall(r"\((\S+) [^\s()]+\)", sentence.tree)
    }
    assert tags == {
        *("DT", "NN", "NNS", "NNP", "PRP", "PRP$", "POS", "CD", "JJ", "RB", "RP", "IN"),
        *("TO", "CC", "MD", "VB", "VBD", "VBP", "VBZ", "WP", "WDT", ",", "."),
    }


def test_all_words_but_commas_are_aligned(sentences: list[GrammarSentence]) -> None:
    for sentence in sentences:
        sources = {source for source, _ in sentence.alignment}
        targets = {target for _, target in sentence.alignment}
        assert unaligned(sentence.source_words, sources) <= {","}
        assert unaligned(sentence.target_words, targets) <= {","}


def unaligned(words: tuple[str, ...], aligned: set[int]) -> set[str]:
    assert aligned <= set(range(len(words)))
    return {word for position, word in enumerate(words) if position not in aligned}


@pytest.mark.parametrize(
    ("source", "word", "translations"),
    [
        ("The teacher turns off the lamp.", "turns", {"schaltet", "aus"}),
        ("The teacher turns off the lamp.", "off", {"schaltet", "aus"}),
        ("The thief does not lock the box.", "does", {"schließt", "ab"}),
        ("The student lives in the house.", "in", {"im"}),
        ("The student lives in the house.", "house", {"Haus"}),
        ("The lamp fell because it was old.", "it", {"sie"}),
        ("The woman whom the king helps works.", "whom", {"der"}),
        ("The boy wants to open the box.", "to", {"will"}),
        ("The boy tries to open the box.", "to", {"zu"}),
        ("Anna's dog sleeps.", "'s", {"Annas"}),
    ],
)
def test_words_are_aligned_to_their_translations(
    grammar_file: GrammarFile, source: str, word: str, translations: set[str]
) -> None:
    sentence = from_grammar(grammar_file, source)
    position = sentence.source_words.index(word)
    aligned = {
        sentence.target_words[target]
        for source_word, target in sentence.alignment
        if source_word == position
    }
    assert aligned == translations


@pytest.mark.parametrize(
    ("source", "pairs"),
    [
        ("The lamp fell because it was old.", [("it", "lamp")]),
        ("The man bought the lamp because it was new.", [("it", "lamp")]),
        ("Peter sold his car because he washed it.", None),
        ("The dog that the man sees sleeps.", [("that", "dog")]),
        ("The king helps his friend.", [("his", "king")]),
    ],
)
def test_pronouns_know_their_antecedents(
    grammar_file: GrammarFile, source: str, pairs: list[tuple[str, str]] | None
) -> None:
    sentence = from_grammar(grammar_file, source)
    words = sentence.source_words
    found = [(words[pronoun], words[noun]) for pronoun, noun in sentence.antecedents]
    assert found == (pairs or [("his", "Peter"), ("he", "Peter"), ("it", "car")])


def test_it_has_the_gender_of_its_antecedent(
    grammar_file: GrammarFile, sentences: list[GrammarSentence]
) -> None:
    pronouns = {"masculine": {"er", "ihn", "ihm"}, "feminine": {"sie", "ihr"}}
    pronouns["neuter"] = {"es", "ihm"}
    genders = {
        noun.english["singular"]: noun.features["agreement"]["singular"]
        for noun in grammar_file.tables["noun"]
    }
    seen: Counter[str] = Counter()
    for sentence in sentences:
        for pronoun, noun in sentence.antecedents:
            if sentence.source_words[pronoun] == "it":
                gender = genders[sentence.source_words[noun].lower()]
                german = dict(sentence.alignment)[pronoun]
                assert sentence.target_words[german] in pronouns[gender]
                seen[gender] += 1
    assert min(seen[gender] for gender in pronouns) >= 10


def test_als_is_about_one_time(
    grammar_file: GrammarFile, sentences: list[GrammarSentence]
) -> None:
    adverbs = {adverb.english for adverb in grammar_file.tables["adverb"]}
    about = [one for one in sentences if {"als", "Als"} & {*one.target_words}]
    assert len(about) > 100
    assert not [one.source for one in about if adverbs & {*one.source_words}]


def test_a_pronoun_follows_its_antecedent(sentences: list[GrammarSentence]) -> None:
    for sentence in sentences:
        assert all(noun < pronoun for pronoun, noun in sentence.antecedents)


def test_training_has_no_held_out_combination(
    training: list[GrammarSentence],
) -> None:
    for sentence in training:
        assert not any(map(is_held_out, sentence.combinations))


def test_each_held_out_sentence_has_a_held_out_combination(
    held_out: list[GrammarSentence],
) -> None:
    for sentence in held_out:
        assert any(map(is_held_out, sentence.combinations))


def test_held_out_sentences_are_different(held_out: list[GrammarSentence]) -> None:
    assert len({sentence.source for sentence in held_out}) == len(held_out)


@pytest.mark.parametrize(
    ("source", "combinations"),
    [
        ("The old dog saw a cat.", {("dog", "see"), ("cat", "see"), ("dog", "old")}),
        ("The cat is old.", {("cat", "old")}),
        ("The dog that the man sees sleeps.", {("dog", "see"), ("dog", "sleep")}),
        ("The lamp fell because it was old.", {("fall", "lamp"), ("lamp", "old")}),
    ],
)
def test_combinations_are_of_verbs_adjectives_and_nouns(
    grammar_file: GrammarFile, source: str, combinations: set[tuple[str, str]]
) -> None:
    assert combinations <= set(from_grammar(grammar_file, source).combinations)


def test_five_to_ten_percent_of_the_combinations_are_held_out(
    grammar_file: GrammarFile,
) -> None:
    nouns = [noun.lemma for noun in grammar_file.tables["noun"]]
    verbs = [verb.lemma for verb in grammar_file.tables["verb"]]
    pairs = [is_held_out((noun, verb)) for noun in nouns for verb in verbs]
    assert 0.05 < sum(pairs) / len(pairs) < 0.1


def test_every_word_occurs_in_training(
    training: list[GrammarSentence], grammar_file: GrammarFile
) -> None:
    said = {word.lower() for one in training for word in one.source_words}
    nouns = {noun.english["singular"] for noun in grammar_file.tables["noun"]}
    verbs = {verb.english["base"] for verb in grammar_file.tables["verb"]}
    adjectives = {adjective.english for adjective in grammar_file.tables["adjective"]}
    assert nouns | verbs | adjectives <= said


def test_there_are_more_than_a_thousand_million_sentences(grammar: Grammar) -> None:
    assert grammar.num_sentences() >= 10**9


TINY = """
[contractions]
[lexicon.noun]
columns = "english german features.kind"
rows = '''
dog Hund animal
cat Katze animal
key Schlüssel thing
'''
[[rule]]
head = "Sentence"
choose = "?kind in animal|thing"
english = "(S Noun[?kind] (. .))"
german = "Noun ."
[[rule]]
head = "Noun[?kind]"
choose = "?noun in noun[kind=?kind]"
english = "(NN ?noun)"
german = "?noun"
[[rule]]
head = "Noun[animal]"
choose = "?noun in noun[kind=animal], ?other in noun"
english = "(NP (NN ?noun) (CC and) (NN ?other))"
german = "?noun und ?other"
"""


def test_the_count_is_that_of_all_sentences() -> None:
    grammar = Grammar(read_grammar(TINY, "tiny.toml"))
    said = {one.source for one in islice(grammar.training_sentences(1), 500)}
    assert grammar.num_sentences() == len(said) == 3 + 2 * 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[contractions]", "", "the file must have the entry `contractions`"),
        ("[contractions]", "contractions = ", "tiny.toml: Invalid value"),
        ('columns = "english', 'colums = "english', "lexicon.noun must have `columns`"),
        ("cat Katze animal", "cat Katze", "row `cat` of lexicon.noun must have 3"),
        ('"Noun[?kind]"', '"[?kind]"', r"rule `\[\?kind\]` must have a readable"),
        ('"Noun[?kind]"', '"Noun[?k=?i]"', "`[?]k=[?]i` is no parameter"),
        (
            "?kind in animal|thing",
            "?kind of animal",
            "of animal` is no choice",
        ),
        ("(NN ?noun)", "(NN ?noun", "`[(]NN` is not closed"),
        ("(NN ?noun)", "(NN ?noun))", "the rule `Noun.*` must have a readable"),
        ("S Noun[?kind]", "S Noun[]", "must give `Noun` 1 values, but gives 0"),
        ("S Noun[?kind]", "S Nuon[?kind]", "not `Nuon`"),
        ("in noun[kind=?kind]", "in nuon[kind=?kind]", "but chooses from `nuon`"),
    ],
)
def test_a_malformed_file_is_refused_in_one_sentence(
    old: str, new: str, message: str
) -> None:
    with pytest.raises(DataError, match=message) as raised:
        read_grammar(TINY.replace(old, new, 1), "tiny.toml")
    assert str(raised.value).startswith("tiny.toml: ")


def test_a_phrase_without_a_rule_is_refused() -> None:
    file = read_grammar(TINY.replace("key Schlüssel thing", ""), "tiny.toml")
    with pytest.raises(DataError, match="must have a rule for this `Noun`"):
        list(islice(Grammar(file).training_sentences(1), 50))
