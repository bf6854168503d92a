"""Data-parallel training by several processes (section 5.2).

Every process has the whole model, and all make the same updates, so their weights stay
equal:

- They begin with the weights of the first process (`ProcessGroup.data_parallel`).
- They plan the same updates from the seed, and split them into the same micro-batches
  (`Trainer.find_micro_batch`).
- Each computes some of the micro-batches of an update (`own_micro_batches`). Dropout
  masks depend on the micro-batch, not on the process.
- Gradients are averaged over all processes before the step of the optimizer. With Muon,
  each process then updates some of the matrices, and sends them to the others.
- They decide by an all-reduce when to stop, and when to save by the clock. The first
  process alone scores and saves, while the others wait.

The launcher sets the variables of torchrun: RANK, LOCAL_RANK, WORLD_SIZE,
LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

import math
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from threading import Event

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from transduce.errors import ConfigError, TransduceError, shortened, warn_caller
from transduce.files import reason
from transduce.nn.kernels import split_like

TIMEOUT = timedelta(days=1)
"""Timeout of collectives: the others wait while the first process scores and saves."""
JOIN_TIMEOUT = timedelta(minutes=10)
"""Timeout of joining: processes on several machines do not start at the same time, and
a cluster may give a machine its name only when it starts."""
WARN_AFTER_S = 60.0
"""Seconds after which a process warns that it waits for a machine, as the name may be
mistyped."""
JOIN_SHARE = 0.1
"""Least share of `JOIN_TIMEOUT` that is left for joining once the name is known."""
LOOKUP_PAUSE_S = 1.0
"""Pause between two attempts to look the name up."""

BROKEN = ("Connection", "connection", "Broken pipe", "Socket closed", "ncclRemoteError")
"""Parts of a backend's messages that another process is unreachable."""
LOST = (
    "All processes of a run must continue together, but the connection between two of "
    "them is lost."
)

REMEDY = "start the processes with torchrun or `transduce train --devices`."


