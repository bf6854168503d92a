"""`transduce data`: download and prepare a named corpus."""

import shlex
from pathlib import Path
from types import TracebackType

from rich.filesize import decimal

from transduce.cli.terminal import ProgressDisplay, program
from transduce.data.named_corpora import (
    DOWNLOADS,
    AssembledCorpus,
    NamedCorpus,
    RemoteFile,
    assemble,
    named_corpus,
)
from transduce.errors import counted


def data(name: str, /, *, out: Path, mirror: str | None = None) -> None:
    """Download and prepare a named corpus: line-aligned files, one per language.

    Give the same command again to continue after an interruption.

    For example:

        transduce data multi30k --out corpora/multi30k

    Parameters
    ----------
    name
        wmt14-en-de (1.7 GB), wmt14-en-fr (6.6 GB) or multi30k (2 MB).
    out
        Folder of the files; new, or left by an interrupted download.
    mirror
        Address (http or https) of a mirror with the same paths.
    """
    corpus = named_corpus(name)
    with DataDisplay() as display:
        assembled = assemble(corpus, out, display, mirror)
    display.finished(assembled)


class DataDisplay(ProgressDisplay):
    """Progress and result of a download."""

    def __init__(self) -> None:
        super().__init__()
        self._current = ""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self.console.print(
                "Downloads are kept; give the same command again to continue."
            )

    def received(self, file: RemoteFile, num_bytes: int, total: int | None) -> None:
        figures = decimal(num_bytes) + (f" of {decimal(total)}" if total else "")
        self._show(file.name, figures, num_bytes, total)
        if num_bytes == total:
            self.console.print(f"{file.name}: {decimal(num_bytes)}")

    def waiting(self, file: RemoteFile, reason: str, seconds: float) -> None:
        pause = counted(round(seconds), "second")
        self.console.print(f"{file.name}: {reason}; trying again in {pause}.")

    def assembled(self, split: str, num_lines: int) -> None:
        self._show(f"Writing {split}", counted(num_lines, "line"), num_lines, None)

    def finished(self, assembled: AssembledCorpus) -> None:
        """Print the files, and the next command."""
        corpus, folder = assembled.corpus, assembled.folder
        if assembled.is_new:
            self.console.print(f"{corpus.name} is in {folder}:")
        else:
            self.console.print(f"{folder} holds {corpus.name} already:")
        for split in corpus.splits:
            names = " ".join(
                assembled.path(split, language).name for language in corpus.languages
            )
            num_pairs = assembled.counts[split.name].num_pairs
            self.console.print(f"  {num_pairs:>12,} pairs  {names}")
        left_out = assembled.counts[corpus.train.name]
        self.console.print(
            f"Left out of {corpus.train.name}: "
            f"{counted(left_out.num_empty, 'pair')} with an "
            f"empty side, {left_out.num_no_text:,} that are not text.\n"
            f"The archives in {folder / DOWNLOADS} are no longer needed.\n"
            f"Terms: {corpus.terms}.\n\n"
            f"Train on it:\n{_training_command(corpus, assembled)}"
        )

    def _show(self, what: str, figures: str, completed: int, total: int | None) -> None:
        if what != self._current:
            self.begin(completed, total)
            self._current = what
        self.show(what, (figures,), completed)


def _training_command(corpus: NamedCorpus, assembled: AssembledCorpus) -> str:
    source, target, *_ = corpus.languages

    def quoted(path: Path) -> str:
        return shlex.quote(str(path))

    lines = (
        f"{program()} train --preset {corpus.preset}",
        f"--source {quoted(assembled.path(corpus.train, source))}",
        f"--target {quoted(assembled.path(corpus.train, target))}",
        f"--dev-source {quoted(assembled.path(corpus.dev, source))}",
        f"--dev-target {quoted(assembled.path(corpus.dev, target))}",
        f"--out runs/{corpus.name}",
    )
    return "  " + " \\\n    ".join(lines)
