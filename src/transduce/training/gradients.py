"""Gradients of an update, added up over its micro-batches (section 5.2).

`GradientAccumulator` calls `backward()`. The rest of this module makes it faster.

On a CPU, the native library computes a batch on all cores. Between its calls, PyTorch
and Python use only one core, for a third of an update's time if the model is small. In
other architectures, the cores wait for each other at the end of each of PyTorch's
operators. Two batches are therefore computed at once, each on one core
(`SingleCoreThreads`).

On a GPU, the CPU starts every operator, and most operators read and write more than
they compute. Triton's kernels compute several operators at once, and a CUDA graph
starts all kernels of an update together (`GraphedGradients`). Where they do not exist,
PyTorch's compiler fuses the small operators of a layer (`compile_layers`).
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from contextvars import copy_context
from functools import cached_property, partial
from itertools import islice
from threading import Barrier
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transduce.data.batches import Batcher
from transduce.data.tensors import PackedBatch
from transduce.device import Hardware, is_out_of_memory, recorded_graph
from transduce.errors import warn_caller
from transduce.model.transformer import Transformer
from transduce.nn.fuse import FusedTransformer
from transduce.nn.kernels import nn_api, unchanged_weights
from transduce.nn.operators import FusedSSRU, own_generator
from transduce.training.data_parallel import ALONE, ProcessGroup, no_sync
from transduce.training.loss import BatchLoss
from transduce.training.micro_batches import LoadedMicroBatch
from transduce.training.reward import RewardLoss

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
        self._stream: torch.cuda.Stream | None = None
        """Stream on which all graphs are recorded, as they share their memory."""
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
            return loss.sums
        losses = graph.replay(batch, weight)
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            if parameter.grad is not None:
                parameter.grad += gradient
            else:
                parameter.grad = gradient if is_alone else gradient.clone()
        return losses

    def _graph(self, batch: PackedBatch) -> "_GradientGraph | None":
        """Return the graph for a batch's shape; None unless the shape has recurred."""
        shape = batch.shape
        if shape in self._seen and shape not in self._graphs and not self._is_full:
            self._record(batch)
        self._seen.add(shape)
        return self._graphs.get(shape)

    def _record(self, batch: PackedBatch) -> None:
        """Make a graph for a batch's shape, or no more graphs if memory is short."""
        if not self._fits_in_memory():
            self._stop()
            return
        if not self._gradients:
            self._gradients = [torch.zeros_like(each) for each in self._parameters]
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._gradients[0].device)
        pool = next((each.pool for each in self._graphs.values()), None)
        try:
            self._graphs[batch.shape] = _GradientGraph(
                self._batch_loss,
                batch,
                self._parameters,
                self._gradients,
                self._stream,
                pool,
            )
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self._stop()
        else:
            self._is_full = len(self._graphs) == MAX_CUDA_GRAPHS

    def _stop(self) -> None:
        """Make no more graphs; batches of other shapes are computed without."""
        self._is_full = True
        if not self._graphs:
            self._gradients.clear()
        warn_caller(
            f"Memory suffices for {len(self)} CUDA graphs: training is slower for "
            "batches of other shapes."
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
        stream: torch.cuda.Stream,
        pool: Any,
    ) -> None:
        """Record the computation, which will write the gradients, on a stream."""
        device = gradients[0].device
        self._batch = batch.to(device)
        self._weight = torch.zeros((), dtype=torch.float32, device=device)
        # Weights must be rounded in each replay, not taken from an earlier call.
        capture = recorded_graph(stream, pool, frees_cache=True)
        with capture as self._graph, unchanged_weights():
            loss = batch_loss(self._batch)
            found = torch.autograd.grad(
                loss.smoothed * self._weight,
                parameters,
                allow_unused=True,
                materialize_grads=True,
            )
            # Gradients of its own would take the memory of all weights in each graph.
            torch._foreach_copy_(list(gradients), list(found))
            self._losses = loss.sums
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
        batch_loss.is_guided or batch_loss.can_pack
    )
    has_layers = isinstance(batch_loss.model, Transformer)
    return is_slow and has_layers and updates >= MIN_UPDATES


def compile_layers(
    batch_loss: BatchLoss,
    batcher: Batcher,
    hardware: Hardware,
    processes: ProcessGroup = ALONE,
) -> str | None:
    """Compile each kind of layer for all lengths, and try the layers in training.

    If PyTorch cannot compile in one of the processes, all keep uncompiled layers, and
    the reason is returned. A graph that fails to compile later runs uncompiled.
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
    reason = None
    try:
        _compute_gradient(batch_loss, batcher)
    except RuntimeError as error:  # base of all errors of the compiler
        reason = " ".join(str(error).split("\n")[:REASON_LINES])
    # All processes or none: compiled layers draw dropout masks from another stream.
    if processes.all_reduce_any(reason is not None, hardware.device):
        for layer in layers:
            layer._compiled_call_impl = None  # there is no public way to undo it
        return reason or "it cannot in another process"
    # Otherwise one rare batch could end a long run, and again when it is resumed.
    torch._dynamo.config.suppress_errors = True
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
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if len(pairs) == 1:
                return  # `find_micro_batch` reports this
        finally:
            batch_loss.zero_grad()
        pairs = pairs[: -(-len(pairs) // 2)]
