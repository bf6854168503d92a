"""Shared fixtures: a seed, a tiny model, a 40-line corpus, a checkpoint."""

import transduce  # noqa: F401 # first: then idle threads of OpenMP hardly spin

# isort: split
from importlib.util import find_spec

# Before the modules whose types are checked. `scripts/on-gpu` runs tests where the
# package may be missing.
if find_spec("beartype") is not None:
    import quick_types  # noqa: F401

# isort: split
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from shutil import which
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

# Read when Triton is imported: without a GPU its kernels are interpreted.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from file_server import FileServer, serving
from instruction_sets import chosen_isa, runnable_isas
from learned_symbols import learn_symbols
from transduce import native
from transduce.checkpoint import Checkpoint
from transduce.data import named_corpora
from transduce.data.batches import Batcher, BatchingConfig
from transduce.data.dataset import Dataset, EncodedPair, EncodedSide, write_dataset
from transduce.device import Hardware
from transduce.grammar.corpus import training_trees
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.nn import cross_entropy, native_layers
from transduce.nn.kernels import bf16_unit as chosen_bf16_unit
from transduce.search_config import SearchConfig
from transduce.text.tokenizer import Tokenizer, learn_tokenizer
from transduce.text.vocabulary import TokenizerConfig
from transduce.training.config import TrainingConfig
from transduce.training.loss import BatchLoss
from transduce.training.memory import MicroBatchSize
from transduce.training.trainer import StepReport, Trainer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAUSES_S = (0.001, 0.002)
"""Seconds between attempts to reach a server."""

NUMBERS = {
    "one": "eins",
    "two": "zwei",
    "three": "drei",
    "four": "vier",
    "five": "fünf",
    "six": "sechs",
    "seven": "sieben",
    "eight": "acht",
}
IdPairs = Sequence[tuple[Sequence[int], Sequence[int]]]


def pytest_collection() -> None:
    """Collect tests without garbage collection, which takes a quarter of the time:
    nearly all objects stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()


# A busy machine is no failure.
settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def _types_are_checked_in_each_test() -> None:
    """Forget the calls of the last test, whose types were checked."""
    if "quick_types" in sys.modules:
        sys.modules["quick_types"].CALLS.clear()


@pytest.fixture(scope="session", autouse=True)
def _no_waits_for_the_disk() -> Iterator[None]:
    """Leave written files to the system, which a killed process does not lose.

    A disk takes about ten milliseconds to keep one, and checkpoints have several.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _signals_end_commands() -> None:
    """Let child commands end at SIGHUP and SIGINT, even if pytest runs under `nohup`
    or in the background of a script, where they are ignored."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Seed PyTorch; without a GPU only for the CPU, which is 500 times faster."""
    generator = torch if torch.cuda.is_available() else torch.default_generator
    generator.manual_seed(20170612)


FREEZE = gc.freeze


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    """Keep commands from `gc.freeze`, which they call as their process ends afterwards:
    the garbage of all tests would stay."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "freeze", lambda: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def _quick_collections(_nothing_is_kept: None) -> None:
    """Exclude the million objects of pytest and of libraries from garbage collection.

    Each run of training collects garbage several times, which would take longer than
    its steps.
    """
    gc.collect()
    FREEZE()


@pytest.fixture
def import_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Import modules with these prefixes anew, and undo that afterwards.

    A package also holds its modules as attributes. They are restored as well, since
    otherwise a later test would patch one copy of a module and call another.
    """
    kept: dict[str, ModuleType] = {}

    def forget(*prefixes: str) -> None:
        for name in [name for name in sys.modules if name.startswith(prefixes)]:
            kept[name] = sys.modules[name]
            monkeypatch.delitem(sys.modules, name)

    yield forget
    monkeypatch.undo()
    for name, module in kept.items():
        sys.modules[name] = module
        package, _, child = name.rpartition(".")
        if package in sys.modules:
            setattr(sys.modules[package], child, module)


