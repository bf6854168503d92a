"""Hypotheses of each step of a beam search, as data and as a drawing."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from transduce.decoding.beam_search import BeamSearch
from transduce.decoding.search import (
    Coverage,
    CoverageDecoder,
    Decoder,
    Hypothesis,
    run_search,
)
from transduce.decoding.torch_decoder import TorchDecoder
from transduce.decoding.torch_model import TorchModel
from transduce.search_config import SearchConfig
from transduce.text.vocabulary import BOS, EOS


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Hypothesis kept in the beam at one step, identified by its last token."""

    parent: int | None
    """Index among the branches of the previous step; None in the first step."""
    token: int
    log_probability: float
    """Log-probability of the token, given those before it."""
    total: float
    """Log-probability of the hypothesis so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTree:
    """Beam of each step and the final hypotheses, all best first."""

    steps: tuple[tuple[Branch, ...], ...]
    hypotheses: tuple[Hypothesis, ...]

    def path(self, hypothesis: Hypothesis) -> list[int]:
        """Index of the hypothesis's branch at each step."""
        numbers: list[int] = []
        for branches, token in zip(self.steps, hypothesis.ids, strict=False):
            last = (numbers[-1] if numbers else None, token)
            tokens = [(branch.parent, branch.token) for branch in branches]
            numbers.append(tokens.index(last))
        return numbers


class _RecordedSearch(BeamSearch):
    """Beam search for one sentence that records the beam of each step."""

    def __init__(
        self,
        limit: int,
        config: SearchConfig,
        excluded: Sequence[int],
        coverage: Coverage | None,
    ) -> None:
        super().__init__([limit], config, EOS, excluded, coverage=coverage)
        self.steps: list[tuple[Branch, ...]] = []

    def grow(
        self, logits: Float[Any, "sentences group vocab"]
    ) -> tuple[Int64[np.ndarray, "kept beam"], Int64[np.ndarray, "kept beam"]]:
        parents, tokens = super().grow(logits)
        if self.live:
            self.steps.append(self._branches(logits[0], parents[0], tokens[0]))
        return parents, tokens

    def _branches(
        self,
        logits: Float[Tensor, "group vocab"],
        parents: Int64[np.ndarray, " grown"],
        tokens: Int64[np.ndarray, " grown"],
    ) -> tuple[Branch, ...]:
        log_probs = logits.float().log_softmax(dim=-1)
        before = self.steps[-1] if self.steps else None
        return tuple(
            _branch(parent, token, float(log_probs[parent, token]), before)
            for parent, token in zip(parents.tolist(), tokens.tolist(), strict=True)
        )


def _branch(
    parent: int, token: int, gain: float, before: tuple[Branch, ...] | None
) -> Branch:
    return Branch(
        parent=None if before is None else parent,
        token=token,
        log_probability=gain,
        total=gain + (0.0 if before is None else before[parent].total),
    )


@torch.no_grad()
def record_search(
    model: TorchModel,
    source: Int[Tensor, "1 source"],
    config: SearchConfig,
    excluded: Sequence[int],
) -> SearchTree:
    """Translate one sentence by beam search, recording the beam of each step.

    The `excluded` token ids are never generated.
    """
    memory = model.model.encode(source)
    coverage: Coverage | None = None
    if config.coverage_penalty > 0:
        decoder: Decoder = model.start(memory, sum_attention=True)
        assert isinstance(decoder, CoverageDecoder)
        coverage = decoder.coverage
    else:
        decoder = TorchDecoder(model.stepper, memory)
    limit = config.limit(source.size(1))
    search = _RecordedSearch(limit, config, excluded, coverage)
    (hypotheses,) = run_search(decoder, search, BOS)
    return SearchTree(steps=tuple(search.steps), hypotheses=tuple(hypotheses))


STEP, LANE, MARGIN = 110, 46, 24
"""Pixels between steps, between ranks, and around the drawing."""


def draw_tree(tree: SearchTree, tokens: dict[int, str]) -> str:
    """Draw the search as SVG: a column for each step, its hypotheses best first.

    Below each token is the log-probability up to it. Below the columns are the ends of
    the final hypotheses with their scores.
    """
    best = set(enumerate(tree.path(tree.hypotheses[0])))
    num_lanes = max(map(len, tree.steps), default=1)
    shapes = [
        *_branches(tree, tokens, best),
        *_ends(tree, num_lanes),
        _node(_place(0, 0), None, "<s>", "", is_best=False),
    ]
    ended = Counter(len(hypothesis.ids) for hypothesis in tree.hypotheses)
    width = MARGIN * 2 + STEP * (max([len(tree.steps), *ended]) + 2)
    height = MARGIN * 2 + LANE * (num_lanes + max(ended.values()))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="Tree of the search; '
        f'the table below lists its hypotheses">{"".join(shapes)}</svg>'
    )


def _branches(
    tree: SearchTree, tokens: dict[int, str], best: set[tuple[int, int]]
) -> Iterator[str]:
    for step, branches in enumerate(tree.steps):
        for lane, branch in enumerate(branches):
            if branch.token == EOS:  # finished; only fills up the beam
                continue
            yield _node(
                _place(step + 1, lane),
                _place(step, branch.parent or 0),
                tokens[branch.token].strip() or "␣",
                f"{branch.total:.2f}",
                is_best=(step, lane) in best,
            )


def _ends(tree: SearchTree, num_lanes: int) -> Iterator[str]:
    ended: Counter[int] = Counter()
    for hypothesis in tree.hypotheses:
        last, path = len(hypothesis.ids), tree.path(hypothesis)
        yield _node(
            _place(last + 1, num_lanes + ended[last]),
            _place(len(path), path[-1] if path else 0),
            "</s>" if hypothesis.is_finished else "cut short",
            f"score {hypothesis.score:.3f}",
            is_best=hypothesis is tree.hypotheses[0],
        )
        ended[last] += 1


def _node(
    place: tuple[int, int],
    parent: tuple[int, int] | None,
    label: str,
    figure: str,
    is_best: bool,
) -> str:
    x, y = place
    line = ""
    if parent is not None:
        from_x, from_y = parent
        line = f'<line x1="{from_x + 62}" y1="{from_y}" x2="{x - 6}" y2="{y}"/>'
    return (
        f"<g{' class=best' if is_best else ''}>{line}"
        f'<text x="{x}" y="{y}">{escape(label)}</text>'
        f'<text class="quiet" x="{x}" y="{y + 14}">{figure}</text></g>'
    )


def _place(step: int, lane: int) -> tuple[int, int]:
    return MARGIN + STEP * step, MARGIN + LANE * lane + LANE // 4
