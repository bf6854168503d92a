"""Sentences and decoding steps with which every decoder is tested."""

import numpy as np
import torch
from torch import Tensor

from transduce.decoding.search import JoinableDecoder
from transduce.text.vocabulary import PAD

SOURCES = [[5, 9, 4, 17, 2], [8, 2], [3, 12, 20, 2]]
SOURCE = torch.tensor([[5, 9, 4, 17, 2], [8, 2, PAD, PAD, PAD], [3, 12, 20, 2, PAD]])
"""Sources as one padded tensor."""


def steps(decoder: JoinableDecoder, others: JoinableDecoder) -> list[Tensor]:
    """Logits of steps in which hypotheses leave and others join."""
    ids = np.arange(4, 4 + 46 * 6).reshape(46, 3, 2) % 23
    found = [decoder.step(ids[0, :, :1])]
    decoder.reorder(np.array([[0, 0], [1, 1], [2, 2]]))
    found.append(decoder.step(ids[1]))
    # Reorder within groups; then groups change places.
    decoder.reorder(np.array([[1, 0], [3, 3], [4, 5]]))
    found.append(decoder.step(ids[2]))
    decoder.reorder(np.array([[2, 3], [0, 1], [4, 4]]))
    found.append(decoder.step(ids[3]))
    decoder.reorder(np.array([[1, 0], [5, 5]]))
    found.append(decoder.step(ids[4, :2]))
    # More steps than the capacity, without the group that has left.
    for each in ids[26:]:
        decoder.reorder(np.array([[1, 0], [2, 2]]))
        found.append(decoder.step(each[:2]))
    others.step(ids[5, :, :1])
    others.reorder(np.array([[2, 2]]))
    decoder.join(others)
    # Join at once, and again beyond the capacity.
    for each in ids[6:26]:
        decoder.reorder(np.array([[1, 0], [2, 2], [4, 5]]))
        found.append(decoder.step(each))
    # Continue in smaller groups, so that the capacity allows more steps.
    decoder.reorder(np.array([[0], [3], [5]]))
    for each in ids:
        found.append(decoder.step(each[:, :1]))
        decoder.reorder(np.array([[0], [1], [2]]))
    return [torch.as_tensor(each) for each in found]