class ProcessLostError(TransduceError):
    """Another process is unreachable: the consequence of a fault, not its cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """Processes of one training; `rank` is the number of this process."""

    rank: int = 0
    world_size: int = 1
    """Number of processes on all machines."""
    local_world_size: int = 1
    """Number of processes on this machine."""

    @property
    def is_first(self) -> bool:
        """Whether this process reads, writes and prints for all."""
        return self.rank == 0

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Sum values over all processes."""
        if self.world_size > 1:
            values = values.clone()
            with self.detecting_lost():
                distributed.all_reduce(values)
        return values

    def all_reduce_any(self, is_true: bool, device: torch.device) -> bool:
        """Return whether `is_true` holds in any process."""
        if self.world_size == 1:
            return is_true  # without waiting for the device
        values = torch.tensor(float(is_true), dtype=torch.float32, device=device)
        return self.all_reduce_sum(values).item() > 0

    def all_reduce_min(self, value: float, device: torch.device) -> float:
        """Return the smallest value of all processes."""
        if self.world_size == 1:
            return value
        smallest = torch.tensor(value, dtype=torch.float64, device=device)
        with self.detecting_lost():
            distributed.all_reduce(smallest, op=distributed.ReduceOp.MIN)
        return smallest.item()

    def barrier(self) -> None:
        """Wait until all processes have reached this call."""
        if self.world_size > 1:
            with self.detecting_lost():
                distributed.barrier()

    @contextmanager
    def detecting_lost(self) -> Iterator[None]:
        """Raise `ProcessLostError` if another process is lost during a collective."""
        try:
            yield
        except RuntimeError as error:
            if self.world_size == 1 or not any(word in str(error) for word in BROKEN):
                raise
            raise ProcessLostError(LOST) from error

    def data_parallel(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Return a module that starts with the first process's weights in all.

        On GPUs its `backward` averages gradients over the processes while it computes
        them. On a CPU, computation and communication would compete for the same cores,
        so `average_gradients` does it afterwards, in one all-reduce.
        """
        if self.world_size == 1:
            return model
        if device.type != "cpu":
            return DistributedDataParallel(model)
        with torch.no_grad(), self.detecting_lost():
            weights = list(model.parameters())
            flat = torch.cat([weight.flatten() for weight in weights])
            distributed.broadcast(flat, src=0)
            for weight, first in zip(weights, split_like(flat, weights), strict=True):
                weight.copy_(first)
        return model

    def average_gradients(self, model: nn.Module) -> None:
        """Average the gradients of a `data_parallel` module on a CPU."""
        if self.world_size == 1 or isinstance(model, DistributedDataParallel):
            return
        weights = [each for each in model.parameters() if each.requires_grad]
        gradients = [
            torch.zeros_like(each) if each.grad is None else each.grad
            for each in weights
        ]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        with self.detecting_lost():
            distributed.all_reduce(flat)
        flat /= self.world_size
        for weight, mean in zip(weights, split_like(flat, weights), strict=True):
            weight.grad = mean


ALONE = ProcessGroup()

HAS_PROCESS_GROUP = Event()
"""Set once this process has been in a process group."""


@contextmanager
def process_group(device: torch.device) -> Iterator[ProcessGroup]:
    """Join the process group that a launcher has set up, and leave it at the end.

    Without a launcher the process is alone. Warns (`TransduceWarning`) if it waits for
    a machine whose name is unknown. Raises `ConfigError` if a variable of the
    launcher is missing or wrong, or if the processes cannot meet at its address.
    """
    if not is_distributed():
        yield ALONE
        return
    world_size = _variable("WORLD_SIZE", minimum=1)
    rank = _variable("RANK", below=world_size)
    started = time.monotonic()
    _require_address(started + JOIN_TIMEOUT.total_seconds())
    left = JOIN_TIMEOUT - timedelta(seconds=time.monotonic() - started)
    try:
        _join(device, max(left, JOIN_SHARE * JOIN_TIMEOUT))
    except RuntimeError as error:  # also that of a backend, such as of gloo
        if distributed.is_initialized():
            distributed.destroy_process_group()
        if "CUDA" in str(error):
            raise  # a fault of this process's own GPU
        address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        raise ConfigError(
            f"The processes must meet at port {port} of {address}, but cannot "
            f"({reason(error)}); try again, or give torchrun a free port and a machine "
            "that all of them reach."
        ) from None
    HAS_PROCESS_GROUP.set()
    try:
        yield ProcessGroup(
            rank=rank,
            world_size=world_size,
            local_world_size=_local_world_size(world_size),
        )
    finally:
        distributed.destroy_process_group()


def _join(device: torch.device, timeout: timedelta) -> None:
    """Make the default process group; `RuntimeError` if the processes cannot meet."""
    is_gpu = device.type == "cuda"
    distributed.init_process_group(
        "nccl" if is_gpu else "gloo",
        timeout=timeout,
        device_id=device if is_gpu else None,
    )
    # PyTorch has no public function for this, and no timeout of joining alone.
    distributed.distributed_c10d._set_pg_timeout(TIMEOUT)


def is_distributed() -> bool:
    """Whether a launcher started this process as one of several."""
    return "WORLD_SIZE" in os.environ


def local_rank() -> int:
    """Return this process's number on this machine, which is that of its GPU."""
    return _variable("LOCAL_RANK") if is_distributed() else 0


def no_sync(model: nn.Module) -> AbstractContextManager[object]:
    """Context without averaging of gradients, for all micro-batches but the last."""
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return nullcontext()


def _local_world_size(world_size: int) -> int:
    """Return the number of processes on this machine; by default all of them."""
    if "LOCAL_WORLD_SIZE" not in os.environ:
        return world_size
    return max(_variable("LOCAL_WORLD_SIZE"), 1)


def _require_address(deadline: float) -> None:
    """Raise `ConfigError` if the machine's name is not known until the deadline."""
    _variable("MASTER_PORT", below=2**16)
    if not (address := os.environ.get("MASTER_ADDR")):
        raise ConfigError(
            "The variable MASTER_ADDR must name a machine where WORLD_SIZE is set, but "
            f"does not; {REMEDY}"
        )
    warn_at = time.monotonic() + WARN_AFTER_S
    is_first_here = os.environ.get("LOCAL_RANK", "0") == "0"
    while (problem := _lookup_problem(address)) is not None:
        now = time.monotonic()
        if now >= deadline:
            raise ConfigError(
                "The variable MASTER_ADDR must name a machine that is known here, but "
                f"{shortened(address)} is not ({problem}); correct the name, or start "
                "that machine first."
            )
        if now >= warn_at and is_first_here:
            warn_caller(
                f"The machine {shortened(address)} of the variable MASTER_ADDR is not "
                f"known here yet ({problem}); waiting for it."
            )
            warn_at = math.inf
        time.sleep(LOOKUP_PAUSE_S)


def _lookup_problem(address: str) -> str | None:
    """Return why the name of a machine has no address here; None if it has one."""
    try:
        socket.getaddrinfo(address, None)
    except (OSError, UnicodeError) as error:
        return reason(error)
    return None


def _variable(name: str, *, minimum: int = 0, below: int | None = None) -> int:
    value = os.environ.get(name, "")
    number = int(value) if re.fullmatch(r"\d{1,9}", value, re.ASCII) else -1
    if number >= minimum and (below is None or number < below):
        return number
    bound = f" of at least {minimum}" if minimum else ""
    bound = bound if below is None else f" below {below}"
    raise ConfigError(
        f"The variable {name} must be a number{bound} where WORLD_SIZE is set, but is "
        f"{shortened(value)}; {REMEDY}"
    )