@pytest.fixture(scope="module")
def no_learning_curves() -> Iterator[None]:
    """Draw no learning curves of runs, which takes as long as several steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transduce.analysis.figures.draw_learning_curve", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def no_trials() -> Iterator[None]:
    """Let each batch fit in memory without a trial, which takes as long as ten steps.

    Tests of the trial, and of its effect on a run, do not use this fixture.
    """

    def fit(batch_loss: BatchLoss, batcher: Batcher, *_: object) -> MicroBatchSize:
        batch_loss.train()  # as the trial leaves it
        return MicroBatchSize(
            max_positions=batcher.dataset.num_positions(batcher.longest_batch()),
            was_cut=False, seconds=1e-6, peak_bytes=10**8, growth_bytes=10**6,
        )  # fmt: skip

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transduce.training.trainer.find_micro_batch", fit)
        yield


@pytest.fixture(scope="module")
def no_type_checks() -> Iterator[None]:
    """Check no types in trainings, whose functions are called thousands of times.

    Other tests check the same functions.
    """
    with without_type_checks():
        yield


@contextmanager
def without_type_checks() -> Iterator[None]:
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def unchecked_types() -> Iterator[None]:
    """Switch type checks off, so that the code itself refuses wrong types."""
    with without_type_checks():
        yield


@pytest.fixture(scope="session")
def cpu() -> Hardware:
    return Hardware(device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="session")
def tiny() -> ModelConfig:
    """Config of a model without dropout, small enough for reference loops."""
    return ModelConfig(
        vocab_size=23, num_layers=2, d_model=16, d_ff=20, num_heads=2, d_k=8, d_v=8,
        dropout=0.0, max_positions=12,
    )  # fmt: skip


@pytest.fixture(scope="session")
def corpus() -> tuple[list[str], list[str]]:
    """Forty lines of number words in English, and the same in German."""
    random = np.random.default_rng(1)
    english = list(NUMBERS)
    source = [
        " ".join(english[i] for i in random.integers(8, size=random.integers(1, 7)))
        for _ in range(40)
    ]
    target = [" ".join(NUMBERS[word] for word in line.split()) for line in source]
    return source, target


@pytest.fixture(scope="session")
def corpus_files(
    corpus: tuple[list[str], list[str]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """The corpus as two text files."""
    folder = tmp_path_factory.mktemp("corpus")
    paths = (folder / "train.en", folder / "train.de")
    for path, lines in zip(paths, corpus, strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return paths


@pytest.fixture(scope="session")
def tokenizer(corpus: tuple[list[str], list[str]]) -> Tokenizer:
    config = TokenizerConfig(vocab_size=360)
    return learn_tokenizer([*corpus[0], *corpus[1]], config)


@pytest.fixture(scope="session")
def make_dataset() -> Callable[[IdPairs], Dataset]:
    """Ids of sentence pairs as a dataset in memory."""

    def side(sentences: Sequence[Sequence[int]]) -> EncodedSide:
        ids = np.array([i for ids in sentences for i in ids], dtype="<u4")
        ends = np.cumsum([len(ids) for ids in sentences], dtype="<i8")
        return EncodedSide(ids=ids, offsets=np.concatenate([np.zeros(1, "<i8"), ends]))

    def make(pairs: IdPairs) -> Dataset:
        return Dataset(
            source=side([source for source, _ in pairs]),
            target=side([target for _, target in pairs]),
        )

    return make


@pytest.fixture(scope="session")
def random_pairs() -> Callable[[int, int], IdPairs]:
    """Draw a number of pairs with at most a number of ids each."""

    def make(count: int, longest: int) -> IdPairs:
        random = np.random.default_rng(count)

        def sentence() -> list[int]:
            return random.integers(3, 23, size=random.integers(longest + 1)).tolist()

        return [(sentence(), sentence()) for _ in range(count)]

    return make


@pytest.fixture(scope="session")
def trained_checkpoint(
    corpus: tuple[list[str], list[str]],
    tokenizer: Tokenizer,
    cpu: Hardware,
    tmp_path_factory: pytest.TempPathFactory,
) -> Checkpoint:
    """Checkpoint of a tiny model, trained for some seconds."""
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=1, d_model=32, d_ff=64,
        num_heads=4, d_k=8, d_v=8,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("dataset")
    return trained(config, corpus, tokenizer, cpu, folder)


@pytest.fixture(scope="session")
def marian_checkpoint(
    corpus: tuple[list[str], list[str]],
    tokenizer: Tokenizer,
    cpu: Hardware,
    tmp_path_factory: pytest.TempPathFactory,
) -> Checkpoint:
    """Trained like `trained_checkpoint`, with what Marian can compute in 8 bits too."""
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=1, d_model=64, d_ff=64,
        num_heads=4, d_k=16, d_v=16, learned_start=False,
        position_base=10_000.0 ** (64 / 62),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("dataset")
    return trained(config, corpus, tokenizer, cpu, folder)


def trained(
    model_config: ModelConfig,
    corpus: tuple[list[str], list[str]],
    tokenizer: Tokenizer,
    cpu: Hardware,
    folder: Path,
) -> Checkpoint:
    """Train a model on the corpus for some seconds."""
    torch.manual_seed(1)
    pairs = (
        EncodedPair(source=tokenizer.encode(source), target=tokenizer.encode(target))
        for source, target in zip(*corpus, strict=True)
    )
    dataset = write_dataset(pairs, folder)
    model = Transformer(model_config)
    config = TrainingConfig(steps=80, warmup_steps=40, learning_rate_scale=0.5)
    batcher = Batcher(
        dataset, BatchingConfig(source_tokens=150, target_tokens=150), seed=1
    )
    trainer = Trainer(model, batcher, config, cpu)
    with without_type_checks():
        trainer.train(on_step=lambda _: None)
    return Checkpoint(
        config=model.config,
        weights=model.state_dict(),
        tokenizer=tokenizer,
        step=config.steps,
    )


@pytest.fixture(scope="session")
def tagged_checkpoint(corpus: tuple[list[str], list[str]]) -> Checkpoint:
    """Random model of two target languages and of a corpus with a tag."""
    torch.manual_seed(3)
    lines = (line for pair in zip(*corpus, strict=True) for line in pair)
    vocabulary = TokenizerConfig(vocab_size=330)
    tokenizer = learn_tokenizer(lines, vocabulary, (">>de<<", ">>fr<<", "<law>"))
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=1, d_model=32, d_ff=64,
        num_heads=4, d_k=8, d_v=8,
    )  # fmt: skip
    return Checkpoint(
        config=config,
        weights=Transformer(config).state_dict(),
        tokenizer=tokenizer,
        step=1,
        search=SearchConfig(beam_size=2, extra_length=2),
        source_language="en",
        target_language="de",
    )


@pytest.fixture(scope="session")
def parsing_checkpoint(tokenizer: Tokenizer) -> Checkpoint:
    """Checkpoint of an untrained tiny parser."""
    torch.manual_seed(1)
    symbols = learn_symbols(islice(training_trees(seed=5), 10), "xx")
    model = Transformer(
        ModelConfig(
            vocab_size=tokenizer.vocab_size, target_vocab_size=symbols.vocab_size,
            num_layers=1, d_model=16, d_ff=16, num_heads=2, d_k=8, d_v=8,
        )
    )  # fmt: skip
    return Checkpoint(
        config=model.config,
        weights=model.state_dict(),
        tokenizer=tokenizer,
        step=1,
        symbols=symbols,
    )


@pytest.fixture(scope="session")
def marian_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small random model in OPUS-MT's format. Copy the folder before changing it."""
    from marian_folder import write_marian_folder  # imports large packages

    return write_marian_folder(tmp_path_factory.mktemp("marian") / "marian")


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Chromium, driven by Playwright, whose event loop must not outlive a module."""
    path = which("chromium") or which("chromium-browser") or which("google-chrome")
    if path is None:
        pytest.skip("needs a browser; install one, as by: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium has no sandbox in a container, and it loads only our own pages.
        launched = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"]
        )
        yield launched
        launched.close()


@pytest.fixture
def added_loss(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Amounts added to the losses of updates, once each, by number of update."""
    added: dict[int, float] = {}

    class Report(StepReport):
        """A report with another loss."""

        def __init__(self, *, step: int, loss: float, **others: Any) -> None:
            super().__init__(step=step, loss=loss + added.pop(step, 0.0), **others)

    monkeypatch.setattr("transduce.training.trainer.StepReport", Report)
    return added


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(named_corpora, "PAUSES_S", PAUSES_S)
    with serving() as files:
        yield files


