"""Test and measure transduce on a GPU, within a few minutes and without network.

    scripts/on-gpu [--out FOLDER] [--limit SECONDS] [--small] [--device cpu|cuda]

Every part runs in a process of its own with its share of the time limit, and writes its
section of the report as it runs, so that `FOLDER/report.md` has all results up to a
failure or a signal that ends the script; a killed script leaves those of the running
part in `FOLDER/running.md`. The folder also has `log.txt`, the output of the parts, and
`profile-NAME.txt` for each trained model: the kernels that take most of an update's
time. `--small` runs the same with tiny models, to try the script without a GPU.

The data is generated: random batches with the lengths of news text, sentences of random
words, and the built-in corpus.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import pytest

    from transduce.benchmark.training import TrainingTask
    from transduce.device import Hardware
    from transduce.experiments.presets import RunConfig
    from transduce.training.trainer import StepReport, Trainer

ROOT = Path(__file__).parents[1]
LIMIT_S = 470.0
"""Seconds for all parts together."""
MIN_S = 5.0
"""Fewest seconds left to start a part."""
LAST_LINES = 15
"""Lines of a failed part's output that the report shows."""
RUNNING = "running.md"
"""File of the running part's section, which the report has once the part has ended."""
TESTS = (
    "tests/relations/test_devices.py",
    "tests/relations/test_gpu_candidates.py",
    "tests/relations/test_graphed_decoder.py",
    "tests/relations/test_packed_training.py",
    "tests/unit/data/test_batches.py::test_a_batch_is_pinned_without_a_change",
    "tests/relations/test_compiling.py",
)
WARM_UP, MEASURED = 3, 12
"""Number of updates to warm up, and number to measure."""
ROUNDS = 6
"""Rounds of turns with the peers."""
NUM_KERNELS = 25
"""Rows of a profile."""
NUM_WORDS, WORDS_PER_SENTENCE, NUM_SENTENCES = 60_000, 22, 8_000
"""Size of the random corpus; its words give about as many sub-words as the paper's."""
DECODERS = ("transduce bf16", "CTranslate2 float16", "Hugging Face bf16")
"""Decoders besides our fp32: the fastest of each library, as each needs seconds to load
its libraries and the model."""
CPU_THREADS = 4
"""Threads of the small model on the CPU; more are not faster."""
FORCED_LENGTH = 26
"""Tokens of every translation, as random weights never end one."""
SUCCEEDED = "succeeded"
STEPS = 200
SHOWN_STEPS = (1, 10, 50, 100, 150, 200)


@dataclass(frozen=True, slots=True)
class Task:
    """Options of a part's process."""

    out: Path
    section: Path
    device: str
    is_small: bool

    def write(self, text: str) -> None:
        """Add to this part's section of the report."""
        with self.section.open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def hardware(self, precision: str = "bf16") -> "Hardware":
        from transduce.device import choose_hardware

        return choose_hardware(self.device, precision)  # type: ignore[arg-type]

    def run_config(self, name: str) -> "RunConfig":
        """Preset of a name, or the tiny one with `--small`."""
        from transduce.experiments.presets import preset

        return preset("tiny" if self.is_small else name)


@dataclass(frozen=True, slots=True)
class Part:
    """One section of the report, with its time limit in seconds."""

    name: str
    title: str
    seconds: float
    run: Callable[[Task], None]


def measure_machine(task: Task) -> None:
    """Describe the GPU, and measure its matrix products and copies."""
    import torch

    from transduce.benchmark.measurement import describe_machine
    from transduce.device import is_good_at_bf16

    hardware = task.hardware("auto")
    packages = ("torch", "triton", "numpy", "tokenizers", "transformers", "ctranslate2")
    task.write(f"- Machine: {describe_machine(packages, hardware.device)}")
    if hardware.device.type == "cuda":
        properties = torch.cuda.get_device_properties(hardware.device)
        task.write(
            f"- GPU: {properties.name}, {properties.total_memory / 2**30:.0f} GiB, "
            f"{properties.multi_processor_count} multiprocessors, CUDA "
            f"{torch.version.cuda}"
        )
    # Emulated, bf16 would take longer than the part may.
    good = ("bf16",) if is_good_at_bf16(hardware.device.type) else ()
    for precision in (*good, "fp32"):
        rate = _matrix_rate(task, task.hardware(precision))
        task.write(f"- Matrix products, {precision}: {rate / 1e12:,.2f} TFLOP/s")
    task.write(f"- Copying: {_copy_rate(hardware) / 1e12:,.3f} TB/s read and written")


