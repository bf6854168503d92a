"""Marian folder that a test may change, and what is no file."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def folder(marian_folder, tmp_path) -> Path:
    """Copy of the Marian folder."""
    return shutil.copytree(marian_folder, tmp_path / "marian")


@pytest.fixture(params=["pipe", "folder", "link to nowhere"])
def put_no_file(request) -> Callable[[Path], None]:
    """Function that puts something that is no file in the place of one."""

    def put(path: Path) -> None:
        match request.param:
            case "pipe":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
            case _:
                path.symlink_to(path.parent / "nowhere")

    return put
