"""Hardware and software of a training run, as its log records them.

They determine the weights bit for bit: other numbers of threads or processes sum in
another order, and other versions and processors use other kernels.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

import transduce
from transduce import native
from transduce.device import Hardware
from transduce.machine import describe_processor
from transduce.native import string
from transduce.nn.kernels import bf16_unit, has_triton


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Hardware, software and threads, which determine a run's weights and speed."""

    device: str
    """Type of the device: cpu or cuda."""
    processor: str
    """Name of the processor or the accelerator."""
    precision: str
    num_processes: int
    num_threads: int
    """Threads of each process."""
    instructions: str
    """Instruction set of the native library, or Triton's version on a GPU; "none" if
    neither is used."""
    torch: str
    transduce: str

    @property
    def num_workers(self) -> int:
        """Total number of threads on CPUs, or number of devices."""
        return self.num_processes * (self.num_threads if self.device == "cpu" else 1)


def current_environment(hardware: Hardware, num_processes: int) -> Environment:
    """Describe the hardware and software of this process."""
    is_cuda = hardware.device.type == "cuda"
    return Environment(
        device=hardware.device.type,
        processor=torch.cuda.get_device_name(hardware.device)
        if is_cuda
        else describe_processor(),
        precision=hardware.precision,
        num_processes=num_processes,
        num_threads=torch.get_num_threads(),
        instructions=_instructions(hardware),
        torch=str(torch.__version__),
        transduce=transduce.__version__,
    )


def _instructions(hardware: Hardware) -> str:
    precision = hardware.precision
    if hardware.device.type == "cuda":
        if precision != "bf16" or not has_triton():
            return "none"
        # The package's name differs (AMD), so its metadata cannot be read by name.
        import triton

        return f"triton {triton.__version__}"
    api = native.api()
    if api is None:
        return "none"
    isa = string(api.isa)
    unit = bf16_unit() if precision == "bf16" else None
    return isa if unit is None else f"{isa} {unit}"


def recorded_environment(entry: Mapping[str, Any]) -> Environment | None:
    """Read the environment of a log entry; None in logs of older versions."""
    content = entry.get("computing")
    known = {field.name: field.type for field in fields(Environment)}
    if not isinstance(content, dict) or set(content) != set(known):
        return None
    if any(type(value) is not known[name] for name, value in content.items()):
        return None
    return Environment(**content)


def environment_changes(before: Environment, now: Environment) -> str | None:
    """Describe the differences that change weights; None if there are none."""
    names = {
        "num_threads": "threads",
        "num_processes": "processes",
        "instructions": "kernels for",
        "torch": "torch",
        "transduce": "transduce",
        "processor": "processor",
        "device": "device",
    }
    if {before.device, now.device} == {"cuda"}:
        del names["num_threads"]
    old, new = asdict(before), asdict(now)
    differences = [
        f"{word}: {old[name]} before, {new[name]} now"
        for name, word in names.items()
        if old[name] != new[name]
    ]
    return "; ".join(differences) or None