def _matrix_rate(task: Task, hardware: "Hardware") -> float:
    from transduce.benchmark.measurement import SIZES, matrix_rate

    sizes = SIZES[:1] if task.is_small else SIZES
    matrix_rate(hardware, sizes)  # warm up clocks and kernels
    return matrix_rate(hardware, sizes)


def _copy_rate(hardware: "Hardware") -> float:
    """Bytes read and written per second by a copy that exceeds every cache."""
    import torch

    size = 2**30 if hardware.device.type == "cuda" else 2**26
    source = torch.ones(size, dtype=torch.uint8, device=hardware.device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(5):
        started = _now(hardware)
        target.copy_(source)
        seconds.append(_now(hardware) - started)
    return 2 * size / min(seconds)


def _now(hardware: "Hardware") -> float:
    """Current time, after the device has finished its work."""
    import torch

    if hardware.device.type == "cuda":
        torch.cuda.synchronize(hardware.device)
    return time.perf_counter()


def run_tests(task: Task) -> None:
    """Run the device's tests, and list failures and skipped tests with reasons."""
    import pytest

    os.chdir(ROOT)
    # Types are checked if beartype is installed; warnings differ between releases.
    addopts = [] if _is_installed("beartype") else ["-o", "addopts="]
    results = TestResults(task)
    code = pytest.main(
        ["-v", "--import-mode=importlib", *addopts, "-o", "filterwarnings=",
         "-p", "no:cacheprovider", *TESTS],
        plugins=[results],
    )  # fmt: skip
    task.write(f"\n{results}")
    if code:
        raise SystemExit(f"pytest ended with exit code {int(code)}.")


class TestResults:
    """Plug-in of pytest that writes each failed or skipped test to the report at once.

    A part that exceeds its time has then listed those before.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._numbers: Counter[str] = Counter()

    def pytest_collectreport(self, report: "pytest.CollectReport") -> None:
        """Write why a file cannot be read, or why all of it is skipped."""
        if report.failed:
            self._add("error", report)
        elif report.skipped:
            self._add("skipped", report)

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        """Count a test, and write its name and the reason unless it has passed."""
        if report.failed:
            self._add("failure" if report.when == "call" else "error", report)
        elif report.skipped:
            self._add("skipped", report)
        elif report.when == "call":
            self._numbers["passed"] += 1

    def _add(
        self, kind: str, report: "pytest.CollectReport | pytest.TestReport"
    ) -> None:
        self._numbers[kind] += 1
        reason = report.longrepr
        if isinstance(reason, tuple):  # file, line and reason of a skipped test
            reason = reason[-1]
        elif (crash := getattr(reason, "reprcrash", None)) is not None:
            reason = crash.message
        lines = str(reason or "").splitlines() or ["no reason given"]
        self._task.write(f"- {kind}: `{report.nodeid}`: {lines[0][:200]}")

    def __str__(self) -> str:
        kinds = ("passed", "failure", "error", "skipped")
        return ", ".join(f"{kind}: {self._numbers[kind]}" for kind in kinds) + "."


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def train_alone(name: str, task: Task) -> None:
    """Measure updates of one preset as `transduce train` makes them."""
    import torch

    from transduce.benchmark.training import TrainingTask, make_graphs, our_trainer
    from transduce.device import forget_peak_memory, peak_memory

    run, hardware = task.run_config(name), task.hardware()
    rate = _matrix_rate(task, hardware)
    task.write(
        f"Matrix products: {rate / 1e12:,.2f} TFLOP/s on {hardware}. An update has "
        f"about {run.batching.target_tokens:,} target tokens.\n"
    )
    started = time.perf_counter()
    steps = WARM_UP + MEASURED + 3
    work = TrainingTask(run=run, hardware=hardware, steps=steps)
    torch.manual_seed(1)
    trainer = our_trainer(work)
    forget_peak_memory(hardware.device)
    if trainer.all_can_pack():
        make_graphs(trainer)
    start_seconds = time.perf_counter() - started
    updates = _timed_updates(work, trainer, task.out / f"profile-{name}.txt")
    measured = slice(WARM_UP, WARM_UP + MEASURED)
    timed = list(zip(updates[measured], work.update_flops()[measured], strict=True))
    tokens = median(r.num_target_tokens / seconds for (r, seconds), _ in timed)
    share = median(flops / seconds / rate for (_, seconds), flops in timed)
    each = ", ".join(f"{1_000 * seconds:.1f}" for (_, seconds), _ in timed)
    task.write(
        f"- Target tokens: {tokens:,.0f} a second\n"
        f"- Share of the matrix rate: {share:.1%}\n"
        f"- Peak memory: {peak_memory(hardware.device) / 2**30:.1f} GiB\n"
        f"- Milliseconds of each update: {each}\n"
        f"- Start, with kernels and graphs: {start_seconds:.0f} s"
    )


def _timed_updates(
    work: "TrainingTask", trainer: "Trainer", profile: Path
) -> "list[tuple[StepReport, float]]":
    """Report and seconds of each update; the last one is profiled by kernel.

    An update takes the time from the end of the one before to its end.
    """
    import torch

    is_cuda = work.hardware.device.type == "cuda"
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if is_cuda else []
    profiler = torch.profiler.profile(activities=kinds)
    found: list[tuple[StepReport, float]] = []
    started = _now(work.hardware)

    def on_step(report: "StepReport") -> None:
        nonlocal started
        now = time.perf_counter()
        found.append((report, now - started))
        started = now
        if report.step == WARM_UP + MEASURED:
            trainer.runs_ahead = False  # the profiler needs the start of an update
        elif report.step == work.steps - 1:
            profiler.start()
        elif report.step == work.steps:
            profiler.stop()

    trainer.train(on_step=on_step)
    key = "self_device_time_total" if is_cuda else "self_cpu_time_total"
    table = profiler.key_averages().table(sort_by=key, row_limit=NUM_KERNELS)
    profile.write_text(table, encoding="utf-8")
    return found


def train_beside_peers(name: str, task: Task, *, are_compiled: bool) -> None:
    """Run `transduce benchmark training` for one preset.

    The peers are those that are not compiled, or the one that takes minutes to compile.
    """
    from transduce.benchmark.training import (
        COMPILED,
        PEERS,
        in_large_batches,
        measure_training,
        training_table,
    )

    speed = measure_training(
        in_large_batches(task.run_config(name)),
        task.hardware(),
        rounds=ROUNDS,
        on_round=lambda number: print(f"Round {number}", flush=True),
        peers=[each for each in PEERS if (each == COMPILED) == are_compiled],
    )
    task.write("```text\n" + "\n".join(training_table(speed)) + "\n```")


def decode_beside_peers(task: Task) -> None:
    """Run `transduce benchmark decoding` for base at beam 4."""
    from transduce.benchmark.decoding import (
        decoding_table,
        measure_decoding,
        random_checkpoint,
    )
    from transduce.benchmark.peers import Setting

    started = time.monotonic()
    count, length = (1_000, 3) if task.is_small else (NUM_SENTENCES, WORDS_PER_SENTENCE)
    sentences = list(_random_sentences(count, length))
    print("Learning the vocabulary", flush=True)
    checkpoint = random_checkpoint(task.run_config("base"), sentences)
    speed = measure_decoding(
        checkpoint,
        sentences,
        [
            Setting(batch_size=size, beam_size=4, forced_length=FORCED_LENGTH)
            for size in ((1, 8) if task.is_small else (1, 32, 128, 512))
        ],
        rounds=2,
        device=task.hardware().device,
        on_turn=lambda turn: print(f"{time.monotonic() - started:.0f} s: {turn}"),
        names=DECODERS,
    )
    task.write("```text\n" + "\n".join(decoding_table(speed)) + "\n```")


def _random_sentences(count: int, mean_length: int) -> Iterator[str]:
    """Sentences of random words with frequencies by Zipf's law."""
    draw = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 9)))
             for _ in range(NUM_WORDS)]  # fmt: skip
    weights = [1 / (rank + 10) for rank in range(NUM_WORDS)]
    for _ in range(count):
        length = max(round(draw.gauss(mean_length, mean_length / 6)), 1)
        yield " ".join(draw.choices(words, weights, k=length))


