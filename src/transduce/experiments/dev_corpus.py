"""Dev corpus of a run: scoring checkpoints on it, and finding the best one."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from transduce.checkpoint import Checkpoint
from transduce.data.batches import Batcher, open_dataset, require_ids_below
from transduce.data.corpus_files import MAIN_DEV
from transduce.data.prepared_corpus import DEV_SOURCE, DEV_TARGET
from transduce.decoding.parser import score_parses
from transduce.decoding.translator import Translator
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_folder import RunFolder
from transduce.metrics.bleu import corpus_bleu, corpus_chrf
from transduce.metrics.gleu import mean_gleu
from transduce.metrics.tokenization import choose_tokenization
from transduce.search_config import SearchConfig
from transduce.text.corpus import read_text
from transduce.text.languages import guess
from transduce.text.tokenizer import TOKENIZER_FILE, load_tokenizer
from transduce.training.config import BestBy
from transduce.training.trainer import Trainer
from transduce.trees.trees import read_parses

Metric = Literal["bleu", "f1"]

LOSS_TOLERANCE = 0.005
"""Difference in nats per token below which neither of two losses counts as better."""
ENOUGH_4_GRAMS = 100
"""Matched 4-grams that BLEU needs to compare checkpoints: the standard deviation of
this count is about 10, which moves BLEU by a fortieth."""
UNRELATED_CHRF = 20.0
"""chrF that unrelated sentences of one language reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Score of the translations or parses of the dev corpus."""

    metric: Metric
    name: str
    """Name of the metric for display, with its tokenizer."""
    score: float
    """Score in percent."""
    details: str
    """Lines for display, with signatures."""
    log: dict[str, Any]
    """Values that the log records besides the score."""
    others: str = ""
    """Further scores, for display only."""

    def __str__(self) -> str:
        return f"{self.name} {self.score:.2f}{self.others}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevScore:
    """Loss and quality of a model on the dev corpus."""

    step: int
    loss: float
    """Smoothed cross-entropy, in nats per target token."""
    perplexity: float
    """Perplexity per target token."""
    quality: Quality
    num_averaged: int = 1
    """Number of checkpoints in the average; 1 for a single checkpoint."""
    name: str = MAIN_DEV
    """Name of the dev set."""
    is_main: bool = True
    """Whether the dev set chooses the best checkpoint."""

    def is_tied(self, best: "DevScore") -> bool:
        """Whether the scores are equal and the losses within `LOSS_TOLERANCE`."""
        is_equal = self.quality.score == best.quality.score
        return is_equal and abs(self.loss - best.loss) <= LOSS_TOLERANCE

    def dropped_for(self, best: "DevScore") -> str:
        """Message that this average is dropped for a better checkpoint."""
        one = "checkpoint" if best.step else "start"
        return f"{self._comparison(best)}. The {one} is the run's model."

    def kept_despite(self, best: "DevScore") -> str:
        """Message that this average is kept although a checkpoint scores better."""
        is_by_loss = best.loss < self.loss - LOSS_TOLERANCE
        doubt = "by its score" if is_by_loss else "clearly by its loss"
        return f"{self._comparison(best)}, but not {doubt}. The average is kept."

    def _comparison(self, best: "DevScore") -> str:
        other = f"the checkpoint of step {best.step:,} alone"
        if best.step == 0:
            other = "the model that the run started from"
        return (
            f"The average of the last {self.num_averaged} checkpoints does worse on "
            f"the dev corpus ({self.quality}, loss {self.loss:.3f}) than {other} "
            f"({best.quality}, loss {best.loss:.3f})"
        )

    def entry(self) -> dict[str, Any]:
        """Values for the log."""
        name = {} if self.name == MAIN_DEV else {"name": self.name}
        return {
            "step": self.step,
            **name,
            "loss": self.loss,
            "perplexity": self.perplexity,
            self.quality.metric: self.quality.score,
            **self.quality.log,
            "num_averaged": self.num_averaged,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DevHistory:
    """Dev scores of a run's checkpoints so far, as log entries."""

    entries: list[dict[str, Any]]
    best_by: BestBy

    def is_best(self, entry: dict[str, Any]) -> bool:
        """Whether a new entry beats all earlier ones."""
        metric = self._metric([*self.entries, entry])
        return all(_rank(entry, metric) > _rank(each, metric) for each in self.entries)

    def loss_at(self, step: int) -> float | None:
        """Return the loss of the checkpoint of a step, or None if there is none."""
        losses = [e["loss"] for e in self.entries if e["step"] == step]
        return _number(losses[-1]) if losses else None

    def since_best(self) -> int:
        """Number of checkpoints after the last one that was a gain.

        A gain is a score above all earlier ones, or the same score with a loss that is
        lower by more than `LOSS_TOLERANCE`. With the default `best_by`, while BLEU is
        not yet meaningful, a loss below all earlier ones by more than that is a gain,
        too.
        """
        metric = self._metric(self.entries)
        is_early = self.best_by == "auto" and metric in ("chrf", "loss")
        best, lowest, last_gain = -math.inf, math.inf, 0
        for number, entry in enumerate(self.entries):
            score, loss = _rank(entry, metric)[0], _number(entry["loss"])
            if is_early and metric == "loss":
                score = 0.0
            is_lower = loss < lowest - LOSS_TOLERANCE and (is_early or score == best)
            if score > best or is_lower:
                last_gain = number
                lowest = min(lowest, loss) if is_early else loss
            best = max(best, score)
        return len(self.entries) - 1 - last_gain if self.entries else 0

    def beats(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        """Whether the first entry is better than the other."""
        metric = self._metric([*self.entries, one, other])
        return _rank(one, metric) > _rank(other, metric)

    def beats_clearly(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        """Whether the first entry, the best of many, is also clearly better by loss.

        The best of many scores is partly luck: such a checkpoint can be ahead of an
        average that is a whole point better on other text. Loss varies less. While
        scores are equal or not yet meaningful, the result is False, whatever the loss.
        """
        is_lower = _number(one["loss"]) < _number(other["loss"]) - LOSS_TOLERANCE
        return is_lower and self.beats_by_score(one, other)

    def beats_by_score(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        """Whether the first entry has a better score, whatever its loss."""
        return self.beats(one, other) and not self._are_tied(one, other)

    def _are_tied(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        """Whether only the loss distinguishes the two, though it is not `best_by`."""
        metric = self._metric([*self.entries, one, other])
        if metric == "loss":
            return self.best_by == "auto"
        return _rank(one, metric)[0] == _rank(other, metric)[0]

    def _metric(self, entries: Sequence[dict[str, Any]]) -> str:
        """Name of the metric that ranks these entries."""
        if self.best_by != "auto":
            return self.best_by
        if any("f1" in entry for entry in entries):
            return "f1"
        if any(_has_enough_matches(entry) for entry in entries):
            return "bleu"
        chrf = max((entry.get("chrf", 0.0) for entry in entries), default=0.0)
        return "chrf" if chrf > UNRELATED_CHRF else "loss"


def _has_enough_matches(entry: dict[str, Any]) -> bool:
    """Whether enough 4-grams match for BLEU to compare checkpoints.

    Logs of older versions do not count the matches; any BLEU above 0 is enough.
    """
    matched = entry.get("matched_4_grams")
    return entry.get("bleu", 0.0) > 0 if matched is None else matched >= ENOUGH_4_GRAMS


def _rank(entry: dict[str, Any], metric: str) -> tuple[float, float]:
    """Sort key of a log entry, greater is better: the score, then the negative loss."""
    loss = _number(entry["loss"])
    return -loss if metric == "loss" else entry.get(metric, 0.0), -loss


def _number(loss: float | None) -> float:
    """Loss of a log entry: JSON has no infinity, so the log has null in its place."""
    return math.inf if loss is None else loss


Evaluate = Callable[[Translator, SearchConfig], Quality]
"""Translates or parses the dev sources, and scores the result."""


class DevCorpus:
    """Encoded dev corpus, and the evaluation of its translations or parses."""

    def __init__(
        self,
        batcher: Batcher,
        evaluate: Evaluate,
        device: torch.device,
        name: str,
        *,
        is_main: bool,
    ) -> None:
        self.name = name
        self.is_main = is_main
        self._batcher = batcher
        self._evaluate = evaluate
        self._device = device

    @classmethod
    def open_all(
        cls, folder: RunFolder, config: RunConfig, device: torch.device
    ) -> list["DevCorpus"]:
        """Open the dev sets of a run, that which chooses the best checkpoint first."""
        paths = folder.dev_corpora
        languages = _target_languages(folder, config, paths)
        return [
            cls._open(name, path, folder, config, device, language, is_main=number == 0)
            for number, ((name, path), language) in enumerate(
                zip(paths.items(), languages, strict=True)
            )
        ]

    @classmethod
    def _open(
        cls,
        name: str,
        path: Path,
        folder: RunFolder,
        config: RunConfig,
        device: torch.device,
        language: str | None,
        *,
        is_main: bool,
    ) -> "DevCorpus":
        dataset = open_dataset(path)
        model = config.model
        target_size = model.target_vocab_size or model.vocab_size
        require_ids_below(dataset, path, model.vocab_size, target_size)
        batcher = Batcher(dataset, config.batching, seed=0)
        evaluate = (
            _translation_evaluation(path, config, language)
            if folder.dev_trees is None
            else _parsing_evaluation(folder.dev_trees)
        )
        return cls(batcher, evaluate, device, name, is_main=is_main)

    def score(
        self, checkpoint: Checkpoint, trainer: Trainer, search: SearchConfig
    ) -> DevScore:
        """Compute the loss with the trainer's model, and search with the checkpoint.

        Both must have the same weights.
        """
        validation = trainer.validate(self._batcher)
        return DevScore(
            step=checkpoint.step,
            loss=validation.loss,
            perplexity=validation.perplexity,
            quality=self._evaluate(Translator(checkpoint, self._device), search),
            name=self.name,
            is_main=self.is_main,
        )


def _target_languages(
    folder: RunFolder, config: RunConfig, names: Collection[str]
) -> list[str | None]:
    """Return the target language of each dev set, the main one first.

    If the model has several, the further dev sets are in those of their files' endings.
    """
    main = config.languages.target
    languages = [main] * len(names)
    tokenizer = folder.path / TOKENIZER_FILE
    if len(names) > 1 and load_tokenizer(tokenizer).language_tags:
        targets = folder.files()["dev_sets"][1::2]
        languages[1:] = [guess(path) or main for path in targets]
    return languages


def _translation_evaluation(
    folder: Path, config: RunConfig, language: str | None
) -> Evaluate:
    sources = list(read_text([folder / DEV_SOURCE]))
    references = list(read_text([folder / DEV_TARGET]))
    tokenization = choose_tokenization(config.evaluation.tokenize, language, references)

    def evaluate(translator: Translator, search: SearchConfig) -> Quality:
        if language is not None and translator.target_languages:
            translator = translator.into(language)
        translations = translator.translate_stream(sources, search)
        texts = [each.text for each in translations]
        bleu = corpus_bleu(texts, references, tokenization=tokenization)
        chrf = corpus_chrf(texts, references)
        others = f", {chrf.name} {chrf.score:.2f}"
        rewards = {}
        if config.training.reward == "gleu":
            rewards["gleu"] = mean_gleu(texts, references)
            others = f"{others}, GLEU {rewards['gleu']:.2f}"
        return Quality(
            metric="bleu",
            name=f"{bleu.name} ({tokenization.name})",
            score=bleu.score,
            details=f"{bleu}\n  {chrf}",
            log={
                "signature": bleu.signature,
                "matched_4_grams": bleu.matched_4_grams,
                "chrf": chrf.score,
                **rewards,
            },
            others=others,
        )

    return evaluate


def _parsing_evaluation(path: Path) -> Evaluate:
    gold = list(read_parses(read_text([path]), str(path)))

    def evaluate(translator: Translator, search: SearchConfig) -> Quality:
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

    return evaluate
