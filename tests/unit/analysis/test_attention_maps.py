"""Attention weights are recorded, and words linked by them."""

import math
from dataclasses import replace
from threading import Thread

import pytest
import torch
from torch import Tensor

from small_rivals import BYTENET, MIXTURE, WITH_ATTENTION
from transduce.analysis.attention_maps import (
    AttentionMaps,
    attention_maps,
    attentions,
    between_words,
    piece_texts,
    without_head,
    word_groups,
    word_starts,
)
from transduce.analysis.heads import head_statistics, head_sums, preferred_offsets
from transduce.architectures.config import ArchitectureConfig
from transduce.architectures.mixture_of_experts import MixtureTransformer
from transduce.checkpoint import build
from transduce.decoding.torch_model import TorchModel
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


def embedded(model: Transformer | MixtureTransformer, ids: Tensor) -> Tensor:
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


@torch.no_grad()
def test_a_masked_head_has_its_effect_in_other_threads(model: Transformer) -> None:
    whole = model(SOURCE, TARGET_IN)
    found: list[torch.Tensor] = []
    with without_head(attentions(model)["encoder"][1], 1):
        other = Thread(target=lambda: found.append(model(SOURCE, TARGET_IN)))
        other.start()
        other.join()
    assert torch.equal(found[0], whole)


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
        ([" می", "\u200c", "خواهم", " ب"], [0, 3]),
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


def test_a_letter_in_bytes_is_shown_at_its_first_byte() -> None:
    pieces = [" a", "<0xE9>", "<0xBE>", "<0x98>", "<0xC3>", "<0xA4>", "<0xA4>", "b"]
    assert piece_texts(pieces) == [" a", "龘", "", "", "ä", "", "\ufffd", "b"]
    assert piece_texts(["<0xC3>", "<0xA4>", "<0x41>"]) == ["ä", "", "A"]


def test_a_recurrent_decoder_has_no_self_attention(tiny: ModelConfig) -> None:
    model = Transformer(replace(tiny, decoder_self_attention="ssru")).eval()
    assert set(attentions(model)) == {"encoder", "encoder-decoder"}
    maps = attention_maps(model, SOURCE, TARGET_IN)
    assert maps[0].kinds == ["encoder", "encoder-decoder"]
    assert maps[0].of("encoder-decoder").size(0) == 2
    assert {each.head.kind for each in head_statistics(head_sums(maps))} == set(
        maps[0].kinds
    )
    assert {each.head.kind for each in preferred_offsets(head_sums(maps))} == {
        "encoder"
    }
    with pytest.raises(
        RequestError, match=r'decoder has no self-attention; choose "en'
    ):
        maps[0].of("decoder")


@pytest.mark.parametrize("config", WITH_ATTENTION.values(), ids=WITH_ATTENTION)
def test_other_architectures_have_maps_of_their_cross_attention(
    config: ArchitectureConfig,
) -> None:
    built = build(config)
    built.eval()
    found = attention_maps(built, SOURCE, TARGET_IN)
    model = TorchModel(model=built, stepper=built)
    for row, (source_length, target_length) in enumerate([(5, 3), (3, 4)]):
        maps = found[row].of("encoder-decoder")
        layers = len(built.cross_attention_taps)
        assert maps.shape == (layers, maps.size(1), target_length, source_length)
        torch.testing.assert_close(maps.sum(dim=-1), torch.ones(maps.shape[:3]))
        source = SOURCE[row, :source_length].tolist()
        target = [*TARGET_IN[row, 1:target_length].tolist(), EOS]
        [means] = model.cross_attention([source], [target])
        torch.testing.assert_close(
            maps.mean(dim=1), torch.from_numpy(means), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize(
    "config", [each for each in WITH_ATTENTION.values() if each is not MIXTURE]
)
def test_recurrent_and_convolutional_models_have_no_self_attention(
    config: ArchitectureConfig,
) -> None:
    [maps, _] = attention_maps(build(config), SOURCE, TARGET_IN)
    assert maps.kinds == ["encoder-decoder"]
    with pytest.raises(RequestError, match='no self-attention; choose "encoder-dec'):
        maps.of("encoder")


def test_a_transformer_with_mixtures_has_maps_of_its_self_attention() -> None:
    model = MixtureTransformer(MIXTURE).eval()
    [first, _] = attentions(model)["encoder"]
    for row, maps in enumerate(attention_maps(model, SOURCE, TARGET_IN)):
        assert maps.kinds == ["encoder", "decoder", "encoder-decoder"]
        source, target_in = (ids[row][ids[row] != PAD] for ids in (SOURCE, TARGET_IN))
        assert maps.of("encoder").shape == (2, 2, len(source), len(source))
        assert maps.of("decoder").shape == (2, 2, len(target_in), len(target_in))
        assert torch.equal(maps.of("decoder"), maps.of("decoder").tril())
        with torch.no_grad():
            [x] = embedded(model, source)
            by_hand = weights_by_hand(first, x, x, is_causal=False)
        torch.testing.assert_close(maps.of("encoder")[0], by_hand, atol=1e-5, rtol=0)


def test_a_model_without_attention_is_refused() -> None:
    built = build(BYTENET)
    with pytest.raises(RequestError, match='"bytenet" has none; choose another model'):
        attention_maps(built, SOURCE, TARGET_IN)
