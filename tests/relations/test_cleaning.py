"""Cleaning finds planted faults, and all that a check reports."""

import importlib
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

import transduce
from transduce.data.corpus_files import MARKS, CorpusFiles
from transduce.errors import ConfigError
from transduce.experiments.corpus_check import CorpusReport, advise, check_corpus
from transduce.experiments.presets import PRESETS
from transduce.grammar.corpus import Grammar

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FAULTY = (
    (b"caf\xe9", b"Kaffee"),
    (b"A dog.", b"Ein \0 Hund."),
    (b"", b"leer"),
    (b"empty", b" "),
    (b" ", b""),
    (b"The dog barks in the yard.", b"The dog barks in the yard."),
    (
        b"A long word.",
        " ".join(f"Wort{'aeiou'[n % 5] * n}" for n in range(40)).encode(),
    ),
    ("A\x85dog.".encode(), b"Ein Hund."),
    (b"A dog.", "Ein Hund\u2028.".encode()),
    (b"A \x02 dog.", b"Ein Hund."),
    ("A caf\ufffd.".encode(), b"Ein Lokal."),
    (b"A street.", "Eine StraÃŸe.".encode()),
)


def check(folder: Path, files: CorpusFiles) -> CorpusReport:
    dev = folder / "dev.en", folder / "dev.de"
    files = CorpusFiles(
        source=files.source,
        target=files.target,
        dev_source=dev[:1],
        dev_target=dev[1:],
    )
    return check_corpus(files, PRESETS["tiny"])


def num_faults(report: CorpusReport) -> dict[str, int]:
    training = report.training
    assert report.overlap is not None
    pairs = training.pairs
    found = {
        "invalid": pairs.invalid,
        "empty source": pairs.empty_source.count,
        "empty target": pairs.empty_target.count,
        "empty both": pairs.empty_both.count,
        "lopsided": pairs.lopsided.count,
        "identical": pairs.identical.count,
        "repeated": pairs.repeated.count,
        "in dev": report.overlap.sources.count,
    }
    for mark in MARKS:
        sides = training.source, training.target
        found[mark] = sum(side.suspicious[mark].count for side in sides)
    return found


def test_a_check_finds_no_fault_after_cleaning(tmp_path: Path) -> None:
    sentences = list(islice(Grammar.built_in().training_sentences(1), 160))
    sound = [(s.source.encode(), s.target.encode()) for s in sentences]
    pairs = [*sound, *FAULTY, *sound[:5], *FAULTY]
    paths = tmp_path / "my.en", tmp_path / "my.de"
    dev = tmp_path / "dev.en", tmp_path / "dev.de"
    for side in (0, 1):
        paths[side].write_bytes(b"".join(pair[side] + b"\n" for pair in pairs))
        dev[side].write_bytes(b"".join(pair[side] + b"\n" for pair in sound[:3]))
    before = check(tmp_path, CorpusFiles(source=paths[:1], target=paths[1:]))
    assert [kind for kind, number in num_faults(before).items() if not number] == []
    said = " ".join(map(str, advise(before)))
    assert "transduce clean" in said
    out = tmp_path / "out"
    report = transduce.clean(*paths, out, dev_source=dev[0], num_processes=1)
    assert 140 < report.kept <= 157
    cleaned = CorpusFiles(source=(out / "my.en",), target=(out / "my.de",))
    after = check(tmp_path, cleaned)
    assert [kind for kind, number in num_faults(after).items() if number] == []
    assert after.training.pairs.kept == report.kept
    assert "transduce clean" not in " ".join(map(str, advise(after)))


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script `benchmarks/cleaning.py`."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "cleaning", raising=False)
    return importlib.import_module("cleaning")


def test_planted_faults_are_found_and_sound_pairs_are_kept(
    benchmark: ModuleType, tmp_path: Path
) -> None:
    pairs = benchmark.built_in_corpus(500)
    planted, faults = benchmark.plant(pairs, benchmark.KINDS, 0.2, Random(1))
    paths = benchmark.write(planted, tmp_path, ("en", "de"))
    transduce.clean(*paths, tmp_path / "out", num_processes=1)
    found = benchmark.reasons(tmp_path / "out")
    assert [row for row in found if faults[row] is None] == []
    lost = Counter(
        kind.name
        for row, kind in enumerate(faults)
        if kind is not None and found.get(row) not in kind.rules
    )
    # Of ten pairs, two or three are only half as long or twice as long.
    assert set(lost) <= {"lengths"}
    assert lost.total() <= 3


@pytest.mark.usefixtures("unchecked_types")
def test_settings_of_another_kind_are_refused(tmp_path):
    with pytest.raises(
        ConfigError, match="`config` must be a CleaningConfig, but is {"
    ):
        transduce.clean("my.en", "my.de", tmp_path / "out", config={"loops": False})