def compare_losses(task: Task) -> None:
    """Compare the loss of 200 updates without dropout on the GPU and on the CPU."""
    import torch

    torch.set_num_threads(min(torch.get_num_threads(), CPU_THREADS))
    found = {
        "CPU, fp32": _losses(replace(task, device="cpu"), "fp32"),
        f"{task.device}, fp32": _losses(task, "fp32"),
        f"{task.device}, bf16": _losses(task, "bf16"),
    }
    steps = [step for step in SHOWN_STEPS if step <= STEPS]
    task.write("| loss at update | " + " | ".join(map(str, steps)) + " |")
    task.write("|---|" + "---|" * len(steps))
    for name, losses in found.items():
        row = " | ".join(f"{losses[step - 1]:.4f}" for step in steps)
        task.write(f"| {name} | {row} |")
    expected, *others = (torch.tensor(losses) for losses in found.values())
    for name, other in zip(list(found)[1:], others, strict=True):
        most = float((other - expected).abs().max())
        task.write(f"\n{name}: at most {most:.4f} nats per token from the CPU's loss.")


def _losses(task: Task, precision: str) -> list[float]:
    """Losses of 200 updates of the quickstart's model on the built-in corpus."""
    import torch

    from transduce.data.batches import Batcher
    from transduce.data.dataset import EncodedPair, open_dataset, write_dataset
    from transduce.experiments.presets import preset
    from transduce.grammar.corpus import Grammar
    from transduce.model.config import ModelConfig
    from transduce.model.transformer import Transformer
    from transduce.text.tokenizer import learn_tokenizer
    from transduce.training.trainer import Trainer

    run = preset("quickstart")
    assert isinstance(run.model, ModelConfig)
    grammar = Grammar.built_in().training_sentences(seed=1)
    pairs = list(islice(grammar, 500 if task.is_small else 8_000))
    texts = [text for pair in pairs for text in (pair.source, pair.target)]
    tokenizer = learn_tokenizer(texts, run.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(
            (
                EncodedPair(
                    source=tokenizer.encode(pair.source),
                    target=tokenizer.encode(pair.target),
                )
                for pair in pairs
            ),
            Path(folder),
        )
        torch.manual_seed(1)
        trainer = Trainer(
            Transformer(replace(run.model, vocab_size=tokenizer.vocab_size)),
            Batcher(open_dataset(Path(folder)), run.batching, seed=1),
            replace(run.training, steps=STEPS, warmup_steps=100),
            task.hardware(precision),
        )
        losses: list[float] = []
        trainer.train(on_step=lambda report: losses.append(report.loss))
    return losses


PARTS = (
    Part("machine", "Machine", 40, measure_machine),
    Part("base", "Training base, alone", 90, partial(train_alone, "base")),
    Part("decoding", "Decoding base, beside peers", 240, decode_beside_peers),
    Part("loss", "Loss of 200 updates", 90, compare_losses),
    Part("big", "Training big, alone", 90, partial(train_alone, "big")),
    Part("tests", "Tests", 150, run_tests),
    Part(
        "base-peers",
        "Training base, beside peers",
        200,
        partial(train_beside_peers, "base", are_compiled=False),
    ),
    Part(
        "big-peers",
        "Training big, beside peers",
        150,
        partial(train_beside_peers, "big", are_compiled=False),
    ),
    Part(
        "base-compiled",
        "Training base, beside torch.compile",
        250,
        partial(train_beside_peers, "base", are_compiled=True),
    ),
)
"""Parts of the report, the most important first, as time may run out."""


class Report:
    """Markdown report, rewritten after each part."""

    def __init__(self, out: Path, command: str) -> None:
        self._path = out / "report.md"
        self._head = f"# On a GPU\n\n- Command: `{command}`\n- Commit: {_commit()}\n"
        self._states: dict[str, tuple[str, float]] = {}
        self._sections: dict[str, str] = {}

    def add(self, part: Part, state: str, seconds: float, section: str) -> None:
        """Add the end and the results of a part."""
        self._states[part.title] = state, seconds
        self._sections[part.title] = section
        rows = [f"| {title} | {how} | {took:.0f} s |"
                for title, (how, took) in self._states.items()]  # fmt: skip
        text = "\n".join(
            [self._head, "| part | state | time |", "|---|---|---|", *rows]
        )
        for title, found in self._sections.items():
            text += f"\n\n## {title}\n\n{found or 'No results.'}"
        new = self._path.with_suffix(".new")
        new.write_text(text.rstrip() + "\n", encoding="utf-8")
        new.replace(self._path)

    @property
    def is_good(self) -> bool:
        """Whether every part has succeeded."""
        return all(state == SUCCEEDED for state, _ in self._states.values())


def _commit() -> str:
    """Commit of the checkout, if git is available."""
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "not known (no git checkout)"
    return done.stdout.strip()


def run_part(
    part: Part, options: argparse.Namespace, seconds: float, report: Report
) -> str:
    """Run a part in a process of its own and add it to the report; return its state.

    A signal that ends this script ends the part, and is raised again after that.
    """
    started, signalled = time.monotonic(), None
    section: Path = options.out / RUNNING
    section.write_text("", encoding="utf-8")
    command = [
        sys.executable, __file__, "--part", part.name, "--section", str(section),
        "--out", str(options.out), "--device", options.device,
        *(["--small"] if options.small else []),
    ]  # fmt: skip
    with (options.out / "log.txt").open("a+b") as log:
        log.write(f"== {part.name}\n".encode())
        log.flush()
        begin = log.tell()
        try:
            state = _end_of(command, log.fileno(), seconds)
        except SystemExit as error:
            state, signalled = "was ended by a signal", error
        log.seek(begin)
        printed = log.read().decode(errors="replace")
        log.write(f"\n== {part.name}: {state}\n\n".encode())
    found = section.read_text(encoding="utf-8")
    if state != SUCCEEDED:
        lines = "\n".join(printed.splitlines()[-LAST_LINES:])
        found += f"\nThe part {state}. Its last output:\n\n```text\n{lines}\n```"
    report.add(part, state, time.monotonic() - started, found)
    section.unlink()
    if signalled is not None:
        raise signalled
    return state


def _end_of(command: list[str], log: int, seconds: float) -> str:
    """Run a process with a time limit, and kill its children; returns its state."""
    from transduce.signals import signals_held

    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process: subprocess.Popen[bytes] | None = None
    try:
        with signals_held():  # A signal now would leave the process running.
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        code = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"exceeded its time of {seconds:.0f} s"
    finally:
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return SUCCEEDED if code == 0 else f"failed with exit code {code}"


def run_all(options: argparse.Namespace) -> int:
    """Run the parts one after the other within the time limit."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as it is by `nohup`
            signal.signal(number, _end)  # raises, so that no part is left running
    options.out = options.out.resolve()  # parts may run in another folder
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "log.txt").write_text("", encoding="utf-8")
    report = Report(options.out, f"scripts/on-gpu {' '.join(sys.argv[1:])}".strip())
    chosen = [part for part in PARTS if not options.only or part.name in options.only]
    # Few parts share all of the time.
    scale = options.limit / min(sum(part.seconds for part in chosen), LIMIT_S)
    ends_at = time.monotonic() + options.limit
    for part in chosen:
        started = time.monotonic()
        if (left := ends_at - started) < MIN_S:
            state = "not started: no time was left"
            report.add(part, state, 0.0, "")
        else:
            state = run_part(part, options, min(part.seconds * scale, left), report)
        seconds = time.monotonic() - started
        print(f"{part.title}: {state}, {seconds:.0f} s", flush=True)
    print(f"The report is {options.out / 'report.md'}.")
    return 0 if report.is_good else 1


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> int:
    """Run all parts, or one part in its own process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/gpu")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds in all")
    parser.add_argument("--small", action="store_true", help="tiny models")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="*", choices=names, help="parts to run")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--section", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is None:
        return run_all(options)
    [part] = [part for part in PARTS if part.name == options.part]
    task = Task(options.out, options.section, options.device, options.small)
    try:
        part.run(task)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
