"""The held-out corpus of a run, and how well a model does on it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from transduce.checkpoint import Checkpoint
from transduce.data.batches import Batcher
from transduce.data.dataset import open_dataset, require_ids_below
from transduce.data.prepared_corpus import DEV_SOURCE, DEV_TARGET
from transduce.decoding.parser import score_parses
from transduce.decoding.translator import Translator
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_folder import RunFolder
from transduce.metrics.bleu import corpus_bleu, corpus_chrf
from transduce.metrics.tokenization import choose_tokenization
from transduce.search_config import SearchConfig
from transduce.text.corpus import read_text
from transduce.training.config import BestBy
from transduce.training.trainer import Trainer
from transduce.trees.trees import read_parses

Metric = Literal["bleu", "f1"]

CHANCE = 0.005
"""Nats a token by which losses differ though neither model is better."""
ENOUGH_4_GRAMS = 100
"""Matched 4-grams from which on BLEU can compare checkpoints: the standard deviation of
so many is about 10, a fortieth of the score."""
UNRELATED_CHRF = 20.0
"""chrF that unrelated sentences of one language reach."""


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
    others: str = ""
    """Text of further scores, for display only."""

    def __str__(self) -> str:
        return f"{self.name} {self.score:.2f}{self.others}"


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

    def is_level(self, best: "DevScore") -> bool:
        """Whether the scores are equal and the losses differ only by chance."""
        is_equal = self.quality.score == best.quality.score
        return is_equal and abs(self.loss - best.loss) <= CHANCE

    def kept_behind(self, best: "DevScore") -> str:
        """How one is that is kept all the same."""
        is_by_loss = best.loss < self.loss - CHANCE
        doubt = "by its score" if is_by_loss else "clearly by its loss"
        return f"{self.behind(best)}, but not {doubt}, and is kept."

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
    best_by: BestBy

    def is_best(self, entry: dict[str, Any]) -> bool:
        """Whether a new one beats all."""
        metric = self._metric([*self.entries, entry])
        return all(_rank(entry, metric) > _rank(each, metric) for each in self.entries)

    def since_best(self) -> int:
        """Number of checkpoints after the last one that was a gain.

        A gain is a score above all before, or the same score with a loss that is lower
        by more than chance. While loss or chrF decides by default, a loss below all
        before by more than chance is a gain, too.
        """
        metric = self._metric(self.entries)
        is_early = self.best_by == "auto" and metric in ("chrf", "loss")
        best, lowest, last_gain = -math.inf, math.inf, 0
        for number, entry in enumerate(self.entries):
            score, loss = _rank(entry, metric)[0], _number(entry["loss"])
            if is_early and metric == "loss":
                score = 0.0
            is_lower = loss < lowest - CHANCE and (is_early or score == best)
            if score > best or is_lower:
                last_gain = number
                lowest = min(lowest, loss) if is_early else loss
            best = max(best, score)
        return len(self.entries) - 1 - last_gain if self.entries else 0

    def beats(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        """Whether the first score is the better one."""
        metric = self._metric([*self.entries, one, other])
        return _rank(one, metric) > _rank(other, metric)

    def beats_surely(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        """Whether the first score, the best of many, is clearly better by loss too.

        The best of many is so by luck in part: alone it can be ahead of an average that
        does a whole point better on other text. Loss varies less. It does not decide
        here while scores are equal or not yet meaningful: then the average stays.
        """
        is_lower = _number(one["loss"]) < _number(other["loss"]) - CHANCE
        return is_lower and self.beats(one, other) and not self._are_level(one, other)

    def _are_level(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        """Whether only the loss distinguishes the two, though it is not `best_by`."""
        metric = self._metric([*self.entries, one, other])
        if metric == "loss":
            return self.best_by == "auto"
        return _rank(one, metric)[0] == _rank(other, metric)[0]

    def _metric(self, entries: Sequence[dict[str, Any]]) -> str:
        """Metric that decides between some entries of the log."""
        if self.best_by != "auto":
            return self.best_by
        if any("f1" in entry for entry in entries):
            return "f1"
        if any(_tells_by_bleu(entry) for entry in entries):
            return "bleu"
        chrf = max((entry.get("chrf", 0.0) for entry in entries), default=0.0)
        return "chrf" if chrf > UNRELATED_CHRF else "loss"


def _tells_by_bleu(entry: dict[str, Any]) -> bool:
    """Whether BLEU has enough matches to compare checkpoints.

    Logs of older versions do not count the matches; any BLEU above 0 is enough.
    """
    matched = entry.get("matched_4_grams")
    return entry.get("bleu", 0.0) > 0 if matched is None else matched >= ENOUGH_4_GRAMS


def _rank(entry: dict[str, Any], metric: str) -> tuple[float, float]:
    """Sort key of a log entry, greater is better: the score, then the negative loss."""
    loss = _number(entry["loss"])
    return -loss if metric == "loss" else entry.get(metric, 0.0), -loss


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
        dataset = open_dataset(path)
        model = config.model
        target_size = model.target_vocab_size or model.vocab_size
        require_ids_below(dataset, path, model.vocab_size, target_size)
        batcher = Batcher(dataset, config.batching, seed=0)
        judge = (
            _judge_of_text(path, config)
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


def _judge_of_text(folder: Path, config: RunConfig) -> Judge:
    sources = list(read_text([folder / DEV_SOURCE]))
    references = list(read_text([folder / DEV_TARGET]))
    asked, language = config.evaluation.tokenize, config.languages.target
    tokenization = choose_tokenization(asked, language, references)

    def judge(translator: Translator, search: SearchConfig) -> Quality:
        translations = translator.translate_stream(sources, search)
        texts = [each.text for each in translations]
        bleu = corpus_bleu(texts, references, tokenization=tokenization)
        chrf = corpus_chrf(texts, references)
        return Quality(
            metric="bleu",
            name=f"{bleu.name} ({tokenization.name})",
            score=bleu.score,
            details=f"{bleu}\n  {chrf}",
            log={
                "signature": bleu.signature,
                "matched_4_grams": bleu.matched_4_grams,
                "chrf": chrf.score,
            },
            others=f", {chrf.name} {chrf.score:.2f}",
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
