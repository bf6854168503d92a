"""Which heads find the word that another stands for, or depends on."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transduce.analysis.head_statistics import HeadName
from transduce.analysis.head_survey.annotation import AnnotatedMaps, Link, links
from transduce.model.config import AttentionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFinding:
    """How often a head finds the words of one kind of link."""

    head: HeadName
    accuracy: float
    """The share of words that attend to the right one most of all: of all words but
    themselves, and the end left out."""
    weight: float
    """The mean weight on the right word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSurvey:
    """One kind of link, and how all heads of an attention fare with it."""

    kind: str
    num_links: int
    offset: int
    """Words from the one that looks to the one it is to find, most often."""
    offset_accuracy: float
    """What always looking so far away would achieve."""
    heads: tuple[LinkFinding, ...]
    """The most accurate first."""


def survey_links(annotated: Iterable[AnnotatedMaps]) -> list[LinkSurvey]:
    """Every kind of link that the sentences have."""
    found: dict[tuple[str, AttentionKind], list[_Found]] = defaultdict(list)
    for each in annotated:
        for link in links(each.sentence):
            found[link.kind, link.attention].append(_look(each, link))
    return [_survey(*key, looks) for key, looks in sorted(found.items())]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What the heads did about one link."""

    offset: int
    is_right: Bool[Tensor, "layers heads"]
    weight: Float[Tensor, "layers heads"]


def _look(annotated: AnnotatedMaps, link: Link) -> _Found:
    is_inside = link.attention == "encoder"
    maps = annotated.encoder if is_inside else annotated.written
    weights = maps[:, :, link.query]
    others = weights[..., :-1].clone()
    if is_inside:
        others[..., link.query] = -1
    return _Found(
        offset=link.key - link.query,
        is_right=others.argmax(dim=-1) == link.key,
        weight=weights[..., link.key],
    )


def _survey(kind: str, attention: AttentionKind, found: list[_Found]) -> LinkSurvey:
    accuracy = torch.stack([each.is_right for each in found]).double().mean(dim=0)
    weight = torch.stack([each.weight for each in found]).double().mean(dim=0)
    heads = [
        LinkFinding(
            head=HeadName(kind=attention, layer=layer + 1, head=head + 1),
            accuracy=float(accuracy[layer, head]),
            weight=float(weight[layer, head]),
        )
        for layer in range(accuracy.size(0))
        for head in range(accuracy.size(1))
    ]
    (offset, count), *_ = Counter(each.offset for each in found).most_common(1)
    return LinkSurvey(
        kind=kind,
        num_links=len(found),
        offset=offset,
        offset_accuracy=count / len(found),
        heads=tuple(sorted(heads, key=lambda each: each.accuracy, reverse=True)),
    )
