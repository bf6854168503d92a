"""Gradients of an update, added up over its micro-batches (sections 5.1 and 5.2).

The settings determine the pairs of an update, and memory how they are divided.
`MicroBatchReader` splits each update into micro-batches and loads those that this
process computes. `GradientAccumulator` calls `backward()` for each. The rest of this
module makes it faster on a CPU, and `gpu_gradients` on a GPU.

On a CPU, the native library computes a batch on all cores. Between its calls, PyTorch
and Python use only one core, for a third of an update's time if the model is small. In
other architectures, the cores wait for each other at the end of each of PyTorch's
operators. Two batches are therefore computed at once, each on one core
(`SingleCoreThreads`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from threading import Barrier
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from transduce.checkpoint import Progress
from transduce.data.batches import Batcher, Update
from transduce.data.tensors import SOURCE_BUCKETS, Batch, PackedBatch
from transduce.device import Hardware
from transduce.nn.fuse import FusedTransformer
from transduce.nn.kernels import nn_api, unchanged_weights
from transduce.nn.operators import own_generator
from transduce.training.config import TrainingConfig
from transduce.training.data_parallel import ProcessGroup, no_sync
from transduce.training.gpu_gradients import GraphedGradients
from transduce.training.loss import BatchLoss
from transduce.training.reward import MAX_EXTRA_TOKENS, RewardLoss, Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Pairs of an update for one backward pass: a batch, or a part of one."""

    number: int
    """Number within the update."""
    indices: Integer[np.ndarray, " pairs"]
    is_counted: bool
    """Whether its gradient belongs to the update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedMicroBatch:
    """A micro-batch with its data."""

    update: Update
    micro_batch: MicroBatch
    batch: Batch | PackedBatch
    is_last: bool
    """Whether it is the last one of this process in the update."""
    is_alone: bool
    """Whether it is the only one of this process in the update."""
    samples: Samples | None = None
    """Samples of the batch, if the update is by reward."""


MIN_TOKEN_SHARE = 1 / (1 + 1 / SOURCE_BUCKETS)
"""Smallest share of tokens in a batch that is padded to a bucket."""


def padded_parts(
    update: Update, max_positions: int | None, num_samples: int = 0
) -> list[Integer[np.ndarray, " _"]]:
    """Split each batch of an update into parts of at most `max_positions`.

    In updates by reward, each pair has `num_samples` samples beside it.
    """
    if max_positions is None:
        return list(update.batches)
    parts: list[Integer[np.ndarray, " _"]] = []
    for batch in update.batches:
        width = update.dataset.num_positions(batch) // len(batch)
        width += num_samples * (width + MAX_EXTRA_TOKENS)
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


def own_micro_batches(
    batches: Sequence[Integer[np.ndarray, " _"]], processes: ProcessGroup
) -> list[MicroBatch]:
    """Return this process's micro-batches of an update, at least one.

    A batch is split only if there are fewer batches than processes. Each part has
    dropout masks of its own.
    """
    parts = list(batches)
    while len(parts) < processes.world_size and max(map(len, parts)) > 1:
        largest = max(range(len(parts)), key=lambda i: len(parts[i]))
        parts[largest : largest + 1] = np.array_split(parts[largest], 2)
    every = [
        MicroBatch(number=number, indices=indices, is_counted=True)
        for number, indices in enumerate(parts)
    ]
    # A process without pairs also takes part in every all-reduce.
    idle = replace(every[0], is_counted=False)
    return every[processes.rank :: processes.world_size] or [idle]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """Largest parts of an update that fit in memory."""

    max_positions: int | None = None
    """Largest micro-batch in updates by likelihood, in positions; None if whole batches
    fit."""
    reward_positions: int | None = None
    """Largest micro-batch in updates by reward, in positions, samples included; None
    for the positions of the longest batch."""
    fits_beside_another: bool = True
    """Whether there is memory for two batches at once."""


class MicroBatchReader:
    """Reader of this process's micro-batches of each update."""

    def __init__(
        self,
        batcher: Batcher,
        config: TrainingConfig,
        hardware: Hardware,
        processes: ProcessGroup,
    ) -> None:
        self._batcher = batcher
        self._config = config
        self._hardware = hardware
        self._processes = processes
        self.limits = MemoryLimits()
        self.can_pack = False
        """Whether updates by likelihood compute sentences without padding. It must not
        change within an epoch."""

    def epoch(self, start: Progress) -> Iterator[LoadedMicroBatch]:
        """Load this process's part of the remaining updates of an epoch."""
        updates = self._batcher.epoch(
            start.epoch, first=start.update, steps_before=start.step - start.update
        )
        for step, update in enumerate(updates, start.step + 1):
            own = own_micro_batches(self._parts(update, step), self._processes)
            for each in own:
                yield LoadedMicroBatch(
                    update=update,
                    micro_batch=each,
                    batch=self._load(update, each, is_packed=self.is_packed(step)),
                    is_last=each is own[-1],
                    is_alone=len(own) == 1,
                )

    def is_packed(self, step: int) -> bool:
        """Return whether an update computes its sentences without padding."""
        return self.can_pack and not self._config.is_by_reward(step)

    @cached_property
    def longest_positions(self) -> int:
        """Number of positions of the longest batch."""
        batcher = self._batcher.longest_possible()
        return batcher.dataset.num_positions(batcher.longest_batch())

    def _parts(self, update: Update, step: int) -> list[Integer[np.ndarray, " _"]]:
        """Split the pairs of an update into parts that fit in memory."""
        limits, config = self.limits, self._config
        if config.is_by_reward(step):
            max_positions = limits.reward_positions or self.longest_positions
            return padded_parts(update, max_positions, config.reward_samples)
        if self.is_packed(step):
            return packed_parts(
                update, limits.max_positions, self._processes.world_size
            )
        return padded_parts(update, limits.max_positions)

    def _load(
        self, update: Update, micro_batch: MicroBatch, *, is_packed: bool
    ) -> Batch | PackedBatch:
        """Return the ids of a micro-batch; for a GPU in pinned memory."""
        dataset, pairs = update.dataset, micro_batch.indices
        batch: Batch | PackedBatch
        if is_packed:
            batch = dataset.load_packed(pairs).padded_to_bucket()
        else:
            batch = dataset.load(pairs)
        return batch.pinned() if self._hardware.device.type == "cuda" else batch


