from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier

import pytest
import torch
from torch import nn

from instruction_sets import chosen_isa
from transduce.nn.kernels import has_bf16_products, nn_api
from transduce.nn.muon import MAX_CACHED_COLUMNS, MAX_CACHED_ROWS, has_native_muon
from transduce.training.data_parallel import ProcessGroup
from transduce.training.optimizer import Muon
from waiting import PATIENCE_S

CONVERGING = (2.0, -1.5, 0.5)
"""Factors of x, x^3 and x^5 whose iteration converges to exactly one."""
MANY = 20
needs_kernels = pytest.mark.skipif(
    nn_api() is None, reason="there is no native library"
)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 0.01), (torch.bfloat16, 0.005)]
)
def test_muon_makes_the_updates_of_torchs_muon(dtype, tolerance, monkeypatch):
    """PyTorch's Muon multiplies in bf16, so the tolerance is wide."""
    monkeypatch.setattr("transduce.nn.muon.POLYNOMIALS", (CONVERGING,) * MANY)
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
class Thread(ProcessGroup):
    """Stand-in for one of several processes, as a thread of this one."""

    barrier: Barrier
    values: dict[int, torch.Tensor] = field(default_factory=dict)
    """Values of each process; all share the dictionary."""

    def all_reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
        self.values[self.rank] = values
        self.barrier.wait(timeout=PATIENCE_S)
        total = sum(self.values[rank] for rank in range(self.world_size))
        self.barrier.wait(timeout=PATIENCE_S)
        return total


@pytest.mark.parametrize("count", [2, 3])
def test_processes_divide_the_products_of_muon(count):
    """Two matrices have one shape and a third another, so some processes are idle.

    All processes have the same weights in the end, and the same means of gradients.
    """
    start = [torch.randn(32, 16), torch.randn(32, 16), torch.randn(3, 7)]
    gradients = [torch.randn_like(matrix) for _ in range(2) for matrix in start]

    def moved(
        processes: ProcessGroup,
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        matrices = [nn.Parameter(matrix.clone()) for matrix in start]
        muon = Muon(matrices, processes=processes)
        muon.param_groups[0]["lr"] = 0.1
        for first in (0, len(start)):
            for matrix, gradient in zip(matrices, gradients[first:], strict=False):
                matrix.grad = gradient
            muon.step()
        return matrices, [muon.state[matrix]["momentum"] for matrix in matrices]

    barrier, values = Barrier(count), {}
    members = [
        Thread(rank=rank, world_size=count, barrier=barrier, values=values)
        for rank in range(count)
    ]
    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(moved, members))
    matrices, momenta = moved(ProcessGroup())
    for own_matrices, own_momenta in found:
        assert all(map(torch.equal, own_matrices, found[0][0]))
        torch.testing.assert_close(own_momenta, momenta, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found[0][0], matrices, rtol=1e-5, atol=1e-6)


