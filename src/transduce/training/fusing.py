"""Layers whose many small operators PyTorch's compiler joins to a few, on GPUs.

There each operator is begun by the CPU, and most read and write more than they compute.
"""

import torch

from transduce.data.batches import Batcher
from transduce.device import Hardware
from transduce.training.loss.batch_loss import BatchLoss

LEAST_UPDATES = 2_000
"""For which it pays: compiling takes about a minute."""
REASON_LINES = 2
"""Of what the compiler says; the rest is for who mends it."""
FEW_PAIRS = 2
"""Not one, as for one alone the compiler would make an operator of its own."""


def is_worth_fusing(batch_loss: BatchLoss, hardware: Hardware, updates: int) -> bool:
    """Whether so many updates gain more than compiling takes."""
    # A CPU has kernels of ours, which are faster; and what is compiled passes over
    # hooks, by which attention is guided.
    is_slow = hardware.device.type == "cuda" and not batch_loss.is_guided
    return is_slow and updates >= LEAST_UPDATES


def fuse_layers(batch_loss: BatchLoss, batcher: Batcher) -> str | None:
    """Compile the layers, each kind once for all lengths.

    The gradient of a few pairs is formed to try them. If PyTorch cannot compile here,
    the reason; then this process goes on without.
    """
    model = batch_loss.model
    for layer in (*model.encoder_layers, *model.decoder_layers):
        layer.compile(dynamic=True)
    batch_loss.train()
    try:
        pairs = batcher.longest_batch()[:FEW_PAIRS]
        batch_loss(batcher.load(pairs)).smoothed.backward()
    except RuntimeError as error:  # as are all of the compiler's
        torch.compiler.set_stance("force_eager")
        return " ".join(str(error).split("\n")[:REASON_LINES])
    finally:
        batch_loss.zero_grad()
    return None
