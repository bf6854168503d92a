import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.checkpoint import load_model


def test_the_model_is_the_mean_of_the_weights(
    succeeds: Callable[..., str], run: Path, tmp_path: Path
) -> None:
    members = sorted((run / "checkpoints").iterdir())
    out = succeeds("average", *members, "--out", tmp_path / "a" / "model")
    assert out == (
        f"The average of 2 checkpoints is in {tmp_path}/a/model:\n"
        f"  {members[0]} (step 10)\n  {members[1]} (step 20)\n"
    )
    found = load_model(tmp_path / "a" / "model").weights
    first, second = (load_model(member).weights for member in members)
    for name, weight in found.items():
        assert torch.allclose(weight, (first[name] + second[name]) / 2, atol=1e-7)


def is_mean(folder: Path, members: list[Path]) -> bool:
    weights = [load_model(member).weights for member in members]
    return all(
        torch.allclose(weight, sum(w[name] for w in weights) / len(members), atol=1e-7)
        for name, weight in load_model(folder).weights.items()
    )


def test_a_run_has_its_last_checkpoints_averaged(
    succeeds: Callable[..., str], run: Path, tmp_path: Path
) -> None:
    members = sorted((run / "checkpoints").iterdir())
    out = succeeds("average", run, "--out", tmp_path / "model")
    assert out.startswith("The average of 2 checkpoints is in")
    assert is_mean(tmp_path / "model", members)
    assert not is_mean(tmp_path / "model", members[1:])


def test_the_last_checkpoints_of_a_run_can_be_counted(
    succeeds: Callable[..., str], run: Path, tmp_path: Path
) -> None:
    *_, newest = sorted((run / "checkpoints").iterdir())
    succeeds("average", run, "--last", 1, "--out", tmp_path / "model")
    assert is_mean(tmp_path / "model", [newest])


