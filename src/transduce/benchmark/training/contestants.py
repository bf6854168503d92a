"""Ours and the peers, each as a process that makes one update at each turn."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from transduce.benchmark.training.peers import PEERS, PeerTrainer
from transduce.benchmark.training.task import SEED, TrainingTask
from transduce.benchmark.turns import Turns
from transduce.data.batches import Update
from transduce.machine import keep_freed_memory
from transduce.model.transformer import Transformer
from transduce.training.trainer import StepReport, Trainer

OURS = "transduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOutcome:
    """One update made."""

    num_target_tokens: int
    loss: float
    """Smoothed cross-entropy, nats a target token."""


def contestant(name: str, task: TrainingTask) -> Callable[[Turns[UpdateOutcome]], None]:
    """What a contestant's process is to do."""
    if name == OURS:
        return partial(train_ours, task)
    return partial(train_peer, name, task)


def train_ours(task: TrainingTask, turns: Turns[UpdateOutcome]) -> None:
    """As `transduce train` does."""

    def tell(report: StepReport) -> None:
        turns.done(
            UpdateOutcome(num_target_tokens=report.num_target_tokens, loss=report.loss)
        )

    keep_freed_memory()
    torch.manual_seed(SEED)
    trainer = our_trainer(task)
    if task.hardware.device.type == "cuda":  # as in any training that is not short
        reason = trainer.fuse_layers()
        if reason is not None:
            warnings.warn(
                f"The layers of {OURS} are not compiled, as PyTorch cannot: {reason}",
                RuntimeWarning,
                stacklevel=1,
            )
    turns.begin()
    trainer.train(
        on_step=tell,
        save=lambda: None,
        on_checkpoint=lambda: False,
        should_stop=lambda: False,
    )


def train_peer(name: str, task: TrainingTask, turns: Turns[UpdateOutcome]) -> None:
    """The same with the model of another library."""

    def tell(update: Update, loss: float) -> None:
        turns.done(UpdateOutcome(num_target_tokens=update.num_target_tokens, loss=loss))

    if not task.are_peers_plain:
        keep_freed_memory()  # which is as good for them
    torch.manual_seed(SEED)
    trainer = PeerTrainer(PEERS[name](task.model, task.run.batching.max_length), task)
    turns.begin()
    trainer.train(tell)


def our_trainer(task: TrainingTask) -> Trainer:
    """The trainer of `transduce train` on the task's pairs."""
    return Trainer(
        Transformer(task.model),
        task.batcher(task.dataset()),
        task.training,
        task.hardware,
    )
