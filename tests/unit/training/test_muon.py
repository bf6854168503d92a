from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier

import pytest
import torch
from torch import nn

from transduce.nn import operators
from transduce.training.hardware import Processes
from transduce.training.optimizer import Muon

CONVERGING = (2.0, -1.5, 0.5)
"""Factors of x, x^3 and x^5 whose iteration converges to exactly one."""
MANY = 20


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 0.01), (torch.bfloat16, 0.005)]
)
def test_muon_makes_the_updates_of_torchs_muon(dtype, tolerance, monkeypatch):
    """PyTorch's Muon multiplies in bf16, so the tolerance is wide."""
    monkeypatch.setattr(operators, "POLYNOMIALS", (CONVERGING,) * MANY)
    ours = [nn.Parameter(torch.randn(6, 4)) for _ in range(2)]
    ours.append(nn.Parameter(torch.randn(3, 7)))
    ours.append(nn.Parameter(torch.randn(32, 16)))
    theirs = [nn.Parameter(weight.detach().clone()) for weight in ours]
    start = [weight.detach().clone() for weight in ours]
    mine = Muon(ours, dtype)
    mine.param_groups[0]["lr"] = 0.1
    peer = torch.optim.Muon(
        theirs,
        lr=0.1,
        weight_decay=0.0,
        momentum=0.95,
        ns_coefficients=CONVERGING,
        ns_steps=MANY,
        adjust_lr_fn="match_rms_adamw",
    )
    for _ in range(3):
        for our, their in zip(ours, theirs, strict=True):
            our.grad = torch.randn_like(our)
            their.grad = our.grad.clone()
        mine.step()
        peer.step()
    for our, their, first in zip(ours, theirs, start, strict=True):
        assert (our - first).abs().mean() > 0.01
        torch.testing.assert_close(our, their, atol=tolerance, rtol=0)


def test_matrices_in_one_weight_are_orthogonalized_each_by_itself():
    gradients = [torch.randn(4, 6, 5) for _ in range(2)]
    alone = [nn.Parameter(torch.zeros(6, 5)) for _ in range(4)]
    gates, experts = (
        nn.Parameter(torch.zeros(24, 5)),
        nn.Parameter(torch.zeros(4, 6, 5)),
    )
    several = Muon([{"params": [gates], "count": 4}, {"params": [experts], "count": 4}])
    muon = Muon(alone)
    for gradient in gradients:
        gates.grad, experts.grad = gradient.flatten(0, 1), gradient
        for weight, each in zip(alone, gradient, strict=True):
            weight.grad = each
        for optimizer in (several, muon):
            for group in optimizer.param_groups:
                group["lr"] = 0.1
            optimizer.step()
    expected = torch.stack(list(alone))
    assert expected.abs().mean() > 0.01
    torch.testing.assert_close(experts.detach(), expected)
    torch.testing.assert_close(gates.detach().unflatten(0, (4, 6)), expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread(Processes):
    """Stand-in for one of several processes, as a thread of this one."""

    barrier: Barrier
    values: dict[int, torch.Tensor] = field(default_factory=dict)
    """Values of each process; all share the dictionary."""

    def all_reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
        self.values[self.rank] = values
        self.barrier.wait(timeout=60)
        total = sum(self.values[rank] for rank in range(self.count))
        self.barrier.wait(timeout=60)
        return total


@pytest.mark.parametrize("count", [2, 3])
def test_processes_divide_the_products_of_muon(count):
    """Two matrices have one shape and a third another, so some processes are idle."""
    start = [torch.randn(32, 16), torch.randn(32, 16), torch.randn(3, 7)]
    gradients = [torch.randn_like(matrix) for _ in range(2) for matrix in start]

    def moved(processes: Processes) -> list[torch.Tensor]:
        matrices = [nn.Parameter(matrix.clone()) for matrix in start]
        muon = Muon(matrices, processes=processes)
        muon.param_groups[0]["lr"] = 0.1
        for first in (0, len(start)):
            for matrix, gradient in zip(matrices, gradients[first:], strict=False):
                matrix.grad = gradient
            muon.step()
        return matrices

    barrier, values = Barrier(count), {}
    members = [
        Thread(rank=rank, count=count, barrier=barrier, values=values)
        for rank in range(count)
    ]
    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(moved, members))
    for each in found[1:]:
        assert all(map(torch.equal, each, found[0]))
    torch.testing.assert_close(found[0], moved(Processes()), rtol=1e-5, atol=1e-6)
