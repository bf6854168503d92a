import weakref
from collections.abc import Iterator, Sequence

import pytest
import torch

from transduce.analysis.attention_maps import AttentionMaps
from transduce.analysis.grammar_heads import (
    grammar_sentences,
    survey_annotated,
    translator_and_pair,
)
from transduce.analysis.heads import maps_of, survey_heads
from transduce.checkpoint import Checkpoint
from transduce.data.dataset import EncodedPair
from transduce.decoding.translator import Translator
from transduce.errors import DataError, RequestError
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.text.corpus import SentencePair
from transduce.text.tokenizer import learn_tokenizer
from transduce.text.vocabulary import TokenizerConfig


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
    survey = survey_annotated(translator, grammar_sentences(12, "en-de"))
    assert len(survey.alignment) == 2 * 3 * (4 + 1)
    assert all(0 <= each.error_rate <= 1 for each in survey.alignment)
    assert {"determiner → noun", "verb → subject"} <= {e.kind for e in survey.links}


def test_a_survey_keeps_no_maps_in_memory(
    translator: Translator, pairs: list[SentencePair], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []

    def maps(
        model: Transformer, pairs: Sequence[EncodedPair]
    ) -> Iterator[AttentionMaps]:
        seen: list[weakref.ref[torch.Tensor]] = []
        for pair in pairs:
            [found] = maps_of(model, [pair])
            seen.append(weakref.ref(found.encoder_decoder))
            yield found
            kept.append(sum(each() is not None for each in seen))

    monkeypatch.setattr("transduce.analysis.heads.maps_of", maps)
    monkeypatch.setattr("transduce.analysis.grammar_heads.maps_of", maps)
    survey_heads(translator, pairs[:9], silent)
    survey_annotated(translator, grammar_sentences(9, "en-de"))
    assert len(kept) == 18
    assert max(kept) <= 2


@pytest.mark.parametrize(
    ("source", "target", "pair"),
    [
        (None, None, "en-de"), ("en-GB", "de", "en-de"), ("en", "zh-Hans", "en-zh"),
        (None, "zh", "en-zh"),
    ],
)  # fmt: skip
def test_the_sentences_of_the_survey_are_in_the_models_languages(
    translator: Translator, source: str | None, target: str | None, pair: str
) -> None:
    translator.source_language, translator.target_language = source, target
    assert translator_and_pair(translator) == (translator, pair)


@pytest.mark.parametrize(
    ("source", "target", "named"),
    [
        ("fr", "es", "French into Spanish"), ("en", "fr", "English into French"),
        ("fr", None, "French into unknown"),
    ],
)  # fmt: skip
def test_a_model_of_other_languages_needs_text(
    translator: Translator, source: str, target: str | None, named: str
) -> None:
    translator.source_language, translator.target_language = source, target
    with pytest.raises(RequestError, match=f"translates {named}; give source and"):
        translator_and_pair(translator)


def test_a_model_of_several_languages_is_surveyed_in_that_of_the_corpus(
    corpus: tuple[list[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = learn_tokenizer(
        corpus[0], TokenizerConfig(vocab_size=340), tags=[">>fr<<", ">>zh<<"]
    )
    config = ModelConfig(
        num_layers=1, d_model=16, d_ff=16, num_heads=2, d_k=8, d_v=8,
        vocab_size=tokenizer.vocab_size,
    )  # fmt: skip
    weights = Transformer(config).state_dict()
    several = Translator(
        Checkpoint(config=config, weights=weights, tokenizer=tokenizer, step=1), "cpu"
    )
    translator, pair = translator_and_pair(several)
    assert (translator.language_tag, pair) == (">>zh<<", "en-zh")
    sentences = grammar_sentences(4, "en-de")
    read: list[EncodedPair] = []

    def maps(
        model: Transformer, pairs: Sequence[EncodedPair]
    ) -> Iterator[AttentionMaps]:
        read.extend(pairs)
        return maps_of(model, pairs)

    monkeypatch.setattr("transduce.analysis.grammar_heads.maps_of", maps)
    survey_annotated(translator, sentences)
    tag = tokenizer.tag_id(">>zh<<")
    assert [pair.source[0] for pair in read] == [tag] * 4
