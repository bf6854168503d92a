"""How a training run shows itself in a terminal, or in a file of its output."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from transduce.experiments.dev_corpus import DevScore
from transduce.experiments.pipeline import RunResult, RunStart
from transduce.training.trainer import StepReport

SMOOTHING = 0.95
"""Of the speed shown: the share of what was shown before."""
LINE_SECONDS = 30.0
"""Between progress lines where there is no terminal to draw on."""


class TrainingDisplay:
    """A progress bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._console = Console(
            highlight=False, soft_wrap=True, markup=False, emoji=False
        )
        self._progress = Progress(
            TextColumn("step {task.completed:,}/{task.total:,}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, figures="", start=False)
        self._tokens_per_second = 0.0
        self._line_at = time.monotonic()

    def __enter__(self) -> "TrainingDisplay":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def started(self, start: RunStart) -> None:
        if start.preparation is not None:
            self._console.print(f"Training pairs: {start.preparation.training}")
            if start.preparation.dev is not None:
                self._console.print(f"Dev pairs: {start.preparation.dev}")
        self._console.print(
            f"Model: {start.num_parameters:,} parameters, vocabulary of "
            f"{start.config.model.vocab_size:,}, on {start.hardware}"
        )
        self._console.print(_forecast(start))
        if start.first_step:
            self._console.print(f"Going on after step {start.first_step:,}.")
        self._progress.update(
            self._task,
            completed=start.first_step,
            total=start.config.training.steps,
        )
        self._progress.start()
        self._progress.start_task(self._task)

    def stepped(self, report: StepReport) -> None:
        speed = report.num_target_tokens / report.seconds
        before = self._tokens_per_second or speed
        self._tokens_per_second = SMOOTHING * before + (1 - SMOOTHING) * speed
        figures = (
            f"loss {report.loss:.3f}  perplexity {report.perplexity:.1f}  "
            f"{self._tokens_per_second:,.0f} tokens/s"
        )
        self._progress.update(self._task, completed=report.step, figures=figures)
        is_time = time.monotonic() - self._line_at > LINE_SECONDS
        if is_time and not self._console.is_terminal:
            self._line_at = time.monotonic()
            self._console.print(f"step {report.step:,}: {figures}")

    def scored(self, score: DevScore) -> None:
        of = f"average of {score.num_averaged}" if score.num_averaged > 1 else "dev"
        self._console.print(
            f"step {score.step:,}: {of}: loss {score.loss:.3f}, perplexity "
            f"{score.perplexity:.2f}, {score.bleu.name} {score.bleu.score:.2f}"
        )

    def warned(self, message: str) -> None:
        self._console.print(f"Warning: {message}")

    def finished(self, result: RunResult) -> None:
        """Say what came of the run."""
        what = f"The average of the last {result.num_averaged} checkpoints"
        if result.num_averaged == 1:
            what = "The model"
        self._console.print(
            f"{what} is in {result.model}; the learning curve is {result.picture}."
        )
        if result.dev is not None:
            self._console.print(f"Dev, beam search: {result.dev.bleu}")


def _forecast(start: RunStart) -> str:
    """What an update is, and what the rest of the run takes by the trial of a batch."""
    batching, fit = start.config.batching, start.fit
    positions = batching.source_tokens + batching.target_tokens
    num_steps = start.config.training.steps - start.first_step
    hours = num_steps * positions * fit.seconds / start.num_processes / 3600
    among = f" on {start.num_processes} processes" if start.num_processes > 1 else ""
    cut = f", cut to {fit.max_positions:,} positions at a time" if fit.was_cut else ""
    time_left = f"{hours:,.1f} hours" if hours >= 1 else f"{hours * 60:.0f} minutes"
    return (
        f"Updates: {num_steps:,} of about {batching.source_tokens:,} source and "
        f"{batching.target_tokens:,} target tokens{among}{cut}\n"
        f"Forecast: {fit.peak_bytes / 1e9:.1f} GB of memory a process, about "
        f"{time_left}, checkpoints apart"
    )
