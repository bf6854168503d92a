"""Attention weights are recorded, and words linked by them."""

import math
from dataclasses import replace
from threading import Thread

import pytest
import torch
from torch import Tensor

from transduce.analysis.attention_maps import (
    MAX_TOKENS,
    AttentionMaps,
    _agreement,
    attended_links,
    attention_maps,
    attentions,
    between_words,
    cross_attention_maps,
    have_same_letters,
    letter_groups,
    piece_texts,
    without_head,
    word_groups,
    word_starts,
)
from transduce.analysis.heads import head_statistics, preferred_offsets
from transduce.checkpoint import Checkpoint
from transduce.decoding.translator import Translator
from transduce.errors import RequestError
from transduce.model.attention import MultiHeadAttention
from transduce.model.config import ModelConfig
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.transformer import Transformer
from transduce.text.vocabulary import BOS, EOS, PAD

SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 4, EOS, PAD, PAD]])
TARGET_IN = torch.tensor([[BOS, 11, 12, PAD], [BOS, 13, 14, 15]])


@pytest.fixture
def model(tiny: ModelConfig) -> Transformer:
    return Transformer(tiny).eval()


def weights_by_hand(
    attention: MultiHeadAttention, queries: Tensor, memory: Tensor, is_causal: bool
) -> Tensor:
    """Compute softmax(Q K^T / sqrt(d_k)) of each head from the parameters."""
    query_weight, query_bias = attention.project_query.parameters()
    key_weight, key_bias = attention.project_key_value.parameters()
    d_k, heads = attention.d_k, []
    for head in range(attention.num_heads):
        rows = slice(head * d_k, (head + 1) * d_k)
        q = queries @ query_weight[rows].T + query_bias[rows]
        k = memory @ key_weight[rows].T + key_bias[rows]
        scores = q @ k.T / math.sqrt(d_k)
        if is_causal:
            later = torch.ones_like(scores, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        exponentials = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
        heads.append(exponentials / exponentials.sum(dim=-1, keepdim=True))
    return torch.stack(heads)


def embedded(model: Transformer, ids: Tensor) -> Tensor:
    positions = model.positions(0, len(ids), ids.device)
    return model.embedding(ids[None]) + positions


@torch.no_grad()
def maps_by_hand(model: Transformer, source: Tensor, target: Tensor) -> AttentionMaps:
    """Compute the maps of one pair layer by layer, without hooks."""
    found: dict[str, list[Tensor]] = {"encoder": [], "decoder": [], "both": []}
    everything = torch.ones(1, 1, 1, len(source), dtype=torch.bool)
    x = embedded(model, source)
    for layer in model.encoder_layers:
        assert isinstance(layer, EncoderLayer)
        by_hand = weights_by_hand(layer.self_attention, x[0], x[0], False)
        found["encoder"].append(by_hand)
        x = layer(x, everything)
    memory, x = x, embedded(model, target)
    causal = torch.ones(len(target), len(target), dtype=torch.bool).tril()[None, None]
    for layer in model.decoder_layers:
        assert isinstance(layer, DecoderLayer)
        found["decoder"].append(weights_by_hand(layer.self_attention, x[0], x[0], True))
        within = layer.after_self_attention(
            x, lambda x, layer=layer: layer.self_attention(x, x, causal)
        )
        by_hand = weights_by_hand(layer.cross_attention, within[0], memory[0], False)
        found["both"].append(by_hand)
        x = layer(x, memory, causal, everything)
    return AttentionMaps(
        encoder=torch.stack(found["encoder"]),
        decoder=torch.stack(found["decoder"]),
        encoder_decoder=torch.stack(found["both"]),
    )


@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder"])
@pytest.mark.parametrize("row", [0, 1])
def test_attention_maps_follow_from_the_parameters(
    model: Transformer, kind: str, row: int
) -> None:
    maps = attention_maps(model, SOURCE, TARGET_IN)[row]
    source, target = (ids[row][ids[row] != PAD] for ids in (SOURCE, TARGET_IN))
    expected = maps_by_hand(model, source, target).of(kind)  # type: ignore[arg-type]
    torch.testing.assert_close(maps.of(kind), expected, atol=1e-5, rtol=0)  # type: ignore[arg-type]


def test_recording_changes_nothing_and_leaves_no_hook(model: Transformer) -> None:
    with torch.no_grad():
        before = model(SOURCE, TARGET_IN)
        attention_maps(model, SOURCE, TARGET_IN)
        after = model(SOURCE, TARGET_IN)
    assert torch.equal(before, after)
    for layers in attentions(model).values():
        assert [len(each.weights_tap._forward_hooks) for each in layers] == [0, 0]


def test_the_passes_of_another_thread_are_not_recorded(model: Transformer) -> None:
    alone = attention_maps(model, SOURCE, TARGET_IN)
    elsewhere = Thread(target=lambda: model(SOURCE[1:], TARGET_IN[1:]))

    def begin(*_: object) -> None:
        if elsewhere.ident is None:
            elsewhere.start()
            elsewhere.join()

    model.encoder_layers[1].register_forward_pre_hook(begin)
    beside = attention_maps(model, SOURCE, TARGET_IN)
    assert elsewhere.ident is not None
    for one, other in zip(alone, beside, strict=True):
        assert torch.equal(one.encoder, other.encoder)
        assert torch.equal(one.encoder_decoder, other.encoder_decoder)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder"])
@torch.no_grad()
def test_a_masked_head_has_no_effect(model: Transformer, kind: str) -> None:
    attention = attentions(model)[kind][1]  # type: ignore[index]
    whole = model(SOURCE, TARGET_IN)
    with without_head(attention, 1):
        silenced = model(SOURCE, TARGET_IN)
    attention.project_output.weight[:, attention.d_v :] = 0
    torch.testing.assert_close(silenced, model(SOURCE, TARGET_IN))
    assert not torch.allclose(silenced, whole)


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


@pytest.mark.parametrize(
    ("pieces", "starts"),
    [
        ([], []),
        ([" The", " sh", "ip", "."], [0, 1, 3]),
        ([" Mar", "ia", "'", "s", " dog"], [0, 2, 3, 4]),
        ([" gr", "<0xC3>", "<0xBC>", "n"], [0]),
        ([" ", "<0x78>", "y", " z"], [0, 3]),
        (["un", "do"], [0]),
        # In scripts without spaces each piece is a word.
        ([" ", "我们", "喜欢", "猫", "。"], [0, 2, 3, 4]),
        ([" ", "我", "<0xE9>", "<0xBE>", "<0x98>", "了"], [0, 2, 5]),
        ([" ", "用", "i", "Phone", "打"], [0, 2, 4]),
        ([" I", " ", "爱", " you"], [0, 1, 3]),
        ([" ", "ภา", "ษา", "\u0e31ไทย"], [0, 2]),
        ([" ", "ラーメン", "を", "食べ"], [0, 2, 3]),
        ([" ", "<0xE2>", "<0x9D>", "<0xA4>", "!"], [0, 4]),
        ([" ", "👩", "\u200d", "👧", " a"], [0, 4]),
    ],
    ids=str,
)
def test_a_word_begins_with_a_space_or_beside_punctuation(
    pieces: list[str], starts: list[int]
) -> None:
    assert word_starts(pieces) == starts


def test_weights_to_a_word_are_summed_and_from_a_word_averaged() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.3, 0.4, 0.3]])
    groups = word_groups([0, 1], 3)  # a word of one piece, and one of two
    found = between_words(weights, groups, groups)
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.5], [0.2, 0.8]]))


