"""The tutorials' code blocks run and print the output on their pages."""

import os
import socket
import sys
from pathlib import Path

import pytest

from tutorial_pages import difference, run_page

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
PAGES = ("first-model", "two-files", "treebank", "unspaced", "coming-from")
"""Tutorials in order: a page may use files of an earlier one."""
QUICKSTART = "TRANSDUCE_QUICKSTART"
"""Variable with a folder that holds the output of an earlier `transduce quickstart`.

The folder has the command's folder `quickstart`, and its printed text in `output`.
Training it takes minutes, which CI does anyway.
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tutorials")


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_its_commands_print(
    name: str, folder: Path, environment: dict[str, str]
) -> None:
    quickstart = os.environ.get(QUICKSTART)
    if name == "first-model" and quickstart is None:
        pytest.skip(
            f"needs a trained quickstart, in the folder that {QUICKSTART} names"
        )
    taken = f"cp -r {quickstart}/quickstart . && cat {quickstart}/output"
    replaced = {
        "transduce quickstart --out quickstart": taken,
        "127.0.0.1:5000": f"127.0.0.1:{(port := _free_port())}",
        "--port 5000": f"--port {port}",
    }
    page = TUTORIALS / f"{name}.md"
    for block, shown, printed in run_page(page, folder, environment, replaced):
        if shown is not None:
            told = difference(shown, printed)
            assert told is None, f"{name}.md, {block.text}\n{told}"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
