"""Weights are packed once for as long as they are declared unchanged."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest
import torch
from torch import Tensor, nn

from transduce.nn.kernels import packed_once, unchanged_weights


@pytest.fixture
def packings() -> list[Tensor]:
    return []


def test_a_weight_that_may_change_is_packed_at_each_use(packings):
    weight = nn.Parameter(torch.ones(3))
    for _ in range(2):
        packed_once(weight, 3, packings.append)
    assert len(packings) == 2


def test_an_unchanged_weight_is_packed_once_per_size(packings):
    weights = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    with unchanged_weights():
        found = [
            packed_once(weight, size, packings.append)
            for _ in range(2)
            for weight in weights
            for size in (3, 6)
        ]
    assert len(packings) == 4
    assert all(one is other for one, other in zip(found[:4], found[4:], strict=True))


def test_a_weight_is_packed_again_after_it_may_have_changed(packings):
    weight = nn.Parameter(torch.ones(3))
    for _ in range(2):
        with unchanged_weights():
            packed_once(weight, 3, packings.append)
    with contextlib.suppress(ZeroDivisionError), unchanged_weights():
        raise ZeroDivisionError
    packed_once(weight, 3, packings.append)
    assert len(packings) == 3


def test_a_tensor_that_is_no_parameter_is_packed_at_each_use(packings):
    with unchanged_weights():
        for _ in range(2):
            packed_once(torch.ones(3), 3, packings.append)
    assert len(packings) == 2


def test_threads_that_need_a_weight_at_once_pack_it_once(packings):
    weight = nn.Parameter(torch.ones(3))

    def pack(elements: Tensor) -> None:
        time.sleep(0.05)
        packings.append(elements)

    with unchanged_weights(), ThreadPoolExecutor(4) as pool:
        running = [
            pool.submit(copy_context().run, packed_once, weight, 3, pack)
            for _ in range(4)
        ]
        found = [each.result() for each in running]
    [packed] = packings
    assert all(each is packed for each in found)
