"""The held-out corpus of a run, and how well a model does on it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from transduce.checkpoint import Checkpoint
from transduce.data.batches import Batcher
from transduce.data.dataset import open_dataset
from transduce.decoding.parsing.parse_scores import score_parses
from transduce.decoding.translator import Translator
from transduce.evaluation.bleu import corpus_bleu
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_folder import RunFolder
from transduce.parsing.trees import read_parses
from transduce.preparation.prepared_corpus import DEV_SOURCE, DEV_TARGET
from transduce.search_config import SearchConfig
from transduce.text.corpus import read_text
from transduce.training.trainer import Trainer

Metric = Literal["bleu", "f1"]

CHANCE = 0.005
"""Nats a token by which losses differ though neither model is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What a search finds, held against what it should find."""

    metric: Metric
    name: str
    """Of the metric, in words."""
    score: float
    """In percent."""
    details: str
    """For people to read."""
    log: dict[str, Any]
    """What the log keeps beside the score."""

    def __str__(self) -> str:
        return f"{self.name} {self.score:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevScore:
    """How well a model does on the held-out corpus."""

    step: int
    loss: float
    perplexity: float
    """Of a target token."""
    quality: Quality
    num_averaged: int = 1
    """Checkpoints that the model is the average of."""

    def behind(self, best: "DevScore") -> str:
        """How an average is behind a checkpoint."""
        return (
            f"The average of the last {self.num_averaged} checkpoints does worse on "
            f"the dev corpus ({self.quality}, loss {self.loss:.3f}) than that of step "
            f"{best.step:,} alone ({best.quality}, {best.loss:.3f})"
        )

    def kept_behind(self, best: "DevScore") -> str:
        """How one is that is kept all the same."""
        return f"{self.behind(best)}, but not clearly by its loss, and is kept."

    def entry(self) -> dict[str, Any]:
        """What the log keeps."""
        return {
            "step": self.step,
            "loss": self.loss,
            "perplexity": self.perplexity,
            self.quality.metric: self.quality.score,
            **self.quality.log,
            "num_averaged": self.num_averaged,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DevHistory:
    """The scores of a run's checkpoints so far, as the log keeps them."""

    entries: list[dict[str, Any]]
    best_by: Literal["bleu", "f1", "loss"]

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
        return bool(one[self.best_by] > other[self.best_by])

    def beats_surely(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        """Whether the first score, the best of many, is clearly better by loss too.

        The best of many is so by luck in part: alone it can be ahead of an average that
        does a whole point better on other text. Loss varies less.
        """
        is_lower = _number(one["loss"]) < _number(other["loss"]) - CHANCE
        return is_lower and self.beats(one, other)


def _number(loss: float | None) -> float:
    """As JSON has no infinity, the log has nothing in its place."""
    return math.inf if loss is None else loss


Judge = Callable[[Translator, SearchConfig], Quality]
"""Says how good is what a model makes of the held-out sources."""


class DevCorpus:
    """The held-out corpus of a run."""

    def __init__(self, batcher: Batcher, judge: Judge, device: torch.device) -> None:
        self._batcher = batcher
        self._judge = judge
        self._device = device

    @classmethod
    def open(
        cls, folder: RunFolder, config: RunConfig, device: torch.device
    ) -> "DevCorpus | None":
        """That of the run, if it was given one."""
        if (path := folder.dev_corpus) is None:
            return None
        batcher = Batcher(open_dataset(path), config.batching, seed=0)
        judge = (
            _judge_of_text(path)
            if folder.dev_trees is None
            else _judge_of_trees(folder.dev_trees)
        )
        return cls(batcher, judge, device)

    def score(
        self, checkpoint: Checkpoint, trainer: Trainer, search: SearchConfig
    ) -> DevScore:
        """Loss by the trainer's model, quality by searching with the checkpoint's."""
        validation = trainer.validate(self._batcher)
        return DevScore(
            step=checkpoint.step,
            loss=validation.loss,
            perplexity=validation.perplexity,
            quality=self._judge(Translator(checkpoint, self._device), search),
        )


def _judge_of_text(folder: Path) -> Judge:
    sources = list(read_text([folder / DEV_SOURCE]))
    references = list(read_text([folder / DEV_TARGET]))

    def judge(translator: Translator, search: SearchConfig) -> Quality:
        translations = translator.translate_stream(sources, search)
        bleu = corpus_bleu([each.text for each in translations], references)
        return Quality(
            metric="bleu",
            name=bleu.name,
            score=bleu.score,
            details=str(bleu),
            log={"signature": bleu.signature},
        )

    return judge


def _judge_of_trees(path: Path) -> Judge:
    gold = list(read_parses(read_text([path]), str(path)))

    def judge(translator: Translator, search: SearchConfig) -> Quality:
        sentences = [tree.words for tree in gold]
        parses = list(translator.parser().parse_stream(sentences, search))
        score = score_parses(gold, parses)
        return Quality(
            metric="f1",
            name="F1",
            score=score.brackets.all.f1,
            details=str(score),
            log={"mended": score.mended},
        )

    return judge
