"""Dropout has the given rate, keeps the mean, and uses its mask in the gradient too."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from transduce.nn.operators import Dropout, own_generator

SIZE = 200_000
RATES = [0.1, 0.3, 0.5]


pytestmark = pytest.mark.usefixtures("is_native")


def dropped(rate: float, size: int = SIZE) -> torch.Tensor:
    return Dropout(rate).train()(torch.ones(size))


@pytest.mark.parametrize("rate", RATES)
def test_the_share_of_dropped_values_is_the_rate(rate):
    share = (dropped(rate) == 0).double().mean().item()
    deviation = (rate * (1 - rate) / SIZE) ** 0.5
    assert share == pytest.approx(rate, abs=4 * deviation)


@pytest.mark.parametrize("rate", RATES)
def test_the_expectation_is_kept(rate):
    deviation = (rate / (1 - rate) / SIZE) ** 0.5
    assert dropped(rate).mean().item() == pytest.approx(1.0, abs=4 * deviation)


@pytest.mark.parametrize("rate", RATES)
def test_kept_values_are_scaled_by_one_factor(rate):
    kept = dropped(rate)
    [scale] = kept[kept != 0].unique().tolist()
    assert scale == pytest.approx(1 / (1 - rate), rel=1e-4)


@pytest.mark.parametrize("offset", [1, 2, 3, 8, 512, 1024])
def test_mask_values_at_any_distance_are_independent(offset):
    is_dropped = dropped(0.5) == 0
    both = (is_dropped[:-offset] & is_dropped[offset:]).double().mean().item()
    assert both == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / (SIZE / 4)) ** 0.5)


def test_masks_of_consecutive_calls_are_independent():
    one, other = dropped(0.5) == 0, dropped(0.5) == 0
    both = (one & other).double().mean().item()
    assert both == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / SIZE) ** 0.5)


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 5), (3, 4, 7), (0, 4)], ids=str)
def test_the_output_has_the_shape_of_the_input(shape):
    assert Dropout(0.5).train()(torch.ones(shape)).shape == shape


def test_the_gradient_uses_the_same_mask():
    x = torch.randn(40, 7, requires_grad=True)
    y = Dropout(0.4).train()(x)
    outer = torch.randn(40, 7)
    y.backward(outer)
    torch.testing.assert_close(x.grad, outer * (y / x).detach())
    assert 0 < (x.grad == 0).sum() < x.numel()


def test_several_threads_may_run_backward_at_once():
    x = torch.randn(20_000, requires_grad=True)
    y = Dropout(0.4).train()(x)
    outers = [torch.randn_like(x) for _ in range(40)]

    def backwards(outer: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(y, x, outer, retain_graph=True)[0]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(backwards, outers))
    assert all(map(torch.equal, found, map(backwards, outers)))


def test_nan_stays_nan():
    assert Dropout(0.5).train()(torch.full((100,), torch.nan)).isnan().all()


def test_the_input_is_left_as_it_was():
    x = torch.ones(100)
    Dropout(0.5).train()(x)
    assert x.eq(1).all()


def test_a_non_contiguous_input_is_dropped_out_too():
    x = torch.ones(30, 20).t()
    assert 0 < (Dropout(0.5).train()(x) == 0).sum() < x.numel()


def test_nothing_is_dropped_in_evaluation():
    x = torch.randn(100)
    assert Dropout(0.5).eval()(x) is x


def test_nothing_is_dropped_at_rate_zero():
    x = torch.randn(100)
    assert Dropout(0.0).train()(x) is x


def test_the_seed_of_torch_gives_the_same_masks_again():
    torch.manual_seed(3)
    first = [dropped(0.5, 101), dropped(0.5, 101)]
    torch.manual_seed(3)
    again = [dropped(0.5, 101), dropped(0.5, 101)]
    assert torch.equal(torch.stack(first), torch.stack(again))
    assert not torch.equal(first[0], first[1])


def test_half_precision_stays_half_precision():
    x = torch.ones(1_000, dtype=torch.bfloat16)
    y = Dropout(0.5).train()(x)
    assert y.dtype == torch.bfloat16
    assert y.unique().tolist() == [0.0, 2.0]


def test_double_precision_stays_double_precision():
    x = torch.ones(1_000, dtype=torch.float64)
    assert Dropout(0.5).train()(x).unique().tolist() == [0.0, 2.0]


def test_the_number_of_threads_does_not_change_the_mask(two_threads):
    x = torch.randn(200_000, requires_grad=True)

    def by(num_threads: int) -> tuple[torch.Tensor, torch.Tensor]:
        torch.set_num_threads(num_threads)
        torch.manual_seed(2)
        y = Dropout(0.3).train()(x)
        return y, torch.autograd.grad(y.sum(), x)[0]

    for one, other in zip(by(1), by(2), strict=True):
        assert torch.equal(one, other)


def test_other_devices_use_pytorchs_own():
    x = torch.ones(3, 4, device="meta")
    assert Dropout(0.5).train()(x).shape == (3, 4)


@pytest.mark.parametrize("rate", [0.000_001, 0.999_999])
def test_a_rate_next_to_its_bounds_gives_numbers(rate):
    assert dropped(rate).isfinite().all()


def test_a_generator_of_its_own_draws_the_masks_of_pytorchs_with_the_same_seed():
    torch.manual_seed(7)
    expected, following = dropped(0.3), dropped(0.3)
    torch.manual_seed(7)
    torch.rand(1)
    state = torch.get_rng_state()
    with own_generator(7):
        assert torch.equal(dropped(0.3), expected)
        assert torch.equal(dropped(0.3), following)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(dropped(0.3), expected)


def test_masks_of_threads_with_generators_of_their_own_follow_from_the_seeds():
    def masks(seed: int) -> torch.Tensor:
        with own_generator(seed):
            return torch.stack([dropped(0.3, size=2_000) for _ in range(20)])

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(masks, range(8)))
    assert all(torch.equal(each, masks(seed)) for seed, each in enumerate(found))
