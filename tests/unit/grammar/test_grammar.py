"""The built-in corpus: translations by hand, and properties of every sentence."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from itertools import accumulate, islice
from math import prod
from random import Random
from typing import Any

import pytest

from transduce.errors import DataError
from transduce.grammar.corpus import (
    BUILT_IN,
    Derivation,
    Grammar,
    GrammarSentence,
    Pair,
    is_held_out,
)
from transduce.grammar.rules import (
    GrammarFile,
    Lexeme,
    Path,
    Rule,
    RuleBook,
    Value,
    Variables,
    alternatives,
    bind,
    derive,
    read_grammar,
    value_of,
)

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
    """The derivation produces a sentence that is not wanted."""


class Guided(Derivation):
    """Derivation that stops as soon as its English differs from the wanted sentence."""

    def __init__(self, book: RuleBook, rng: Random, wanted: tuple[str, ...]) -> None:
        super().__init__(book, rng)
        self.wanted = wanted

    def add_word(self, text: str) -> int:
        if self.wanted[len(self.words)] != text.lower():
            raise AstrayError
        return super().add_word(text)


class Short(Derivation):
    """Derivation that stops as soon as its English is longer than a length."""

    def __init__(self, book: RuleBook, rng: Random, length: int) -> None:
        super().__init__(book, rng)
        self.length = length

    def add_word(self, text: str) -> int:
        if len(self.words) == self.length:
            raise AstrayError
        return super().add_word(text)


class Repeated(Random):
    """Random numbers that repeat given ones before they draw new ones."""

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

    The lexicon is restricted to the sentence's words. Random changes of a derivation
    are kept if it matches at least as many words as before.
    """
    words = re.findall(r"'s|\w+|[,.?]", source.lower().replace("cannot", "can not"))
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


def file_of(pair: Pair) -> GrammarFile:
    text = files("transduce.grammar").joinpath(BUILT_IN[pair]).read_text("utf-8")
    return read_grammar(text, BUILT_IN[pair])


@pytest.fixture(scope="module")
def grammar_file() -> GrammarFile:
    return file_of("en-de")


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    return Grammar.built_in()


@pytest.mark.parametrize(("source", "target"), BY_HAND.items())
def test_german_translations_equal_those_by_hand(
    grammar_file: GrammarFile, source: str, target: str
) -> None:
    sentence = from_grammar(grammar_file, source)
    assert (sentence.source, sentence.target) == (source, target)


