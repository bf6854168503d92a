"""Settings of a distillation that an earlier command recorded."""

import json
from pathlib import Path

import pytest
import torch

from transduce.experiments.distillation import students_hardware
from transduce.machine import Precision


@pytest.mark.parametrize(
    ("requested", "precision"), [("auto", "fp32"), ("bf16", "bf16")]
)
def test_a_student_keeps_its_precision_unless_another_is_requested(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    requested: Precision,
    precision: str,
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert students_hardware(tmp_path, "cpu", "auto", 64).precision == "bf16"
    record = {"begun by": {"format": 1}, "student": {"precision": "fp32"}}
    (tmp_path / "settings.json").write_text(json.dumps(record))
    chosen = students_hardware(tmp_path, "cpu", requested, 64)
    assert chosen.precision == precision
