"""Records of a training run's starts: hardware, software and micro-batches.

All of these determine the weights bit for bit: other numbers of threads or processes
sum in another order, other versions and processors use other kernels, and dropout and
rounding depend on how batches are split. A resumed run has the micro-batches of its
last start, if they fit, and warns of changes.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

import transduce
from transduce import native
from transduce.device import Hardware
from transduce.experiments.run_folder import RunLog
from transduce.machine import describe_processor
from transduce.native import string
from transduce.nn.kernels import bf16_unit, has_triton
from transduce.training.memory import MicroBatchSize
from transduce.training.trainer import Trainer


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


def warn_of_changes(now: Environment, log: RunLog, warn: Callable[[str], None]) -> None:
    """Warn if hardware or software has changed since the last start of a run."""
    starts = log.entries("start")
    before = recorded_environment(starts[-1]) if starts else None
    if before is not None and (changes := environment_changes(before, now)) is not None:
        warn(
            "The hardware or software has changed since the run was interrupted, so "
            "its weights will not be bit for bit those of an uninterrupted run "
            f"({changes})."
        )


def fitting_micro_batch(
    trainer: Trainer, log: RunLog, warn: Callable[[str], None]
) -> MicroBatchSize:
    """Find the sizes of micro-batches: those of the run's last start, if they fit."""
    starts = log.entries("start", "was_cut")
    last = starts[-1] if starts else {}
    positions = last.get("max_positions") if last.get("was_cut") else None
    reward_positions = last.get("reward_positions")
    found = trainer.find_micro_batch(
        int(positions or 0) or None, int(reward_positions or 0) or None
    )
    differs = found.max_positions != positions
    reward_differs = found.reward_positions != reward_positions
    is_smaller = (found.was_cut and differs) or (
        reward_positions is not None and reward_differs
    )
    if not starts or not is_smaller:
        return found
    # Earlier versions counted positions for packed sentences, too.
    unit = last.get("unit", "positions")
    if positions is not None and differs and found.unit != unit:
        reason = (
            f"Parts of batches are counted in {found.unit}, and were in {unit} when "
            "the run was interrupted"
        )
    else:
        reason = "Less memory is free than when the run was interrupted"
    warn(
        f"{reason}, so batches are split into smaller parts, and its weights will not "
        "be bit for bit those of an uninterrupted run."
    )
    return found


def log_start(
    log: RunLog,
    step: int,
    environment: Environment,
    micro_batch: MicroBatchSize,
    augmentation: Mapping[str, float],
) -> None:
    """Log a start of a run at a step, with its rates of augmentation."""
    reward_positions = micro_batch.reward_positions
    log.append(
        "start",
        step=step,
        device=environment.device,
        precision=environment.precision,
        num_processes=environment.num_processes,
        max_positions=micro_batch.max_positions,
        unit=micro_batch.unit,
        was_cut=micro_batch.was_cut,
        computing=asdict(environment),
        **({"reward_positions": reward_positions} if reward_positions else {}),
        **({"augmentation": augmentation} if augmentation else {}),
    )
