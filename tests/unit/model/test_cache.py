"""What decoding keeps: each hypothesis sees its own past, and nothing is copied."""

import pytest
import torch

from transduce.model import cache
from transduce.model.cache import DecodingState, LayerCache


def state_of(num_sentences: int) -> DecodingState:
    """Sentence s has the number s in its memory, whose mask has s + 1 positions."""
    memory = torch.arange(num_sentences).float()[:, None, None, None]
    layer = LayerCache(
        key=torch.empty(num_sentences, 2, 0, 3),
        value=torch.empty(num_sentences, 2, 0, 4),
        memory_key=memory.expand(num_sentences, 2, 5, 3),
        memory_value=memory.expand(num_sentences, 2, 5, 4),
    )
    mask = torch.ones(num_sentences, 5, dtype=torch.bool).tril()[:, None, None, :]
    return DecodingState(
        layers=[layer],
        memory_mask=mask,
        past=torch.empty(num_sentences, 1, 0, dtype=torch.bool),
        positions=torch.empty(0, dtype=torch.int64),
    )


def read(state: DecodingState, names: list[list[int]]) -> list[list[list[int]]]:
    """Read a token of each hypothesis, named by a number; the names each now sees."""
    seen = state.advance()
    [layer] = state.layers
    named = torch.tensor(names).float()[:, None, :, None]
    key, value = layer.write(
        named.expand(-1, 2, -1, 3), named.expand(-1, 2, -1, 4), seen.size(-1)
    )
    assert torch.equal(key[..., 0], value[..., 3])
    return [
        [key[s, 1, seen[s, 0, h], 0].int().tolist() for h in range(state.group_size)]
        for s in range(len(names))
    ]


@pytest.fixture(params=[1, 2, 32])
def first_slots(request, monkeypatch):
    monkeypatch.setattr(cache, "FIRST_SLOTS", request.param)


@pytest.mark.usefixtures("first_slots")
def test_each_hypothesis_sees_the_tokens_it_came_from():
    state = state_of(2)
    assert read(state, [[10], [20]]) == [[[10]], [[20]]]
    state.reorder(torch.tensor([[0, 0], [1, 1]]))
    assert read(state, [[11, 12], [21, 22]]) == [
        [[10, 11], [10, 12]],
        [[20, 21], [20, 22]],
    ]
    state.reorder(torch.tensor([[1, 1], [3, 2]]))
    assert read(state, [[13, 14], [23, 24]]) == [
        [[10, 12, 13], [10, 12, 14]],
        [[20, 22, 23], [20, 21, 24]],
    ]
    assert (state.length, state.num_slots) == (3, 5)
    assert state.positions[:5].tolist() == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("rows", "sentences"),
    [
        ([[0, 1], [2, 3], [4, 5]], [0, 1, 2]),
        ([[1, 1], [2, 3], [5, 4]], [0, 1, 2]),
        ([[2, 3], [5, 5]], [1, 2]),
        ([[4, 4]], [2]),
        ([[4, 5], [0, 0]], [2, 0]),
        ([[3], [1]], [1, 0]),
    ],
)
def test_hypotheses_and_their_sentences_are_kept_together(rows, sentences):
    state = state_of(3)
    read(state, [[0], [1], [2]])
    state.reorder(torch.tensor([[0, 0], [1, 1], [2, 2]]))
    read(state, [[10, 11], [12, 13], [14, 15]])
    state.reorder(torch.tensor(rows))
    seen = read(state, [[20 + row for row in group] for group in rows])
    assert seen == [
        [[s, 10 + row, 20 + row] for row in group]
        for s, group in zip(sentences, rows, strict=True)
    ]
    [layer] = state.layers
    assert layer.memory_key[:, 0, 0, 0].tolist() == sentences
    assert layer.memory_value[:, 1, 4, 3].tolist() == sentences
    assert state.memory_mask.sum(-1).flatten().tolist() == [s + 1 for s in sentences]


def test_nothing_is_copied_while_its_sentences_stay():
    state = state_of(2)
    read(state, [[0], [1]])
    [layer] = state.layers
    before = (layer.key, layer.value, layer.memory_key, layer.memory_value)
    state.reorder(torch.tensor([[0, 0, 0], [1, 1, 1]]))
    read(state, [[2, 3, 4], [5, 6, 7]])
    state.reorder(torch.tensor([[2, 0, 1], [5, 5, 3]]))
    after = (layer.key, layer.value, layer.memory_key, layer.memory_value)
    assert all(old is new for old, new in zip(before, after, strict=True))
