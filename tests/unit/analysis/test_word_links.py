import pytest
import torch

from transduce.analysis.attention_maps import attention_maps, cross_attention_maps
from transduce.analysis.word_links import MAX_TOKENS, _agreement, attended_links
from transduce.checkpoint import Checkpoint
from transduce.decoding.translator import Translator
from transduce.text.vocabulary import BOS, EOS


@pytest.fixture
def translator(trained_checkpoint: Checkpoint) -> Translator:
    return Translator(trained_checkpoint, "cpu")


def test_cross_attention_maps_equal_those_of_all_maps(translator: Translator) -> None:
    model = translator.torch_model.model
    source = torch.tensor([[300, 301, EOS], [300, EOS, 0]])
    target = torch.tensor([[BOS, 302], [BOS, 303]])
    for alone, all_maps in zip(
        cross_attention_maps(model, source, target),
        attention_maps(model, source, target),
        strict=True,
    ):
        torch.testing.assert_close(alone, all_maps.encoder_decoder)


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
    long = " ".join(["one"] * (MAX_TOKENS + 1))
    assert (
        attended_links(translator, [("one", long), ("", "one"), ("one", "")])
        == [None] * 3
    )


def test_the_map_of_mutual_choices_agrees_most() -> None:
    crossed = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    one_sided = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
    assert _agreement(torch.stack([crossed, one_sided])).tolist() == [2, 1]
