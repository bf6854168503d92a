"""Layers whose many small operators PyTorch's compiler joins to a few, on GPUs.

There each operator is begun by the CPU, and most read and write more than they compute.
"""

import torch

from transduce.data.batches import Batcher
from transduce.device import Hardware
from transduce.model.transformer import Transformer
from transduce.training.distributed import ALONE, Processes
from transduce.training.loss import BatchLoss

LEAST_UPDATES = 10_000
"""For which it pays: compiling may take minutes."""
MOST_GRAPHS = 64
"""Of a kind of layer: training or at rest, sentences alone or several, one token or
more, and lengths that are multiples of eight or not; PyTorch would allow eight."""
REASON_LINES = 2
"""Of what the compiler says; the rest is for who mends it."""


def is_worth_fusing(batch_loss: BatchLoss, hardware: Hardware, updates: int) -> bool:
    """Whether so many updates gain more than compiling takes."""
    # A CPU has kernels of ours, which are faster; and what is compiled passes over
    # hooks, by which attention is guided.
    is_slow = hardware.device.type == "cuda" and not batch_loss.is_guided
    has_layers = isinstance(batch_loss.model, Transformer)
    return is_slow and has_layers and updates >= LEAST_UPDATES


def fuse_layers(
    batch_loss: BatchLoss,
    batcher: Batcher,
    hardware: Hardware,
    processes: Processes = ALONE,
) -> str | None:
    """Compile the layers, each kind for all lengths, and try them in training.

    If PyTorch cannot compile in one of the processes, the reason; then all have the
    layers as they were. What cannot be compiled later is computed without.
    """
    model = batch_loss.model
    assert isinstance(model, Transformer)
    layers = [*model.encoder_layers, *model.decoder_layers]
    for layer in layers:
        layer.compile(dynamic=True)
    torch._dynamo.config.recompile_limit = MOST_GRAPHS
    reason = _obstacle(batch_loss, batcher)
    # All or none, as compiled layers draw dropout of their own.
    if processes.any(reason is not None, hardware.device):
        for layer in layers:
            layer._compiled_call_impl = None  # there is no public way back
        return reason or "it cannot in another process"
    # Else one kind of batch of a long run could end it, and again when it is resumed.
    torch._dynamo.config.suppress_errors = True
    return None


def _obstacle(batch_loss: BatchLoss, batcher: Batcher) -> str | None:
    """Why the layers cannot be compiled; none if they can."""
    try:
        _try_out(batch_loss, batcher)
    except RuntimeError as error:  # as are all of the compiler's
        return " ".join(str(error).split("\n")[:REASON_LINES])
    return None


def _try_out(batch_loss: BatchLoss, batcher: Batcher) -> None:
    """Form the gradient of the longest batch, or of as much of it as memory holds.

    A small one would not do: the compiler lays out all that comes after for its size.
    """
    batch_loss.train()
    pairs = batcher.longest_batch()
    while True:
        try:
            batch_loss(batcher.load(pairs)).smoothed.backward()
            return
        except torch.OutOfMemoryError:
            if len(pairs) == 1:
                return  # nothing will fit, which is for `fit` to say
        finally:
            batch_loss.zero_grad()
        pairs = pairs[: -(-len(pairs) // 2)]
