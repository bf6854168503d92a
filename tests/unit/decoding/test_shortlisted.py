"""A decoder with shortlists, over a decoder whose logits are known."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from transduce.decoding.search import (
    AllowedTokens,
    Ensemble,
    MaskedDecoder,
    with_shortlists,
)

VOCAB = 7
LISTS: list[AllowedTokens] = [
    np.array([0, 3], dtype=np.int32),
    None,
    np.array([2, 3, 6], dtype=np.int32),
]


@dataclass
class Known:
    """Decoder whose logits are the number of the sentence."""

    sentences: list[int]
    as_tensor: bool = False
    group: int = 1

    def step(self, last_ids: np.ndarray) -> Any:
        self.group = last_ids.shape[1]
        logits = np.zeros((*last_ids.shape, VOCAB), dtype=np.float32)
        logits += np.array(self.sentences, dtype=np.float32)[:, None, None]
        return torch.from_numpy(logits) if self.as_tensor else logits

    def reorder(self, rows: np.ndarray) -> None:
        self.sentences = [self.sentences[i] for i in rows[:, 0] // self.group]

    def join(self, other: "Known") -> None:
        self.sentences = self.sentences + other.sentences


def finite(decoder: Any, shape: tuple[int, int]) -> list[list[list[int]]]:
    """Tokens with a logit for each hypothesis, after a step."""
    logits = np.asarray(decoder.step(np.zeros(shape, dtype=np.int64)))
    return [[np.flatnonzero(row > -np.inf).tolist() for row in rows] for rows in logits]


@pytest.mark.parametrize("as_tensor", [False, True])
def test_lists_stay_with_their_sentences(as_tensor: bool) -> None:
    one, every, other = [0, 3], list(range(VOCAB)), [2, 3, 6]
    decoder = MaskedDecoder(Known([1, 2, 3], as_tensor), LISTS)
    assert finite(decoder, (3, 1)) == [[one], [every], [other]]
    decoder.reorder(np.array([[2, 2], [0, 0]]))
    assert finite(decoder, (2, 2)) == [[other] * 2, [one] * 2]
    # Rows 2 and 3 are those of the second sentence.
    decoder.reorder(np.array([[3, 2]]))
    joining = MaskedDecoder(Known([4, 5], as_tensor), LISTS[1:])
    decoder.join(joining)
    assert decoder.shortlists[0] is LISTS[0]
    assert decoder.shortlists[1] is None
    assert decoder.shortlists[2] is LISTS[2]


@pytest.mark.parametrize("as_tensor", [False, True])
def test_logits_of_candidates_do_not_change(as_tensor: bool) -> None:
    decoder = MaskedDecoder(Known([1, 2, 3], as_tensor), LISTS)
    logits = np.asarray(decoder.step(np.zeros((3, 2), dtype=np.int64)))
    assert (logits[0][:, [0, 3]] == 1).all()
    assert (logits[1] == 2).all()
    assert (logits[2][:, [2, 3, 6]] == 3).all()


@pytest.mark.parametrize("as_tensor", [False, True])
def test_an_ensemble_normalizes_over_the_candidates(as_tensor: bool) -> None:
    members = [Known([1, 2, 3], as_tensor), Known([1, 1, 1], as_tensor)]
    decoder = with_shortlists(Ensemble(members), LISTS)
    found = np.asarray(decoder.step(np.zeros((3, 1), dtype=np.int64)))
    sums = np.exp(found).sum(axis=-1)
    assert sums == pytest.approx(np.ones((3, 1)), abs=1e-6)
    assert np.exp(found[0, 0, [0, 3]]) == pytest.approx([0.5, 0.5], abs=1e-6)
    assert not np.isnan(found).any()
