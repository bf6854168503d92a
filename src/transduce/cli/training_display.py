"""Progress of a training run: on a terminal, and in TensorBoard's logs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transduce.cli.terminal import ProgressDisplay
from transduce.data.corpus_files import MAIN_DEV
from transduce.data.corpus_mixture import CorpusMixture
from transduce.data.prepared_corpus import PreparedCorpus
from transduce.data.treebank import TreeAugmentationConfig
from transduce.errors import (
    WEEK,
    RequestError,
    counted,
    duration,
    missing_package,
    percent,
)
from transduce.experiments.dev_corpus import DevScore
from transduce.experiments.pipeline import RunResult, RunStart
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_folder import TENSORBOARD
from transduce.machine import describe_threads
from transduce.report.report import Column, Table, columns
from transduce.report.terminal import show_table
from transduce.text.languages import english_name
from transduce.text.pair_changes import SHARES, TextAugmentationConfig
from transduce.training.config import TrainingConfig
from transduce.training.memory import MicroBatchSize
from transduce.training.trainer import StepReport

BUSY_SHARE = 0.1
"""Share of time lost to other programs above which a forecast is uncertain."""


SMOOTHING = 0.95
"""Weight of the previous value in the displayed speed."""


def _threads(start: RunStart) -> str:
    """Describe the threads of a training on a CPU."""
    return f", {describe_threads()}" if start.hardware.device.type == "cpu" else ""


class TrainingDisplay(ProgressDisplay):
    """Progress and result of a training run."""

    def __init__(self) -> None:
        super().__init__()
        self._num_steps = 0
        self._tokens_per_second = 0.0
        self._is_by_reward = False
        self._stage: int | None = None
        self._search = ""

    def trying(self) -> None:
        self.console.print("Trying an update, to forecast memory and time ...")

    def started(self, start: RunStart) -> None:
        if start.corpus is not None:
            self._show_corpus(start, start.corpus)
            if start.corpus.target_vocab_size is None:  # text, not trees
                self.console.print(_languages(start.config))
        self.console.print(
            f"Model: {start.num_parameters:,} parameters, vocabulary of "
            f"{start.config.model.vocab_size:,}, on {start.hardware}{_threads(start)}"
        )
        if start.origin is not None:
            self.console.print(_origin(start))
            self.console.print(_adaptation(start.config.training))
        if start.config.augmentation.used:
            self.console.print(_text_changes(start.config.augmentation))
        self.console.print(_forecast(start))
        self.console.print(_checkpoints(start.config.training))
        self._advise(start)
        if start.micro_batch.compile_error is not None:
            self.warned(
                "PyTorch cannot compile the layers here, which would make training "
                f"faster: {start.micro_batch.compile_error}"
            )
        if start.steps_done:
            self.console.print(f"Continuing after step {start.steps_done:,}.")
        self._num_steps = start.config.training.steps
        is_greedy = start.config.search.beam_size == 1
        self._search = "greedy search" if is_greedy else "beam search"
        self.begin(start.steps_done, self._num_steps)

    def _advise(self, start: RunStart) -> None:
        """Print the warnings of `transduce check` before the first step."""
        for advice in start.advice:
            self.warned(str(advice))
        if start.advice:
            self.console.print("`transduce check` shows the details and the lines.")
        if start.seconds_left > WEEK:
            self.warned(
                f"training takes about {duration(start.seconds_left)} here; choose a "
                "smaller preset, fewer steps (training.steps) or a GPU."
            )

    def _show_corpus(self, start: RunStart, corpus: PreparedCorpus) -> None:
        self.console.print(f"Training pairs: {corpus.training}")
        for line in _mixture(start.config, corpus):
            self.console.print(line)
        if corpus.target_vocab_size is not None:
            augmentation = start.config.treebank.augmentation
            self.console.print(_augmented(corpus.training.total, augmentation))
        if corpus.dev is None:
            self.console.print("Dev pairs: none, so nothing is scored while training")
        elif corpus.is_held_out:
            self.console.print(
                f"Dev pairs: {corpus.dev}, held out of the {_first_corpus(corpus)} "
                "(--no-dev trains on all)"
            )
        else:
            name = "" if corpus.dev_name == MAIN_DEV else f" of {corpus.dev_name}"
            self.console.print(f"Dev pairs{name}: {corpus.dev}")
        for name, counts in corpus.dev_sets.items():
            self.console.print(f"Dev pairs of {name}: {counts}")
        if corpus.shared_with is not None:
            self.console.print(
                f"Prepared corpus, shared with other runs: {corpus.shared_with}"
            )

    def stepped(self, report: StepReport) -> None:
        speed = report.num_target_tokens / report.seconds
        before = self._tokens_per_second or speed
        self._tokens_per_second = SMOOTHING * before + (1 - SMOOTHING) * speed
        figures = [
            f"loss {report.loss:.3f}",
            f"perplexity {report.perplexity:.1f}",
            f"{self._tokens_per_second:,.0f} tokens/s",
        ]
        if report.shares is not None:
            figures.append(_shares(report.shares))
        if self._stage is not None and report.stage != self._stage:
            self.console.print(f"step {report.step:,}: stage {report.stage} begins.")
        self._stage = report.stage
        if report.reward is not None:
            self._show_reward(report.step)
            figures.insert(0, f"reward {report.reward:.3f}")
        self.show(f"step {report.step:,}/{self._num_steps:,}", figures, report.step)

    def _show_reward(self, step: int) -> None:
        """Print once that updates by reward begin."""
        if not self._is_by_reward:
            self._is_by_reward = True
            self.console.print(
                f"step {step:,}: from here on updates raise the expected reward of "
                "samples (training.reward); they take longer."
            )

    def scored(self, score: DevScore) -> None:
        step = f"step {score.step:,}" if score.step else "start"
        self.console.print(f"{step}: {score.name}: {_figures(score)}")

    def warned(self, message: str) -> None:
        self.console.print(f"Warning: {message}")

    def went_back(self, step: int) -> None:
        self._is_by_reward = False
        self.begin(step, self._num_steps)

    def finished(self, result: RunResult) -> None:
        """Print the result of the run."""
        what = f"The average of the last {result.num_averaged} checkpoints"
        if result.num_averaged == 1:
            what = "The model"
        if result.dev is not None:
            self.console.print(
                f"{what}: {result.dev.name}: {_figures(result.dev)}, by {self._search}"
                f"\n  {result.dev.quality.details}"
            )
            for score in result.dev_sets:
                self.console.print(f"  {score.name}: {_figures(score)}")
            if result.before:
                after = (result.dev, *result.dev_sets)
                show_table(_comparison(result.before, after), self.console)
        self.console.print(
            f"{what} is in {result.model}; the learning curve is {result.picture}."
        )


def _first_corpus(corpus: PreparedCorpus) -> str:
    """Name the corpus whose pairs are held out as the dev corpus."""
    first = next(iter(corpus.corpora), None)
    return "training corpus" if first is None else f"corpus {first}"


def _mixture(config: RunConfig, corpus: PreparedCorpus) -> Iterator[str]:
    """Describe the shares of the corpora of a mixture, stage by stage."""
    if not corpus.corpora:
        return
    sizes = [each.kept for each in corpus.corpora.values()]
    mixture = CorpusMixture(config.corpora, config.stages, sizes)
    for stage in mixture.stages:
        end = config.training.steps if stage.end is None else stage.end
        where = f"Stage {stage.number}, to update {end:,}"
        draws = dict(zip(mixture.names, stage.draws, strict=True))
        shares = {name: n / sum(stage.draws) for name, n in draws.items() if n}
        passes = ", ".join(
            f"{name} {draws[name] / size:.2g} times"
            for name, size in zip(mixture.names, sizes, strict=True)
            if draws[name]
        )
        yield (
            f"{where if config.stages else 'Mixture'}: {_shares(shares)} of the pairs; "
            f"an epoch has {sum(stage.draws):,} ({passes})"
        )


def _shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {percent(share, 1)}" for name, share in shares.items())


def _comparison(before: Sequence[DevScore], after: Sequence[DevScore]) -> Table:
    """Table of the scores of the start and of the run's model on each dev set.

    A change is the difference of the rounded scores in the table.
    """
    rows: list[tuple[str, ...]] = []
    for old, new in zip(before, after, strict=True):
        for metric, scores in _metrics(old, new).items():
            one, other = (round(score, 2) for score in scores)
            shown = (f"{one:.2f}", f"{other:.2f}", f"{other - one:+.2f}")
            rows.append((new.name, metric, *shown))
    dev_set, *others = columns("dev set", "start", "model", "change")
    metric_column = Column(name="metric", is_text=True)
    return Table(columns=(dev_set, metric_column, *others), rows=tuple(rows))


def _metrics(old: DevScore, new: DevScore) -> dict[str, tuple[float, float]]:
    """Scores of two models by metric."""
    found = {new.quality.name: (old.quality.score, new.quality.score)}
    if "chrf" in new.quality.log:
        found["chrF2"] = (old.quality.log["chrf"], new.quality.log["chrf"])
    return {**found, "perplexity": (old.perplexity, new.perplexity)}


def _figures(score: DevScore) -> str:
    return f"loss {score.loss:.3f}, perplexity {score.perplexity:.2f}, {score.quality}"


def _origin(start: RunStart) -> str:
    """Describe the model that a run starts from."""
    optimizer = "continues" if start.keeps_optimizer else "starts anew"
    return (
        f"Start: {start.origin}, with its tokenizer, sizes and search; the optimizer "
        f"{optimizer}"
    )


def _adaptation(training: TrainingConfig) -> str:
    """Describe learning rate, warm-up and length of a run from a model."""
    rate = f"by equation 3, times {training.learning_rate_scale:g}"
    if training.learning_rate is not None:
        rate = f"{training.learning_rate:g} (training.learning_rate)"
    length = f"{counted(training.steps, 'update')} (training.steps)"
    if (patience := training.patience) is not None:
        length = (
            f"at most {length}, fewer after {counted(patience, 'checkpoint')} without "
            "a gain on the dev corpus (training.patience)"
        )
    return (
        f"Learning rate: {rate}, after a warm-up of "
        f"{counted(training.warmup_steps, 'update')} (training.warmup_steps)\n"
        f"Length: {length}"
    )


def _checkpoints(training: TrainingConfig) -> str:
    """Describe the interval of checkpoints, and the updates that the average covers."""
    kept, every = training.keep_checkpoints, training.checkpoint_steps
    if every is None:
        often = duration(60 * training.checkpoint_minutes)
        return f"Checkpoints: every {often}; the average is of the last {kept}"
    often, first = counted(every, "update"), training.likelihood_steps
    last = [*range(every, training.steps, every)[-kept:], training.steps][-kept:]
    # With a reward, only checkpoints after an update by reward are averaged.
    averaged = [step for step in last if step > first or training.reward == "none"]
    if len(averaged) == 1:
        return f"Checkpoints: every {often}; the average is of the last one alone"
    before = (averaged[0] - 1) // every * every
    share = percent(1 - before / training.steps)
    return (
        f"Checkpoints: every {often}; the average is of the last {len(averaged)}, from "
        f"the last {share} of the training"
    )


def _languages(config: RunConfig) -> str:
    """Describe the model's languages, and how to set missing ones."""
    languages = config.languages
    tags = {
        "--source-language": languages.source,
        "--target-language": languages.target,
    }
    options = [option for option, tag in tags.items() if tag is None]
    hint = f" (name them by {' and '.join(options)})" if options else ""
    others = [
        english_name(language)
        for language in dict.fromkeys(each.target_language for each in config.corpora)
        if language is not None and language != languages.target
    ]
    among = f", and {', '.join(others)} (--target-language chooses)" if others else ""
    return f"Languages: {languages}{among}{hint}"


