"""Several processes train the same model as one, and end together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from transduce.checkpoint import load_model
from transduce.experiments.run_folder import RunFolder
from waiting import children_of, runs, wait_until

# Updates of three to five batches, with dropout; saved often enough to be killed.
SETTINGS = (
    "model.dropout=0.3",
    "model.attention_dropout=0.2",
    "model.relu_dropout=0.2",
    "batching.source_tokens=200",
    "batching.target_tokens=200",
    "batching.batch_tokens=60",
    # Where a gradient is only rounding error, Adam divides by its epsilon.
    "training.epsilon=0.0001",
    "training.learning_rate_scale=0.1",
    # Later, rounding may switch a ReLU unit, and the weights diverge a little.
    "training.steps=18",
    "training.checkpoint_steps=6",
)
TRANSDUCE = (sys.executable, "-m", "transduce")


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*TRANSDUCE, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def succeed(process: subprocess.Popen[str]) -> str:
    """Wait for a process to succeed; return its output."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return output


@pytest.fixture(scope="module")
def train(corpus_files: tuple[Path, Path]):
    """Start a run in a number of processes."""
    source, target = map(str, corpus_files)

    def begin(out: Path, devices: int, *settings: str) -> subprocess.Popen[str]:
        files = ("--source", source, "--target", target)
        how = ("--preset", "tiny", "--precision", "fp32", "--device", "cpu")
        return started(
            *("train", *how, *files, "--out", str(out), "--devices", str(devices)),
            *("--set", *SETTINGS, *settings),
        )

    return begin


@pytest.fixture(scope="module")
def alone(train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "run"
    process = train(out, 1)
    succeed(process)
    return out


def assert_close(run: Path, expected: Path) -> None:
    found, wanted = load_model(run), load_model(expected)
    assert found.step == wanted.step
    torch.testing.assert_close(
        dict(found.weights), dict(wanted.weights), atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("devices", [2, 4])
def test_several_processes_train_the_same_model_as_one(
    train, alone: Path, tmp_path: Path, devices: int
) -> None:
    process = train(tmp_path / "run", devices)
    output = succeed(process)
    assert output.count("Model: ") == 1
    assert_close(tmp_path / "run", alone)
    log = [
        [entry for entry in RunFolder(path).read_log() if entry["kind"] == "step"]
        for path in (tmp_path / "run", alone)
    ]
    assert [e["step"] for e in log[0]] == [e["step"] for e in log[1]]
    assert [e["loss"] for e in log[0]] == pytest.approx(
        [e["loss"] for e in log[1]], rel=1e-4
    )


def test_two_processes_clip_and_lower_the_rate_like_one(
    train, corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = map(str, corpus_files)
    settings = (
        "training.optimizer=nesterov",
        "training.momentum=0.9",
        "training.clip_norm=0.5",
        "training.schedule=plateau",
        "training.learning_rate=0.5",
        "training.learning_rate_scale=1",
        "training.least_rate=0.4",
        "training.steps=12",
        *("--dev-source", source, "--dev-target", target),
    )
    logs = []
    for devices in (1, 2):
        out = tmp_path / str(devices)
        succeed(train(out, devices, *settings))
        logs.append([e for e in RunFolder(out).read_log() if e["kind"] == "step"])
    assert_close(tmp_path / "2", tmp_path / "1")
    for name in ("loss", "gradient_norm", "learning_rate"):
        assert [e[name] for e in logs[1]] == pytest.approx(
            [e[name] for e in logs[0]], rel=1e-3
        )


def test_torchrun_can_start_the_processes(
    alone: Path, corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = map(str, corpus_files)
    command = (
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", "2", "-m", "transduce", "train", "--preset", "tiny"),
        *("--source", source, "--target", target, "--out", str(tmp_path / "run")),
        *("--precision", "fp32", "--device", "cpu", "--set", *SETTINGS),
    )
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert_close(tmp_path / "run", alone)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_all_processes_end_when_one_is_killed_and_any_number_can_resume(
    train, alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = train(run, 2)
    while not RunFolder(run).checkpoints() and process.poll() is None:
        time.sleep(0.01)
    os.kill(children_of(process.pid)[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors == (
        "transduce: Process 2 of 2 was killed "
        "(SIGKILL), and the others were ended. Continue with: transduce train --out "
        f"{run} --resume --device cpu --devices 2\n"
    )
    again = started("train", "--out", str(run), "--resume", "--device", "cpu")
    succeed(again)
    assert_close(run, alone)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_all_processes_save_and_end_when_their_launcher_is_killed(
    train, alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = train(run, 2, "training.steps=100000")
    while not RunFolder(run).checkpoints() and process.poll() is None:
        time.sleep(0.01)
    workers = children_of(process.pid)
    process.kill()
    _, errors = process.communicate(
        timeout=60
    )  # until the workers have closed the pipes
    assert len(workers) == 2
    wait_until(lambda: not any(map(runs, workers)))
    assert errors.count("Training was stopped after step") == 1
    assert (run / "stopped").is_dir()
    again = started(
        *("train", "--out", str(run), "--resume", "--device", "cpu"),
        *("--set", "training.steps=100000"),
    )
    while (line := again.stdout.readline()) and "Continuing after step" not in line:
        pass
    assert line
    again.kill()
    again.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_all_processes_stop_on_request(
    train, alone: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    process = train(run, 2)
    while not RunFolder(run).checkpoints() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2, errors
    assert errors.count("Training was stopped after step") == 1
    assert "Traceback" not in errors
    again = started(
        *("train", "--out", str(run), "--resume", "--device", "cpu", "--devices", "2")
    )
    succeed(again)
    assert_close(run, alone)


def test_a_user_error_is_reported_once(tmp_path: Path) -> None:
    process = started(
        *("train", "--preset", "tiny", "--source", "no", "--target", "no"),
        *("--out", str(tmp_path / "run"), "--devices", "2", "--device", "cpu"),
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert len(errors.strip().splitlines()) == 1
    assert "no: the file cannot be read" in errors


def test_zero_processes_are_refused(tmp_path: Path) -> None:
    process = started("train", "--out", str(tmp_path), "--devices", "0")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "`--devices` must be at least 1, but is 0." in errors
