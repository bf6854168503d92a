"""Triton's kernels find the candidates that PyTorch finds.

Without a GPU, Triton's interpreter runs the same kernels.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from transduce.decoding import torch_candidates
from transduce.decoding.beam_search import (
    CandidateQuery,
    Candidates,
    Restrictions,
    RowTokens,
)
from transduce.decoding.torch_candidates import find_by_torch, has_top_k

pytest.importorskip("triton", exc_type=ImportError)

from transduce.nn import gpu_kernels
from transduce.nn.gpu_kernels import MAX_CANDIDATES, MAX_PARTS, SPAN, SPANS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SEVERAL_PARTS = 3 * SPAN * SPANS + 1


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch):
    """Return the candidates of logits by Triton's kernels, and by PyTorch."""

    def find(logits: Tensor, count: int, excluded: tuple[int, ...] = ()):
        totals = -np.arange(logits.shape[0] * logits.shape[1], dtype=np.float64)
        query = CandidateQuery(
            log_probabilities=totals.reshape(logits.shape[:2]),
            count=count,
            excluded=excluded,
            diversity=0.25,
        )
        found: list[Candidates] = []
        for by_kernels in (True, False):
            monkeypatch.setattr(
                torch_candidates, "has_top_k", lambda *_, is_so=by_kernels: is_so
            )
            found.append(find_by_torch(logits.to(DEVICE), query))
        return found

    return find


def assert_same(found: Candidates, expected: Candidates) -> None:
    np.testing.assert_allclose(
        found.log_probabilities, expected.log_probabilities, atol=1e-5
    )
    is_there = np.isfinite(expected.log_probabilities)
    assert (found.tokens == expected.tokens)[is_there].all()
    assert (found.parents == expected.parents)[is_there].all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 8, 10])
@pytest.mark.parametrize("vocab", [SPAN * 10, 1_001, SEVERAL_PARTS])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3)])
def test_candidates_are_those_of_pytorch(both, shape, vocab, count, dtype):
    # Rounded, so that many are equal.
    logits = (4 * torch.randn(*shape, vocab)).round() / 4
    assert_same(*both(logits.to(dtype), count, (0, 3, vocab - 1)))


@pytest.mark.parametrize("slope", [-10.0, 10.0])
def test_a_part_of_a_row_may_have_several_tiles(both, slope: float):
    vocab = MAX_PARTS * SPANS * SPAN + 1_000
    rising = torch.linspace(0, slope, vocab)
    assert_same(*both(rising + torch.randn(1, 1, vocab), 8))


@pytest.mark.parametrize("count", [11, MAX_CANDIDATES])
def test_candidates_of_wide_beams_are_those_of_pytorch(both, count: int):
    assert_same(*both((2 * torch.randn(1, 2, SEVERAL_PARTS)).round(), count))


@pytest.mark.parametrize(
    "changes",
    [
        {"forced": np.array([7])},
        {"excluded": np.arange(2 * 1_000).reshape(1, 2, 1_000) % 3 > 0},
        {
            "restrictions": Restrictions(
                banned=RowTokens.of([[3], []]),
                repeated=RowTokens.of([[], [4]]),
                penalty=2.0,
            )
        },
    ],
    ids=["forced", "mask", "restrictions"],
)
def test_what_kernels_do_not_know_is_left_to_pytorch(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
):
    logits = torch.randn(1, 2, 1_000, device=DEVICE)
    given = {"excluded": (0,), **changes}
    query = CandidateQuery(log_probabilities=np.zeros((1, 2)), count=4, **given)
    found: list[Candidates] = []
    for is_there in (True, False):
        monkeypatch.setattr(torch_candidates, "has_top_k", lambda *_, so=is_there: so)
        found.append(find_by_torch(logits, query))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_tokens_outside_a_shortlist_are_no_candidates(both):
    logits = torch.full((1, 2, SEVERAL_PARTS), -math.inf)
    logits[0, 0, 5:8] = torch.tensor([1.0, 2.0, 1.0])
    logits[0, 1, -1] = 0.5
    found, expected = both(logits, 4)
    assert_same(found, expected)
    assert found.tokens[0].tolist() == [6, SEVERAL_PARTS - 1, 5, 7]


@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_with_nan_or_infinity_has_only_nan(both, value):
    logits = torch.randn(2, 1, SEVERAL_PARTS)
    logits[1, 0, 700] = value
    found, expected = both(logits, 4)
    assert np.isnan(found.log_probabilities[1]).all()
    assert np.isnan(expected.log_probabilities[1]).all()
    assert np.isfinite(found.log_probabilities[0]).all()


def test_large_logits_do_not_overflow(both):
    assert_same(*both(1e4 * torch.randn(2, 2, 1_000), 8))


def test_kernels_are_for_gpus_and_few_candidates():
    logits = torch.zeros(1, 1, 10 * SPAN, device=DEVICE)
    is_gpu = DEVICE.type == "cuda"
    assert has_top_k(logits, 10) is is_gpu
    assert not has_top_k(logits, 11)
    many = torch.zeros(1, 1, 100 * SPAN, device=DEVICE)
    assert has_top_k(many, MAX_CANDIDATES) is is_gpu
    assert not has_top_k(many, MAX_CANDIDATES + 1)


def test_an_error_of_triton_is_why_kernels_cannot_run(monkeypatch: pytest.MonkeyPatch):
    def refuse(_: Tensor) -> Tensor:
        raise gpu_kernels.triton.TritonError(
            "The target sm_50 is unknown.\nMore lines."
        )

    monkeypatch.setattr(gpu_kernels, "column_sums", refuse)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.empty(1, 16))
    assert gpu_kernels.launch_fault() == "The target sm_50 is unknown."
