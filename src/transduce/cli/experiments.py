"""Experiments of several trainings: their corpus, progress and report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from transduce.cli.data import DataDisplay
from transduce.cli.files import Files, finish_report
from transduce.cli.terminal import ProgressDisplay
from transduce.data.corpus_files import CorpusFiles
from transduce.data.named_corpora import NamedCorpus, assemble, named_corpus
from transduce.device import WIDE, Hardware, choose_hardware
from transduce.errors import CheckpointError, ConfigError, DataError, neither_or_both
from transduce.experiments.contradictions import refuse_contradictions
from transduce.experiments.experiment import (
    EvaluationText,
    Experiment,
    ExperimentProgress,
    PresetRun,
    Run,
    RunsFailedError,
    Slot,
    Workers,
    is_final,
    kept_precision,
    locked,
    read_record,
    refuse_other_contents,
    run_all,
)
from transduce.experiments.pipeline import checked_settings
from transduce.experiments.presets import RunConfig
from transduce.files import require_new_folder
from transduce.machine import Precision
from transduce.report.report import Report
from transduce.settings import assigned_values

SEEDED = {"training.seed": "use --seeds"}
"""Setting that all experiments vary, and what to use instead."""
REPORT = "report"
"""Folder of an experiment's report."""

AnyRun = TypeVar("AnyRun", bound=Run)


def refuse_settings(assignments: Sequence[str], options: Mapping[str, str]) -> None:
    """Raise `ConfigError` for settings of an experiment that its options decide.

    `options` has what to do instead by a setting's full name, or that of its table.
    """
    for name, _ in assigned_values(assignments):
        instead = options.get(name) or options.get(name.partition(".")[0])
        if instead is not None:
            raise ConfigError(
                f"`{name}` must not be changed by --set in this experiment; {instead}."
            )


def refuse_contradictory(
    configs: Mapping[str, RunConfig], corpus: NamedCorpus | CorpusFiles
) -> None:
    """Raise `ConfigError` if settings of a row contradict each other.

    The corpus need not be downloaded yet, as it must be for `require_possible`.
    """
    files = corpus if isinstance(corpus, CorpusFiles) else _expected_files(corpus)
    for row, config in configs.items():
        with _errors_naming(row):
            refuse_contradictions(config, files)


def require_possible(
    runs: Sequence[PresetRun], files: CorpusFiles, hardware: Hardware
) -> None:
    """Raise the error with which a training of a row would be refused.

    Otherwise it would be raised only after hours of other trainings. Rows whose
    training has begun are not checked again.
    """
    first = {run.row: run for run in reversed(runs) if not run.has_begun}
    for row, run in reversed(first.items()):
        with _errors_naming(row):
            checked_settings(run.config, files, hardware, None, None)


def _expected_files(corpus: NamedCorpus) -> CorpusFiles:
    """Return names of the files that a corpus will have, all in this folder."""
    source, target, *_ = (Path(f"text.{each}") for each in corpus.languages)
    return CorpusFiles(
        source=(source,), target=(target,), dev_source=(source,), dev_target=(target,)
    )


