"""A checkpoint stores model and training state exactly, or neither."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from transduce import checkpoint
from transduce.checkpoint import (
    Progress,
    TrainingState,
    load_model,
    load_training_state,
    save_tensors,
    save_training,
)
from transduce.errors import CheckpointError

TENSORS, PROGRESS = "training.safetensors", "training.json"


@pytest.fixture
def state() -> TrainingState:
    return TrainingState(
        progress=Progress(
            step=80, epoch=3, update=4, recent_loss=2.1, lowest_loss=1 / 3
        ),
        tensors={
            "exp_avg_sq.embedding.weight": torch.rand(3, 4),
            "exp_avg.embedding.weight": torch.randn(3, 4),
        },
    )


@pytest.fixture
def folder(trained_checkpoint, state, tmp_path):
    save_training(trained_checkpoint, state, tmp_path / "step-00000080")
    return tmp_path / "step-00000080"


def test_a_state_read_is_the_state_saved(folder, state):
    loaded = load_training_state(folder)
    assert loaded.progress == state.progress
    assert loaded.tensors.keys() == state.tensors.keys()
    assert all(torch.equal(loaded.tensors[k], state.tensors[k]) for k in state.tensors)


def test_a_state_of_an_older_format_has_another_name_for_cross_attention(folder):
    name = "exp_avg.decoder_layers.0.{}_attention.project_query.weight"
    tensor = torch.rand(2, 3)
    save_tensors({name.format("memory"): tensor}, folder / TENSORS)
    found = load_training_state(folder).tensors
    assert list(found) == [name.format("cross")]
    assert torch.equal(found[name.format("cross")], tensor)


def test_a_state_of_an_older_format_has_no_plateau(folder, state):
    content = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
    del content["plateau_factor"], content["lowest_dev_loss"]
    (folder / PROGRESS).write_text(json.dumps(content), encoding="utf-8")
    assert load_training_state(folder).progress == state.progress


def test_a_state_may_have_a_plateau_but_no_tensors(trained_checkpoint, tmp_path):
    progress = Progress(step=80, plateau_factor=0.01, lowest_dev_loss=1 / 3)
    state = TrainingState(progress=progress, tensors={})  # as of plain SGD
    save_training(trained_checkpoint, state, tmp_path / "saved")
    assert load_training_state(tmp_path / "saved") == state


def test_a_checkpoint_is_a_model_too(folder, trained_checkpoint):
    assert load_model(folder).step == trained_checkpoint.step


def test_model_and_state_are_saved_together_or_not_at_all(
    folder, trained_checkpoint, state, monkeypatch
):
    def refuse_state(tensors: dict[str, torch.Tensor], path: Path) -> None:
        if path.name == TENSORS:
            raise OSError(28, "No space left on device")
        save_tensors(tensors, path)

    monkeypatch.setattr(checkpoint, "save_tensors", refuse_state)
    later = replace(state, progress=Progress(step=90))
    with pytest.raises(CheckpointError, match="free some space"):
        save_training(trained_checkpoint, later, folder)
    assert load_training_state(folder).progress.step == 80


@pytest.mark.parametrize("name", [TENSORS, PROGRESS])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_state_is_refused(folder, name, damage):
    path = folder / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=f"^{path}: .* missing or damaged"):
        load_training_state(folder)


@pytest.mark.parametrize("content", [{"steps": 3}, {"step": 3, "lines": 7}], ids=str)
def test_a_progress_record_of_another_form_is_refused(folder, content):
    (folder / PROGRESS).write_text(json.dumps(content), encoding="utf-8")
    message = f"^{folder / PROGRESS}: must hold a run's progress, but does not; use"
    with pytest.raises(CheckpointError, match=message):
        load_training_state(folder)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("value", ["80", None, 1.5])
def test_a_progress_value_of_another_type_is_refused(folder, value):
    content = {**asdict(Progress()), "step": value}
    (folder / PROGRESS).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match="must hold a run's progress"):
        load_training_state(folder)


def test_truncated_tensors_are_found_even_if_the_size_is_right(folder):
    path = folder / TENSORS
    save_tensors({"exp_avg.embedding.weight": torch.zeros(3)}, path)
    content = path.read_bytes()
    path.write_bytes(b"\xff" * 16 + content[16:])
    with pytest.raises(CheckpointError, match="missing or damaged"):
        load_training_state(folder)
