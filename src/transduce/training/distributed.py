"""Several processes that train one model (section 5.2: on eight GPUs).

Each has the whole model and takes a share of every update's batches; gradients are
summed over all. What starts the processes tells them of each other by the variables of
torchrun: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
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

LONGEST_WAIT = timedelta(days=1)
"""For the first process, which scores and saves while the others wait."""

BROKEN = ("Connection", "connection", "Broken pipe", "Socket closed", "ncclRemoteError")
"""In the backends' errors when another process cannot be reached: any other error is of
this one."""
LOST = (
    "All processes of a run must go on together, but the connection between two of "
    "them is lost."
)

REMEDY = "start the processes with torchrun or --devices."


class ProcessLostError(TransduceError):
    """Another process is out of reach: the consequence of a fault, never its cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """All that train the same model; this one is the rank-th."""

    rank: int = 0
    count: int = 1
    count_here: int = 1
    """Of them on this machine."""

    @property
    def is_first(self) -> bool:
        """Whether this one reads, writes and prints for all."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.count > 1:
            values = values.clone()
            with self.in_step():
                distributed.all_reduce(values)
        return values

    def any(self, is_so: bool, device: torch.device) -> bool:
        """Whether one of them says so."""
        return self.total(torch.tensor(float(is_so), device=device)).item() > 0

    def least(self, value: float, device: torch.device) -> float:
        """The smallest of their values."""
        if self.count == 1:
            return value
        smallest = torch.tensor(value, dtype=torch.float64, device=device)
        with self.in_step():
            distributed.all_reduce(smallest, op=distributed.ReduceOp.MIN)
        return smallest.item()

    def wait(self) -> None:
        """Until all have come here."""
        if self.count > 1:
            with self.in_step():
                distributed.barrier()

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Where processes wait for each other: tell if one of them is gone."""
        try:
            yield
        except RuntimeError as error:
            if self.count == 1 or not any(word in str(error) for word in BROKEN):
                raise
            raise ProcessLostError(LOST) from None

    def join(self, model: nn.Module) -> nn.Module:
        """The model, its gradients averaged over all processes in `backward`."""
        return model if self.count == 1 else DistributedDataParallel(model)

    def share(self, batches: Sequence[Integer[np.ndarray, " _"]]) -> list["Share"]:
        """This process's shares of an update's batches, at least one.

        A batch is cut only if there are fewer than processes; its parts then have
        dropout of their own.
        """
        cuts = list(batches)
        while len(cuts) < self.count and max(map(len, cuts)) > 1:
            largest = max(range(len(cuts)), key=lambda i: len(cuts[i]))
            cuts[largest : largest + 1] = np.array_split(cuts[largest], 2)
        shares = [
            Share(number=number, indices=indices, counts=True)
            for number, indices in enumerate(cuts)
        ]
        # All must take part in every sum, even where there is nothing to do.
        idle = replace(shares[0], counts=False)
        return shares[self.rank :: self.count] or [idle]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a process works on at a time: a batch of an update, or a part of one."""

    number: int
    """Within the update."""
    indices: Integer[np.ndarray, " pairs"]
    counts: bool
    """Whether its gradient is a part of the update's."""


ALONE = Processes()

HAS_JOINED = Event()
"""Set once this process has joined others."""


@contextmanager
def joined(device: torch.device) -> Iterator[Processes]:
    """The processes that torchrun or the like has started, joined while in use.

    `ConfigError` if its variables are not whole.
    """
    if not is_joined():
        yield ALONE
        return
    count = _variable("WORLD_SIZE")
    rank = _variable("RANK", below=count)
    _require_meeting_point()
    is_gpu = device.type == "cuda"
    distributed.init_process_group(
        "nccl" if is_gpu else "gloo",
        timeout=LONGEST_WAIT,
        device_id=device if is_gpu else None,
    )
    HAS_JOINED.set()
    try:
        yield Processes(rank=rank, count=count, count_here=_local_count(count))
    finally:
        distributed.destroy_process_group()


def is_joined() -> bool:
    """Whether this process was started as one of several."""
    return "WORLD_SIZE" in os.environ


def local_rank() -> int:
    """Which of this machine's processes this one is: its GPU's number."""
    return _variable("LOCAL_RANK") if is_joined() else 0


def apart(model: nn.Module) -> AbstractContextManager[object]:
    """Gradients stay with the process: for all batches of an update but the last."""
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return nullcontext()


def _local_count(count: int) -> int:
    """How many of them this machine has: all, if nobody says otherwise."""
    if "LOCAL_WORLD_SIZE" not in os.environ:
        return count
    return max(_variable("LOCAL_WORLD_SIZE"), 1)


def _require_meeting_point() -> None:
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
