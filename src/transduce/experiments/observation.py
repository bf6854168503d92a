"""What is told of a run while it goes, and to whom."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from transduce.data.prepared_corpus import PreparedCorpus
from transduce.device import Hardware
from transduce.experiments.corpus_check import Advice
from transduce.experiments.dev_corpus import DevScore
from transduce.experiments.presets import RunConfig
from transduce.training.micro_batch import Fit
from transduce.training.trainer import StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """What a run begins with."""

    config: RunConfig
    corpus: PreparedCorpus | None
    """None if the run is resumed."""
    num_parameters: int
    hardware: Hardware
    num_processes: int
    fit: Fit
    """Of the longest batch, cut as all processes cut it."""
    first_step: int
    advice: tuple[Advice, ...] = ()
    """Warnings about the corpus and the settings; for a new run only."""

    @property
    def seconds_left(self) -> float:
        """Forecast of the run's remaining seconds, without checkpoints."""
        batching = self.config.batching
        positions = batching.source_tokens + batching.target_tokens
        num_steps = self.config.training.steps - self.first_step
        return num_steps * positions * self.fit.seconds / self.num_processes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run ends with."""

    model: Path
    """Folder of the averaged model, or of the best one if that is better."""
    num_averaged: int
    """Checkpoints that the model is the average of."""
    dev: DevScore | None
    """Of that model, by beam search; none without a dev corpus."""
    picture: Path


@runtime_checkable
class RunObserver(Protocol):
    """Who is told how a run goes."""

    def started(self, start: RunStart) -> None: ...
    def stepped(self, report: StepReport) -> None: ...
    def scored(self, score: DevScore) -> None: ...
    def warned(self, message: str) -> None: ...
    def went_back(self, step: int) -> None: ...
    def finished(self, result: RunResult) -> None: ...


class Observers:
    """Several who are told the same, or nobody."""

    def __init__(self, *observers: RunObserver) -> None:
        self._observers = observers

    def started(self, start: RunStart) -> None:
        for observer in self._observers:
            observer.started(start)

    def stepped(self, report: StepReport) -> None:
        for observer in self._observers:
            observer.stepped(report)

    def scored(self, score: DevScore) -> None:
        for observer in self._observers:
            observer.scored(score)

    def warned(self, message: str) -> None:
        for observer in self._observers:
            observer.warned(message)

    def went_back(self, step: int) -> None:
        for observer in self._observers:
            observer.went_back(step)

    def finished(self, result: RunResult) -> None:
        for observer in self._observers:
            observer.finished(result)
