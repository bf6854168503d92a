"""Searches and draws that exceed free memory are refused before they allocate it."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from transduce import native
from transduce.checkpoint import Checkpoint
from transduce.decoding.torch_model import PackedLinear
from transduce.decoding.translator import Translator
from transduce.errors import LackOfMemoryError, RequestError
from transduce.search_config import SamplingConfig, SearchConfig
from transduce.text.alignment import EncodedPairs, likeliest_targets

needs_library = pytest.mark.skipif(native.api() is None, reason="no native library")


@contextmanager
def checked_from(num_bytes: int) -> Iterator[None]:
    """Let the library check free memory from allocations of this many bytes."""
    assert native.library() is not None
    native.check_allocations(num_bytes)
    yield
    native.check_allocations(native.LARGE_ALLOCATION)


@needs_library
@pytest.mark.parametrize(
    ("least", "free", "is_refused"),
    [(0, 2**10, True), (0, 2**40, False), (2**40, 2**10, False)],
)
def test_a_model_beyond_memory_is_refused(
    trained_checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    least: int,
    free: int,
    is_refused: bool,
) -> None:
    """Free memory is checked only for large allocations."""
    monkeypatch.setattr(native, "free_memory", lambda _: float(free))
    translator = Translator(trained_checkpoint, "cpu")
    with checked_from(least):
        if is_refused:
            with pytest.raises(
                LackOfMemoryError,
                match=r"^Loading the model needs .* take a smaller model",
            ):
                translator.get_ready()
        else:
            assert translator.translate(["one two"])[0].hypotheses


@needs_library
def test_the_work_that_lacks_memory_is_named(
    trained_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = Translator(trained_checkpoint, "cpu")
    translator.get_ready()
    pairs = EncodedPairs.of([([1], [1])])
    monkeypatch.setattr(native, "free_memory", lambda _: 0.0)
    with checked_from(0):
        with pytest.raises(
            LackOfMemoryError, match="^Decoding needs .* free; .* with a smaller beam"
        ):
            translator.translate(["one two"])
        with pytest.raises(
            LackOfMemoryError,
            match="^Learning word translations needs .* give fewer sen",
        ):
            likeliest_targets(pairs, 1)


@needs_library
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no such group")])
def test_an_error_within_a_check_of_memory_is_raised_once(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: BaseException,
) -> None:
    """Python can handle Ctrl-C within the check, which C code calls."""

    def interrupted(_num_processes: int) -> float:
        raise error

    weight = np.zeros((1, 1), np.float32)
    with monkeypatch.context() as patched, checked_from(0):
        patched.setattr(native, "free_memory", interrupted)
        with pytest.raises(type(error)) as raised:
            PackedLinear(weight, None, "fp32")
    assert raised.value is error
    assert not capfd.readouterr().err
    assert PackedLinear(weight, None, "fp32")(weight) == 0


@needs_library
def test_targets_beyond_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = EncodedPairs.of([([40_000], [1_000])])
    monkeypatch.setattr(native, "free_memory", lambda _: float(2**20))
    message = r"^Learning .* needs 0.3 GiB at once, .* fewer targets of a source piece"
    with pytest.raises(RequestError, match=message):
        likeliest_targets(pairs, 1_000)
    assert len(likeliest_targets(pairs, 100).target)


@needs_library
def test_the_memory_of_many_hypotheses_is_estimated(
    trained_checkpoint: Checkpoint,
) -> None:
    """Memory grows with the square of the number of hypotheses."""
    translator = Translator(trained_checkpoint, "cpu")
    with pytest.raises(RequestError, match=r"needs? [\d,.]+ GiB"):
        list(translator.sample(["one two"], SamplingConfig(number=100_000)))


def test_draws_beyond_memory_are_refused(
    trained_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "transduce.decoding.translator.free_memory", lambda _: float(2**20)
    )
    translator = Translator(trained_checkpoint, "cpu")
    assert list(translator.sample(["one"], SamplingConfig(number=2)))
    with pytest.raises(RequestError, match="GiB are free; draw fewer at a time"):
        list(translator.sample(["one"], SamplingConfig(number=500)))


def test_the_widest_beam_finds_translations(trained_checkpoint: Checkpoint) -> None:
    translator = Translator(trained_checkpoint, "cpu")
    config = SearchConfig(beam_size=1_000, num_best=20, max_length=6)
    [found] = translator.translate_stream(["one two"], config)
    assert len(found.hypotheses) > 10
