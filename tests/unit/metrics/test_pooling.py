"""Pooled translations against sacreBLEU over all of them."""

import pytest
from sacrebleu.metrics.bleu import BLEU

from transduce.errors import DataError
from transduce.metrics.comparison import PooledBleu, Trials, paired_scores, pooled
from transduce.metrics.scores import corpus_bleu

REFERENCES = [
    "a dog runs over the green grass",
    "two men sit on a bench in the park",
    "a woman reads a book",
    "",
    "three children play with a red ball",
]
ONE = [
    "a dog runs on the green grass",
    "two men sit on a bench in a park",
    "a woman reads the book",
    "x",
    "three children play with a ball",
]
OTHER = [
    "the dog runs over the grass",
    "two men are on a bench in the park",
    "a woman reads a book",
    "",
    "children play with a red ball",
]
WORSE = ["a dog", "two men sit", "a woman reads", "", "three children play with a"]
TRIALS = Trials(resamples=200, shuffles=200)


def scores(metric, systems, references):
    [found] = paired_scores(systems, references, [metric], TRIALS)
    return found


def test_one_translation_per_sentence_has_sacrebleus_result() -> None:
    units, references = pooled([ONE], REFERENCES)
    others, _ = pooled([WORSE], REFERENCES)
    ours = scores(PooledBleu(), {"one": units, "worse": others}, references)
    plain = BLEU(tokenize="13a", force=True)
    assert ours == scores(plain, {"one": ONE, "worse": WORSE}, REFERENCES)


def test_several_translations_per_sentence_are_scored_as_one_text() -> None:
    units, references = pooled([ONE, OTHER], REFERENCES)
    found = scores(PooledBleu(), {"both": units}, references).systems[0].score
    assert found == corpus_bleu([*ONE, *OTHER], [*REFERENCES, *REFERENCES]).score


def test_repeated_translations_do_not_change_the_p_value() -> None:
    def p_values(copies: int) -> tuple[float | None, float | None]:
        units, references = pooled([ONE] * copies, REFERENCES)
        others, _ = pooled([OTHER] * copies, REFERENCES)
        systems = {"one": units, "other": others}
        other = scores(PooledBleu(), systems, references).systems[1]
        return other.bootstrap_p, other.randomisation_p

    once = p_values(1)
    assert None not in once
    assert p_values(3) == once


def test_a_text_with_another_number_of_sentences_is_refused() -> None:
    with pytest.raises(DataError, match="number of references must be 4, that of the"):
        pooled([ONE, ONE[:4]], REFERENCES)
