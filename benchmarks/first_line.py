"""Time from the start of `transduce translate` to its first line.

    python benchmarks/first_line.py --model MODEL... [--sentence TEXT] [--rounds 5]

Measures each model in fp32 and in int8, and `import torch` alone, which translating on
a CPU does not need. They take turns, so that a slow machine slows all alike.
Translations have at most twelve tokens. Prints medians and ranges as Markdown.
"""

import argparse
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from machine import describe_machine

TRANSLATE = (sys.executable, "-m", "transduce", "translate")
IMPORT = "import torch"


def main() -> None:
    """Time all commands in turns, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, nargs="+", required=True)
    parser.add_argument("--sentence", default="a dog runs .")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    commands = {IMPORT: [sys.executable, "-c", f"{IMPORT}; print()"]}
    for model in arguments.model:
        for precision in ("fp32", "int8"):
            options = [str(model), "--precision", precision, "--max-length", "12"]
            commands[f"{model.name}, {precision}"] = [*TRANSLATE, *options]
    seconds: dict[str, list[float]] = defaultdict(list)
    for round_number in range(arguments.rounds + 1):
        for name, command in commands.items():
            taken = first_line(command, arguments.sentence)
            if round_number > 0:  # the first round reads files from disk
                seconds[name].append(taken)
    print("| | median, s | range |\n|---|---|---|")
    for name, found in seconds.items():
        print(
            f"| {name} | {median(found):.2f} | {min(found):.2f} to {max(found):.2f} |"
        )
    print(f"\n{describe_machine()}")


def first_line(command: Sequence[str], sentence: str) -> float:
    """Seconds from the start of a command to its first line of output."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{sentence}\n".encode())
    process.stdin.close()
    line = process.stdout.readline()
    seconds = time.perf_counter() - started
    process.stdout.close()
    if process.wait() != 0 or not line:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return seconds


if __name__ == "__main__":
    main()
