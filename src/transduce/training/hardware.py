"""Use of the hardware in training (section 5.2): processes, graphs, micro-batches.

Training by several processes is data-parallel. Every process has the whole model and
takes some of the batches of each update; gradients are averaged over all. The
launcher sets the variables of torchrun: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
MASTER_ADDR and MASTER_PORT.

A GPU starts every operator from the CPU, and most operators read and write more than
they compute. Triton's kernels compute several at once, and a CUDA graph starts those of
an update together. Where they do not exist, PyTorch's compiler fuses the small
operators of a layer.

The settings determine the pairs of an update. Trials find how to split it into the
largest micro-batches that fit in memory, and their time.

The native library computes a batch on all cores, but PyTorch and Python need one for a
while between its calls. In training a small model that is a third of an update's time,
so two batches are computed at once, each on one core.
"""

import gc
import math
import os
import time
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Barrier, Event
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from transduce.architectures.config import ArchitectureConfig, num_parameters
from transduce.data.batches import Batcher, Update
from transduce.data.tensors import SOURCE_BUCKETS, PackedBatch
from transduce.device import Hardware, forget_peak_memory, peak_memory
from transduce.errors import ConfigError, TransduceError
from transduce.machine import (
    WaitingMeter,
    free_memory,
    proc_bytes,
    return_freed_memory,
)
from transduce.model.transformer import Transformer
from transduce.nn.fuse import FusedTransformer
from transduce.nn.operators import (
    FusedSSRU,
    nn_api,
    split_like,
    unchanged_weights,
)
from transduce.training.loss import BatchLoss, as_tensor

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
        if self.count == 1:
            return is_so  # without waiting for the device
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

    def data_parallel(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Return a module that starts with the first process's weights in all.

        On GPUs its `backward` averages gradients over the processes while it computes
        them. On a CPU, computation and communication would compete for the same cores,
        so `average_gradients` does it afterwards, in one all-reduce.
        """
        if self.count == 1:
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
        if self.count == 1 or isinstance(model, DistributedDataParallel):
            return
        weights = [each for each in model.parameters() if each.requires_grad]
        gradients = [
            torch.zeros_like(each) if each.grad is None else each.grad
            for each in weights
        ]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        with self.detecting_lost():
            distributed.all_reduce(flat)
        flat /= self.count
        for weight, mean in zip(weights, split_like(flat, weights), strict=True):
            weight.grad = mean

    def micro_batches(
        self, batches: Sequence[Integer[np.ndarray, " _"]]
    ) -> list["MicroBatch"]:
        """Return this process's micro-batches of an update, at least one.

        A batch is split only if there are fewer batches than processes. Each part has
        dropout masks of its own.
        """
        parts = list(batches)
        while len(parts) < self.count and max(map(len, parts)) > 1:
            largest = max(range(len(parts)), key=lambda i: len(parts[i]))
            parts[largest : largest + 1] = np.array_split(parts[largest], 2)
        of_all = [
            MicroBatch(number=number, indices=indices, counts=True)
            for number, indices in enumerate(parts)
        ]
        # All processes take part in every all-reduce, also one without pairs.
        idle = replace(of_all[0], counts=False)
        return of_all[self.rank :: self.count] or [idle]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Pairs of an update for one backward pass: a batch, or a part of one."""

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
    """Context without averaging of gradients, for all micro-batches but the last."""
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


MIN_UPDATES = 10_000
"""Shortest training that is compiled: compiling can take minutes."""
MAX_COMPILED_GRAPHS = 64
"""Largest number of compiled graphs for one kind of layer.

There is a graph for training or evaluation, one sentence or several, one token or more,
and lengths that are multiples of eight or not. PyTorch's default is eight.
"""
REASON_LINES = 2
"""Lines of the compiler's message that a user sees."""


def is_worth_compiling(batch_loss: BatchLoss, hardware: Hardware, updates: int) -> bool:
    """Return whether compiling saves time in a training of that many updates.

    On a CPU the native library is faster, and on a GPU the kernels over packed
    sentences. Guided attention reads attention weights by hooks, which compiled layers
    skip.
    """
    is_slow = hardware.device.type == "cuda" and not (
        batch_loss.is_guided or batch_loss.is_packed
    )
    has_layers = isinstance(batch_loss.model, Transformer)
    return is_slow and has_layers and updates >= MIN_UPDATES


def compile_layers(
    batch_loss: BatchLoss,
    batcher: Batcher,
    hardware: Hardware,
    processes: Processes = ALONE,
) -> str | None:
    """Compile each kind of layer for all lengths, and try the layers in training.

    Returns why PyTorch cannot compile in one of the processes, if so; then all keep
    uncompiled layers. A graph that fails to compile later runs uncompiled.
    """
    model = batch_loss.model
    assert isinstance(model, Transformer)
    layers = [*model.encoder_layers, *model.decoder_layers]
    for module in model.modules():
        if isinstance(module, FusedSSRU):
            module.leave_scan_uncompiled()
    for layer in layers:
        layer.compile(dynamic=True)
    torch._dynamo.config.recompile_limit = MAX_COMPILED_GRAPHS
    reason = _try_to_compile(batch_loss, batcher)
    # All processes or none: compiled layers draw dropout masks from another stream.
    if processes.all_reduce_any(reason is not None, hardware.device):
        for layer in layers:
            layer._compiled_call_impl = None  # there is no public way to undo it
        return reason or "it cannot in another process"
    # Otherwise one rare batch could end a long run, and again when it is resumed.
    torch._dynamo.config.suppress_errors = True
    return None


def _try_to_compile(batch_loss: BatchLoss, batcher: Batcher) -> str | None:
    """Compute a gradient; return the reason if the layers cannot be compiled."""
    try:
        _compute_gradient(batch_loss, batcher)
    except RuntimeError as error:  # base of all errors of the compiler
        return " ".join(str(error).split("\n")[:REASON_LINES])
    return None


def _compute_gradient(batch_loss: BatchLoss, batcher: Batcher) -> None:
    """Compute the gradient of as much of the longest batch as fits in memory.

    The compiler tunes its graphs for the size of the first batch, so a small one would
    make all later ones slow.
    """
    batch_loss.train()
    pairs = batcher.longest_batch()
    while True:
        try:
            batch_loss(batcher.dataset.load(pairs)).smoothed.backward()
            return
        except torch.OutOfMemoryError:
            if len(pairs) == 1:
                return  # `find_micro_batch` reports this
        finally:
            batch_loss.zero_grad()
        pairs = pairs[: -(-len(pairs) // 2)]


MEMORY_FACTOR = 2.5
"""CUDA graphs are made if this multiple of the memory of a batch is free: they and
batches without a graph have memory of their own."""
MAX_CUDA_GRAPHS = 1_024
"""Largest number of CUDA graphs, which share almost all of their memory."""


class GraphedGradients:
    """Gradients of packed batches by CUDA graphs, one for each shape of a batch.

    Started one by one from Python, the kernels of an update take longer on the CPU than
    on the GPU; a graph starts all of them at once. A shape that appears for the first
    time is computed without a graph, as it may be the last time.
    """

    def __init__(self, batch_loss: BatchLoss) -> None:
        self._batch_loss = batch_loss
        self._parameters = [p for p in batch_loss.parameters() if p.requires_grad]
        self._gradients: list[Tensor] = []
        """Gradients of the last graph, in the same memory for all graphs."""
        self._seen: set[tuple[int, ...]] = set()
        self._graphs: dict[tuple[int, ...], _GradientGraph] = {}
        self._is_full = False

    def __len__(self) -> int:
        """Number of graphs so far."""
        return len(self._graphs)

    def clear(self) -> None:
        """Forget all graphs and free their memory."""
        self._graphs.clear()
        self._gradients.clear()
        self._seen.clear()
        self._is_full = False

    def backward(
        self, batch: PackedBatch, weight: float, is_alone: bool
    ) -> Float[Tensor, "2"]:
        """Add the gradients of a batch's loss times `weight`; return both losses.

        If the batch `is_alone` in its update, its gradients are valid until the next
        call.
        """
        graph = self._graph(batch)
        if graph is None:
            loss = self._batch_loss(batch)
            (loss.smoothed * weight).backward()
            return as_tensor(loss)
        losses = graph.replay(batch, weight)
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            if parameter.grad is not None:
                parameter.grad += gradient
            else:
                parameter.grad = gradient if is_alone else gradient.clone()
        return losses

    def _graph(self, batch: PackedBatch) -> "_GradientGraph | None":
        """Return the graph of a batch's shape; None if there is none, nor to be one."""
        shape = batch.shape
        if shape in self._graphs or self._is_full:
            return self._graphs.get(shape)
        if shape not in self._seen:
            self._seen.add(shape)
            return None
        if not self._fits_in_memory():
            self._stop()
            return None
        if not self._gradients:
            self._gradients = [torch.zeros_like(each) for each in self._parameters]
        pool = next((each.pool for each in self._graphs.values()), None)
        given = (self._parameters, self._gradients)
        try:
            graph = _GradientGraph(self._batch_loss, batch, *given, pool)
        except torch.OutOfMemoryError:
            self._stop()
            return None
        self._graphs[shape] = graph
        self._is_full = len(self._graphs) == MAX_CUDA_GRAPHS
        return graph

    def _stop(self) -> None:
        """Make no more graphs; batches of other shapes are computed without."""
        self._is_full = True
        warnings.warn(
            f"Memory suffices for {len(self)} CUDA graphs: training is slower for "
            "batches of other shapes.",
            RuntimeWarning,
            stacklevel=1,
        )

    def _fits_in_memory(self) -> bool:
        """Whether memory suffices for the first graph; others take little more."""
        if self._graphs:
            return True
        allocated = torch.cuda.memory_allocated()
        free, _ = torch.cuda.mem_get_info()
        free += torch.cuda.memory_reserved() - allocated
        return free > MEMORY_FACTOR * (torch.cuda.max_memory_allocated() - allocated)


class _GradientGraph:
    """CUDA graph of the loss and the gradients of a batch."""

    def __init__(
        self,
        batch_loss: BatchLoss,
        batch: PackedBatch,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        pool: Any,
    ) -> None:
        """Record the computation, which will write the gradients."""
        device = gradients[0].device
        self._batch = batch.to(device)
        self._weight = torch.zeros((), device=device)
        self._graph = torch.cuda.CUDAGraph()
        # Another thread reads batches ahead, and may allocate memory meanwhile.
        mode = "thread_local"
        capture = torch.cuda.graph(self._graph, pool, capture_error_mode=mode)
        # Weights must be rounded in each replay, not taken from an earlier call.
        with capture, unchanged_weights():
            loss = batch_loss(self._batch)
            found = torch.autograd.grad(
                loss.smoothed * self._weight,
                parameters,
                allow_unused=True,
                materialize_grads=True,
            )
            # Gradients of its own would take the memory of all weights in each graph.
            torch._foreach_copy_(list(gradients), list(found))
            self._losses = as_tensor(loss)
        # The graph reads this table by its address, even if the model makes another.
        longest = max(self._batch.source.longest, self._batch.target.longest)
        assert isinstance(batch_loss.model, Transformer)
        with torch.no_grad():
            self._positions = batch_loss.model.positions(0, longest, device)

    @property
    def pool(self) -> Any:
        """Handle of the memory, for other graphs that never run at the same time."""
        return self._graph.pool()

    def replay(self, batch: PackedBatch, weight: float) -> Float[Tensor, "2"]:
        """Compute the gradients of a batch in pinned memory; return both losses."""
        for own, given in zip(self._batch.tensors, batch.tensors, strict=True):
            own.copy_(given, non_blocking=True)
        self._weight.fill_(weight)
        self._graph.replay()
        return self._losses.clone()


MIN_TOKEN_SHARE = 1 / (1 + 1 / SOURCE_BUCKETS)
"""Smallest share of tokens in a batch that is padded to a bucket."""


def padded_parts(
    update: Update, max_positions: int | None
) -> list[Integer[np.ndarray, " _"]]:
    """Split each batch of an update into parts of at most `max_positions`."""
    if max_positions is None:
        return list(update.batches)
    parts: list[Integer[np.ndarray, " _"]] = []
    for batch in update.batches:
        width = update.dataset.num_positions(batch) // len(batch)
        num_pairs = max(max_positions // width, 1)
        parts += np.split(batch, range(num_pairs, len(batch), num_pairs))
    return parts


def packed_parts(
    update: Update, max_positions: int | None, num_processes: int
) -> list[Integer[np.ndarray, " _"]]:
    """Join the batches of an update, and split it into parts to compute as packed.

    Products of many rows are faster, and without padding lengths may differ. A part has
    at most `max_positions` if no pair is longer. All processes have equally many parts
    if there are enough pairs.
    """
    pairs = np.concatenate(update.batches)
    lengths = update.source_lengths + update.target_lengths
    tokens, count = np.cumsum(lengths), 1
    if max_positions is not None:
        # A part has whole pairs, and is padded to a bucket.
        bound = max(max_positions * MIN_TOKEN_SHARE - lengths.max(), 1)
        count = math.ceil(tokens[-1] / bound)
    count = -(-count // num_processes) * num_processes
    ends = np.linspace(0, tokens[-1], count + 1)[1:-1]
    parts = np.split(pairs, np.searchsorted(tokens, ends))
    return [part for part in parts if len(part) > 0]


AT_ONCE = 2
"""Number of batches that are computed at once. Of more, only one could run Python."""
MAX_FLOPS_AT_ONCE = 5 * 10**10
"""FLOPs of the largest batch that is computed beside another. Larger ones take long
native calls and much memory."""
Result = TypeVar("Result")


def num_at_once(batch_loss: BatchLoss, hardware: Hardware, flops: float) -> int:
    """Return how many batches of that many FLOPs to compute at once.

    It is 1, or the number of threads. All random numbers must come from the context's
    generator (`own_generator`), as they do in a Transformer, whose dropout the native
    library or ours draws. Guided attention reads weights by hooks, for one batch at a
    time.
    """
    is_possible = (
        torch.get_num_threads() == AT_ONCE
        and flops <= MAX_FLOPS_AT_ONCE
        and hardware.device.type == "cpu"
        and nn_api() is not None
        and isinstance(batch_loss.model, FusedTransformer)
        and not batch_loss.is_guided
    )
    return AT_ONCE if is_possible else 1


class SingleThreads:
    """Python threads in which PyTorch and the native library use no others."""

    def __init__(self) -> None:
        number, started = torch.get_num_threads(), Barrier(AT_ONCE)
        self._pool = ThreadPoolExecutor(
            AT_ONCE, "batch", initializer=_use_a_single_thread
        )
        try:
            running = [self._pool.submit(started.wait) for _ in range(AT_ONCE)]
        except BaseException:
            started.abort()  # a thread that waits would keep the process alive
            raise
        wait(running)
        # The new threads have set the default of the process, too.
        torch.set_num_threads(number)

    def results(self, functions: Sequence[Callable[[], Result]]) -> list[Result]:
        """Call functions at once, and return their results in order.

        They have a copy of this thread's context. If one raises, so does this, after
        all have ended.
        """
        running = [self._pool.submit(copy_context().run, each) for each in functions]
        try:
            return [each.result() for each in running]
        finally:
            wait(running)


def _use_a_single_thread() -> None:
    torch.get_num_threads()  # first, as it initializes the thread's own number
    torch.set_num_threads(1)


BYTES_PER_PARAMETER = 16
"""Weight, gradient and Adam's two moments, four bytes each."""
TRIAL_PART = 4
"""The memory of a batch is estimated from trials of at most a fourth of its pairs."""
SAFE_SHARE = 0.8
"""Share of free memory to use, because memory is not exactly proportional to pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchSize:
    """Largest micro-batch that fits in memory, with its time and memory."""

    max_positions: int
    """Source and target positions that fit in memory at a time."""
    was_cut: bool
    """Whether that is less than a whole batch; if packed, than a whole update."""
    seconds: float
    """Seconds per position, corrected for the time of other programs."""
    peak_bytes: int
    """Peak memory in use: of the process, or of the GPU."""
    waiting_share: float = 0.0
    """Share of the trial's time in which other programs had the processor's cores."""
    compile_error: str | None = None
    """Why PyTorch could not compile the layers; None if it did or was not to."""
    growth_bytes: int = 0
    """Memory that a trial on a CPU took and then gave back."""


def require_memory(
    config: ArchitectureConfig,
    hardware: Hardware,
    task: str = "Training",
    bytes_per_parameter: int = BYTES_PER_PARAMETER,
) -> None:
    """Raise `ConfigError` if weights, and in training the optimizer, exceed the memory.

    Linux grants more memory than it has, and would kill the process that uses it.
    """
    count = num_parameters(config)
    needed, present = bytes_per_parameter * count, hardware.memory_bytes()
    if needed > present:
        raise ConfigError(
            f"{task} must fit in the {present / 1e9:,.0f} GB of memory, but a model "
            f"of {count:,} parameters takes {needed / 1e9:,.0f} GB; make "
            f"{_sizes(config)} smaller."
        )


def _sizes(config: ArchitectureConfig) -> str:
    """Name the settings that make a model of this architecture large."""
    known = config.__dataclass_fields__
    names = ["d_model", "d_ff", "num_layers", "encoder_layers", "num_blocks"]
    *others, last = [
        *(f"`model.{name}`" for name in names if name in known),
        *(["`model.experts.num_experts`"] if "experts" in known else []),
    ]
    return f"{', '.join(others)} or {last}" if others else last


def find_micro_batch(
    batch_loss: BatchLoss,
    batcher: Batcher,
    hardware: Hardware,
    num_processes: int = 1,
    graphs: GraphedGradients | None = None,
) -> MicroBatchSize:
    """Compute the gradient of the longest batch, halved until it fits in memory.

    If sentences are packed, it is that of the largest update, by a graph if there are
    any. `num_processes` processes of this machine do so at the same time. The model's
    gradients are dropped. Raises `ConfigError` if not even one pair fits.
    """
    is_packed = batch_loss.is_packed
    longest = batcher.largest_update() if is_packed else batcher.longest_batch()
    graphs = graphs if is_packed else None
    indices = longest
    seconds, waiting_share = math.nan, 0.0
    batch_loss.train()
    if hardware.device.type == "cpu":
        with _out_of_memory_suppressed():  # the loop below finds what fits
            count = _estimate(batch_loss, batcher, longest, hardware, num_processes)
            indices = longest[:count]
    while True:
        _free(batch_loss, hardware)
        # The peak of a trial that failed is not the run's.
        forget_peak_memory(hardware.device)
        with _out_of_memory_suppressed():
            # The first pass warms up, and a graph is made in the second.
            for _ in range(2 if graphs is None else 3):
                meter = WaitingMeter()
                seconds = _time_gradient(batch_loss, batcher, indices, hardware, graphs)
                waiting_share = meter.share()
            break
        if graphs is not None:
            graphs.clear()
        if len(indices) == 1:
            raise ConfigError(
                "The longest pair must fit in memory, but does not; make the model or "
                "`batching.max_length` smaller."
            )
        indices = indices[: -(-len(indices) // 2)]
    peak_bytes = _peak_bytes(hardware.device)
    _free(batch_loss, hardware)
    # Where the system does not say, free memory is infinite, too.
    resident = proc_bytes("self/status", "VmRSS") or peak_bytes
    max_positions = batcher.dataset.num_positions(indices)
    return MicroBatchSize(
        max_positions=max_positions,
        was_cut=len(indices) < len(longest),
        seconds=seconds * (1 - waiting_share) / max_positions,
        waiting_share=waiting_share,
        peak_bytes=peak_bytes,
        growth_bytes=peak_bytes - resident if hardware.device.type == "cpu" else 0,
    )


def _peak_bytes(device: torch.device) -> int:
    """Return the peak memory of the trial, with that of graphs beside it."""
    peak = peak_memory(device)
    if device.type != "cuda":
        return peak
    return peak + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def _estimate(
    batch_loss: BatchLoss,
    batcher: Batcher,
    longest: Integer[np.ndarray, " pairs"],
    hardware: Hardware,
    num_processes: int,
) -> int:
    """Estimate how many pairs fit in memory from trials of 1, 2, 4, ... pairs.

    A system without free memory kills a process, so trying too much is no option.
    """
    # From now on gradients, and all that is allocated once, are in memory.
    _time_gradient(batch_loss, batcher, longest[:1], hardware)
    gc.collect()
    return_freed_memory()
    forget_peak_memory(hardware.device)
    peak, positions = peak_memory(hardware.device), 0
    bound = peak + SAFE_SHARE * free_memory(num_processes)
    fitting, count = len(longest), 1
    largest_trial = max(len(longest) // TRIAL_PART, 2)
    while count < len(longest) and count <= min(fitting, largest_trial):
        before, at = peak, positions
        _time_gradient(batch_loss, batcher, longest[:count], hardware)
        peak = peak_memory(hardware.device)
        positions = batcher.dataset.num_positions(longest[:count])
        # Bytes per position; after the first trial they include those of any batch.
        each = max((peak - before) / (positions - at), 1)
        fitting = bisect_right(
            range(1, len(longest) + 1),
            positions + max(bound - peak, 0) / each,
            key=lambda number: batcher.dataset.num_positions(longest[:number]),
        )
        count *= 2
    return fitting


def _time_gradient(
    batch_loss: BatchLoss,
    batcher: Batcher,
    indices: Integer[np.ndarray, " pairs"],
    hardware: Hardware,
    graphs: GraphedGradients | None = None,
) -> float:
    """Compute the gradient of a batch; return the seconds it takes."""
    started = time.perf_counter()
    if graphs is None:
        batch_loss(batcher.dataset.load(indices)).smoothed.backward()
    else:
        batch = batcher.dataset.load_packed(indices).padded_to_bucket().pinned()
        graphs.backward(batch, weight=1.0, is_alone=True)
    if hardware.device.type == "cuda":
        torch.cuda.synchronize(hardware.device)
    return time.perf_counter() - started


def _free(batch_loss: BatchLoss, hardware: Hardware) -> None:
    """Drop gradients and return freed memory to the system or the device."""
    batch_loss.zero_grad(set_to_none=True)
    gc.collect()
    if hardware.device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        return_freed_memory()


@contextmanager
def _out_of_memory_suppressed() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        # On a CPU, PyTorch raises a plain RuntimeError.
        is_gpu = isinstance(error, torch.OutOfMemoryError)
        if not is_gpu and "can't allocate memory" not in str(error):
            raise