CHINESE_BY_HAND = {
    # measure words; the is 那, these is 这些
    "This woman has two cars.": "这个女人有两辆汽车。",
    "The nurse bought three books.": "那位护士买了三本书。",
    "A driver bought these chairs.": "一个司机买了这些椅子。",
    "The king has an old car.": "那位国王有一辆旧汽车。",
    "Every girl likes the song.": "每个女孩都喜欢那首歌。",
    "All boys bought tickets yesterday.": "所有男孩昨天都买了票。",
    "Many cows are resting.": "很多牛正在休息。",
    # time and place before the verb
    "The boy bought a hat in the shop yesterday.": "那个男孩昨天在商店里买了一顶帽子。",
    "Last week, my aunt visited the museum.": "上个星期，我的阿姨参观了那座博物馆。",
    "Tonight, the boy who laughed will sing.": "今晚，笑了的那个男孩会唱歌。",
    "Anna is dancing in the park now.": "安娜现在正在公园里跳舞。",
    "The cat is sitting on the table.": "那只猫正坐在桌子上。",
    "The queen often sings.": "那位女王经常唱歌。",
    "The queen usually rests.": "那位女王通常休息。",
    # 都 after some adverbs, before others
    "All boys often sing.": "所有男孩都经常唱歌。",
    "Every boy sometimes sings.": "每个男孩有时都唱歌。",
    # 了, 没有, 不
    "The farmer did not feed the horse.": "那个农民没有喂那匹马。",
    "The girl does not like this song.": "那个女孩不喜欢这首歌。",
    "The man will not sell the house tomorrow.": "那个男人明天不会卖那座房子。",
    "The soldier cannot repair the lamp.": "那个士兵不能修理那盏灯。",
    # 把, 被, 给, 跟
    "The boy threw away the old newspaper.": "那个男孩把那份旧报纸扔掉了。",
    "Because the cup was dirty, the man broke it.": (
        "因为那个杯子很脏，所以那个男人把它打碎了。"
    ),
    "Peter hid the key in the kitchen.": "彼得把那把钥匙藏在了厨房里。",
    "The cake was eaten by the dog.": "那块蛋糕被那只狗吃掉了。",
    "The car was not stolen by the thief.": "那辆汽车没有被那个小偷偷走。",
    "My mother bought a coat for Maria.": "我的母亲给玛丽亚买了一件外套。",
    "The woman talked with her daughter.": "那个女人跟她的女儿聊了天。",
    "Paul gave the boy an apple.": "保罗给了那个男孩一个苹果。",
    # what describes a noun stands before it
    "The book that the girl chose is new.": "那个女孩选的那本书很新。",
    "The man who sold the car laughed.": "卖了那辆汽车的那个男人笑了。",
    "Martin's red umbrella is under the bed.": "马丁红色的雨伞在床下面。",
    "Our small dog is hungry.": "我们的小狗很饿。",
    "The aunt has a fast car.": "那位阿姨有一辆快速的汽车。",
    "The small elephant saw a small coat.": "那头小象看见了一件小外套。",
    # comparison and predicate nouns
    "The king is not as tall as the queen.": "那位国王没有那位女王那么高。",
    "The house is as old as the temple.": "那座房子跟那座寺庙一样旧。",
    "Lili is a doctor.": "丽丽是一位医生。",
    # there is
    "There is a cat under the table.": "桌子下面有一只猫。",
    "There are five birds on the bridge.": "桥上有五只鸟。",
    # questions
    "Did the girl buy the book?": "那个女孩买了那本书吗？",
    "Will your sister sell the house?": "你的姐姐会卖那座房子吗？",
    "Is the lamp old?": "那盏灯旧吗？",
    "Who opened the window?": "谁打开了那扇窗户？",
    "What did the boy eat?": "那个男孩吃了什么？",
    "Where is the key?": "那把钥匙在哪里？",
    # clauses
    "The man sold the car because it was old.": "那个男人卖了那辆汽车，因为它很旧。",
    "Although the house was old, the woman sold it.": (
        "虽然那座房子很旧，但是那个女人卖了它。"
    ),
    "If the girl sings, the boy will laugh.": "如果那个女孩唱歌，那个男孩就会笑。",
    "When the boy opened the door, the dog saw him.": (
        "那个男孩打开那扇门的时候，那只狗看见了他。"
    ),
    "After the women danced, the king greeted them.": (
        "那些女人跳了舞之后，那位国王问候了她们。"
    ),
    "Before the bus arrived, the man bought a ticket.": (
        "那辆公共汽车到达之前，那个男人买了一张票。"
    ),
    "The girl thinks that the boy will swim.": "那个女孩认为那个男孩会游泳。",
    "The boy wants to buy a bicycle.": "那个男孩想买一辆自行车。",
}


@pytest.fixture(scope="module")
def chinese_file() -> GrammarFile:
    return file_of("en-zh")


@pytest.mark.parametrize(("source", "target"), CHINESE_BY_HAND.items())
def test_chinese_translations_equal_those_by_hand(
    chinese_file: GrammarFile, source: str, target: str
) -> None:
    sentence = from_grammar(chinese_file, source)
    assert (sentence.source, sentence.target) == (source, target)


@pytest.fixture(scope="module")
def chinese() -> list[GrammarSentence]:
    grammar = Grammar.built_in("en-zh")
    training = islice(grammar.training_sentences(1), 3_000)
    return [*training, *islice(grammar.held_out_sentences(2), 300)]


def test_an_english_sentence_always_has_the_same_chinese(
    chinese_file: GrammarFile,
) -> None:
    words = "a the this his he her she man women dog lamp saw opened it old because big"
    file = with_words(chinese_file, tuple(words.split()))
    grammar, book, rng = Grammar(file), RuleBook(file), Random(3)
    said: dict[str, tuple[str, str]] = {}
    for _ in range(4_000):
        with suppress(DataError):
            sentence = grammar.derive(Derivation(book, rng))
            first = said.setdefault(sentence.source, (sentence.target, sentence.tree))
            assert first == (sentence.target, sentence.tree)
    assert len(said) > 200