Sums = Float[Tensor, "3"]
"""Smoothed loss and negative log-likelihood, summed over target tokens in nats, and
reward, summed over sentences."""


class GradientAccumulator:
    """Gradients of an update's mean loss, accumulated over its micro-batches.

    There are three ways to compute the gradients of a micro-batch, which differ by
    rounding at most:

    - `backward` of PyTorch, with all threads, for every model and device;
    - two micro-batches at once on a CPU, each on one core (`SingleCoreThreads`);
    - the replay of a CUDA graph on a GPU, for packed batches (`GraphedGradients`).
    """

    def __init__(
        self,
        batch_loss: BatchLoss,
        hardware: Hardware,
        processes: ProcessGroup,
        seed: int,
    ) -> None:
        self._batch_loss = batch_loss
        self._parallel_loss = processes.data_parallel(batch_loss, hardware.device)
        self._hardware = hardware
        self._processes = processes
        self._seed = seed
        """Seed of the training, which determines the dropout masks."""
        self._weights = [p for p in batch_loss.parameters() if p.requires_grad]
        self.graphs: GraphedGradients | None = None
        """CUDA graphs of packed batches; None on a CPU and in several processes."""
        if hardware.device.type == "cuda" and processes.world_size == 1:
            self.graphs = GraphedGradients(batch_loss)

    def accumulate(
        self, step: int, loaded: Iterator[LoadedMicroBatch], at_once: int
    ) -> Sums:
        """Add the gradients of update `step`, `at_once` micro-batches at a time.

        Returns the sums of the whole update, over all processes.
        """
        processes = self._processes
        sums = torch.zeros(3, dtype=torch.float32, device=self._hardware.device)
        # On a GPU one autocast context rounds each weight once, except in compiled
        # layers.
        with (
            self._hardware.autocast(),
            processes.detecting_lost(),
            unchanged_weights(),
        ):
            while group := list(islice(loaded, at_once)):
                if len(group) == at_once > 1:
                    for each_sums in self._backward_at_once(step, group):
                        sums += each_sums
                else:
                    for each in group:
                        sums += self._backward(step, each)
            processes.average_gradients(self._parallel_loss)
        return processes.all_reduce_sum(sums)

    def _backward(self, step: int, loaded: LoadedMicroBatch) -> Sums:
        """Add the gradient of a micro-batch, with all threads; return its sums."""
        # Each micro-batch has its own dropout masks, whichever process computes it.
        seed = self._dropout_seed(step, loaded)
        # All threads share PyTorch's generator. A seed set here would change the
        # numbers that another run in this process draws, such as its initial weights.
        is_own = draws_from_context(self._hardware)
        if not is_own:
            self._hardware.seed(seed)
        if self.graphs is not None and isinstance(loaded.batch, PackedBatch):
            weight = 1 / loaded.update.num_target_tokens
            losses = self.graphs.backward(loaded.batch, weight, loaded.is_alone)
            return torch.cat([losses, losses.new_zeros(1)])
        with nullcontext() if loaded.is_last else no_sync(self._parallel_loss):
            with own_generator(seed) if is_own else nullcontext():
                objective, sums = self._objective(loaded)
            # Backward operators keep the precision of the forward pass.
            with torch.autocast("cpu", enabled=False):
                objective.backward()
        return sums

    @cached_property
    def _threads(self) -> "SingleCoreThreads":
        return SingleCoreThreads()

    def _backward_at_once(
        self, step: int, group: Sequence[LoadedMicroBatch]
    ) -> Iterator[Sums]:
        """Add the gradients of micro-batches computed at once; yield the sums of each.

        The gradients are added in their order, as one by one.
        """
        functions = [partial(self._gradients, step, each) for each in group]
        for sums, gradients in self._threads.results(functions):
            accumulated: list[Tensor] = []
            addends: list[Tensor] = []
            for weight, gradient in zip(self._weights, gradients, strict=True):
                if weight.grad is None:
                    weight.grad = gradient
                elif gradient is not None:
                    accumulated.append(weight.grad)
                    addends.append(gradient)
            if accumulated:
                torch._foreach_add_(accumulated, addends)
            yield sums

    def _gradients(
        self, step: int, loaded: LoadedMicroBatch
    ) -> tuple[Sums, list[Tensor | None]]:
        """Return the sums of a micro-batch and its gradients, in any thread."""
        seed = self._dropout_seed(step, loaded)
        with self._hardware.autocast(), own_generator(seed):
            objective, sums = self._objective(loaded)
        # Backward operators keep the precision of the forward pass.
        with torch.autocast("cpu", enabled=False):
            gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
                objective, self._weights, allow_unused=True
            )
        return sums, _separate_tensors(gradients)

    def _objective(self, loaded: LoadedMicroBatch) -> tuple[Float[Tensor, ""], Sums]:
        """Return a micro-batch's part of the update's mean loss, and its sums."""
        is_counted, samples = loaded.micro_batch.is_counted, loaded.samples
        inputs = (loaded.batch,) if samples is None else (loaded.batch, samples)
        loss = self._parallel_loss(*inputs)
        is_by_reward = isinstance(loss, RewardLoss)
        objective = loss.objective if is_by_reward else loss.smoothed
        # Data-parallel processes average gradients, but the update needs their sum.
        num_tokens = loaded.update.num_target_tokens
        weight = is_counted * self._processes.world_size / num_tokens
        losses = loss.sums
        # Unlike `new_tensor`, this does not wait for the GPU.
        reward = losses.new_full((1,), 0.0 if samples is None else samples.reward)
        return objective * weight, is_counted * torch.cat([losses, reward])

    def _dropout_seed(self, step: int, loaded: LoadedMicroBatch) -> int:
        """Return the seed of a micro-batch; it does not depend on earlier draws."""
        entropy = (self._seed, step, loaded.micro_batch.number)
        return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])


