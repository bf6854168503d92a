"""What a figure was measured on: processor, threads, versions."""

import platform
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from transduce.machine import processor_flags

MATRIX_FLAGS = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
)
"""Instructions that decide how fast matrix products are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where something was measured, and with what."""

    processor: str
    accelerator: str | None
    num_threads: int
    """Of one matrix product on the processor."""
    versions: dict[str, str]
    """Of Python and of the packages that are installed."""

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {found}" for name, found in self.versions.items())
        accelerator = f", {self.accelerator}" if self.accelerator else ""
        threads = "1 thread" if self.num_threads == 1 else f"{self.num_threads} threads"
        return f"{self.processor}, {threads}{accelerator}; {versions}"


def describe_machine(packages: tuple[str, ...], device: torch.device) -> Machine:
    """This machine, and those of the packages that it has."""
    versions = {"Python": platform.python_version()}
    for package in packages:
        if (found := installed_version(package)) is not None:
            versions[package] = found
    is_cuda = device.type == "cuda"
    return Machine(
        processor=describe_processor(),
        accelerator=torch.cuda.get_device_name(device) if is_cuda else None,
        num_threads=torch.get_num_threads(),
        versions=versions,
    )


def describe_processor() -> str:
    """How many cores of which kind, and what they multiply with."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    names = re.findall(r"^model name\s*: (.*)", text, flags=re.MULTILINE)
    if not names:
        return platform.processor() or platform.machine()
    flags = processor_flags()
    found = [flag for flag in MATRIX_FLAGS if flag in flags]
    return f"{len(names)} x {names[0]} ({', '.join(found)})"


def installed_version(package: str) -> str | None:
    """The version of a package, or none if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
