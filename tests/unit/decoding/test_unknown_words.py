"""Unknown words are translated by the dictionary, or copied from the source."""

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pytest
import torch

from transduce.architectures.config import ArchitectureConfig, DeepAttConfig
from transduce.checkpoint import Checkpoint, build
from transduce.decoding.alignment import attended_links
from transduce.decoding.search import Hypothesis
from transduce.decoding.translations import Part, encode_lines
from transduce.decoding.translator import Translator
from transduce.decoding.unknown_words import replaced_texts
from transduce.errors import RequestError
from transduce.model.config import ModelConfig
from transduce.search_config import SamplingConfig, SearchConfig
from transduce.text.alignment import WordDictionary
from transduce.text.tokenizer import WordTokenizer, learn_tokenizer
from transduce.text.vocabulary import EOS, UNKNOWN_IDS, TokenizerConfig

DICTIONARY = WordDictionary(translations={"Hund": "dog", "schläft": "sleeps"})
CORPUS = ["The a is , ( )", "Der ist , ( )"]


def learned() -> WordTokenizer:
    config = TokenizerConfig(kind="word", vocab_size=100)
    tokenizer = learn_tokenizer(CORPUS, config)
    assert isinstance(tokenizer, WordTokenizer)
    return tokenizer


TOKENIZER = learned()
DEEP_ATT = DeepAttConfig(
    vocab_size=TOKENIZER.vocab_size,
    embedding_width=8,
    d_model=8,
    encoder_layers=2,
    decoder_layers=2,
)
TRANSFORMER = ModelConfig(
    vocab_size=TOKENIZER.vocab_size,
    num_layers=2,
    d_model=16,
    d_ff=16,
    num_heads=2,
    d_k=8,
    d_v=8,
    output_bias=True,
)


def part(source: str, prefix: str = "") -> Part:
    [[found]] = encode_lines([(0, (source, prefix))], TOKENIZER)
    return found


def hypothesis(text: str) -> Hypothesis:
    ids = tuple(TOKENIZER.encode(text))
    return Hypothesis(ids, -1.0, (-1.0,) * (len(ids) + 1), -1.0)


