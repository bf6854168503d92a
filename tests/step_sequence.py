"""Sentences, and steps of their translations, that any decoder must bear."""

import numpy as np
import torch
from torch import Tensor

from transduce.decoding.search import JoinableDecoder
from transduce.text.vocabulary import PAD

SOURCES = [[5, 9, 4, 17, 2], [8, 2], [3, 12, 20, 2]]
SOURCE = torch.tensor([[5, 9, 4, 17, 2], [8, 2, PAD, PAD, PAD], [3, 12, 20, 2, PAD]])
"""The same as one tensor."""


def steps(decoder: JoinableDecoder, others: JoinableDecoder) -> list[Tensor]:
    """Logits of steps with several hypotheses, some leaving and some joining."""
    ids = np.arange(4, 4 + 46 * 6).reshape(46, 3, 2) % 23
    found = [decoder.step(ids[0, :, :1])]
    decoder.reorder(np.array([[0, 0], [1, 1], [2, 2]]))
    found.append(decoder.step(ids[1]))
    # Within groups; then groups change places.
    decoder.reorder(np.array([[1, 0], [3, 3], [4, 5]]))
    found.append(decoder.step(ids[2]))
    decoder.reorder(np.array([[2, 3], [0, 1], [4, 4]]))
    found.append(decoder.step(ids[3]))
    decoder.reorder(np.array([[1, 0], [5, 5]]))
    found.append(decoder.step(ids[4, :2]))
    # Beyond the room that there is, without the one that has left.
    for each in ids[26:]:
        decoder.reorder(np.array([[1, 0], [2, 2]]))
        found.append(decoder.step(each[:2]))
    others.step(ids[5, :, :1])
    others.reorder(np.array([[2, 2]]))
    decoder.join(others)
    # At once, and again beyond the room that there is.
    for each in ids[6:26]:
        decoder.reorder(np.array([[1, 0], [2, 2], [4, 5]]))
        found.append(decoder.step(each))
    # In smaller groups, so that there is room for more steps.
    decoder.reorder(np.array([[0], [3], [5]]))
    for each in ids:
        found.append(decoder.step(each[:, :1]))
        decoder.reorder(np.array([[0], [1], [2]]))
    return [torch.as_tensor(each) for each in found]
