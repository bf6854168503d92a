"""A folder of Marian's that may be changed."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(marian_folder, tmp_path) -> Path:
    """A copy that may be damaged."""
    return shutil.copytree(marian_folder, tmp_path / "marian")
