"""Weights are read from their file when needed, and equal the saved ones."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from transduce.checkpoint import Checkpoint, save_model
from transduce.errors import CheckpointError
from transduce.model_folder import WEIGHTS, open_model


@pytest.fixture
def folder(trained_checkpoint: Checkpoint, tmp_path: Path) -> Path:
    save_model(trained_checkpoint, tmp_path / "model")
    return tmp_path / "model"


def test_an_opened_model_equals_the_saved_one(
    folder: Path, trained_checkpoint: Checkpoint
) -> None:
    opened, saved = open_model(folder), trained_checkpoint
    assert (opened.config, opened.step) == (saved.config, saved.step)
    assert opened.tokenizer == saved.tokenizer
    arrays = opened.arrays
    assert set(arrays) == set(saved.arrays) == set(saved.weights)
    for name, array in saved.arrays.items():
        assert np.array_equal(arrays[name], array)


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_replaced_or_removed_file_can_still_be_read(
    folder: Path, trained_checkpoint: Checkpoint, change: str
) -> None:
    opened = open_model(folder)
    shutil.rmtree(folder)
    if change == "replaced":
        folder.mkdir()
        (folder / WEIGHTS).write_bytes(b"another")
    for name, array in trained_checkpoint.arrays.items():
        assert np.array_equal(opened.arrays[name], array)


def test_a_file_that_is_overwritten_is_refused(folder: Path) -> None:
    opened = open_model(folder)
    path = folder / WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    with path.open("r+b") as file:
        file.write(content + b"more")
    message = "must stay as they are while they are in use, but were overwritten"
    with pytest.raises(CheckpointError, match=message):
        _ = opened.arrays["embedding.weight"]