def _augmented(total: int, config: TreeAugmentationConfig) -> str:
    """Describe the number of variants among the training trees, and their kinds."""
    if not config.copies:
        return "Variants of trees: none (treebank.augmentation.copies)"
    num_trees = total // (config.copies + 1)
    return (
        f"Variants of trees: {config.copies:,} of each of the "
        f"{counted(num_trees, 'tree')}, {total - num_trees:,} in all "
        f"(treebank.augmentation): {percent(config.cut)} are a constituent alone, "
        f"{percent(config.replaced_constituents)} of the others have one of another "
        f"tree, and {percent(config.replaced_words)} of the words are replaced"
    )


def _text_changes(config: TextAugmentationConfig) -> str:
    """Describe the changes of the training pairs."""
    rates = {
        name: percent(value) if name in SHARES else f"{value:g}"
        for name, value in config.used.items()
    }
    named = ", ".join(f"{name} {rate}" for name, rate in rates.items())
    return f"Augmentation: {named}, new in each epoch"


def _forecast(start: RunStart) -> str:
    """Describe an update, and the forecast of the run's time."""
    (source, target), fit = start.update_tokens, start.micro_batch
    num_steps = f"{start.config.training.steps - start.steps_done:,}"
    updates = f"{num_steps} more, each" if start.steps_done else num_steps
    among = f" on {start.num_processes} processes" if start.num_processes > 1 else ""
    cut = f", cut to {fit.max_positions:,} {fit.unit} at a time" if fit.was_cut else ""
    time_left = duration(start.seconds_left)
    time_left = time_left if time_left.startswith("less") else f"about {time_left}"
    return (
        f"Updates: {updates} of about {source:,} source and {target:,} target "
        f"tokens{among}{cut}\n"
        f"Forecast: {fit.peak_bytes / 1e9:.1f} GB of memory per process, {time_left}, "
        f"without checkpoints{_reservation(fit)}"
    )


