"""Hardware and software that a training runs on, noted in its log.

They decide the bits of its result: other numbers of threads or processes sum in another
order, and other versions and processors have other kernels.
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
from transduce.nn.native_operators import uses_amx


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """Hardware, software and threads, which decide a training's bits and speed."""

    device: str
    """Type of the device: cpu or cuda."""
    processor: str
    """Name of the processor or the accelerator."""
    precision: str
    num_processes: int
    num_threads: int
    """Threads of each process."""
    instructions: str
    """Instruction set of the native library; "none" if it is not used."""
    torch: str
    transduce: str

    @property
    def num_workers(self) -> int:
        """Number of threads that compute at once on a CPU, or of devices."""
        return self.num_processes * (self.num_threads if self.device == "cpu" else 1)


def computing_of(hardware: Hardware, num_processes: int) -> Computing:
    """Hardware and software of this process."""
    is_cuda = hardware.device.type == "cuda"
    return Computing(
        device=hardware.device.type,
        processor=torch.cuda.get_device_name(hardware.device)
        if is_cuda
        else describe_processor(),
        precision=hardware.precision,
        num_processes=num_processes,
        num_threads=torch.get_num_threads(),
        instructions="none" if is_cuda else _instructions(hardware.precision),
        torch=str(torch.__version__),
        transduce=transduce.__version__,
    )


def _instructions(precision: str) -> str:
    api = native.api()
    if api is None:
        return "none"
    isa = string(api.isa)
    return f"{isa} amx" if precision == "bf16" and uses_amx() else isa


def recorded(entry: Mapping[str, Any]) -> Computing | None:
    """Read a log line's hardware and software; None in logs of older versions."""
    content = entry.get("computing")
    known = {field.name: field.type for field in fields(Computing)}
    if not isinstance(content, dict) or set(content) != set(known):
        return None
    if any(type(value) is not known[name] for name, value in content.items()):
        return None
    return Computing(**content)


def changes(before: Computing, now: Computing) -> str | None:
    """Differences that change bits, in words; None if there are none."""
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
    told = [
        f"{word}: {old[name]} before, {new[name]} now"
        for name, word in names.items()
        if old[name] != new[name]
    ]
    return "; ".join(told) or None
