"""A process that has imported transduce, and that forks for each program.

A program then begins as in a new process, which would take most of its time to import.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MODULES = ("transduce.cli.translate", "transduce.decoding.translator")
"""Modules that are imported before the first program, as many commands need them."""
SERVER = """
import json, os, signal, sys

requests, answers = open(int(sys.argv[1])), open(int(sys.argv[2]), "w")
import transduce.__main__, transduce.cli
for name in sys.argv[3:]:
    __import__(name)
for line in requests:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, file=answers, flush=True)
else:
    sys.exit()
for number, (name, flags) in enumerate(request["files"]):
    opened = os.open(name, flags)
    os.dup2(opened, number)
    os.close(opened)
if request["memory"]:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (request["memory"],) * 2)
signal.alarm(300)
sys.argv[:] = request["arguments"]
exec(request["program"])
"""
COMMAND = """
code = 0
try:
    transduce.__main__.main()
except SystemExit as ending:
    code = ending.code or 0
except BaseException:
    import traceback
    traceback.print_exc()
    code = 99
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)  # taking the modules down would take longer than most commands
"""
PROGRAM = "transduce.__main__.main()"
"""Run a command line whose process also ends as that of a user's command does."""
Result = subprocess.CompletedProcess[str]


class ForkServer:
    """The process, which runs programs and commands one after the other."""

    def __init__(self, process: "subprocess.Popen[str]", requests: int, answers: int):
        self._process = process
        self._requests = open(requests, "w", encoding="utf-8")  # noqa: SIM115
        self._answers = open(answers, encoding="utf-8")  # noqa: SIM115

    def command(self, *arguments: str, **options: Any) -> Result:
        """Run a command line of `transduce`, with the options of `run`."""
        return self.run(COMMAND, "transduce", *arguments, **options)

    def run(
        self,
        program: str,
        *arguments: str,
        stdin: str = "",
        memory: int = 0,
        output: Path | None = None,
        errors: Path | None = None,
    ) -> Result:
        """Run Python source until its process ends as usual.

        It may take `memory` bytes if that is not 0. The result has its output and
        errors, but for those with a file of their own, to whose end they are written.
        """
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "in").write_text(stdin, encoding="utf-8")
            writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            request = {
                "program": program,
                "arguments": arguments,
                "memory": memory,
                "files": [
                    (str(folder / "in"), os.O_RDONLY),
                    (str(output or folder / "out"), writing),
                    (str(errors or folder / "err"), writing),
                ],
            }
            print(json.dumps(request), file=self._requests, flush=True)
            code = self._answers.readline()
            assert code, "the process that forks has ended"
            said = [
                (folder / name).read_text(encoding="utf-8", errors="replace")
                if elsewhere is None
                else ""
                for name, elsewhere in (("out", output), ("err", errors))
            ]
        return subprocess.CompletedProcess(arguments, int(code), *said)

    def close(self) -> None:
        """End the process."""
        self._requests.close()
        self._answers.close()
        self._process.wait()


@contextmanager
def fork_server(
    environment: Mapping[str, str] | None = None, modules: Sequence[str] = MODULES
) -> Iterator[ForkServer]:
    """Start the process; it ends with the `with` block."""
    theirs, requests = os.pipe()
    answers, written = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(theirs), str(written), *modules],
        env=environment,
        text=True,
        pass_fds=(theirs, written),
    )
    os.close(theirs)
    os.close(written)
    server = ForkServer(process, requests, answers)
    try:
        yield server
    finally:
        server.close()
