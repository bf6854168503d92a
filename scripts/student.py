"""Run the student's notebook and write it as a page, with its output and its figures.

    python scripts/student.py                      # writes docs/student/index.md
    python scripts/student.py --out FOLDER         # writes FOLDER/index.md

The cells run in order in one namespace, as in Jupyter, but need only Matplotlib.
"""

import argparse
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

NOTEBOOK = Path(__file__).parents[1] / "docs" / "student" / "transformer.ipynb"
STYLE = {"svg.hashsalt": "transduce", "savefig.bbox": "tight"}
NOTE = """
This page is the notebook [`transformer.ipynb`](transformer.ipynb) with its output; \
`python scripts/student.py` makes it.
"""


def page(cells: list[dict[str, Any]], folder: Path) -> str:
    """Return the page of the cells' text, code and output; save the figures."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    parts: list[str] = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts += [f"```python\n{source}\n```", *_run(source, namespace, folder)]
    parts.insert(1, NOTE.strip())
    return "\n\n".join(parts) + "\n"


def _run(source: str, namespace: dict[str, Any], folder: Path) -> list[str]:
    """Run a cell; return its printed lines and its figures as Markdown."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, str(NOTEBOOK), "exec"), namespace)
    parts = [f"```text\n{text}```"] if (text := printed.getvalue()) else []
    for number in plt.get_fignums():
        figure = plt.figure(number)
        label = str(figure.get_label())
        file = label.lower().replace(" ", "-") + ".svg"
        figure.savefig(folder / file, metadata={"Date": None})
        plt.close(figure)
        parts.append(f"![{label}]({file})")
    return parts


def main() -> None:
    """Write the page and its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=NOTEBOOK.parent)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    matplotlib.use("Agg")
    matplotlib.rcParams.update(STYLE)
    plt.show = lambda: None  # figures are saved after each cell
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    (folder / "index.md").write_text(page(cells, folder), encoding="utf-8")


if __name__ == "__main__":
    main()