def _reservation(fit: MicroBatchSize) -> str:
    """Describe the uncertainty of a forecast made while other programs ran."""
    if fit.waiting_share < BUSY_SHARE:
        return ""
    return (
        f"; other programs used the processor for {percent(fit.waiting_share)} of "
        "the trial, and are not in the forecast"
    )


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
        self._folder = run / TENSORBOARD
        self._writer: Any = None  # until the run has a folder

    def started(self, start: RunStart) -> None:
        self._go_on_after(start.steps_done)

    def stepped(self, report: StepReport) -> None:
        figures = {
            "loss": report.loss,
            "perplexity": report.perplexity,
            "learning_rate": report.learning_rate,
            "tokens_per_second": report.num_target_tokens / report.seconds,
            "padding": report.padding,
        }
        for name in ("gradient_norm", "reward"):
            if (value := getattr(report, name)) is not None:
                figures[name] = value
        self._write("training", figures, report.step)
        if report.shares is not None:
            self._write("share", dict(report.shares), report.step)

    def scored(self, score: DevScore) -> None:
        figures = {
            "loss": score.loss,
            "perplexity": score.perplexity,
            score.quality.metric: score.quality.score,
        }
        self._write(score.name, figures, score.step)

    def warned(self, message: str) -> None: ...

    def went_back(self, step: int) -> None:
        self._writer.close()
        self._go_on_after(step)

    def finished(self, result: RunResult) -> None:
        self._writer.close()

    def _go_on_after(self, step: int) -> None:
        # Hide figures of later steps, written before a crash.
        self._writer = self._new_writer(
            self._folder, purge_step=step + 1, flush_secs=FLUSH_SECONDS
        )

    def _write(self, group: str, figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(f"{group}/{name}", value, step)
