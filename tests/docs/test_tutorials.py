"""The tutorials' code blocks run and print the output on their pages.

The first trains the quickstart's model, which takes minutes.
"""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tutorial_pages import difference, run_page

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
PAGES = ("first-model", "two-files", "treebank", "unspaced", "coming-from")
"""Tutorials in order: a page may use files of an earlier one."""
LEAST_BLEU = 95.0
"""Least BLEU of the quickstart's model on sentences that it has not seen."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tutorials")


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NO_COLOR": "1"}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_its_commands_print(
    name: str, folder: Path, environment: dict[str, str]
) -> None:
    port = _free_port()
    replaced = {
        "127.0.0.1:5000": f"127.0.0.1:{port}",
        "--port 5000": f"--port {port}",
    }
    page = TUTORIALS / f"{name}.md"
    for block, shown, printed in run_page(page, folder, environment, replaced):
        if shown is not None:
            told = difference(shown, printed)
            assert told is None, f"{name}.md, {block.text}\n{told}"
        if "transduce quickstart" in block.text:
            [score] = re.findall(r"^BLEU on unseen sentences: (\S+)$", printed, re.M)
            assert float(score) >= LEAST_BLEU


def test_nothing_of_a_page_runs_on_after_its_time(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    page = tmp_path / "page.md"
    command = "sh -c 'sleep 2; echo late >late'"
    page.write_text(f"<!-- run -->\n```sh\n{command}\n```\n", encoding="utf-8")
    with pytest.raises(subprocess.TimeoutExpired):
        list(run_page(page, tmp_path, environment, {}, limit_s=0.5))
    time.sleep(3)
    assert not (tmp_path / "late").exists()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