def updated(
    start: torch.Tensor,
    gradients: torch.Tensor,
    dtype: torch.dtype = torch.float32,
    count: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights and means of gradients after updates by some gradients of each."""
    weights = [nn.Parameter(each.clone()) for each in start]
    muon = Muon([{"params": weights, "count": count}], dtype)
    muon.param_groups[0]["lr"] = 0.1
    for each in gradients:
        for weight, gradient in zip(weights, each, strict=True):
            weight.grad = gradient.clone()
        muon.step()
    momenta = [muon.state[weight]["momentum"] for weight in weights]
    return torch.stack(weights).detach(), torch.stack(momenta)


SHAPES = [
    ((3, 32, 32), 1),
    ((1, 32, 96), 1),
    ((2, 96, 64), 1),
    ((2, 128, 256), 1),
    ((2, 4 * 32, 64), 4),
    ((2, 3, 64, 32), 3),
]
"""Shapes of weights, and the number of matrices in each."""


@needs_kernels
@pytest.mark.parametrize(("shape", "count"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_native_update_equals_that_by_products(shape, count, dtype):
    if dtype == torch.bfloat16 and not has_bf16_products():
        pytest.skip("this processor does not multiply bf16")
    start, gradients = torch.randn(shape), torch.randn(3, *shape)
    assert has_native_muon([*start], count, dtype)
    weights, momenta = updated(start, gradients, dtype, count)
    with chosen_isa("none"):
        plain, plain_momenta = updated(start, gradients, torch.float32, count)
    # The bound of bf16 is a tenth of the move, whose entries are 0.02 in the mean.
    atol = 1e-5 if dtype == torch.float32 else 0.006
    torch.testing.assert_close(weights, plain, rtol=0, atol=atol)
    torch.testing.assert_close(momenta, plain_momenta, rtol=0, atol=1e-6)
    assert (plain - start).abs().mean() > 0.02


@needs_kernels
@pytest.mark.parametrize(
    ("weight", "count", "dtype"),
    [
        (torch.zeros(5, 12), 1, torch.float32),
        (torch.zeros(16, 24), 1, torch.float32),
        (torch.zeros(48, 32), 2, torch.float32),
        (torch.zeros(16, MAX_CACHED_COLUMNS + 16), 1, torch.float32),
        (torch.zeros(MAX_CACHED_COLUMNS + 16, 16), 1, torch.float32),
        (torch.zeros(MAX_CACHED_ROWS + 16, MAX_CACHED_ROWS + 16), 1, torch.float32),
        (torch.zeros(16, 16), 1, torch.bfloat16),
        (torch.zeros(32, 32), 1, torch.float64),
        (torch.zeros(32, 32, dtype=torch.float64), 1, torch.float32),
        (torch.zeros(32, 64).T, 1, torch.float32),
    ],
    ids=lambda each: str(tuple(each.shape) if isinstance(each, torch.Tensor) else each),
)
def test_unsupported_weights_are_updated_by_products(weight, count, dtype, monkeypatch):
    monkeypatch.setattr(
        "transduce.nn.muon.loaded_nn_api", lambda: pytest.fail("was asked")
    )
    assert not has_native_muon([weight], count, dtype)
    gradient = torch.ones_like(weight, dtype=weight.dtype)
    changed, _ = updated(weight[None], gradient[None, None], dtype, count)
    assert changed.shape == (1, *weight.shape)


@needs_kernels
def test_processors_that_do_not_multiply_bf16_use_the_native_update_in_fp32_only(
    monkeypatch,
):
    monkeypatch.setattr("transduce.nn.muon.has_bf16_products", lambda: False)
    weights = [torch.zeros(32, 32)]
    assert has_native_muon(weights, 1, torch.float32)
    assert not has_native_muon(weights, 1, torch.bfloat16)


@needs_kernels
def test_one_non_contiguous_weight_keeps_all_from_the_native_update():
    weights = [torch.zeros(64, 32), torch.zeros(32, 64).T]
    assert not has_native_muon(weights, 1, torch.float32)
    start, gradients = torch.randn(2, 64, 32), torch.randn(2, 64, 32)
    parameters = [nn.Parameter(start[0].clone()), nn.Parameter(start[1].T.clone().T)]
    muon = Muon(parameters)
    muon.param_groups[0]["lr"] = 0.1
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    muon.step()
    expected, _ = updated(start, gradients[None])
    torch.testing.assert_close(torch.stack(parameters), expected, rtol=0, atol=1e-5)


@needs_kernels
def test_gradients_may_be_non_contiguous():
    start, gradients = torch.randn(2, 32, 48), torch.randn(1, 2, 32, 48)
    strewn = gradients.mT.contiguous().mT
    for ours, others in zip(
        updated(start, gradients), updated(start, strewn), strict=True
    ):
        assert torch.equal(ours, others)


@needs_kernels
def test_the_number_of_threads_does_not_change_an_update(two_threads):
    start, gradients = torch.randn(9, 64, 96), torch.randn(2, 9, 64, 96)

    def by(num_threads: int) -> torch.Tensor:
        torch.set_num_threads(num_threads)
        return updated(start, gradients)[0]

    assert torch.equal(by(1), by(2))


@needs_kernels
def test_nan_stays_within_its_matrix():
    start, gradients = torch.zeros(2, 16, 32), torch.randn(1, 2, 16, 32)
    gradients[0, 0, 3, 5] = torch.nan
    found, _ = updated(start, gradients)
    assert found[0].isnan().any()
    assert found[1].isfinite().all()


@needs_kernels
def test_pytorch_sees_that_a_weight_has_changed():
    weight = nn.Parameter(torch.randn(32, 32))
    weight.grad = torch.randn(32, 32)
    squares = weight.square().sum()
    Muon([weight]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squares.backward()
