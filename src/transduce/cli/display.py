"""How a training run shows itself in a terminal, or in a file of its output."""

from transduce.cli.terminal import ProgressDisplay
from transduce.experiments.dev_corpus import DevScore
from transduce.experiments.observation import RunResult, RunStart
from transduce.experiments.presets import RunConfig
from transduce.preparation.prepared_corpus import PreparedCorpus
from transduce.training.trainer import StepReport

SMOOTHING = 0.95
"""Of the speed shown: the share of what was shown before."""


class TrainingDisplay(ProgressDisplay):
    """What is shown of a run while it goes, and at its end."""

    def __init__(self) -> None:
        super().__init__()
        self._num_steps = 0
        self._tokens_per_second = 0.0

    def started(self, start: RunStart) -> None:
        if start.corpus is not None:
            self._show_corpus(start.corpus)
            self.console.print(_languages(start.config))
        self.console.print(
            f"Model: {start.num_parameters:,} parameters, vocabulary of "
            f"{start.config.model.vocab_size:,}, on {start.hardware}"
        )
        self.console.print(_forecast(start))
        if start.fit.unfused is not None:
            self.warned(
                "PyTorch cannot compile the layers here, which would make training "
                f"faster: {start.fit.unfused}"
            )
        if start.first_step:
            self.console.print(f"Going on after step {start.first_step:,}.")
        self._num_steps = start.config.training.steps
        self.begin(start.first_step, self._num_steps)

    def _show_corpus(self, corpus: PreparedCorpus) -> None:
        self.console.print(f"Training pairs: {corpus.training}")
        if corpus.dev is not None:
            self.console.print(f"Dev pairs: {corpus.dev}")
        if corpus.shared_with is not None:
            self.console.print(f"Prepared before, and shared: {corpus.shared_with}")

    def stepped(self, report: StepReport) -> None:
        speed = report.num_target_tokens / report.seconds
        before = self._tokens_per_second or speed
        self._tokens_per_second = SMOOTHING * before + (1 - SMOOTHING) * speed
        figures = (
            f"loss {report.loss:.3f}",
            f"perplexity {report.perplexity:.1f}",
            f"{self._tokens_per_second:,.0f} tokens/s",
        )
        self.show(f"step {report.step:,}/{self._num_steps:,}", figures, report.step)

    def scored(self, score: DevScore) -> None:
        self.console.print(f"step {score.step:,}: dev: {_figures(score)}")

    def warned(self, message: str) -> None:
        self.console.print(f"Warning: {message}")

    def went_back(self, step: int) -> None:
        self.begin(step, self._num_steps)

    def finished(self, result: RunResult) -> None:
        """Say what came of the run."""
        what = f"The average of the last {result.num_averaged} checkpoints"
        if result.num_averaged == 1:
            what = "The model"
        if result.dev is not None:
            self.console.print(
                f"{what}: dev: {_figures(result.dev)}, by beam search\n  "
                f"{result.dev.quality.details}"
            )
        self.console.print(
            f"{what} is in {result.model}; the learning curve is {result.picture}."
        )


def _figures(score: DevScore) -> str:
    return f"loss {score.loss:.3f}, perplexity {score.perplexity:.2f}, {score.quality}"


def _languages(config: RunConfig) -> str:
    """The languages that the model will keep, or how to name them."""
    languages = config.languages
    options = ["--source-language"] * (languages.source is None)
    if config.model.target_vocab_size is None:  # it writes text, no trees
        options += ["--target-language"] * (languages.target is None)
    hint = f" (name them by {' and '.join(options)})" if options else ""
    return f"Languages: {languages}{hint}"


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
