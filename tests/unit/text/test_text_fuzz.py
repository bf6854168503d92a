"""Small run of `benchmarks/text_fuzz.py`."""

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SHORT, LONG = 2_000, 16_000
LINEAR_S = 0.025
"""Seconds of a short text within which a scanner's growth is not examined."""
MAX_RATIO = 24
"""Between the ratios of linear and of quadratic time, 8 and 64."""


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz", BENCHMARKS / "text_fuzz.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


def test_joining_the_source_text_restores_random_documents(fuzz: ModuleType) -> None:
    for number in range(400):
        html = fuzz.random_document(random.Random(f"test {number}"))
        assert fuzz.check_document(html) is None, html


def test_the_fuzz_finds_a_tag_that_a_translation_adds(
    fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "join_html", lambda _, texts, *__: "".join(texts))
    assert fuzz.check_document("<p>A dog</p>") is not None


def test_the_fuzz_finds_time_that_grows_faster_than_the_text(fuzz: ModuleType) -> None:
    assert fuzz.exponent([0.01, 0.1, 1.0]) == pytest.approx(1)
    assert fuzz.exponent([0.01, 0.1, 10.0]) == pytest.approx(2)


def test_time_grows_linearly_with_the_text(fuzz: ModuleType) -> None:
    for name, entry in fuzz.entries().items():
        for part, recipe in fuzz.recipes().items():
            short = fuzz.seconds(entry, recipe(SHORT))
            if short <= LINEAR_S:
                continue
            short = min(short, fuzz.seconds(entry, recipe(SHORT)))  # with warm caches
            long = fuzz.seconds(entry, recipe(LONG))
            if long >= MAX_RATIO * short:  # again: other processes disturb times
                short, long = (
                    min(fuzz.seconds(entry, recipe(length)) for _ in range(3))
                    for length in (SHORT, LONG)
                )
            assert long < MAX_RATIO * short, (name, part, short, long)
