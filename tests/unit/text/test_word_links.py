"""Words of a sentence pair are linked by the model's cross-attention."""

import numpy as np
import pytest
import torch

from transduce.analysis.attention_maps import attention_maps
from transduce.checkpoint import Checkpoint
from transduce.decoding.alignment import MAX_ALIGNED_TOKENS, attended_links
from transduce.decoding.native_decoder import NativeModel
from transduce.decoding.translator import Translator
from transduce.native import api
from transduce.text.inline_tags import agreement, have_same_letters, letter_groups
from transduce.text.vocabulary import BOS, EOS


@pytest.fixture
def translator(trained_checkpoint: Checkpoint) -> Translator:
    return Translator(trained_checkpoint, "cpu")


@pytest.mark.parametrize(
    "is_native",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.skipif(api() is None, reason="no native library")
        ),
    ],
)
def test_cross_attention_is_each_layers_mean_over_heads(
    trained_checkpoint: Checkpoint, is_native: bool
) -> None:
    translator = Translator(trained_checkpoint, "cpu")
    sources = [[300, 301, EOS], [300, EOS]]
    targets = [[302, 303], [304, 302]]
    attention = translator.torch_model.cross_attention
    if is_native:
        assert isinstance(translator.models[0], NativeModel)
        assert translator.cross_attention is not None
        attention = translator.cross_attention
    maps = attention_maps(
        translator.torch_model.model,
        torch.tensor([[300, 301, EOS], [300, EOS, 0]]),
        torch.tensor([[BOS, 302], [BOS, 304]]),
    )
    for found, expected in zip(attention(sources, targets), maps, strict=True):
        means = expected.encoder_decoder.mean(dim=1).numpy()
        np.testing.assert_allclose(found, means, atol=1e-5)


def test_each_word_of_a_translation_has_a_link(translator: Translator) -> None:
    pairs = [("one two, three", "eins zwei"), ("four", "vier fünf sechs")]
    several, one = attended_links(translator, pairs)
    assert several is not None
    assert one is not None
    assert [pairs[0][0][slice(*span)] for span in several.source] == [
        "one", "two", ",", "three",
    ]  # fmt: skip
    assert len(several.source_of) == len(several.target) == 2
    assert one.source_of == (0, 0, 0)


def test_links_do_not_depend_on_other_sentences(translator: Translator) -> None:
    pairs = [("one two three four", "one two three four"), ("two", "eins"), ("", "")]
    together = attended_links(translator, pairs)
    assert together == [attended_links(translator, [pair])[0] for pair in pairs]


def test_long_or_empty_sentences_have_no_links(translator: Translator) -> None:
    long = " ".join(["one"] * (MAX_ALIGNED_TOKENS + 1))
    assert (
        attended_links(translator, [("one", long), ("", "one"), ("one", "")])
        == [None] * 3
    )


def test_the_map_of_mutual_choices_agrees_most() -> None:
    crossed = np.array([[0.1, 0.9], [0.8, 0.2]], np.float32)
    one_sided = np.array([[0.9, 0.1], [0.9, 0.1]], np.float32)
    assert agreement(np.stack([crossed, one_sided])).tolist() == [2, 1]


def test_pieces_belong_to_the_words_that_they_spell() -> None:
    pieces = [" Mar", "tin", "'s", " cannot", "."]
    groups = letter_groups(pieces, ["Martin", "'s", "can", "not", "."])
    expected = np.zeros((5, 5))
    expected[0, 0] = expected[1, 0] = expected[2, 1] = expected[4, 4] = 1
    expected[3, 2] = expected[3, 3] = 0.5
    np.testing.assert_allclose(groups, expected)


def test_bytes_belong_to_the_letter_that_they_spell() -> None:
    pieces = [" gr", "<0xC3>", "<0xBC>", "n", "<0xC3>", "<0xA4>"]
    groups = letter_groups(pieces, ["grün", "ä"])
    assert groups.argmax(axis=1).tolist() == [0, 0, 0, 0, 1, 1]
    np.testing.assert_allclose(groups.sum(axis=1), np.ones(6))


def test_a_letter_dropped_by_the_tokenizer_is_detected() -> None:
    assert have_same_letters(["grün", "."], [" gr", "<0xC3>", "<0xBC>", "n", "."])
    assert not have_same_letters(["grün", "."], [" gr", "n", "."])


def test_a_single_space_belongs_to_the_next_word() -> None:
    pieces = [" ", "我们", "走", "<0xE9>", "<0xBE>", "<0x98>"]
    groups = letter_groups(pieces, ["我", "们走", "龘"])
    assert groups.sum(axis=1).tolist() == [1] * 6
    assert groups[0].tolist() == [1, 0, 0]
    assert groups[3:].argmax(axis=1).tolist() == [2, 2, 2]


def test_words_are_linked_by_the_attention_of_the_tagged_source(
    tagged_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = Translator(tagged_checkpoint, "cpu").into("fr").with_tag("law")
    tokenizer = translator.tokenizer
    tags = [tokenizer.tag_id(tag) for tag in ("<law>", ">>fr<<")]
    first, second = map(len, tokenizer.encode_sources(["one", "two"]))

    def to_the_second_word(
        _: Translator, sources: list[list[int]], targets: list[list[int]]
    ) -> list[np.ndarray]:
        assert sources[0][:2] == tags
        weights = np.zeros((1, len(targets[0]), len(sources[0])), np.float32)
        weights[..., 2 + first : 2 + first + second] = 1 / second
        return [weights]

    monkeypatch.setattr(Translator, "cross_attention", to_the_second_word)
    [links] = attended_links(translator, [("one two three", "eins zwei")])
    assert links is not None
    # The tags are no words of the text.
    assert len(links.source) == 3
    assert links.source_of == (1, 1)
