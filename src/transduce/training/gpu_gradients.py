"""Faster gradients on a GPU: CUDA graphs, and PyTorch's compiler.

The CPU starts every operator, and most operators read and write more than they compute.
Triton's kernels compute several operators at once, and a CUDA graph starts all kernels
of an update together (`GraphedGradients`). Where they do not exist, PyTorch's compiler
fuses the small operators of a layer (`compile_layers`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.data.batches import Batcher
from transduce.data.tensors import PackedBatch
from transduce.device import Hardware, is_out_of_memory, recorded_graph
from transduce.errors import warn_caller
from transduce.model.transformer import Transformer
from transduce.nn.kernels import unchanged_weights
from transduce.nn.operators import FusedSSRU
from transduce.training.data_parallel import ALONE, ProcessGroup
from transduce.training.loss import BatchLoss

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
