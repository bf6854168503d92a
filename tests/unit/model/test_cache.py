"""What decoding keeps: rows are added, reordered and dropped together."""

import pytest
import torch

from transduce.model.cache import DecodingState, LayerCache


def layer_cache(sentences: int) -> LayerCache:
    memory = torch.arange(sentences).float()[:, None, None, None]
    return LayerCache(
        memory_key=memory.expand(sentences, 2, 5, 3),
        memory_value=memory.expand(sentences, 2, 5, 4),
    )


def state_of(sentences: int, beam_size: int) -> DecodingState:
    """Row r holds the number r, sentence s the number s, its mask s + 1 positions."""
    cache = layer_cache(sentences)
    rows = torch.arange(sentences * beam_size).float()[:, None, None, None]
    cache.append(rows.expand(-1, 2, 1, 3), rows.expand(-1, 2, 1, 4))
    mask = torch.ones(sentences, 5, dtype=torch.bool).tril()[:, None, None, :]
    return DecodingState(layers=[cache], memory_mask=mask, beam_size=beam_size)


def test_the_newest_positions_come_last():
    cache = layer_cache(1)
    first = (torch.zeros(1, 2, 1, 3), torch.zeros(1, 2, 1, 4))
    second = (torch.ones(1, 2, 2, 3), torch.ones(1, 2, 2, 4))
    cache.append(*first)
    key, value = cache.append(*second)
    assert key[0, 0, :, 0].tolist() == value[0, 0, :, 0].tolist() == [0, 1, 1]
    assert cache.key is key
    assert cache.value is value


def test_an_empty_past_has_no_rows_to_reorder():
    cache = layer_cache(1)
    cache.reorder(torch.tensor([0, 0]))
    assert cache.key is None
    assert cache.value is None


@pytest.mark.parametrize(
    ("rows", "sentences"),
    [
        ([0, 1, 2, 3, 4, 5], [0, 1, 2]),
        ([1, 1, 2, 3, 5, 4], [0, 1, 2]),
        ([2, 3, 5, 5], [1, 2]),
        ([4, 4], [2]),
        ([4, 5, 0, 0], [2, 0]),
    ],
)
def test_rows_and_their_sentences_are_kept_together(rows, sentences):
    state = state_of(sentences=3, beam_size=2)
    state.reorder(torch.tensor(rows))
    [cache] = state.layers
    assert cache.key[:, 0, 0, 0].tolist() == rows
    assert cache.value[:, 1, 0, 3].tolist() == rows
    assert cache.memory_key[:, 0, 0, 0].tolist() == sentences
    assert cache.memory_value[:, 1, 4, 3].tolist() == sentences
    assert state.memory_mask.sum(-1).flatten().tolist() == [s + 1 for s in sentences]


def test_the_memory_is_not_copied_while_its_sentences_stay():
    state = state_of(sentences=2, beam_size=3)
    memory = state.layers[0].memory_key
    state.reorder(torch.tensor([2, 0, 1, 5, 5, 3]))
    assert state.layers[0].memory_key is memory
