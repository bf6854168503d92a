"""The size of a batch depends on the device."""

from types import SimpleNamespace

import pytest
import torch

from transduce.decoding.streaming import batch_positions


@pytest.mark.parametrize(
    ("device", "gibibytes", "positions"),
    [("cpu", 0, 2_048), ("cuda", 1, 2_048), ("cuda", 16, 16_384), ("cuda", 80, 81_920)],
)
def test_a_larger_gpu_decodes_more_together(
    device: str, gibibytes: int, positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(total_memory=gibibytes * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert batch_positions(device) == positions