def test_chinese_has_no_spaces_and_its_own_punctuation(
    chinese: list[GrammarSentence],
) -> None:
    for sentence in chinese:
        assert re.fullmatch(r"[\u4e00-\u9fff，]+[。？]", sentence.target)
        assert sentence.target == "".join(sentence.target_words)
        assert sentence.target[-1] == {".": "。", "?": "？"}[sentence.source[-1]]
        assert "的的" not in sentence.target


def test_trees_of_the_chinese_corpus_have_the_source_as_leaves(
    chinese: list[GrammarSentence],
) -> None:
    for sentence in chinese:
        leaves = re.findall(r"([^\s()]+)\)", sentence.tree)
        assert tuple(leaves) == sentence.source_words
        assert depths_of(sentence.tree)[-1] == 0
        assert not re.search(r"\([^\s()]*\s*\)", sentence.tree)
        assert all(noun < pronoun for pronoun, noun in sentence.antecedents)


def test_a_singular_noun_after_a_determiner_has_its_measure_word(
    chinese_file: GrammarFile, chinese: list[GrammarSentence]
) -> None:
    measures = {
        noun.target["noun"]: noun.target["measure"]
        for table in ("noun", "job")
        for noun in chinese_file.tables[table]
    }
    adjectives = {one.target["of"] for one in chinese_file.tables["adjective"]}
    seen: Counter[str] = Counter()
    for sentence in chinese:
        words = sentence.target_words
        for place, word in enumerate(words[:-3]):
            if word in ("那", "这", "两"):
                rest = [w for w in words[place + 2 : place + 4] if w not in adjectives]
                if rest and rest[0] in measures:
                    assert words[place + 1] == measures[rest[0]], sentence.target
                    seen[words[place + 1]] += 1
    assert len(seen) >= 20


def test_every_word_of_the_chinese_corpus_occurs_in_training(
    chinese_file: GrammarFile,
) -> None:
    training = islice(Grammar.built_in("en-zh").training_sentences(1), 8_000)
    said = {word.lower() for one in training for word in one.source_words}
    nouns = {noun.english["singular"] for noun in chinese_file.tables["noun"]}
    verbs = {verb.english["base"] for verb in chinese_file.tables["verb"]}
    assert nouns | verbs <= said


@pytest.mark.parametrize(
    ("source", "word", "translations"),
    [
        ("The boy bought a hat.", "bought", {"买了"}),
        ("The boy bought a hat.", "a", {"一"}),
        ("The boy bought a hat.", "hat", {"顶", "帽子"}),
        ("The cake was eaten by the dog.", "by", {"被"}),
        ("The book that the girl chose is new.", "that", {"的"}),
    ],
)
def test_chinese_words_are_aligned_to_what_they_translate(
    chinese_file: GrammarFile, source: str, word: str, translations: set[str]
) -> None:
    sentence = from_grammar(chinese_file, source)
    position = sentence.source_words.index(word)
    assert translations == {
        sentence.target_words[target]
        for source_word, target in sentence.alignment
        if source_word == position
    }


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


def test_an_english_sentence_always_has_the_same_german_and_tree(
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


KEPT = {"noun": 0.04, "adjective": 0.04, "job": 0.3, "verb": 0.25, "name": 0.3}
"""Share of the lexemes that a part of the lexicon keeps, by table; others keep all."""


def part_of(file: GrammarFile, rng: Random) -> GrammarFile:
    """Cut the lexicon down at random, so that sentences are drawn more often."""
    tables = {
        name: tuple(each for each in table if rng.random() < KEPT.get(name, 1)) or table
        for name, table in file.tables.items()
    }
    return replace(file, tables=tables)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "length", "repeated"), [("en-de", 7, 200), ("en-zh", 9, 700)]
)
def test_all_derivations_of_a_short_sentence_have_one_translation(
    pair: Pair, length: int, repeated: int
) -> None:
    """Longer sentences are hardly ever drawn twice, so they would show nothing."""
    file, said, rng = file_of(pair), dict[str, str](), Random(4)
    num_short = 0
    for _ in range(4):
        part = part_of(file, rng)
        grammar, book = Grammar(part), RuleBook(part)
        for _ in range(8_000):
            with suppress(AstrayError, DataError):
                sentence = grammar.derive(Short(book, rng, length))
                num_short += 1
                first = said.setdefault(sentence.source, sentence.target)
                assert first == sentence.target
    assert num_short - len(said) > repeated


