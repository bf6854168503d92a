"""What is packed once while weights stay the same."""

import contextlib

import pytest
import torch
from torch import Tensor, nn

from transduce.nn.packed_weights import packed_once, unchanged_weights


@pytest.fixture
def packings() -> list[Tensor]:
    return []


def test_outside_each_time(packings):
    weight = nn.Parameter(torch.ones(3))
    for _ in range(2):
        packed_once(weight, 3, packings.append)
    assert len(packings) == 2


def test_inside_once_for_each_weight_and_size(packings):
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


def test_anew_once_weights_may_have_changed(packings):
    weight = nn.Parameter(torch.ones(3))
    for _ in range(2):
        with unchanged_weights():
            packed_once(weight, 3, packings.append)
    with contextlib.suppress(ZeroDivisionError), unchanged_weights():
        raise ZeroDivisionError
    packed_once(weight, 3, packings.append)
    assert len(packings) == 3


def test_what_is_no_parameter_is_never_kept(packings):
    with unchanged_weights():
        for _ in range(2):
            packed_once(torch.ones(3), 3, packings.append)
    assert len(packings) == 2
