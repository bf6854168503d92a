"""How well attention to the source aligns words (Och and Ney, 2003)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transduce.analysis.head_survey.annotation import AnnotatedMaps

Place = Literal["written", "read"]
"""Whether a target word attends where the decoder writes it, or where it reads it."""
Linking = Literal["target", "source", "either"]
"""Which words choose the one they are linked to: those of a side, or of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentError:
    """How far the links of a head, or of the mean of a layer's, are from the true."""

    layer: int
    head: int | None
    """None for the mean."""
    place: Place
    linking: Linking
    error_rate: float
    """0 if all links are there and right, 1 if none is."""


def alignment_errors(annotated: Sequence[AnnotatedMaps]) -> list[AlignmentError]:
    """The error rates of every head and layer, over all sentences together."""
    return [
        each
        for place in get_args(Place)
        for linking in get_args(Linking)
        for each in _errors(annotated, place, linking)
    ]


def _errors(
    annotated: Sequence[AnnotatedMaps], place: Place, linking: Linking
) -> Iterator[AlignmentError]:
    counts = torch.stack([_counts(each, place, linking) for each in annotated])
    right, found, gold = counts.sum(dim=0).double()
    rates = 1 - 2 * right / (found + gold)
    num_layers, num_and_mean = rates.shape
    for layer in range(num_layers):
        for head in range(num_and_mean):
            is_mean = head == num_and_mean - 1
            yield AlignmentError(
                layer=layer + 1,
                head=None if is_mean else head + 1,
                place=place,
                linking=linking,
                error_rate=float(rates[layer, head]),
            )


def _counts(
    annotated: AnnotatedMaps, place: Place, linking: Linking
) -> Float[Tensor, "right_found_gold layers heads_and_mean"]:
    weights = annotated.written if place == "written" else annotated.read
    weights = torch.cat([weights, weights.mean(dim=1, keepdim=True)], dim=1)
    found = links_by(linking, weights)
    gold = torch.zeros(found.shape[-2:], dtype=torch.bool)
    for source, target in annotated.sentence.alignment:
        gold[target, source] = True
    right = (found & gold).sum(dim=(-2, -1))
    num_found = found.sum(dim=(-2, -1))
    return torch.stack([right, num_found, gold.sum().expand_as(right)]).float()


def links_by(
    linking: Linking, weights: Float[Tensor, "*heads target source_and_end"]
) -> Bool[Tensor, "*heads target source"]:
    """Which words are linked: each with the one that has most weight for it.

    The end of the source is no word: a target word that prefers it has no link.
    """
    by_target = _greatest(weights, dim=-1)
    by_source = _greatest(weights, dim=-2)
    return {
        "target": by_target,
        "source": by_source,
        "either": by_target | by_source,
    }[linking][..., :-1]


def _greatest(weights: Float[Tensor, "..."], dim: int) -> Bool[Tensor, "..."]:
    places = weights.argmax(dim=dim, keepdim=True)
    return torch.zeros_like(weights, dtype=torch.bool).scatter(dim, places, True)