@pytest.mark.parametrize("pair", BUILT_IN)
def test_no_two_nouns_have_the_same_english(pair: Pair) -> None:
    tables = file_of(pair).tables
    for table in {"noun", "job", "name"} & tables.keys():
        forms = Counter(
            form for noun in tables[table] for form in {*forms_in(noun.english)} - {""}
        )
        assert [form for form, count in forms.items() if count > 1] == []


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
    """Depths after each bracket."""
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
def test_pronouns_record_their_antecedents(
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


def test_als_is_used_for_single_events_only(
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


def test_held_out_sentences_are_distinct(held_out: list[GrammarSentence]) -> None:
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


Counts = dict[tuple[Value, ...], int]


def count(book: RuleBook, call: tuple[str, Sequence[Value]], counts: Counts) -> int:
    """Number of derivations of a phrase; counting ends above a billion.

    Rules with pronouns do not count, as pronouns depend on the text before them.
    """
    symbol, arguments = call
    key = (symbol, *arguments)
    if key not in counts:
        counts[key] = 0
        for rule in book.selection(symbol, arguments).rules:
            for variables in bindings(book, rule, bind(rule, arguments), 0):
                if counts[key] >= 10**9:
                    break
                counts[key] += prod(
                    count(book, (each.symbol, each.arguments(variables)), counts)
                    for each in rule.calls
                )
    return counts[key]


def bindings(
    book: RuleBook, rule: Rule, variables: Variables, start: int
) -> Iterator[Variables]:
    """Variables of a rule for all values of its choices from `start` on."""
    if start == len(rule.choices):
        yield derive(rule, variables)
        return
    choice = rule.choices[start]
    values: Iterable[Value]
    match choice.source:
        case "antecedent" | "possessor":
            values = ()
        case str():
            values = book.candidates(choice, variables)
        case Path():
            values = alternatives(value_of(choice.source, variables))
        case atoms:
            values = dict.fromkeys(atoms)
    for value in values:
        yield from bindings(book, rule, {**variables, choice.name: value}, start + 1)


@pytest.mark.parametrize("pair", ["en-de", "en-zh"])
def test_the_grammar_has_more_than_a_billion_sentences(pair: Pair) -> None:
    assert count(RuleBook(file_of(pair)), ("Sentence", ()), {}) >= 10**9


TINY = """
[contractions]
[lexicon.noun]
columns = "english target features.kind"
rows = '''
dog Hund animal
cat Katze animal
key Schlüssel thing
'''
[[rule]]
head = "Sentence"
choose = "?kind in animal|thing"
english = "(S Noun[?kind] (. .))"
target = "Noun ."
[[rule]]
head = "Noun[?kind]"
choose = "?noun in noun[kind=?kind]"
english = "(NN ?noun)"
target = "?noun"
[[rule]]
head = "Noun[animal]"
choose = "?noun in noun[kind=animal], ?other in noun"
english = "(NP (NN ?noun) (CC and) (NN ?other))"
target = "?noun und ?other"
"""


def test_all_sentences_of_a_small_grammar_are_generated() -> None:
    file = read_grammar(TINY, "tiny.toml")
    said = {one.source for one in islice(Grammar(file).training_sentences(1), 500)}
    assert count(RuleBook(file), ("Sentence", ()), {}) == len(said) == 3 + 2 * 3


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
def test_a_malformed_grammar_file_is_refused_in_one_sentence(
    old: str, new: str, message: str
) -> None:
    with pytest.raises(DataError, match=message) as raised:
        read_grammar(TINY.replace(old, new, 1), "tiny.toml")
    assert str(raised.value).startswith("tiny.toml: ")


def test_a_phrase_without_a_rule_is_refused() -> None:
    file = read_grammar(TINY.replace("key Schlüssel thing", ""), "tiny.toml")
    with pytest.raises(DataError, match="must have a rule for this `Noun`"):
        list(islice(Grammar(file).training_sentences(1), 50))
