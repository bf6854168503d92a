"""Dev corpus: the scores of a run's models on it, and the choice of the best model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from transduce.checkpoint import Checkpoint, save_model, with_search_and_shortlist_of
from transduce.data.batches import Batcher
from transduce.data.corpus_files import MAIN_DEV
from transduce.data.dataset import open_dataset, require_ids_below
from transduce.data.prepared_corpus import DEV, DEV_SOURCE, DEV_TARGET
from transduce.decoding.parser import score_parses
from transduce.decoding.translator import Translator
from transduce.errors import START_FROM_RUN, DataError
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_corpus import dev_languages
from transduce.experiments.run_folder import LENGTHENED, Entry, RunFolder
from transduce.files import reason, require_file
from transduce.metrics.scores import (
    choose_tokenization,
    corpus_bleu,
    corpus_chrf,
    mean_gleu,
)
from transduce.model_folder import BEST
from transduce.search_config import SearchConfig
from transduce.text.corpus import read_text
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
DEV_SET = "dev set"
"""Kind of log entries with the scores of checkpoints on further dev sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Score of the translations or parses of the dev corpus."""

    metric: Metric
    name: str
    """Name of the metric for display, with its tokenizer."""
    score: float
    """Score in percent."""
    details: str = field(repr=False)
    """Lines for display, with signatures."""
    log: dict[str, Any] = field(repr=False)
    """Values that the log records besides the score."""
    others: str = field(default="", repr=False)
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

    def dropped_for(self, best: "DevScore") -> str:
        """Message that this average is dropped for a better checkpoint."""
        chosen = "checkpoint" if best.step else "start"
        comparison = self._comparison(best, "does worse")
        return f"{comparison}. The {chosen} is the run's model."

    def kept_despite(self, best: "DevScore", *, by_loss: bool) -> str | None:
        """Message that this average is kept although a checkpoint ranks above it.

        None if the two are tied. With `by_loss`, only losses rank them, because no
        score is meaningful yet.
        """
        if best.loss < self.loss - LOSS_TOLERANCE:
            worse, equal = "has a higher loss", "its score is not lower"
            if by_loss:
                equal = "such low scores are not compared"
        elif by_loss or self.quality.score == best.quality.score:
            return None
        else:
            worse, equal = "has a lower score", "its loss is not clearly higher"
        return f"{self._comparison(best, worse)}, but {equal}, so the average is kept."

    def _comparison(self, best: "DevScore", worse: str) -> str:
        other = f"the checkpoint of step {best.step:,} alone"
        if best.step == 0:
            other = "the model that the run started from"
        return (
            f"The average of the last {self.num_averaged} checkpoints {worse} on "
            f"the dev corpus ({self.quality}, loss {self.loss:.3f}) than {other} "
            f"({best.quality}, loss {best.loss:.3f})"
        )

    def entry(self) -> dict[str, Any]:
        """Values for the log."""
        is_usual = self.is_main and self.name == MAIN_DEV
        name = {} if is_usual else {"name": self.name}
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

    entries: list[Entry]
    best_by: BestBy

    def is_best(self, entry: Entry) -> bool:
        """Whether a new entry beats all earlier ones."""
        metric = self._metric([*self.entries, entry])
        return all(_rank(entry, metric) > _rank(each, metric) for each in self.entries)

    def since_best(self) -> int:
        """Number of checkpoints after the last one that was a gain.

        A gain is a score above all earlier ones, or the same score with a loss that is
        lower by more than `LOSS_TOLERANCE` than at the last gain. With the default
        `best_by`, while BLEU is not yet meaningful, a loss below all earlier ones by
        more than the tolerance is a gain, too. Without any meaningful score, only such
        a loss is a gain.
        """
        metric = self._metric(self.entries)
        is_early = self.best_by == "auto" and metric in ("chrf", "loss")
        best, lowest, last_gain = -math.inf, math.inf, 0
        for number, entry in enumerate(self.entries):
            score, loss = _rank(entry, metric)[0], _number(entry["loss"])
            if is_early and metric == "loss":
                score = 0.0  # the same for all: no score is meaningful yet
            is_lower = loss < lowest - LOSS_TOLERANCE and (is_early or score == best)
            if score > best or is_lower:
                last_gain = number
                lowest = min(lowest, loss) if is_early else loss
            best = max(best, score)
        return len(self.entries) - 1 - last_gain if self.entries else 0

    def beats(self, one: Entry, other: Entry) -> bool:
        """Whether the first entry is better than the other."""
        metric = self._metric([*self.entries, one, other])
        return _rank(one, metric) > _rank(other, metric)

    def ranks_by_loss(self, one: Entry, other: Entry) -> bool:
        """Whether the loss alone ranks the two entries, and no score."""
        return self._metric([*self.entries, one, other]) == "loss"

    def beats_clearly(self, one: Entry, other: Entry) -> bool:
        """Whether the first entry, the best of many, is also clearly better by loss.

        The best of many scores is partly luck: such a checkpoint can be ahead of an
        average that is a whole point better on other text. Loss varies less. While
        scores are equal or not yet meaningful, the result is False, whatever the loss.
        """
        is_lower = _number(one["loss"]) < _number(other["loss"]) - LOSS_TOLERANCE
        return is_lower and self.beats_by_score(one, other)

    def beats_by_score(self, one: Entry, other: Entry) -> bool:
        """Whether the first entry has a better score, whatever its loss.

        If `best_by` is "loss", the loss is the score.
        """
        metric = self._metric([*self.entries, one, other])
        if metric == "loss" and self.best_by == "auto":
            return False  # no score is meaningful yet
        return _rank(one, metric)[0] > _rank(other, metric)[0]

    def _metric(self, entries: Sequence[Entry]) -> str:
        """Name of the metric that ranks these entries."""
        if self.best_by != "auto":
            return self.best_by
        if any("f1" in entry for entry in entries):
            return "f1"
        if any(_has_enough_matches(entry) for entry in entries):
            return "bleu"
        chrf = max((entry.get("chrf", 0.0) for entry in entries), default=0.0)
        return "chrf" if chrf > UNRELATED_CHRF else "loss"


def _has_enough_matches(entry: Entry) -> bool:
    """Whether enough 4-grams match for BLEU to compare checkpoints.

    Logs of older versions do not count the matches; any BLEU above 0 is enough.
    """
    matched = entry.get("matched_4_grams")
    return entry.get("bleu", 0.0) > 0 if matched is None else matched >= ENOUGH_4_GRAMS


def _rank(entry: Entry, metric: str) -> tuple[float, float]:
    """Sort key of a log entry, greater is better: the score, then the negative loss."""
    loss = _number(entry["loss"])
    return -loss if metric == "loss" else entry.get(metric, 0.0), -loss


def _number(loss: float | None) -> float:
    """Loss of a log entry: JSON has no infinity, so the log has null in its place."""
    return math.inf if loss is None else loss


Evaluate = Callable[[Translator, SearchConfig], Quality]
"""Translates or parses the dev sources, and scores the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevCorpus:
    """Encoded dev corpus, and the evaluation of its translations or parses."""

    name: str
    is_main: bool
    """Whether the dev set chooses the best checkpoint."""
    batcher: Batcher
    evaluate: Evaluate
    device: torch.device

    def score(
        self, checkpoint: Checkpoint, trainer: Trainer, search: SearchConfig
    ) -> DevScore:
        """Compute the loss with the trainer's model, and search with the checkpoint.

        Both must have the same weights.
        """
        validation = trainer.validate(self.batcher)
        return DevScore(
            step=checkpoint.step,
            loss=validation.loss,
            perplexity=validation.perplexity,
            quality=self.evaluate(Translator(checkpoint, self.device), search),
            name=self.name,
            is_main=self.is_main,
        )