def attention(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[np.ndarray]:
    """Weights that are largest at the same position, and at the end token."""
    maps = []
    for source, target in zip(sources, targets, strict=True):
        assert source[-1] == EOS
        weights = 0.5 * np.eye(len(target), len(source))
        weights[:, -1] = 0.9
        maps.append(weights[None])
    return maps


def texts(
    *found: tuple[Part, list[Hypothesis]], dictionary: WordDictionary | None = None
) -> list[list[str]]:
    return replaced_texts(found, TOKENIZER, dictionary, attention)


def test_an_unknown_word_is_the_translation_of_the_word_attended_to() -> None:
    found = part("Der Hund schläft"), [hypothesis("The x y")]
    assert texts(found, dictionary=DICTIONARY) == [["The dog sleeps"]]


def test_a_word_without_a_translation_is_copied() -> None:
    found = part("Der Hund , Maria"), [hypothesis("The x , y")]
    assert texts(found, dictionary=DICTIONARY) == [["The dog , Maria"]]
    assert texts(found) == [["The Hund , Maria"]]


def test_a_replaced_word_keeps_the_space_before_it() -> None:
    found = part("Der (Hund) schläft"), [hypothesis("a (x) y")]
    assert texts(found, dictionary=DICTIONARY) == [["a (dog) sleeps"]]
    found = part("Der (Hund) schläft"), [hypothesis("a ( x) y")]
    assert texts(found, dictionary=DICTIONARY) == [["a ( dog) sleeps"]]


def test_a_tag_of_the_target_language_replaces_no_word() -> None:
    tagged = learn_tokenizer(
        CORPUS, TokenizerConfig(kind="word", vocab_size=100), [">>en<<"]
    )
    assert isinstance(tagged, WordTokenizer)
    [[source]] = encode_lines([(0, (">>en<< Hund", ""))], tagged)
    assert source.source_words == (">>en<<", " Hund")
    unknown = Hypothesis((UNKNOWN_IDS[0],), -1.0, (-1.0,) * 2, -1.0)
    found = replaced_texts([(source, [unknown])], tagged, DICTIONARY, attention)
    assert found == [["dog"]]


def test_a_tag_of_a_corpus_replaces_no_word() -> None:
    tagged = learn_tokenizer(
        CORPUS, TokenizerConfig(kind="word", vocab_size=100), ["<law>", ">>en<<"]
    )
    [[source]] = encode_lines([(0, (">>en<< Hund", ""))], tagged, tag="<law>")
    assert source.source_words == ("<law>", ">>en<<", " Hund")
    assert isinstance(tagged, WordTokenizer)
    unknown = Hypothesis((UNKNOWN_IDS[0],), -1.0, (-1.0,) * 2, -1.0)
    found = replaced_texts([(source, [unknown])], tagged, DICTIONARY, attention)
    assert found == [["dog"]]


def test_each_part_of_a_long_line_has_a_word_for_each_token() -> None:
    tagged = learn_tokenizer(
        CORPUS, TokenizerConfig(kind="word", vocab_size=100), ["<law>", ">>en<<"]
    )
    line = ">>en<< Der Hund schläft. Der Hund schläft, Maria."
    [parts] = encode_lines([(0, (line, ""))], tagged, tag="<law>", max_tokens=7)
    assert [each.source_words for each in parts] == [
        ("<law>", ">>en<<", " Der", " Hund", " schläft", "."),
        ("<law>", ">>en<<", " Der", " Hund", " schläft", ",", " Maria", "."),
    ]
    assert all(len(each.source) == len(each.source_words) for each in parts)


def test_words_of_a_prefix_are_those_of_the_prefix() -> None:
    found = part("Der Hund schläft", "The puppy"), [hypothesis("The x y")]
    assert texts(found, dictionary=DICTIONARY) == [["The puppy sleeps"]]


def test_each_hypothesis_of_each_part_is_replaced() -> None:
    found = [
        (part("Hund"), [hypothesis("x"), hypothesis("The"), hypothesis("x , x")]),
        (part("schläft Hund"), [hypothesis("x y")]),
    ]
    replaced = texts(*found, dictionary=DICTIONARY)
    assert replaced == [["dog", "The", "dog , dog"], ["sleeps dog"]]


@pytest.mark.parametrize(
    ("bad_words", "expected"),
    [
        (["dog"], "The Hund sleeps"),
        (["The dog"], "The Hund sleeps"),
        (["dog ,", "a dog"], "The dog sleeps"),
        (["dog", "Hund"], "The <unk> sleeps"),
    ],
)
def test_no_unknown_word_is_replaced_by_a_bad_word(
    bad_words: list[str], expected: str
) -> None:
    known = learn_tokenizer(
        [*CORPUS, "dog Hund"], TokenizerConfig(kind="word", vocab_size=100)
    )
    assert isinstance(known, WordTokenizer)
    [[source]] = encode_lines([(0, ("Der Hund schläft", ""))], known)
    ids = tuple(known.encode("The x y"))
    unknown = Hypothesis(ids, -1.0, (-1.0,) * 4, -1.0)
    forbidden = known.encode_targets(bad_words)
    found = replaced_texts(
        [(source, [unknown])], known, DICTIONARY, attention, forbidden
    )
    assert found == [[expected]]


def test_a_word_outside_a_vocabulary_of_words_is_no_bad_word() -> None:
    translator = Translator(checkpoint(TRANSFORMER), "cpu")
    with pytest.raises(RequestError, match="but 'The zebra' has a word outside it"):
        translator.token_ids(["The", "The zebra"])


def checkpoint(config: ArchitectureConfig) -> Checkpoint:
    """Model whose every token but the last is an unknown word after a space."""
    torch.manual_seed(7)
    weights = {n: w.detach().clone() for n, w in build(config).state_dict().items()}
    [bias] = {"output.bias", "embedding.bias"} & weights.keys()
    weights[bias] = torch.full((TOKENIZER.vocab_size,), -50.0)
    weights[bias][UNKNOWN_IDS[0]] = 50.0
    return Checkpoint(
        config=config,
        weights=weights,
        tokenizer=TOKENIZER,
        step=1,
        dictionary=DICTIONARY,
    )


def test_translations_have_no_unknown_words_but_their_tokens_have() -> None:
    translator = Translator(checkpoint(DEEP_ATT), "cpu")
    sources = ["Hund", "Der Hund schläft", "Hund schläft Maria", ""]
    config = SearchConfig(beam_size=2, num_best=2, min_length=2, max_length=4)
    found = list(translator.translate_stream(sources, config))
    allowed = {"dog", "sleeps", "Maria", "Der"}
    for translation in found[:3]:
        assert set(translation.text.split()) <= allowed
        best = translation.hypotheses[0]
        assert best.tokens == (" <unk>",) * len(best.tokens)
        assert len(best.text.split()) == len(best.tokens) >= 2
        assert "<unk>" not in "".join(each.text for each in translation.hypotheses)
    assert found[3].text == ""
    for source, translation in zip(sources, found, strict=True):
        [alone] = translator.translate_stream([source], config)
        assert alone.text == translation.text


def test_samples_and_prefixes_have_no_unknown_words() -> None:
    translator = Translator(checkpoint(DEEP_ATT), "cpu")
    sampled = translator.sample("Hund", SamplingConfig(number=2, extra_length=2))
    assert set(sampled.text.split()) == {"dog"}
    prefixed = translator.translate(
        "Hund", prefixes="The puppy", min_length=3, max_length=4
    )
    assert prefixed.text == "The puppy dog dog"


def test_processes_and_ensembles_replace_unknown_words() -> None:
    made = checkpoint(DEEP_ATT)
    ensemble = Translator(made, "cpu", made)
    found = ensemble.translate("Hund schläft", min_length=2, max_length=3)
    assert set(found.text.split()) <= {"dog", "sleeps"}
    with closing(Translator(made, "cpu", num_processes=2)) as forked:
        several = forked.translate(["Hund"] * 20, min_length=2, max_length=3)
    assert {each.text for each in several} == {"dog dog dog"}


def test_the_weights_of_a_transformer_are_read_too(is_native: bool) -> None:
    translator = Translator(checkpoint(TRANSFORMER), "cpu")
    assert (translator.torch_model is translator.models[0]) != is_native
    found = translator.translate("Hund", min_length=2, max_length=3)
    assert found.text == "dog dog dog"


def test_unknown_words_stay_without_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    translator = Translator(checkpoint(DEEP_ATT), "cpu")
    model = type(translator.torch_model.model)
    monkeypatch.setattr(model, "cross_attention_taps", ())
    found = translator.translate("Hund", min_length=2, max_length=3)
    assert found.text == "<unk> <unk> <unk>"


def test_words_of_a_vocabulary_of_words_are_linked_for_tags() -> None:
    translator = Translator(checkpoint(DEEP_ATT), "cpu")
    [links] = attended_links(translator, [("Der Hund (schläft)", "The dog")])
    assert links is not None
    assert len(links.source) == 5
    assert len(links.source_of) == 2


def test_the_weights_are_the_mean_over_heads() -> None:
    translator = Translator(checkpoint(DEEP_ATT), "cpu")
    model = translator.torch_model
    sources = [[*TOKENIZER.encode("Der ist ,"), EOS], [*TOKENIZER.encode("Der"), EOS]]
    targets = [TOKENIZER.encode("The"), TOKENIZER.encode("The is , a")]
    both = model.cross_attention(sources, targets)
    assert [each.shape for each in both] == [(1, 1, 4), (1, 4, 2)]
    for source, target, weights in zip(sources, targets, both, strict=True):
        np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
        [alone] = model.cross_attention([source], [target])
        np.testing.assert_allclose(weights, alone, atol=1e-6)
    assert not any(tap._forward_hooks for tap in model.model.cross_attention_taps)


def test_a_term_outside_the_vocabulary_is_placed(is_native: bool) -> None:
    translator = Translator(checkpoint(TRANSFORMER), "cpu")
    with_term = translator.with_glossary({"Hund": "Zwirbel"})
    found = with_term.translate("Der Hund schläft", min_length=2, max_length=3)
    assert "zwirbel" in found.text.lower()
