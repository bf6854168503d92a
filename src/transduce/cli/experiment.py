"""Input and progress of experiments of many runs."""

from collections.abc import Sequence
from pathlib import Path

from transduce.cli.data import DataDisplay
from transduce.cli.files import Files
from transduce.cli.terminal import ProgressDisplay
from transduce.data.assembly import assemble
from transduce.data.corpus_files import CorpusFiles
from transduce.data.named_corpora import NamedCorpus, named_corpus
from transduce.errors import ConfigError, DataError
from transduce.experiments.table3 import ExperimentProgress, RowRun


class ExperimentDisplay(ProgressDisplay):
    """Progress of the trainings of Table 3."""

    def __init__(self, runs: Sequence[RowRun]) -> None:
        super().__init__()
        self._num_runs = len(runs)
        self._num_steps = sum(run.config.training.steps for run in runs)
        self._has_begun = False

    def went_on(self, progress: ExperimentProgress) -> None:
        """Start counting from existing results."""
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
            raise DataError(f"{path}: a corpus must be a file, but there is none.")
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
        "A --corpus must be given by its name, or by files (--source, --target, "
        "--dev-source and --dev-target), but not by both."
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
