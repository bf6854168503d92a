"""Reports of commands, on the terminal and in a folder."""

import json
from collections.abc import Mapping
from pathlib import Path

from transduce.cli.terminal import table_console
from transduce.files import atomic_directory
from transduce.report.content import Report, write_markdown
from transduce.report.page import as_page
from transduce.report.terminal import show


def finish(report: Report, figures: Mapping[str, object], out: Path, name: str) -> None:
    """Print the report, and write it as Markdown, page and JSON."""

    with atomic_directory(out) as folder:
        write_markdown(report, folder, name)
        (folder / f"{name}.html").write_text(as_page(report), encoding="utf-8")
        text = json.dumps(figures, indent=2) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    console = table_console()
    show(report, console)
    console.print(f"The report is in {out}: {name}.md, {name}.html, {name}.json.")