@pytest.fixture(params=["amx", "avx512_bf16", None], ids=["amx", "avx512", "plain"])
def bf16_unit(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str | None]:
    """Run a test with each unit for bf16 of the processor, and with plain loops."""
    library = native.library()
    assert library is not None
    for module in (native_layers, cross_entropy):
        monkeypatch.setattr(module, "has_bf16_products", lambda: True)
    library.td_allow_amx(request.param == "amx")
    library.td_allow_avx512_bf16(request.param is not None)
    try:
        if chosen_bf16_unit() != request.param:
            pytest.skip(f"this processor has no {request.param}")
        yield request.param
    finally:
        library.td_allow_amx(True)
        library.td_allow_avx512_bf16(True)


@pytest.fixture
def without_bf16_unit() -> Iterator[None]:
    """Run a test as on a processor that has no instructions for bf16."""
    if (library := native.library()) is None:
        yield
        return
    library.td_allow_amx(False)
    library.td_allow_avx512_bf16(False)
    try:
        yield
    finally:
        library.td_allow_amx(True)
        library.td_allow_avx512_bf16(True)


@pytest.fixture(params=[True, False], ids=["native", "by PyTorch"])
def is_native(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Run a test with the native library, and without it."""
    if not request.param:
        with chosen_isa("none"):
            yield False
    elif native.api() is None:
        pytest.skip("there is no native library")
    else:
        yield True


@pytest.fixture
def without_native_library() -> Iterator[None]:
    with chosen_isa("none"):
        yield


@pytest.fixture(params=runnable_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test with each instruction set that this processor supports."""
    with chosen_isa(request.param):
        yield request.param


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
