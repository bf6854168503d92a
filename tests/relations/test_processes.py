"""Several processes train the same model as one, and end together."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from transduce.checkpoint import load_model
from transduce.cli import main
from transduce.device import Hardware
from transduce.experiments import pipeline
from transduce.experiments.run_folder import RunFolder
from waiting import PATIENCE_S, children_of, runs, wait_until

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
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def launch(*arguments: str) -> int | str | None:
    """Call a command that starts processes, for some minutes; return its exit code."""

    def end(*_: object) -> None:
        raise AssertionError("The processes must end, but still run.")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(PATIENCE_S)
    try:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return ended.value.code


class ContinuedError(Exception):
    """The step after which a run continues."""


class StopsAtOnce:
    """Observer that ends a run when it has started."""

    stepped = scored = warned = went_back = finished = lambda *_: None

    def started(self, start: pipeline.RunStart) -> None:
        raise ContinuedError(start.steps_done)


def resume(run: Path) -> None:
    """Resume a run in this one process."""
    main(["train", "--out", str(run), "--resume", "--device", "cpu"])


AVERAGE = """
import os, signal, torch
from transduce.training.data_parallel import process_group

# PyTorch is imported once for both processes.
other = os.fork()
signal.alarm(300)
os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0" if other else "1"
with process_group(torch.device("cpu")) as processes:
    torch.manual_seed(processes.rank)
    model = torch.nn.ModuleDict(
        {"used": torch.nn.Linear(3, 2), "unused": torch.nn.Linear(2, 2)}
    )
    model.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert processes.data_parallel(model, torch.device("cpu")) is model
    torch.manual_seed(0)
    first = torch.nn.Linear(3, 2)
    assert torch.equal(model["used"].weight, first.weight)
    rows = torch.full((1 + processes.rank, 3), 1.0 + processes.rank)
    model["used"](rows).sum().backward()
    processes.average_gradients(model)
    # One row of 1 in the first process, two of 2 in the second.
    assert torch.equal(model["used"].weight.grad, torch.full((2, 3), (1 + 4) / 2))
    assert torch.equal(model["used"].bias.grad, torch.full((2,), (1 + 2) / 2))
    assert torch.equal(model["unused"].weight.grad, torch.zeros(2, 2))
    assert model.frozen.grad is None
if other:
    assert os.waitpid(other, 0)[1] == 0
"""


def test_processes_on_a_cpu_share_their_initial_weights_and_average_gradients() -> None:
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    done = subprocess.run(
        [sys.executable, "-c", AVERAGE],
        env={**os.environ, **group},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


@pytest.fixture(autouse=True)
def _one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def options(corpus_files: tuple[Path, Path]) -> tuple[str, ...]:
    """Options of a run of `transduce train`; settings may follow."""
    source, target = map(str, corpus_files)
    files = ("--source", source, "--target", target)
    how = ("--preset", "tiny", "--precision", "fp32", "--device", "cpu")
    return (*how, *files, "--set", *SETTINGS)


@pytest.fixture(scope="module")
def start(options: tuple[str, ...]) -> Callable[..., subprocess.Popen[str]]:
    """Function that starts a run of two processes."""

    def begin(out: Path, *settings: str) -> subprocess.Popen[str]:
        return started(
            "train", "--out", str(out), "--devices", "2", *options, *settings
        )

    return begin


@pytest.fixture(scope="module")
def alone(
    options: tuple[str, ...], quick_runs: None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Run of one process, which is this one."""
    out = tmp_path_factory.mktemp("alone") / "run"
    main(["train", "--out", str(out), *options])
    return out


def assert_close(run: Path, expected: Path) -> None:
    found, wanted = load_model(run), load_model(expected)
    assert found.step == wanted.step
    torch.testing.assert_close(
        dict(found.weights), dict(wanted.weights), atol=1e-5, rtol=1e-4
    )


def assert_logs_agree(run: Path, expected: Path) -> None:
    log = [
        [entry for entry in RunFolder(path).log.read() if entry["kind"] == "step"]
        for path in (run, expected)
    ]
    assert [e["step"] for e in log[0]] == [e["step"] for e in log[1]]
    assert [e["loss"] for e in log[0]] == pytest.approx(
        [e["loss"] for e in log[1]], rel=1e-4
    )


