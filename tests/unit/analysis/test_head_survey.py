import pytest
import torch

from transduce.analysis.heads import (
    grammar_sentences,
    survey_annotated,
    survey_heads,
)
from transduce.checkpoint import Checkpoint
from transduce.decoding.translator import Translator
from transduce.errors import DataError
from transduce.text.corpus import SentencePair


def silent(_: str) -> None:
    """Ignore progress."""


@pytest.fixture
def translator(trained_checkpoint: Checkpoint) -> Translator:
    return Translator(trained_checkpoint, torch.device("cpu"))


@pytest.fixture
def pairs(corpus: tuple[list[str], list[str]]) -> list[SentencePair]:
    return [
        SentencePair(source=source, target=target)
        for source, target in zip(*corpus, strict=True)
    ]


def test_every_head_is_surveyed_and_masked(
    translator: Translator, pairs: list[SentencePair]
) -> None:
    survey = survey_heads(translator, pairs, silent)
    names = {str(each.head) for each in survey.statistics}
    assert len(names) == 3 * 4
    assert {str(each.head) for each in survey.pruned} == names
    losses = [each.loss for each in survey.pruned]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > survey.loss


def test_the_loss_equals_that_of_scoring(
    translator: Translator, pairs: list[SentencePair]
) -> None:
    survey = survey_heads(translator, pairs, silent)
    scores = translator.score([p.source for p in pairs], [p.target for p in pairs])
    total = -sum(score.log_probability for score in scores)
    assert survey.loss == pytest.approx(
        total / sum(score.num_tokens for score in scores), abs=1e-5
    )


def test_pairs_that_are_too_long_are_left_out(
    translator: Translator, pairs: list[SentencePair]
) -> None:
    long = SentencePair(source="one " * 200, target="eins")
    assert survey_heads(translator, [long, *pairs], silent).num_pairs == 40
    with pytest.raises(DataError, match="must have a pair of 1 to 128 tokens"):
        survey_heads(translator, [long], silent)


def test_pairs_that_have_a_side_without_text_are_left_out(
    translator: Translator, pairs: list[SentencePair]
) -> None:
    blank = [
        SentencePair(source=" ", target="eins"),
        SentencePair(source="one", target=""),
    ]
    assert survey_heads(translator, [*blank, *pairs[:3]], silent).num_pairs == 3
    with pytest.raises(DataError, match="tokens a side, but has none among its"):
        survey_heads(translator, blank, silent)


def test_any_tokenizer_can_be_compared_with_the_grammar(
    translator: Translator,
) -> None:
    """The translator's tokenizer encodes nearly every letter as bytes."""
    survey = survey_annotated(translator, grammar_sentences(12, None))
    assert len(survey.alignment) == 2 * 3 * (4 + 1)
    assert all(0 <= each.error_rate <= 1 for each in survey.alignment)
    assert {"determiner → noun", "verb → subject"} <= {e.kind for e in survey.links}


def test_the_sentences_of_the_survey_are_in_the_models_language() -> None:
    assert grammar_sentences(2, "de") == grammar_sentences(2, None)
    assert grammar_sentences(2, "zh-Hans")[0].target.endswith(("。", "？"))