def open_dev_corpora(
    folder: RunFolder, config: RunConfig, device: torch.device
) -> list[DevCorpus]:
    """Open the dev sets of a run; the first one chooses the best checkpoint.

    Raises `DataError` if a file is damaged.
    """
    paths = folder.dev_corpora
    if not paths:
        return []
    tags = load_tokenizer(folder.path / TOKENIZER_FILE).language_tags
    languages = dev_languages(config, folder.files(), has_tags=bool(tags))
    model, trees = config.model, folder.dev_trees
    dev_sets: list[DevCorpus] = []
    for (name, path), language in zip(paths.items(), languages, strict=True):
        dataset = open_dataset(path)
        target_size = model.target_vocab_size or model.vocab_size
        require_ids_below(dataset, path, model.vocab_size, target_size)
        if trees is None and folder.symbols() is not None:
            raise DataError(
                f"{path}: must hold the dev trees, by which a parser is scored, but "
                "lacks them; restore the folder."
            )
        dev_sets.append(
            DevCorpus(
                name=name,
                is_main=not dev_sets,
                batcher=Batcher(dataset, config.batching, seed=0),
                evaluate=_translation_evaluation(path, config, language)
                if trees is None
                else _parsing_evaluation(trees),
                device=device,
            )
        )
    return dev_sets


def _dev_text(folder: Path) -> tuple[list[str], list[str]]:
    """Read sources and references of a dev corpus; `DataError` if they are damaged."""
    paths = folder / DEV_SOURCE, folder / DEV_TARGET
    try:
        for path in paths:
            require_file(path)
    except (OSError, ValueError) as error:
        raise _damaged_text(folder, reason(error)) from None
    sources, references = (list(read_text([path])) for path in paths)
    if len(sources) != len(references) or not sources:
        raise _damaged_text(
            folder, f"{len(references):,} references of {len(sources):,} sources"
        )
    return sources, references