def _separate_tensors(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Copy gradients that are not contiguous or share memory with another one.

    PyTorch's fused optimizers read gradients as if they were contiguous, and a sum in
    place must not change another gradient.
    """
    separate: list[Tensor | None] = []
    addresses: set[int] = set()
    for gradient in gradients:
        if gradient is not None:
            if not gradient.is_contiguous() or gradient.data_ptr() in addresses:
                gradient = gradient.clone(memory_format=torch.contiguous_format)
            addresses.add(gradient.data_ptr())
        separate.append(gradient)
    return separate


NUM_AT_ONCE = 2
"""Number of micro-batches computed at once, by as many threads, if more than one is.
Python code runs in one at a time."""
MAX_FLOPS_AT_ONCE = 5 * 10**10
"""FLOPs of the largest batch of a Transformer that is computed beside another. Larger
ones take long native calls, which use both cores well."""
Result = TypeVar("Result")


def num_at_once(batch_loss: BatchLoss, hardware: Hardware, flops: float) -> int:
    """Return how many batches of that many FLOPs to compute at once.

    It is 1, or the number of threads. All random numbers must come from the context's
    generator. Guided attention reads weights by hooks, for one batch at a time.
    """
    has_long_calls = isinstance(batch_loss.model, FusedTransformer)
    is_possible = (
        torch.get_num_threads() == NUM_AT_ONCE
        and (flops <= MAX_FLOPS_AT_ONCE or not has_long_calls)
        and nn_api() is not None
        and draws_from_context(hardware)
        and not batch_loss.is_guided
    )
    return NUM_AT_ONCE if is_possible else 1


def draws_from_context(hardware: Hardware) -> bool:
    """Return whether all random numbers come from the generator of `own_generator`.

    They do on a CPU: the masks of dropout and the noise of mixtures' gates. On a GPU
    PyTorch draws them.
    """
    return hardware.device.type == "cpu"


class SingleCoreThreads:
    """Python threads, in each of which PyTorch and the native library use one core."""

    def __init__(self) -> None:
        number, started = torch.get_num_threads(), Barrier(NUM_AT_ONCE)
        self._pool = ThreadPoolExecutor(
            NUM_AT_ONCE, "batch", initializer=_use_a_single_thread
        )
        try:
            running = [self._pool.submit(started.wait) for _ in range(NUM_AT_ONCE)]
        except BaseException:
            started.abort()  # a thread that waits would keep the process alive
            raise
        wait(running)
        # Set back the default of the process, which the new threads have also set.
        torch.set_num_threads(number)

    def results(self, functions: Sequence[Callable[[], Result]]) -> list[Result]:
        """Call functions at once, and return their results in order.

        They have a copy of this thread's context. An exception is raised after all have
        ended.
        """
        running = [self._pool.submit(copy_context().run, each) for each in functions]
        try:
            return [each.result() for each in running]
        finally:
            wait(running)


def _use_a_single_thread() -> None:
    torch.get_num_threads()  # first, as it initializes the thread's own number
    torch.set_num_threads(1)