@contextmanager
def _errors_naming(row: str) -> Iterator[None]:
    """Add the name of the row to an error about its settings."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{row}: {error}") from None


def kept_hardware(
    record: Path, device: str, precision: Precision, *, width: int = WIDE
) -> Hardware:
    """Choose the hardware of all trainings of an experiment.

    Precision "auto" is that of the experiment's record, if there is one.
    """
    recorded = read_record(record).get("precision")
    return choose_hardware(device, kept_precision(precision, recorded), width=width)


@contextmanager
def opened(out: Path, name: str, record: str, what: str) -> Iterator[tuple[int, ...]]:
    """Lock the folder of the experiment of `transduce reproduce NAME`; yield the lock.

    `record` is the name of the file with its settings, `what` describes the experiment.
    Raises `ConfigError` if the folder, or that of its report, holds anything else.
    """
    refuse_other_contents(out, record, what)
    require_new_folder(out / REPORT, overwrite=True, made_by=_command(name))
    with locked(out) as lock:
        yield lock


def complete(
    experiment: Experiment,
    runs: Sequence[AnyRun],
    slots: Sequence[Slot],
    lock: tuple[int, ...],
    read: Callable[[AnyRun], object],
) -> dict[str, str]:
    """Complete runs of an experiment; return the reason of each failure by name.

    `read` reads all results of a run. A run with damaged results has failed, so that
    the report has the others.
    """
    with ExperimentDisplay(runs) as display:
        workers = Workers(experiment, slots, lock)
        failures = run_all(runs, workers, display.went_on)
    for run in sound(runs, failures):
        try:
            read(run)
        except (CheckpointError, DataError) as error:
            failures[run.name] = str(error)
    return failures


def sound(runs: Sequence[AnyRun], failures: Mapping[str, str]) -> list[AnyRun]:
    """Return the runs that have not failed."""
    return [run for run in runs if run.name not in failures]


def replace_report(
    report: Report, figures: Mapping[str, object], out: Path, name: str
) -> None:
    """Print the report of an experiment, and write it in place of an older one."""
    finish_report(report, figures, out / REPORT, _command(name), overwrite=True)


def _command(name: str) -> str:
    """Return the words of a command, which identify its reports."""
    return f"reproduce {name}"


def require_all_done(runs: Sequence[Run], failures: Mapping[str, str]) -> None:
    """Raise `RunsFailedError` if a run has failed."""
    if failures:
        name, why = next(iter(failures.items()))
        final = {run.name for run in runs if run.name in failures and is_final(run)}
        can_retry = [name not in final for name in failures]
        again = " The same command tries them again." if any(can_retry) else ""
        if any(can_retry) and not all(can_retry):
            again = " The same command tries those again that did not diverge twice."
        raise RunsFailedError(
            f"All runs must be done, but {len(failures)} of {len(runs)} failed; the "
            f"first is {name}: {why}{again}"
        )


class ExperimentDisplay(ProgressDisplay):
    """Progress of the trainings of an experiment."""

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__()
        self._num_runs = len(runs)
        self._num_steps = sum(run.num_steps for run in runs)
        self._has_begun = False

    def went_on(self, progress: ExperimentProgress) -> None:
        """Show the progress; the first call begins the display at existing results."""
        if not self._has_begun:
            self.begin(progress.steps, self._num_steps)
            self._has_begun = True
        what = f"{progress.num_ended} of {self._num_runs} runs"
        self.show(what, progress.working, progress.steps)


def corpus_files(
    source: Files, target: Files, dev_source: Files, dev_target: Files
) -> CorpusFiles | None:
    """Return the user's corpus files, or None if none are given."""
    sides = (source, target, dev_source, dev_target)
    if not any(sides):
        return None
    if not all(sides):
        raise ConfigError(
            "Both sides of a corpus and of its held-out part must be given: --source, "
            "--target, --dev-source and --dev-target."
        )
    for path in (path for side in sides for path in side):
        if not path.is_file():
            raise DataError(f"{path}: a corpus must be a file, but is none.")
    return CorpusFiles(
        source=source, target=target, dev_source=dev_source, dev_target=dev_target
    )


def chosen_corpus(
    name: str | None, files: CorpusFiles | None
) -> NamedCorpus | CorpusFiles:
    """Return the named corpus or the files; exactly one must be given."""
    if name is not None and files is None:
        return named_corpus(name)
    if name is None and files is not None:
        return files
    raise ConfigError(
        "Either a named --corpus or files (--source, --target, --dev-source and "
        f"--dev-target) must be given, but {neither_or_both(are_given=bool(files))}"
    )


def fetched(corpus: NamedCorpus | CorpusFiles, folder: Path) -> CorpusFiles:
    """Return the files; a named corpus is downloaded and prepared if necessary."""
    if isinstance(corpus, CorpusFiles):
        return corpus
    with DataDisplay() as display:
        assembled = assemble(corpus, folder, display)
    source, target, *_ = corpus.languages
    return CorpusFiles(
        source=(assembled.path(corpus.train, source),),
        target=(assembled.path(corpus.train, target),),
        dev_source=(assembled.path(corpus.dev, source),),
        dev_target=(assembled.path(corpus.dev, target),),
    )


def fetched_tests(corpus: NamedCorpus, folder: Path) -> list[EvaluationText]:
    """Return the test texts of a named corpus."""
    with DataDisplay() as display:
        assembled = assemble(corpus, folder, display)
    source, target, *_ = corpus.languages
    return [
        EvaluationText.of(assembled.path(split, source), assembled.path(split, target))
        for split in corpus.tests
    ]