def _damaged_text(folder: Path, fault: str) -> DataError:
    return DataError(
        f"{folder}: the text of the dev corpus is missing or damaged ({fault}); start "
        "a new run in another folder."
    )


def _translation_evaluation(
    folder: Path, config: RunConfig, language: str | None
) -> Evaluate:
    """Return the evaluation of translations by BLEU and chrF."""
    sources, references = _dev_text(folder)
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
    """Return the evaluation of parses by F1."""
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


class DevScoring:
    """Scores of a run's models on its dev sets, and the choice of the best one."""

    def __init__(
        self, folder: RunFolder, config: RunConfig, device: torch.device
    ) -> None:
        self._folder = folder
        self._training = config.training
        self._search = config.search
        self.dev_sets = open_dev_corpora(folder, config, device)
        """Dev sets; the first one chooses the best checkpoint."""
        if not self.dev_sets and self._entries():
            raise DataError(
                f"{folder.path / DEV}: must hold the dev corpus by which the run was "
                f"scored, but is missing; restore it, or {START_FROM_RUN}."
            )

    def score(self, checkpoint: Checkpoint, trainer: Trainer) -> list[DevScore]:
        """Score a checkpoint by greedy search, and save it if it is the best so far.

        The trainer's model must have the same weights.
        """
        search = self._search.greedy()
        scores = [dev.score(checkpoint, trainer, search) for dev in self.dev_sets]
        for score in sorted(scores, key=lambda score: score.is_main):
            if score.is_main and self._history(score.step).is_best(score.entry()):
                best = self._folder.path / BEST
                save_model(with_search_and_shortlist_of(checkpoint, best), best)
            # Log last: a crash before this leaves no score of a model not saved.
            kind = "dev" if score.is_main else DEV_SET
            self._folder.log.append(kind, **score.entry())
        return scores

    def search(
        self,
        trainer: Trainer,
        model: Checkpoint,
        dev_sets: Sequence[DevCorpus],
        num_averaged: int = 1,
    ) -> list[DevScore]:
        """Score a model by the search of its settings, which users will use, too.

        Puts the model's weights into the trainer's model.
        """
        trainer.model.load_state_dict(dict(model.weights))
        search = replace(self._search, num_best=1)
        scores = [dev.score(model, trainer, search) for dev in dev_sets]
        return [replace(score, num_averaged=num_averaged) for score in scores]

    def is_scored(self, step: int) -> bool:
        """Whether the log has the score of the checkpoint of a step."""
        return any(entry["step"] == step for entry in self._entries())

    def loss_at(self, step: int) -> float | None:
        """Return the loss of the checkpoint of a step, or None if it has no score."""
        losses = [e["loss"] for e in self._entries() if e["step"] == step]
        return _number(losses[-1]) if losses else None

    def is_patience_spent(self, step: int) -> bool:
        """Whether the last `patience` checkpoints, or more, were no gain."""
        training = self._training
        # Training that ended before its updates by reward would never make them.
        has_more = training.reward != "none" and not training.is_by_reward(step)
        # Unlike the paper: training can end early, once checkpoints are no longer
        # better on the dev corpus. Off by default: `training.patience`.
        if training.patience is None or has_more:
            return False
        lengthened = self._folder.log.entries(LENGTHENED)
        since = max((entry["step"] for entry in lengthened), default=-1)
        history = self._history(step)
        # The checkpoints before a run was lengthened have already ended it.
        num_after = sum(entry["step"] > since for entry in history.entries)
        return min(history.since_best(), num_after) >= training.patience

    def is_chosen(self, best: DevScore, average: DevScore) -> bool:
        """Whether the best checkpoint is the run's model in place of the average."""
        history, ours, mean = self._history(average.step), best.entry(), average.entry()
        # Updates by reward may raise the loss, so the score alone decides among them.
        if self._training.is_by_reward(average.step):
            return history.beats_by_score(ours, mean)
        return history.beats_clearly(ours, mean)

    def kept_despite(self, best: DevScore, average: DevScore) -> str | None:
        """Message that the average is kept although a checkpoint ranks above it."""
        history, ours, mean = self._history(average.step), best.entry(), average.entry()
        if not history.beats(ours, mean):
            return None
        return average.kept_despite(best, by_loss=history.ranks_by_loss(ours, mean))

    def _history(self, step: int) -> DevHistory:
        """Dev scores of the checkpoints of a phase: by likelihood, or by reward.

        Phases are not compared, as the reward may raise the loss.
        """
        training = self._training
        phase = training.is_by_reward(step)
        entries = self._entries()
        return DevHistory(
            entries=[e for e in entries if training.is_by_reward(e["step"]) == phase],
            best_by=training.best_by,
        )

    def _entries(self) -> list[Entry]:
        return self._folder.log.entries("dev", "loss")
