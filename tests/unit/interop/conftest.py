"""Marian folder that a test may change."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(marian_folder, tmp_path) -> Path:
    """Copy of the Marian folder."""
    return shutil.copytree(marian_folder, tmp_path / "marian")