def test_a_run_averages_the_number_of_checkpoints_in_its_settings(
    succeeds: Callable[..., str], run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    record = tmp_path / "run" / "config.json"
    content = json.loads(record.read_text())
    content["settings"]["training"]["keep_checkpoints"] = 1
    record.write_text(json.dumps(content))
    succeeds("average", tmp_path / "run", "--out", tmp_path / "model")
    newest = tmp_path / "run" / "checkpoints" / "step-00000020"
    assert is_mean(tmp_path / "model", [newest])


def test_checkpoints_before_updates_by_reward_are_averaged_by_request_alone(
    command: Callable[..., Any], run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    record = tmp_path / "run" / "config.json"
    content = json.loads(record.read_text())
    content["settings"]["training"] |= {"reward": "gleu", "reward_steps": 5}
    record.write_text(json.dumps(content))
    members = sorted((tmp_path / "run" / "checkpoints").iterdir())
    done = command("average", tmp_path / "run", "--out", tmp_path / "after")
    assert (done.code, done.err) == (0, "")
    assert is_mean(tmp_path / "after", members[1:])
    both = ("--last", 2, "--out", tmp_path / "both")
    done = command("average", tmp_path / "run", *both)
    assert done.err.startswith("Warning: some of the last 2 checkpoints of ")
    assert is_mean(tmp_path / "both", members)


@pytest.mark.parametrize("missing", ["step-00000010", "step-00000020"])
def test_a_run_that_lacks_one_of_its_last_checkpoints_is_not_averaged(
    refuses: Callable[..., str], run: Path, tmp_path: Path, missing: str
) -> None:
    shutil.copytree(run, tmp_path / "run")
    lacking = tmp_path / "run" / "checkpoints" / missing
    shutil.rmtree(lacking)
    message = refuses("average", tmp_path / "run", "--out", tmp_path / "model")
    assert message == (
        f"{lacking}: must be averaged with the run's other checkpoints, but is "
        "missing; restore it, or name the others in place of the run."
    )
    assert not (tmp_path / "model").exists()


def test_a_missing_checkpoint_that_is_not_counted_is_not_needed(
    succeeds: Callable[..., str], run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000010")
    options = ("--last", 1, "--out", tmp_path / "model")
    succeeds("average", tmp_path / "run", *options)
    assert is_mean(tmp_path / "model", [run / "checkpoints" / "step-00000020"])


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_run_without_a_log_or_killed_in_a_save_has_the_checkpoints_that_exist(
    succeeds: Callable[..., str], run: Path, tmp_path: Path, is_killed: bool
) -> None:
    shutil.copytree(run, tmp_path / "run")
    log = tmp_path / "run" / "log.jsonl"
    if is_killed:
        line = json.dumps({"kind": "saved", "step": 30})
        log.write_text(f"{log.read_text()}{line}\n")
    else:
        log.unlink()
    succeeds("average", tmp_path / "run", "--out", tmp_path / "model")
    assert is_mean(tmp_path / "model", sorted((run / "checkpoints").iterdir()))


def test_a_run_and_a_folder_are_averaged_together_and_named(
    succeeds: Callable[..., str], run: Path, tmp_path: Path
) -> None:
    members = [*sorted((run / "checkpoints").iterdir()), run / "best"]
    out = succeeds("average", run, run / "best", "--out", tmp_path / "model")
    assert all(f"  {member} (step " in out for member in members)
    assert is_mean(tmp_path / "model", members)


@pytest.mark.parametrize("last", [0, -1, 3, 10**9])
def test_more_checkpoints_than_there_are_cannot_be_averaged(
    refuses: Callable[..., str], run: Path, tmp_path: Path, last: int
) -> None:
    message = refuses("average", run, "--last", last, "--out", tmp_path / "model")
    assert message.startswith(
        f"--last must be from 1 to 2, the checkpoints that {run} holds, but is {last}"
    )
    assert not list(tmp_path.iterdir())


def test_a_model_folder_with_the_option_last_is_refused(
    refuses: Callable[..., str], run: Path, tmp_path: Path
) -> None:
    best = run / "best"
    message = refuses("average", best, "--last", 1, "--out", tmp_path / "model")
    assert message.startswith(f"--last must be used with a run folder, but {best} is")


def test_a_run_without_checkpoints_has_no_average(
    refuses: Callable[..., str], run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    message = refuses("average", tmp_path / "run", "--out", tmp_path / "model")
    assert "must have checkpoints to average, but has none yet" in message


def test_the_average_of_one_is_itself(
    succeeds: Callable[..., str], run: Path, tmp_path: Path
) -> None:
    member = run / "checkpoints" / "step-00000010"
    succeeds("average", member, "--out", tmp_path / "model")
    found, expected = load_model(tmp_path / "model"), load_model(member)
    assert found.step == 10
    assert all(torch.equal(found.weights[n], w) for n, w in expected.weights.items())


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_an_existing_output_is_not_overwritten(
    refuses: Callable[..., str], run: Path, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / "model"
    if kind == "folder":
        out.mkdir()
        (out / "precious").touch()
    else:
        out.write_text("precious")
    assert "must be new or empty, but is" in refuses("average", run, "--out", out)


def test_models_of_other_sizes_are_refused(
    refuses: Callable[..., str], run: Path, model: Path, tmp_path: Path
) -> None:
    message = refuses("average", run, model, "--out", tmp_path / "out")
    assert message.startswith("Averaged checkpoints must be of one model, but ")
    assert f"{run}/checkpoints/" in message
    assert f"{model} " in message
    assert not list(tmp_path.iterdir())


def test_a_missing_checkpoint_leaves_nothing_behind(
    refuses: Callable[..., str], run: Path, tmp_path: Path
) -> None:
    message = refuses("average", run, tmp_path / "no", "--out", tmp_path / "out")
    assert f"{tmp_path}/no: must be a model or a run" in message
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_given_twice_is_refused(
    refuses: Callable[..., str], run: Path, tmp_path: Path
) -> None:
    one, other = sorted((run / "checkpoints").iterdir())
    again = one.parent / ".." / "checkpoints" / one.name
    message = refuses("average", one, other, again, "--out", tmp_path / "out")
    assert message == (
        "Checkpoints to average must be different ones, but one is given twice: "
        f"{one}, {other}, {again}."
    )
    assert not list(tmp_path.iterdir())


def test_checkpoints_of_different_runs_are_refused(
    refuses: Callable[..., str],
    succeeds: Callable[..., str],
    run: Path,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    source, target = corpus_files
    succeeds(
        *("train", "--preset", "tiny", "--precision", "fp32", "--device", "cpu"),
        *("--source", source, "--target", target, "--out", tmp_path / "run"),
        *("--set", "training.steps=1", "training.seed=2"),
    )
    message = refuses("average", run, tmp_path / "run", "--out", tmp_path / "out")
    assert message.startswith(
        f"Averaged checkpoints must be of one run, but {run}/checkpoints/"
    )
    assert f" and {tmp_path}/run/checkpoints/" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("by_hand", [False, True])
def test_an_average_among_its_checkpoints_gives_a_warning(
    command: Callable[..., Any], run: Path, tmp_path: Path, by_hand: bool
) -> None:
    average = run / "averaged"
    if by_hand:
        average = tmp_path / "by-hand"
        assert command("average", run, "--out", average).code == 0
    outcome = command("average", run, average, "--out", tmp_path / "model")
    assert outcome.code == 0
    assert outcome.err == (
        f"Warning: {average} is an average itself, so its weight in the new "
        "average is that of one checkpoint.\n"
    )
    assert outcome.out.startswith("The average of 3 checkpoints is in")
