"""Translate a long stream of lines: order, memory, a closed pipe, a killed process.

    python benchmarks/stream.py --model MODEL [--lines 100000]

The lines are sentences of the built-in grammar, with 10,000 empty lines, one line of
20,000 words and one with control characters among them. Prints the results as Markdown.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from machine import describe_machine, memory_of

from transduce.grammar.corpus import Grammar

TRANSLATE = (sys.executable, "-m", "transduce", "translate")
EMPTY_LINES = 10_000
SAMPLE = 300
"""Number of lines that are translated again, in other batches."""


def main() -> None:
    """Run all checks, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=100_000)
    arguments = parser.parse_args()
    if arguments.lines < 2 * EMPTY_LINES:
        parser.error(f"--lines must be at least {2 * EMPTY_LINES:,}")
    command = [*TRANSLATE, str(arguments.model), "--beam-size", "1"]
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "source"), Path(folder, "output")
        lines = stream_of(arguments.lines)
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        seconds, memory, errors = translate(command, source, output)
        found = output.read_text(encoding="utf-8").split("\n")[:-1]
        if len(found) != len(lines):
            sys.exit(f"{len(lines):,} lines went in, but {len(found):,} came out")
        print(f"- {len(lines):,} lines in, {len(found):,} out, {seconds:.0f} s")
        print(
            "- Memory of all processes at 10 % and at the end: "
            f"{memory[0]:,}, {memory[1]:,} MB"
        )
        print(f"- On standard error: {errors!r}")
        print(f"- Empty lines with an empty translation: {stay_empty(lines, found)}")
        same = agreement(command, lines, found)
        print(f"- Same in other batches: {same} of {SAMPLE}")
        print(f"- Closed pipe: {closed_pipe(command, source)}")
        print(f"- SIGTERM: {killed(command, source, Path(folder, 'killed'))}")
    print(describe_machine())


def stream_of(count: int) -> list[str]:
    """Lines of the stream, with the unusual ones among them."""
    plain = islice(Grammar.built_in().training_sentences(1), count - EMPTY_LINES - 2)
    lines = [sentence.source for sentence in plain] + [""] * EMPTY_LINES
    random.Random(1).shuffle(lines)
    words = " ".join(lines[:20_000]).split()
    lines.insert(count // 2, " ".join(islice(cycle(words), 20_000)))
    lines.insert(count // 3, "the dog\x01\x7f \x1b[31msees\x08 the\tcat .")
    return lines


def translate(
    command: Sequence[str], source: Path, output: Path
) -> tuple[float, list[int], str]:
    """Seconds, megabytes at 10 % and at the end, and output on standard error."""
    started = time.monotonic()
    megabytes: list[int] = []
    log = output.with_name("errors")
    with source.open("rb") as lines, output.open("wb") as out, log.open("wb") as errors:
        process = subprocess.Popen(command, stdin=lines, stdout=out, stderr=errors)
        watch = threading.Thread(target=watch_memory, args=(process, megabytes))
        watch.start()
        if process.wait() != 0:
            sys.exit(f"translate ended with {process.returncode}")
        watch.join()
    seconds = time.monotonic() - started
    # Before the last value, as some processes have ended by then.
    memory = [megabytes[len(megabytes) // 10], megabytes[-2]]
    return seconds, memory, log.read_text(encoding="utf-8")


def watch_memory(process: subprocess.Popen[bytes], megabytes: list[int]) -> None:
    """Append the memory of a process and its children once a second.

    Shared memory counts once.
    """
    while process.poll() is None:
        megabytes.append(memory_of(process.pid) // 2**20)
        time.sleep(1)


def stay_empty(lines: Sequence[str], found: Sequence[str]) -> str:
    """Number of empty lines with an empty translation."""
    empty = [i for i, line in enumerate(lines) if not line]
    return f"{sum(not found[i] for i in empty):,} of {len(empty):,}"


def agreement(
    command: Sequence[str], lines: Sequence[str], found: Sequence[str]
) -> int:
    """Number of sampled lines whose translation in other batches is the same."""
    filled = [i for i, line in enumerate(lines) if line and len(line) < 1_000]
    chosen = random.Random(2).sample(filled, SAMPLE)
    text = "".join(lines[i] + "\n" for i in chosen)
    alone = subprocess.run(
        command, input=text.encode(), stdout=subprocess.PIPE, check=True
    ).stdout.decode()
    pairs = zip(alone.split("\n")[:-1], chosen, strict=True)
    return sum(translation == found[i] for translation, i in pairs)


def closed_pipe(command: Sequence[str], source: Path) -> str:
    """Exit code and standard error if the reader stops after three lines."""
    with source.open("rb") as lines:
        process = subprocess.Popen(
            command, stdin=lines, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(3):
            process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read().decode()
        return f"exit code {process.wait()}, standard error {errors!r}"


def killed(command: Sequence[str], source: Path, output: Path) -> str:
    """Exit code, standard error and files left after SIGTERM."""
    process = subprocess.Popen(
        [*command, "--input", str(source), "--output", str(output)],
        stderr=subprocess.PIPE,
    )
    unfinished = output.with_name(f".{output.name}.transduce-new")
    while process.poll() is None and not (
        unfinished.exists() and unfinished.stat().st_size
    ):
        time.sleep(0.1)
    if process.poll() is not None:
        sys.exit("translate ended before it could be stopped")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    left = [path.name for path in output.parent.iterdir() if "killed" in path.name]
    return f"exit code {process.returncode}, {errors.decode()!r}, files left: {left}"


if __name__ == "__main__":
    main()
