"""Sentences, and steps of their translations, that any decoder must bear."""

import torch
from torch import Tensor

from transduce.decoding.next_token_models.incremental import IncrementalDecoder
from transduce.special_ids import PAD

SOURCE = torch.tensor([[5, 9, 4, 17, 2], [8, 2, PAD, PAD, PAD], [3, 12, 20, 2, PAD]])


def steps(decoder: IncrementalDecoder, others: IncrementalDecoder) -> list[Tensor]:
    """Logits of steps with several hypotheses, some leaving and some joining."""
    ids = torch.arange(4, 34).view(5, 3, 2) % 23
    found = [decoder.step(ids[0, :, :1])]
    decoder.reorder(torch.tensor([[0, 0], [1, 1], [2, 2]]))
    found.append(decoder.step(ids[1]))
    decoder.reorder(torch.tensor([[1, 0], [5, 5]]))
    found.append(decoder.step(ids[2, :2]))
    others.step(ids[3, :, :1])
    others.reorder(torch.tensor([[2, 2]]))
    decoder.join(others)
    return [*found, *(decoder.step(ids[i]) for i in (3, 4))]
