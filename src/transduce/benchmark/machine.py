"""What a figure was measured on: processor, threads, versions."""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

from transduce.machine import describe_processor


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


def installed_version(package: str) -> str | None:
    """The version of a package, or none if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
