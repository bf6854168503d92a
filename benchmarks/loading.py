"""Time and memory to load a model in fp32, in int8 from fp32, and a quantized one.

    python benchmarks/loading.py [--model MODEL] [--preset base] [--rounds 5]

Without --model, the model has the sizes of a preset, random weights and a vocabulary
of random words. Each measurement is a process of its own, on one thread: the seconds
from the call of `load` until the weights are packed, those of the first sentence after
it (greedy search, at most ten tokens), and the peak of the process's memory, pages of
the mapped file included. The ways take turns, after a round that reads the files from
disk. Prints medians and ranges as Markdown.
"""

import argparse
import json
import os
import random
import string
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from machine import describe_machine

import transduce
from transduce.model_folder import WEIGHTS, find_model

SENTENCE = "A man sleeps on a bench."
MEGABYTE = 10**6
WAYS = ("fp32", "fp32, --precision int8", "quantized", "quantized, --precision fp32")
MEASURED = {"load_s": "load, s", "first_s": "first sentence, s", "peak_mb": "peak, MB"}


def main() -> None:
    """Measure all ways in turns, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "PRECISION"))
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measured(*arguments.measure)))
        return
    with (
        TemporaryDirectory() as scratch,
        whole_model(arguments.model, arguments.preset, Path(scratch)) as model,
    ):
        compare(model, Path(scratch) / "int8", arguments.rounds)


def compare(model: Path, quantized: Path, rounds: int) -> None:
    """Measure a model and its quantized copy, and print a table."""
    started = time.perf_counter()
    made = transduce.quantize(model, quantized)
    seconds = time.perf_counter() - started
    folders = [model, model, quantized, quantized]
    precisions = ["auto", "int8", "auto", "fp32"]
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(rounds + 1):
        for way, folder, precision in zip(WAYS, folders, precisions, strict=True):
            result = in_own_process(folder, precision)
            for name, value in result.items():
                if number > 0:  # the first round reads the files from disk
                    found[way][name].append(value)
    print(f"| | weights, MB | {' | '.join(MEASURED.values())} |")
    print("|---|---|" + "---|" * len(MEASURED))
    sizes = [made.bytes_before, made.bytes_before, made.num_bytes, made.num_bytes]
    for way, size in zip(WAYS, sizes, strict=True):
        cells = " | ".join(shown(found[way][name]) for name in MEASURED)
        print(f"| {way} | {size / MEGABYTE:,.1f} | {cells} |")
    print(f"\n`transduce quantize` took {seconds:.1f} s.\n\n{describe_machine()}")


def shown(values: list[float]) -> str:
    """Median and range of values."""
    digits = 0 if min(values) > 10 else 2
    low, middle, high = min(values), median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def in_own_process(folder: Path, precision: str) -> dict[str, float]:
    """Load a model in a new process on one thread."""
    command = [sys.executable, __file__, "--measure", str(folder), precision]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, env=environment, check=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measured(folder: str, precision: str) -> dict[str, float]:
    """Load a model and translate one sentence in this process."""
    import_module("transduce.decoding.translator")  # is not measured
    started = time.perf_counter()
    translator = transduce.load(folder, device="cpu", precision=precision)  # type: ignore[arg-type] # text
    translator.get_ready()
    loaded = time.perf_counter()
    translator.translate(SENTENCE, beam_size=1, max_length=10)
    return {
        "load_s": loaded - started,
        "first_s": time.perf_counter() - loaded,
        "peak_mb": peak_memory() / MEGABYTE,
    }


def peak_memory() -> int:
    """Peak of this process's memory in bytes, without its parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


@contextmanager
def whole_model(given: Path | None, preset: str, scratch: Path) -> Iterator[Path]:
    """Yield the folder of a model in fp32: the given one, or one of random weights."""
    if given is not None:
        folder = find_model(given)
        assert (folder / WEIGHTS).is_file()
        yield folder
        return
    write_random_model(preset, scratch / "fp32")
    yield scratch / "fp32"


def write_random_model(preset: str, folder: Path) -> None:
    """Write a model with the sizes of a preset."""
    from dataclasses import replace

    from transduce.checkpoint import Checkpoint, build, save_model
    from transduce.experiments.presets import preset as preset_named
    from transduce.text.tokenizer import learn_tokenizer
    from transduce.text.vocabulary import TokenizerConfig

    config = preset_named(preset)
    tokenizer = learn_tokenizer(
        random_lines(2 * config.tokenizer.vocab_size),
        TokenizerConfig(kind="bpe", vocab_size=config.tokenizer.vocab_size),
    )
    sizes = replace(config.model, vocab_size=tokenizer.vocab_size)
    checkpoint = Checkpoint(
        config=sizes,
        weights=build(sizes).state_dict(),
        tokenizer=tokenizer,
        step=0,
    )
    save_model(checkpoint, folder)


def random_lines(number: int) -> Iterator[str]:
    """Lines of ten random words, from which a large vocabulary can be learned."""
    drawn = random.Random(1)
    letters = string.ascii_lowercase
    for _ in range(number):
        words = ("".join(drawn.choices(letters, k=5)) for _ in range(10))
        yield " ".join(words)


if __name__ == "__main__":
    main()
