"""Data-parallel training by several processes (section 5.2: eight GPUs).

Every process has the whole model and takes a share of the batches of each update;
gradients are summed over all. The launcher sets the variables of torchrun: RANK,
LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Event

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from transduce.errors import ConfigError, TransduceError

TIMEOUT = timedelta(days=1)
"""Timeout of collectives: the others wait while the first process scores and saves."""

BROKEN = ("Connection", "connection", "Broken pipe", "Socket closed", "ncclRemoteError")
"""Parts of a backend's messages that another process is unreachable."""
LOST = (
    "All processes of a run must continue together, but the connection between two of "
    "them is lost."
)

REMEDY = "start the processes with torchrun or --devices."


class ProcessLostError(TransduceError):
    """Another process is unreachable: the consequence of a fault, not its cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The process group of a training, from the point of view of one process."""

    rank: int = 0
    count: int = 1
    """Number of processes in all."""
    count_here: int = 1
    """Number of processes on this machine."""

    @property
    def is_first(self) -> bool:
        """Whether this process reads, writes and prints for all."""
        return self.rank == 0

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Sum values over all processes."""
        if self.count > 1:
            values = values.clone()
            with self.detecting_lost():
                distributed.all_reduce(values)
        return values

    def all_reduce_any(self, is_so: bool, device: torch.device) -> bool:
        """Return whether `is_so` is true in any process."""
        values = torch.tensor(float(is_so), device=device)
        return self.all_reduce_sum(values).item() > 0

    def all_reduce_min(self, value: float, device: torch.device) -> float:
        """Return the smallest value of all processes."""
        if self.count == 1:
            return value
        smallest = torch.tensor(value, dtype=torch.float64, device=device)
        with self.detecting_lost():
            distributed.all_reduce(smallest, op=distributed.ReduceOp.MIN)
        return smallest.item()

    def barrier(self) -> None:
        """Wait until all processes have reached this call."""
        if self.count > 1:
            with self.detecting_lost():
                distributed.barrier()

    @contextmanager
    def detecting_lost(self) -> Iterator[None]:
        """Raise `ProcessLostError` if a collective fails for want of a process."""
        try:
            yield
        except RuntimeError as error:
            if self.count == 1 or not any(word in str(error) for word in BROKEN):
                raise
            raise ProcessLostError(LOST) from None

    def data_parallel(self, model: nn.Module) -> nn.Module:
        """Return a module whose `backward` averages gradients over all processes."""
        return model if self.count == 1 else DistributedDataParallel(model)

    def share(self, batches: Sequence[Integer[np.ndarray, " _"]]) -> list["Share"]:
        """Return this process's shares of an update's batches, at least one.

        A batch is split only if there are fewer batches than processes. Each part has
        dropout masks of its own.
        """
        cuts = list(batches)
        while len(cuts) < self.count and max(map(len, cuts)) > 1:
            largest = max(range(len(cuts)), key=lambda i: len(cuts[i]))
            cuts[largest : largest + 1] = np.array_split(cuts[largest], 2)
        shares = [
            Share(number=number, indices=indices, counts=True)
            for number, indices in enumerate(cuts)
        ]
        # All processes take part in every all-reduce, also one without a share.
        idle = replace(shares[0], counts=False)
        return shares[self.rank :: self.count] or [idle]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A batch of an update, or a part of one, for one backward pass."""

    number: int
    """Number within the update."""
    indices: Integer[np.ndarray, " pairs"]
    counts: bool
    """Whether its gradient belongs to the update."""


ALONE = Processes()

HAS_PROCESS_GROUP = Event()
"""Set once this process has been in a process group."""


@contextmanager
def process_group(device: torch.device) -> Iterator[Processes]:
    """Join the process group that a launcher has set up, and leave it at the end.

    Without a launcher the process is alone. Raises `ConfigError` if a variable of the
    launcher is missing or wrong.
    """
    if not is_distributed():
        yield ALONE
        return
    count = _variable("WORLD_SIZE")
    rank = _variable("RANK", below=count)
    _require_address()
    is_gpu = device.type == "cuda"
    distributed.init_process_group(
        "nccl" if is_gpu else "gloo",
        timeout=TIMEOUT,
        device_id=device if is_gpu else None,
    )
    HAS_PROCESS_GROUP.set()
    try:
        yield Processes(rank=rank, count=count, count_here=_local_count(count))
    finally:
        distributed.destroy_process_group()


def is_distributed() -> bool:
    """Whether a launcher started this process as one of several."""
    return "WORLD_SIZE" in os.environ


def local_rank() -> int:
    """Return this process's number on this machine, which is that of its GPU."""
    return _variable("LOCAL_RANK") if is_distributed() else 0


def no_sync(model: nn.Module) -> AbstractContextManager[object]:
    """Context without averaging of gradients: for all shares of an update but one."""
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return nullcontext()


def _local_count(count: int) -> int:
    """Return the number of processes on this machine; by default all of them."""
    if "LOCAL_WORLD_SIZE" not in os.environ:
        return count
    return max(_variable("LOCAL_WORLD_SIZE"), 1)


def _require_address() -> None:
    _variable("MASTER_PORT", below=2**16)
    if not os.environ.get("MASTER_ADDR"):
        raise ConfigError(
            "The variable MASTER_ADDR must name a machine where WORLD_SIZE is set, but "
            f"does not; {REMEDY}"
        )


def _variable(name: str, below: int | None = None) -> int:
    value = os.environ.get(name, "")
    if not value.isdecimal() or (below is not None and int(value) >= below):
        bound = "" if below is None else f" below {below}"
        raise ConfigError(
            f"The variable {name} must be a number{bound} where WORLD_SIZE is set, but "
            f"is {value!r}; {REMEDY}"
        )
    return int(value)
