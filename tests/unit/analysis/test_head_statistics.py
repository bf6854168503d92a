import math

import pytest
import torch

from transduce.analysis.attention_maps import AttentionMaps
from transduce.analysis.head_statistics import (
    HeadName,
    HeadStatistics,
    head_statistics,
    preferred_offsets,
    statistics_table,
)

EVEN = torch.full((4, 4), 0.25)
PREVIOUS = torch.eye(4).roll(1, dims=0)  # the first word attends to the last
CAUSAL = torch.ones(3, 3).tril() / torch.tensor([[1.0], [2.0], [3.0]])


@pytest.fixture
def maps() -> AttentionMaps:
    """Maps of an encoder with a uniform head and one on the previous token."""
    return AttentionMaps(
        encoder=torch.stack([EVEN, PREVIOUS])[None],
        decoder=torch.stack([CAUSAL, torch.eye(3)])[None],
        encoder_decoder=torch.full((1, 2, 3, 4), 0.25),
    )


@pytest.fixture
def by_name(maps: AttentionMaps) -> dict[str, HeadStatistics]:
    return {str(each.head): each for each in head_statistics([maps, maps])}


def test_uniform_attention_has_the_greatest_entropy(
    by_name: dict[str, HeadStatistics],
) -> None:
    even = by_name["encoder 1.1"]
    assert even.entropy == pytest.approx(math.log(4))
    assert even.sharpness == even.edge == pytest.approx(0.25)
    assert even.distance == pytest.approx(1.25)  # 20 / 16
    assert even.previous == even.following == pytest.approx(3 / 16)
    assert even.same == pytest.approx(0.25)


def test_a_head_on_the_previous_token_is_recognized(
    by_name: dict[str, HeadStatistics],
) -> None:
    previous = by_name["encoder 1.2"]
    assert previous.entropy == pytest.approx(0)
    assert previous.sharpness == pytest.approx(1)
    assert previous.previous == pytest.approx(3 / 4)
    assert previous.edge == pytest.approx(1 / 4)
    assert previous.distance == pytest.approx(6 / 4)


def test_the_edge_of_a_decoder_is_its_start_token(
    by_name: dict[str, HeadStatistics],
) -> None:
    assert by_name["decoder 1.1"].edge == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert by_name["decoder 1.2"].same == pytest.approx(1)
    assert by_name["decoder 1.2"].following == pytest.approx(0)


def test_encoder_decoder_attention_has_no_distance(
    by_name: dict[str, HeadStatistics],
) -> None:
    across = by_name["encoder-decoder 1.1"]
    assert across.edge == pytest.approx(0.25)
    assert (across.distance, across.previous, across.same, across.following) == (
        None,
        None,
        None,
        None,
    )
    row = statistics_table([across]).rows[0]
    assert row == ("encoder-decoder 1.1", "1.39", "0.25", "–", "–", "–", "–", "0.25")


def test_longer_sentences_have_more_weight(maps: AttentionMaps) -> None:
    short = AttentionMaps(
        encoder=torch.ones(1, 2, 1, 1),
        decoder=torch.ones(1, 2, 1, 1),
        encoder_decoder=torch.ones(1, 2, 1, 1),
    )
    first = head_statistics([maps, short])[0]
    assert first.sharpness == pytest.approx((4 * 0.25 + 1) / 5)


def test_the_preferred_offset_is_compared_with_uniform_attention(
    maps: AttentionMaps,
) -> None:
    found = {str(each.head): each for each in preferred_offsets([maps])}
    assert set(found) == {"encoder 1.1", "encoder 1.2", "decoder 1.1", "decoder 1.2"}
    previous = found["encoder 1.2"]
    assert previous.head == HeadName(kind="encoder", layer=1, head=2)
    assert previous.share == pytest.approx(3 / 4)
    assert previous.offset in (-2, -1, 0)  # the windows that hold all of it
    even = found["encoder 1.1"]
    assert (even.offset, even.share) == (0, pytest.approx(10 / 16))
    assert even.even_share == pytest.approx(even.share)
