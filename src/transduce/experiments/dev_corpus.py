"""The held-out corpus of a run, and how well a model does on it."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch

from transduce.checkpoint import Checkpoint
from transduce.data.batches import Batcher
from transduce.data.dataset import open_dataset
from transduce.decoding.search_config import SearchConfig
from transduce.decoding.translator import Translator
from transduce.evaluation.bleu import BleuScore, corpus_bleu
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_folder import RunFolder
from transduce.preparation.prepared_corpus import DEV_SOURCE, DEV_TARGET
from transduce.text.corpus import read_text
from transduce.training.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class DevScore:
    """How well a model does on the held-out corpus."""

    step: int
    loss: float
    perplexity: float
    """Of a target token."""
    bleu: BleuScore
    num_averaged: int = 1
    """Checkpoints that the model is the average of."""

    def entry(self) -> dict[str, Any]:
        """What the log keeps."""
        return {
            "step": self.step,
            "loss": self.loss,
            "perplexity": self.perplexity,
            "bleu": self.bleu.score,
            "signature": self.bleu.signature,
            "num_averaged": self.num_averaged,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DevHistory:
    """The scores of a run's checkpoints so far, as the log keeps them."""

    entries: list[dict[str, Any]]
    best_by: Literal["bleu", "loss"]

    def is_best(self, entry: dict[str, Any]) -> bool:
        """Whether a new one beats all."""
        return all(self.beats(entry, other) for other in self.entries)

    def since_best(self) -> int:
        """How many there are after the best one."""
        best = 0
        for last, entry in enumerate(self.entries):
            if self.beats(entry, self.entries[best]):
                best = last
        return len(self.entries) - 1 - best if self.entries else 0

    def beats(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        """Whether the first score is the better one."""
        if self.best_by == "loss":
            return _number(one["loss"]) < _number(other["loss"])
        return bool(one["bleu"] > other["bleu"])


def _number(loss: float | None) -> float:
    """As JSON has no infinity, the log has nothing in its place."""
    return math.inf if loss is None else loss


class DevCorpus:
    """The held-out corpus of a run."""

    def __init__(
        self,
        batcher: Batcher,
        sources: list[str],
        references: list[str],
        device: torch.device,
    ) -> None:
        self._batcher = batcher
        self._device = device
        self._sources = sources
        self._references = references

    @classmethod
    def open(
        cls, folder: RunFolder, config: RunConfig, device: torch.device
    ) -> "DevCorpus | None":
        """That of the run, if it was given one."""
        if (path := folder.dev_corpus) is None:
            return None
        batcher = Batcher(open_dataset(path), config.batching, seed=0)
        return cls(
            batcher,
            list(read_text([path / DEV_SOURCE])),
            list(read_text([path / DEV_TARGET])),
            device,
        )

    def score(
        self, checkpoint: Checkpoint, trainer: Trainer, search: SearchConfig
    ) -> DevScore:
        """Loss by the trainer's model, BLEU by searching with the checkpoint's."""
        validation = trainer.validate(self._batcher)
        translations = Translator(checkpoint, self._device).translate_stream(
            self._sources, search
        )
        hypotheses = [translation.text for translation in translations]
        return DevScore(
            step=checkpoint.step,
            loss=validation.loss,
            perplexity=validation.perplexity,
            bleu=corpus_bleu(hypotheses, self._references),
        )
