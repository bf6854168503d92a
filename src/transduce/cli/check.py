"""`transduce check`: a report on a corpus before training."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from transduce.cli.options import Assignments, Files, require_both, run_config
from transduce.errors import DataError
from transduce.experiments.corpus_check import (
    Advice,
    CorpusReport,
    EpochReport,
    Overlap,
    PairReport,
    SplitReport,
    advise,
    check_corpus,
)
from transduce.experiments.corpus_survey import Finding, LengthBin, SideReport
from transduce.experiments.preparation import CorpusFiles

WIDTH = 80
"""Where there is no terminal: the same output everywhere."""
LABEL_WIDTH, CELL_WIDTH, BAR_WIDTH = 26, 12, 22


def check(
    *,
    source: Files,
    target: Files,
    dev_source: Files = (),
    dev_target: Files = (),
    preset: str = "base",
    config: Path | None = None,
    settings: Assignments = (),
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Report on a parallel corpus before training.

    The exit code is 0 if training would start, and 2 if it would not.

    Parameters
    ----------
    source
        Text files, one sentence a line, plain or gzip.
    target
        Their translations, line by line.
    dev_source
        Held-out text, to be scored while training.
    dev_target
        Its translations.
    preset
        The settings that training would begin with.
    config
        A TOML file of settings that change the preset.
    settings
        Single settings, such as batching.max_length=100.
    json_output
        Print one JSON object.
    """
    require_both(dev_source, dev_target)
    files = CorpusFiles(
        source=source, target=target, dev_source=dev_source, dev_target=dev_target
    )
    run = run_config(preset, config, settings)
    with Console(stderr=True).status("Reading the corpus..."):
        report = check_corpus(files, run)
    advice = advise(report)
    if json_output:
        print(json.dumps(as_json(report, advice), indent=2, default=str))
    else:
        CorpusDisplay(Console(highlight=False, soft_wrap=True)).show(report, advice)
    refuse(advice)


def as_json(report: CorpusReport, advice: Sequence[Advice]) -> dict[str, Any]:
    """The report and the advice as one object."""
    return {
        "would_train": not any(each.is_refusal for each in advice),
        **asdict(report),
        "advice": [asdict(each) for each in advice],
    }


def refuse(advice: Sequence[Advice]) -> None:
    """`DataError` if training would refuse the corpus."""
    refusals = [each for each in advice if each.is_refusal]
    if refusals:
        reasons = f" for {len(refusals)} reasons, first" if len(refusals) > 1 else ""
        raise DataError(f"Training would refuse this corpus{reasons}: {refusals[0]}")


class CorpusDisplay:
    """A report as text: coloured on a terminal, plain and the same elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = console.width if console.is_terminal else WIDTH
        can_draw = console.is_terminal and not console.options.ascii_only
        self._block = "█" if can_draw else "#"

    def show(self, report: CorpusReport, advice: Sequence[Advice]) -> None:
        """Print the figures, the places of what is odd, and the verdict."""
        splits = [split for split in (report.training, report.dev) if split is not None]
        self._show_files(splits)
        self._show_sides(splits)
        self._show_pairs([split.pairs for split in splits])
        if report.overlap is not None:
            self._show_overlap(report.overlap, splits[-1].pairs)
        self._show_places(report)
        self._show_lengths(report.training.lengths)
        self._show_batches(report)
        self._show_verdict(advice)

    def _show_files(self, splits: Sequence[SplitReport]) -> None:
        for name, split in zip(SPLITS, splits, strict=False):
            for side, report in (("source", split.source), ("target", split.target)):
                paths = " ".join(map(str, report.files))
                self._print(f"{name} {side}".ljust(LABEL_WIDTH) + f"  {paths}")

    def _show_sides(self, splits: Sequence[SplitReport]) -> None:
        sides = [side for split in splits for side in (split.source, split.target)]
        self._heading("Lines", [f"{name}" for name in SPLITS[: len(splits)]])
        self._row("", ["source", "target"] * len(splits))
        for label, figure in SIDE_FIGURES.items():
            self._row(label, [figure(side) for side in sides])

    def _show_pairs(self, splits: Sequence[PairReport]) -> None:
        self._heading("Pairs", SPLITS[: len(splits)])
        for label, count in PAIR_COUNTS.items():
            cells = [_count_and_share(count(pairs), pairs.total) for pairs in splits]
            is_odd = label not in SOUND and any(map(count, splits))
            self._row(label, [cell for pair in cells for cell in pair], ODD * is_odd)

    def _show_places(self, report: CorpusReport) -> None:
        findings = [item for item in _findings(report) if item[1].count]
        if findings:
            self._heading("Places", [])
        for label, finding in findings:
            rest = finding.count - len(finding.examples)
            more = [f"and {rest:,} more"] if rest else []
            self._row(f"{label}: {finding.count:,}", [])
            self._paragraph(", ".join([*finding.examples, *more]), "    ", "dim")
