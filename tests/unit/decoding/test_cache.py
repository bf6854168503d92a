"""In the cache each hypothesis attends to its own past, without needless copies."""

import pytest
import torch

from transduce.decoding import cache
from transduce.decoding.cache import DecodingState, LayerCache


def state_of(num_sentences: int) -> DecodingState:
    """State whose sentence s has a memory of value s and s + 1 unmasked positions."""
    memory = torch.arange(num_sentences).float()[:, None, None, None]
    layer = LayerCache(
        key=torch.empty(num_sentences, 2, 0, 3),
        value=torch.empty(num_sentences, 2, 0, 4),
        cross_key=memory.expand(num_sentences, 2, 5, 3),
        cross_value=memory.expand(num_sentences, 2, 5, 4),
    )
    mask = torch.ones(num_sentences, 5, dtype=torch.bool).tril()[:, None, None, :]
    return DecodingState(
        layers=[layer],
        memory_mask=mask,
        past=torch.empty(num_sentences, 1, 0, dtype=torch.bool),
        positions=torch.empty(num_sentences, 0, dtype=torch.int64),
        lengths=torch.zeros(num_sentences, dtype=torch.int64),
    )


def read(state: DecodingState, names: list[list[int]]) -> list[list[list[int]]]:
    """Read one numbered token per hypothesis; return the numbers in each one's past."""
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


@pytest.fixture(params=[1, 2, 16])
def steps_ahead(request, monkeypatch):
    monkeypatch.setattr(cache, "STEPS_AHEAD", request.param)


@pytest.mark.usefixtures("steps_ahead")
def test_each_hypothesis_attends_to_its_own_past():
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
    assert (state.lengths.tolist(), state.num_slots) == ([3, 3], 5)
    assert state.positions[:, :5].tolist() == [[0, 1, 1, 2, 2]] * 2


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
def test_reordering_keeps_hypotheses_with_their_sentences(rows, sentences):
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
    assert layer.cross_key[:, 0, 0, 0].tolist() == sentences
    assert layer.cross_value[:, 1, 4, 3].tolist() == sentences
    assert state.memory_mask.sum(-1).flatten().tolist() == [s + 1 for s in sentences]


def test_reordering_within_sentences_copies_nothing():
    state = state_of(2)
    read(state, [[0], [1]])
    [layer] = state.layers
    before = (layer.key, layer.value, layer.cross_key, layer.cross_value)
    state.reorder(torch.tensor([[0, 0, 0], [1, 1, 1]]))
    read(state, [[2, 3, 4], [5, 6, 7]])
    state.reorder(torch.tensor([[2, 0, 1], [5, 5, 3]]))
    after = (layer.key, layer.value, layer.cross_key, layer.cross_value)
    assert all(old is new for old, new in zip(before, after, strict=True))


def test_joining_sentences_follow_the_others_and_keep_their_past():
    state, newcomers = state_of(3), state_of(2)
    read(state, [[0], [1], [2]])
    state.reorder(torch.tensor([[0, 0], [1, 1], [2, 2]]))
    read(state, [[10, 11], [12, 13], [14, 15]])
    state.reorder(torch.tensor([[1, 1], [2, 3]]))  # the third has ended
    read(newcomers, [[3], [4]])
    newcomers.reorder(torch.tensor([[0, 0], [1, 1]]))
    state.join(newcomers)
    assert read(state, [[20, 21], [22, 23], [24, 25], [26, 27]]) == [
        [[0, 11, 20], [0, 11, 21]],
        [[1, 12, 22], [1, 13, 23]],
        [[3, 24], [3, 25]],
        [[4, 26], [4, 27]],
    ]
    assert state.lengths.tolist() == [3, 3, 2, 2]
    seen = state.past[:, :, : state.num_slots]
    positions = state.positions[:, : state.num_slots]
    assert [
        sorted(positions[s, seen[s, 0]].tolist()) for s in range(len(positions))
    ] == [[0, 1, 2], [0, 1, 2], [0, 1], [0, 1]]


def test_joining_removes_unused_slots_and_padding():
    state, newcomers = state_of(3), state_of(1)
    for token in range(4):
        read(state, [[token]] * 3)
        state.reorder(torch.tensor([[0, 0, 0], [1, 1, 1], [2, 2, 2]])[:, :1])
    state.reorder(torch.tensor([[0, 0], [1, 1]]))
    read(state, [[4, 5], [6, 7]])
    state.reorder(torch.tensor([[1, 1], [2, 3]]))
    read(newcomers, [[3]])
    newcomers.reorder(torch.tensor([[0, 0]]))
    state.join(newcomers)
    [layer] = state.layers
    # Four shared slots and two of the second sentence; the first needs one less.
    assert state.num_slots == 6
    # The sentences have masks of one and two positions, and the newcomer of one.
    assert state.memory_mask.size(-1) == 2
    assert layer.cross_key.shape == (3, 2, 2, 3)
    assert layer.cross_value.shape == (3, 2, 2, 4)


def test_a_wide_beam_with_a_common_past_takes_few_slots():
    state = state_of(1)
    read(state, [[0]])
    state.reorder(torch.zeros(1, 20, dtype=torch.int64))
    for token in range(1, 60):
        [seen] = read(state, [[100 * token + h for h in range(20)]])
        # All continue the third hypothesis.
        state.reorder(torch.full((1, 20), 2))
        assert seen[5] == [0, *(100 * t + 2 for t in range(1, token)), 100 * token + 5]
    [layer] = state.layers
    assert layer.key.size(2) < 300  # a slot for each hypothesis and step: 1,181
