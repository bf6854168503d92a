"""Layers compiled by PyTorch, on GPUs.

A GPU starts every operator from the CPU, and most operators read and write more than
they compute. PyTorch's compiler fuses the many small ones of a layer into a few.
"""

import torch

from transduce.data.batches import Batcher
from transduce.device import Hardware
from transduce.model.transformer import Transformer
from transduce.training.distributed import ALONE, Processes
from transduce.training.loss import BatchLoss

MIN_UPDATES = 10_000
"""Shortest training that is compiled: compiling can take minutes."""
MAX_GRAPHS = 64
"""Largest number of graphs for one kind of layer.

There is a graph for training or evaluation, one sentence or several, one token or more,
and lengths that are multiples of eight or not. PyTorch's default is eight.
"""
REASON_LINES = 2
"""Lines of the compiler's message that a user sees."""


def is_worth_compiling(batch_loss: BatchLoss, hardware: Hardware, updates: int) -> bool:
    """Return whether compiling saves time in a training of that many updates.

    On a CPU the native library is faster. Guided attention reads attention weights by
    hooks, which compiled layers skip.
    """
    is_slow = hardware.device.type == "cuda" and not batch_loss.is_guided
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
    for layer in layers:
        layer.compile(dynamic=True)
    torch._dynamo.config.recompile_limit = MAX_GRAPHS
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
            batch_loss(batcher.load(pairs)).smoothed.backward()
            return
        except torch.OutOfMemoryError:
            if len(pairs) == 1:
                return  # `find_micro_batch` reports this
        finally:
            batch_loss.zero_grad()
        pairs = pairs[: -(-len(pairs) // 2)]
