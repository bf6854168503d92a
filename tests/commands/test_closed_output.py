"""Long commands lose nothing if their terminal closes or their reader ends."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import pytest

import transduce.cli
from fork_server import PROGRAM, ForkServer
from transduce.cli import PRINTS_RESULT
from transduce.experiments.run_folder import RunFolder
from waiting import wait_until

TRANSDUCE = (sys.executable, "-m", "transduce")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"}


@pytest.fixture
def training(corpus_files: tuple[Path, Path], tmp_path: Path) -> list[str]:
    """A command that trains in the folder `run`."""
    source, target = map(str, corpus_files)
    return [
        *(*TRANSDUCE, "train", "--preset", "tiny", "--device", "cpu"),
        *("--source", source, "--target", target, "--out", str(tmp_path / "run")),
        *("--dev-source", source, "--dev-target", target),
    ]


def shell(command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a shell command with arguments, available as "$@"."""
    return subprocess.run(
        ["bash", "-c", command, "bash", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )


def is_finished(run: Path) -> bool:
    return any(entry["kind"] == "final" for entry in RunFolder(run).log.read())


WARNING = (
    "Warning: Standard output cannot be written (Broken pipe); the command continues "
    "without it.\n"
)


def read_first_line(pipe: Path) -> None:
    with pipe.open("rb", buffering=0) as reader:
        reader.readline()


@pytest.mark.parametrize(
    ("has_both", "told"), [(False, WARNING), (True, "")], ids=["output", "both"]
)
def test_training_goes_on_when_its_reader_has_ended(
    forks: ForkServer, training: list[str], tmp_path: Path, has_both: bool, told: str
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Opening the pipe waits for a writer, which never comes if the training fails.
    reader = Thread(target=read_first_line, args=(pipe,), daemon=True)
    reader.start()
    ended = forks.run(
        PROGRAM, *training[2:], output=pipe, errors=pipe if has_both else None
    )
    assert (ended.returncode, ended.stderr) == (0, told)
    reader.join()
    assert is_finished(tmp_path / "run")


def test_training_goes_on_when_nothing_more_can_be_written(
    forks: ForkServer, training: list[str], tmp_path: Path
) -> None:
    full = Path("/dev/full")
    ended = forks.run(PROGRAM, *training[2:], output=full, errors=full)
    assert ended.returncode == 0
    assert is_finished(tmp_path / "run")


def test_training_goes_on_without_standard_output_and_errors(
    training: list[str], tmp_path: Path
) -> None:
    ended = shell('"$@" >&- 2>&-', *training)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert is_finished(tmp_path / "run")


@pytest.mark.parametrize("devices", [1, 2])
def test_training_saves_when_its_terminal_is_closed(
    training: list[str], tmp_path: Path, devices: int
) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        long = ["--set", "training.steps=100000", "--devices", str(devices)]
        os.execve(training[0], [*training, *long], ENVIRONMENT)
    said = b""
    while b"step 10: dev" not in said:
        said += os.read(terminal, 10_000)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    assert (tmp_path / "run" / "stopped" / "training.json").is_file()


def test_training_goes_on_under_nohup_when_its_terminal_is_closed(
    training: list[str], tmp_path: Path
) -> None:
    output = tmp_path / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            ["nohup", *training], stdout=file, stderr=file, env=ENVIRONMENT
        )
        wait_until(lambda: "Model: " in output.read_text())
        process.send_signal(signal.SIGHUP)
        assert process.wait() == 0
    assert is_finished(tmp_path / "run")


WITHOUT_OUTPUT = f"""
os.close(1)
sys.stdout = None  # as Python starts then
{PROGRAM}
"""


def test_only_a_result_on_standard_output_needs_it_open(
    forks: ForkServer, tmp_path: Path
) -> None:
    looks = ("transduce", "attention", str(tmp_path / "missing"), "--source", "one")

    def said(*options: str) -> str:
        ended = forks.run(WITHOUT_OUTPUT, *looks, *options)
        assert ended.returncode == 2
        return ended.stderr

    in_json, as_dash = said("--json"), said("--out=-")
    in_a_file = said(f"--out={tmp_path / 'page.html'}")
    assert "Standard output must be open" in in_json
    assert "Standard output must be open" in as_dash
    assert "missing: must be a model" in in_a_file


def test_commands_whose_output_is_standard_output_need_it_open() -> None:
    folder = Path(transduce.cli.__file__).parent
    writing = {
        each.stem
        for each in folder.glob("*.py")
        if "- is standard output, the default" in each.read_text(encoding="utf-8")
    }
    assert {"translate", "align"} < writing
    files = ("--source", "a.en", "--target", "a.de")
    ended = shell('"$@" >&-', *TRANSDUCE, "align", "missing", *files)
    assert "Standard output must be open" in ended.stderr
    assert writing <= PRINTS_RESULT


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]])
def test_help_may_be_read_in_part(arguments: Sequence[str]) -> None:
    ended = shell('set -o pipefail; "$@" | head -1', *TRANSDUCE, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_interruption_at_the_end_names_the_command_to_go_on(
    refuses, training: list[str], tmp_path: Path, monkeypatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("transduce.experiments.run_training.average", interrupt)
    message = refuses(*training[len(TRANSDUCE) :])
    assert message == (
        "Interrupted; the last checkpoint is kept. Continue with: transduce train "
        f"--out {tmp_path / 'run'} --resume --device cpu"
    )