def test_pieces_belong_to_the_words_that_they_spell() -> None:
    pieces = [" Mar", "tin", "'s", " cannot", "."]
    groups = letter_groups(pieces, ["Martin", "'s", "can", "not", "."])
    expected = torch.zeros(5, 5)
    expected[0, 0] = expected[1, 0] = expected[2, 1] = expected[4, 4] = 1
    expected[3, 2] = expected[3, 3] = 0.5
    torch.testing.assert_close(groups, expected)


def test_bytes_belong_to_the_letter_that_they_spell() -> None:
    pieces = [" gr", "<0xC3>", "<0xBC>", "n", "<0xC3>", "<0xA4>"]
    groups = letter_groups(pieces, ["grün", "ä"])
    assert groups.argmax(dim=1).tolist() == [0, 0, 0, 0, 1, 1]
    torch.testing.assert_close(groups.sum(dim=1), torch.ones(6))


def test_a_letter_dropped_by_the_tokenizer_is_detected() -> None:
    assert have_same_letters(["grün", "."], [" gr", "<0xC3>", "<0xBC>", "n", "."])
    assert not have_same_letters(["grün", "."], [" gr", "n", "."])


def test_a_letter_in_bytes_is_shown_at_its_first_byte() -> None:
    pieces = [" a", "<0xE9>", "<0xBE>", "<0x98>", "<0xC3>", "<0xA4>", "<0xA4>", "b"]
    assert piece_texts(pieces) == [" a", "龘", "", "", "ä", "", "\ufffd", "b"]
    assert piece_texts(["<0xC3>", "<0xA4>", "<0x41>"]) == ["ä", "", "A"]


def test_a_single_space_belongs_to_the_next_word() -> None:
    pieces = [" ", "我们", "走", "<0xE9>", "<0xBE>", "<0x98>"]
    groups = letter_groups(pieces, ["我", "们走", "龘"])
    assert groups.sum(dim=1).tolist() == [1] * 6
    assert groups[0].tolist() == [1, 0, 0]
    assert groups[3:].argmax(dim=1).tolist() == [2, 2, 2]


def test_a_recurrent_decoder_has_no_self_attention(tiny: ModelConfig) -> None:
    model = Transformer(replace(tiny, decoder_self_attention="ssru")).eval()
    assert set(attentions(model)) == {"encoder", "encoder-decoder"}
    maps = attention_maps(model, SOURCE, TARGET_IN)
    assert maps[0].kinds == ["encoder", "encoder-decoder"]
    assert maps[0].of("encoder-decoder").size(0) == 2
    assert {each.head.kind for each in head_statistics(maps)} == set(maps[0].kinds)
    assert {each.head.kind for each in preferred_offsets(maps)} == {"encoder"}
    with pytest.raises(RequestError, match="recurrent units in place of self-attent"):
        maps[0].of("decoder")


def test_words_are_linked_by_the_attention_of_the_tagged_source(
    tagged_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = Translator(tagged_checkpoint, "cpu").into("fr").with_tag("law")
    tokenizer = translator.tokenizer
    tags = [tokenizer.tag_id(tag) for tag in ("<law>", ">>fr<<")]
    first, second = map(len, tokenizer.encode_sources(["one", "two"]))

    def to_the_second_word(_: object, source: Tensor, target: Tensor) -> list[Tensor]:
        assert source[0, :2].tolist() == tags
        weights = torch.zeros(1, 1, target.size(1), source.size(1))
        weights[..., 2 + first : 2 + first + second] = 1 / second
        return [weights]

    name = "transduce.analysis.attention_maps.cross_attention_maps"
    monkeypatch.setattr(name, to_the_second_word)
    [links] = attended_links(translator, [("one two three", "eins zwei")])
    assert links is not None
    # The tags are no words of the text.
    assert len(links.source) == 3
    assert links.source_of == (1, 1)