# Runs of two processes are below: started by torchrun, and stopped and resumed.
@pytest.mark.usefixtures("forked_processes")
def test_several_processes_train_the_same_model_as_one(
    options: tuple[str, ...],
    alone: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    where = ("--out", str(tmp_path / "run"), "--devices", "3")
    assert launch("train", *where, *options) == 0
    assert capfd.readouterr().out.count("Model: ") == 1
    assert_close(tmp_path / "run", alone)
    assert_logs_agree(tmp_path / "run", alone)


def test_two_processes_clip_lower_the_rate_and_sample_like_one(
    options: tuple[str, ...],
    quick_runs: None,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    source, target = map(str, corpus_files)
    settings = (
        "training.optimizer=nesterov",
        "training.momentum=0.9",
        "training.clip_norm=0.5",
        "training.schedule=plateau",
        "training.learning_rate=0.5",
        "training.learning_rate_scale=1",
        "training.min_learning_rate=0.4",
        "training.steps=12",
        "training.reward=gleu",
        "training.reward_steps=3",
        "training.reward_samples=3",
        *("--dev-source", source, "--dev-target", target),
    )
    command = ("train", *options, *settings, "--out")
    main([*command, str(tmp_path / "1")])
    assert launch(*command, str(tmp_path / "2"), "--devices", "2") == 0
    logs = [
        [e for e in RunFolder(tmp_path / each).log.read() if e["kind"] == "step"]
        for each in "12"
    ]
    assert_close(tmp_path / "2", tmp_path / "1")
    for name in ("loss", "gradient_norm", "learning_rate"):
        assert [e[name] for e in logs[1]] == pytest.approx(
            [e[name] for e in logs[0]], rel=1e-3
        )
    rewards = [log[-1]["reward"] for log in logs]
    assert rewards[1] == pytest.approx(rewards[0], abs=1e-3)
    flops = [log[-1]["flops"] for log in logs]
    assert flops[1] == pytest.approx(flops[0], rel=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_processes")
def test_two_processes_train_mixtures_by_reward(
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    source, target = map(str, corpus_files)
    code = launch(
        *("train", "--preset", "moe-ffn-multi30k", "--out", str(tmp_path / "run")),
        *("--source", source, "--target", target, "--device", "cpu"),
        *("--precision", "fp32", "--devices", "2", "--set"),
        *("tokenizer.vocab_size=400", "model.num_layers=1", "model.d_model=32"),
        *("model.experts.gating=batchwise", "training.reward=gleu"),
        *("training.steps=3", "training.warmup_steps=1", "training.reward_steps=3"),
        *("training.reward_samples=2", "training.checkpoint_steps=2"),
        *("batching.source_tokens=200", "batching.target_tokens=200"),
        *("batching.batch_tokens=60",),
    )
    assert code == 0
    assert "expected reward" in capfd.readouterr().out
    [report] = RunFolder(tmp_path / "run").log.entries("step", "reward")
    assert 0 <= report["reward"] < 1


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
    assert result.stdout.count("Model: ") == 1
    assert_close(tmp_path / "run", alone)
    assert_logs_agree(tmp_path / "run", alone)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_all_processes_end_when_one_is_killed_and_any_number_can_resume(
    start, alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = start(run)
    while not RunFolder(run).checkpoints() and process.poll() is None:
        time.sleep(0.01)
    os.kill(children_of(process.pid)[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert errors == (
        "transduce: Process 2 of 2 was killed "
        "(SIGKILL), and the others were ended. Continue with: transduce train --out "
        f"{run} --resume --device cpu --devices 2\n"
    )
    resume(run)
    assert_close(run, alone)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_all_processes_save_and_end_when_their_launcher_is_killed(
    start, tmp_path: Path, cpu: Hardware
) -> None:
    run = tmp_path / "run"
    process = start(run, "training.steps=100000")
    while not RunFolder(run).checkpoints() and process.poll() is None:
        time.sleep(0.01)
    workers = children_of(process.pid)
    process.kill()
    # Until the workers have closed the pipes.
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert len(workers) == 2
    wait_until(lambda: not any(map(runs, workers)))
    # It is saved apart, or as a checkpoint if one is due at this step.
    [step] = re.findall(r"Training was stopped after step ([\d,]+) of", errors)
    with pytest.raises(ContinuedError) as continued:
        pipeline.resume(run, cpu, StopsAtOnce())
    assert continued.value.args == (int(step.replace(",", "")),)


@pytest.mark.slow
def test_all_processes_stop_on_request(start, alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(run)
    while not RunFolder(run).checkpoints() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2, errors
    assert errors.count("Training was stopped after step") == 1
    assert "Traceback" not in errors
    again = ("train", "--out", str(run), "--resume", "--device", "cpu")
    assert launch(*again, "--devices", "2") == 0
    assert_close(run, alone)


def test_a_user_error_is_reported_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = launch(
        *("train", "--preset", "tiny", "--source", "no", "--target", "no"),
        *("--out", str(tmp_path / "run"), "--devices", "2", "--device", "cpu"),
    )
    errors = capfd.readouterr().err
    assert code == 2
    assert len(errors.strip().splitlines()) == 1
    assert "no: the file cannot be read" in errors


def test_zero_processes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--out", str(tmp_path), "--devices", "0", "--device", "cpu"])
    assert ended.value.code == 2
    assert "`--devices` must be at least 1, but is 0." in capsys.readouterr().err
