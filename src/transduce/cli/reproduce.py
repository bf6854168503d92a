"""`transduce reproduce`: the paper's tables, our figures beside those of the paper."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import torch
from rich.console import Console

from transduce.benchmark.machine import describe_machine
from transduce.checkpoint import write_folder
from transduce.device import keep_freed_memory
from transduce.errors import ConfigError
from transduce.experiments.tables.table1 import as_report, measure_table1
from transduce.report.content import Report
from transduce.report.markdown import write_markdown
from transduce.report.page import as_page
from transduce.report.terminal import show


def table1(*, out: Path, max_rounds: int = 40) -> None:
    """Measure what layers cost (section 4), beside the formulas of Table 1.

    The processor is used, in one thread, for some minutes; a busy one takes longer.

    Parameters
    ----------
    out
        A new folder for the report: Markdown with pictures, a page, and JSON.
    max_rounds
        Rounds of measurements at most; they end as soon as the exponents are steady.
    """
    if max_rounds < 1:
        raise ConfigError(f"`max_rounds` must be at least 1, but is {max_rounds}.")
    _require_new(out)
    keep_freed_memory()  # for it would be paid for again in every turn
    machine = describe_machine(("torch", "numpy"), torch.device("cpu"))
    with Console(stderr=True).status("Starting...") as status:
        table = measure_table1(
            machine=str(replace(machine, num_threads=1)),
            load=os.getloadavg()[0],
            max_rounds=max_rounds,
            on_progress=status.update,
        )
    _finish(as_report(table), asdict(table), out, "table1")


def _require_new(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"{out}: the output folder must be new or empty, but is not; choose "
            "another."
        )


def _finish(report: Report, figures: dict[str, object], out: Path, name: str) -> None:
    """Print the report, and write it in all its forms."""

    def write(folder: Path) -> None:
        write_markdown(report, folder, name)
        (folder / f"{name}.html").write_text(as_page(report), encoding="utf-8")
        text = json.dumps(figures, indent=2) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")

    write_folder(out, write)
    console = Console(highlight=False)
    show(report, console)
    console.print(f"The report is in {out}: {name}.md, {name}.html, {name}.json.")
