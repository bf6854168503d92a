"""TensorBoard logging of a run."""

from pathlib import Path
from typing import Any

from transduce.errors import RequestError, missing_package
from transduce.experiments.dev_corpus import DevScore
from transduce.experiments.pipeline import RunResult, RunStart
from transduce.training.trainer import StepReport

FOLDER = "tensorboard"
"""Name of the folder in a run."""
FLUSH_SECONDS = 2
"""Seconds between two writes; a crash loses at most these."""


class TensorBoardLog:
    """Observer that writes a run's figures for TensorBoard."""

    def __init__(self, run: Path) -> None:
        """Open the log; `RequestError` if TensorBoard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise RequestError(
                missing_package("`--tensorboard`", "tensorboard", "tensorboard")
            ) from None
        self._new_writer = SummaryWriter
        self._folder = run / FOLDER
        self._writer: Any = None  # until the run has a folder

    def started(self, start: RunStart) -> None:
        self._go_on_after(start.first_step)

    def stepped(self, report: StepReport) -> None:
        figures = {
            "loss": report.loss,
            "perplexity": report.perplexity,
            "learning_rate": report.learning_rate,
            "tokens_per_second": report.num_target_tokens / report.seconds,
            "padding": report.padding,
        }
        self._write("training", figures, report.step)

    def scored(self, score: DevScore) -> None:
        figures = {
            "loss": score.loss,
            "perplexity": score.perplexity,
            score.quality.metric: score.quality.score,
        }
        self._write("dev", figures, score.step)

    def warned(self, message: str) -> None: ...

    def went_back(self, step: int) -> None:
        self._writer.close()
        self._go_on_after(step)

    def finished(self, result: RunResult) -> None:
        self._writer.close()

    def _go_on_after(self, step: int) -> None:
        # Hide what was written after this step before a crash.
        self._writer = self._new_writer(
            self._folder, purge_step=step + 1, flush_secs=FLUSH_SECONDS
        )

    def _write(self, group: str, figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(f"{group}/{name}", value, step)
