"""Greedy search: the likeliest token at each step, and no second thoughts."""

from collections.abc import Sequence

import numpy as np
import torch

from transduce.decoding.beam_search import (
    Hypothesis,
    NextTokenModel,
    best_candidates,
    length_penalty,
)


def greedy_search(
    model: NextTokenModel,
    max_lengths: Sequence[int],
    alpha: float,
    *,
    bos: int,
    eos: int,
    excluded: Sequence[int] = (),
) -> list[Hypothesis]:
    """One hypothesis a sentence. Alpha only enters the score."""
    ids: list[list[int]] = [[] for _ in max_lengths]
    totals = [0.0] * len(max_lengths)
    live = list(range(len(max_lengths)))
    last_ids = torch.full((len(live), 1), bos)
    while live:
        logits = model.step(last_ids)
        best = best_candidates(logits, np.zeros((len(live), 1)), 1, excluded)
        tokens = best.tokens[:, 0]
        for sentence, value, token in zip(
            live, best.log_probabilities[:, 0].tolist(), tokens.tolist(), strict=True
        ):
            totals[sentence] += value
            ids[sentence].append(token)
        rows = [
            row
            for row, sentence in enumerate(live)
            if ids[sentence][-1] != eos and len(ids[sentence]) < max_lengths[sentence]
        ]
        live = [live[row] for row in rows]
        if live:
            last_ids = torch.from_numpy(tokens[rows, None]).to(logits.device)
            model.reorder(torch.tensor(rows, device=logits.device)[:, None])
    return [
        _hypothesis(sentence_ids, total, alpha, eos)
        for sentence_ids, total in zip(ids, totals, strict=True)
    ]


def _hypothesis(ids: list[int], total: float, alpha: float, eos: int) -> Hypothesis:
    is_finished = ids[-1] == eos
    return Hypothesis(
        ids=tuple(ids[:-1] if is_finished else ids),
        log_probability=total,
        score=total / length_penalty(len(ids), alpha),
        is_finished=is_finished,
    )
