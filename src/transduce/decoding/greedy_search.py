"""Greedy search: the likeliest token at each step, and no second thoughts."""

from collections.abc import Sequence

import torch

from transduce.decoding.beam_search import Hypothesis, NextTokenModel, length_penalty


def greedy_search(
    model: NextTokenModel,
    max_lengths: Sequence[int],
    alpha: float,
    *,
    bos: int,
    eos: int,
    excluded: Sequence[int] = (),
) -> list[Hypothesis]:
    """One hypothesis a sentence; rows are sentences. Alpha only enters the score."""
    ids: list[list[int]] = [[] for _ in max_lengths]
    totals = [0.0] * len(max_lengths)
    live = list(range(len(max_lengths)))
    last_ids = torch.full((len(live),), bos)
    while live:
        log_probs = model.step(last_ids)
        log_probs[:, list(excluded)] = -torch.inf
        values, tokens = log_probs.max(dim=-1)
        for sentence, value, token in zip(
            live, values.tolist(), tokens.tolist(), strict=True
        ):
            totals[sentence] += value
            ids[sentence].append(token)
        rows = [
            row
            for row, sentence in enumerate(live)
            if ids[sentence][-1] != eos and len(ids[sentence]) < max_lengths[sentence]
        ]
        live = [live[row] for row in rows]
        kept = torch.tensor(rows, dtype=torch.int64, device=tokens.device)
        last_ids = tokens[kept]
        if live:
            model.reorder(kept)
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
