"""Small run of `benchmarks/text_fuzz.py`."""

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SHORT, LONG = 250, 2_000
LINEAR_S = 0.025
"""Seconds that 2 kB may take at most; a quadratic scanner takes longer."""


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
            text = recipe(LONG)
            taken = fuzz.seconds(entry, text)
            if taken > LINEAR_S:  # a slow machine, or a scanner that is not linear
                short = min(fuzz.seconds(entry, recipe(SHORT)) for _ in range(3))
                taken = min(fuzz.seconds(entry, text) for _ in range(3))
                most = 3 * max(short, 1e-3) * LONG / SHORT
                assert taken < most, (name, part, short, taken)
