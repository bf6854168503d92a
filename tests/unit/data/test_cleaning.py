"""Cleaning of whole corpora: rules that need all pairs, files, and processes."""

import bz2
import gzip
import json
import lzma
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from transduce.data import cleaning
from transduce.data.cleaning import CleaningReport, Scoring, clean_corpus
from transduce.data.cleaning_rules import RULES, CleaningConfig
from transduce.data.corpus_files import CorpusFiles
from transduce.errors import CheckpointError, ConfigError, DataError, RequestError
from transduce.files import MADE_BY
from transduce.grammar.corpus import Grammar
from transduce.metrics.scores import TargetScore
from transduce.processes import WorkerProcess
from transduce.text.corpus import MAGIC_BYTES, compression_of
from transduce.text.languages import LanguagesConfig
from waiting import PATIENCE_S

PAIRS = [
    ("A dog barks.", "Ein Hund bellt."),
    ("", "leer"),
    ("A dog barks.", "Ein Hund bellt."),
    ("A  dog barks.", "Ein Hund bellt."),
    ("A dog barks.", "Ein Köter bellt."),
    ("A cat.\u2028", "Eine Katze."),
    ("one\tcat", "eine\tKatze"),
]
LONG = " ".join("lang" + chr(97 + n) * 3 for n in range(26))
Cleaner = Callable[..., CleaningReport]


@pytest.fixture
def clean(tmp_path: Path) -> Cleaner:
    """Clean lines as `my.en` and `my.de`, in one process, into the folder `out`."""

    def run(
        pairs: Sequence[tuple[str | bytes, str | bytes]],
        config: CleaningConfig | None = None,
        **options: Any,
    ) -> CleaningReport:
        files = corpus(tmp_path, pairs)
        options = {"num_processes": 1} | options
        return clean_corpus(files, tmp_path / "out", config, **options)

    return run


def corpus(
    folder: Path, pairs: Sequence[tuple[str | bytes, str | bytes]]
) -> CorpusFiles:
    paths = folder / "my.en", folder / "my.de"
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_bytes(b"".join(as_bytes(line) + b"\n" for line in lines))
    return CorpusFiles(source=paths[:1], target=paths[1:])


def as_bytes(line: str | bytes) -> bytes:
    return line if isinstance(line, bytes) else line.encode()


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


def dropped(out: Path) -> list[dict[str, Any]]:
    text = (out / "dropped.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def reasons(out: Path) -> dict[int, str]:
    """Reason of each dropped pair by its line."""
    return {each["line"]: each["reason"] for each in dropped(out)}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_pairs_are_kept_in_order_and_the_others_have_reasons(clean, tmp_path) -> None:
    report = clean(PAIRS)
    out = tmp_path / "out"
    assert lines(out / "my.en") == [b"A dog barks.", b"A dog barks.", b"one\tcat"]
    assert lines(out / "my.de")[1:] == ["Ein Köter bellt.".encode(), b"eine\tKatze"]
    where = str(tmp_path / "my.en")
    assert dropped(out)[1] == {
        "file": where,
        "line": 3,
        "reason": "duplicate",
        "detail": f"repeats {where}:1",
        "source": "A dog barks.",
        "target": "Ein Hund bellt.",
    }
    assert reasons(out) == {
        2: "empty",
        3: "duplicate",
        4: "duplicate",
        6: "line-separator",
    }
    assert report.dropped == {"empty": 1, "line-separator": 1, "duplicate": 2}
    assert list(report.dropped) == [rule for rule in RULES if rule in report.dropped]
    assert (report.total, report.kept) == (7, 3)
    assert (report.files[0].source_language, report.files[0].kept) == ("en", 3)
    written = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert written["dropped"] == report.dropped
    assert written["settings"]["max_words"] == CleaningConfig().max_words
    assert set(contents(out)) == {
        "my.en", "my.de", "dropped.jsonl", "report.json", ".made-by",
    }  # fmt: skip


def test_an_infinite_threshold_is_null_in_the_report(clean, tmp_path) -> None:
    clean(PAIRS, CleaningConfig(ratio_spreads=math.inf))
    text = (tmp_path / "out" / "report.json").read_text(encoding="utf-8")
    assert json.loads(text)["settings"]["ratio_spreads"] is None


@pytest.mark.parametrize(
    ("config", "repeated"),
    [
        (CleaningConfig(unique_source=True), {5: "duplicate-source"}),
        (CleaningConfig(unique_target=True), {}),
        (
            CleaningConfig(unique_target=True, off=("duplicate",)),
            {3: "duplicate-target", 4: "duplicate-target"},
        ),
        (CleaningConfig(off=("duplicate", "duplicate-source")), {}),
    ],
)
def test_repeats_of_one_side_can_be_dropped(clean, tmp_path, config, repeated) -> None:
    clean(PAIRS, config)
    found = reasons(tmp_path / "out")
    expected = {2: "empty", 6: "line-separator"} | repeated
    if "duplicate" not in config.off:
        expected |= {3: "duplicate", 4: "duplicate"}
    assert found == expected


def test_a_dropped_pair_does_not_make_later_ones_duplicates(clean, tmp_path) -> None:
    clean([("Same\x07 dog.", "Hund."), ("Same dog.", "Hund."), ("Same dog.", "Hund.")])
    assert reasons(tmp_path / "out") == {1: "control-character", 3: "duplicate"}


LINES = st.one_of(
    st.binary(max_size=20),
    st.text(max_size=20).map(str.encode),
    st.sampled_from(["两个人。", "רגע", "a\r", "\ufeffa", "A dog.", ""]).map(
        str.encode
    ),
).map(lambda line: line.replace(b"\n", b" ").removesuffix(b"\r"))


def is_plain(content: bytes) -> bool:
    """Return whether a file does not begin as in a format of compression."""
    try:
        return compression_of(content[:MAGIC_BYTES], Path("text")) is None
    except DataError:
        return False


@settings(max_examples=20, deadline=None)
@given(
    pairs=st.lists(st.tuples(LINES, LINES), min_size=1, max_size=30),
    ends=st.sampled_from([b"\n", b"\r\n"]),
    is_gzip=st.booleans(),
    has_mark=st.booleans(),
)
def test_kept_and_dropped_pairs_are_the_input(pairs, ends, is_gzip, has_mark) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        files = CorpusFiles(source=(folder / "a.en",), target=(folder / "a.zh",))
        for path, side in zip(
            (*files.source, *files.target), zip(*pairs, strict=True), strict=True
        ):
            mark = b"\xef\xbb\xbf" if has_mark else b""
            content = mark + b"".join(line + ends for line in side)
            # Without a mark of ours, the first line must not begin with one.
            if not has_mark and content.startswith(b"\xef\xbb\xbf"):
                content = b"\xef\xbb\xbf" + content
            assume(is_gzip or is_plain(content))
            path.write_bytes(gzip.compress(content) if is_gzip else content)
        report = clean_corpus(files, folder / "out", num_processes=1)
        read = [
            gzip.decompress(path.read_bytes()) if is_gzip else path.read_bytes()
            for path in (folder / "out" / "a.en", folder / "out" / "a.zh")
        ]
        # As files are read: without a mark, and with either end of a line.
        sides = (
            re.split(rb"\r?\n", text.removeprefix(b"\xef\xbb\xbf"))[:-1]
            for text in read
        )
        kept = list(zip(*sides, strict=True))
        gone = dropped(folder / "out")
        assert (len(kept), len(pairs)) == (report.kept, report.total)
        numbers = [each["line"] for each in gone]
        assert numbers == sorted(set(numbers))
        together = list(kept)
        for each in gone:
            pair = tuple(
                each[side].encode("utf-8", "surrogateescape")
                for side in ("source", "target")
            )
            together.insert(each["line"] - 1, pair)
        assert together == pairs


def test_the_result_is_the_same_for_any_processes_and_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = Grammar.built_in().training_sentences(1)
    pairs = [(s.source, s.target) for s, _ in zip(sentences, range(230), strict=False)]
    pairs = [*pairs, *PAIRS, *pairs[::7], ("short", LONG), (b"\xff", "x")]
    files = corpus(tmp_path, pairs)
    expected = None
    for processes, chunk in ((1, 5_000), (1, 1), (3, 50), (2, 7)):
        monkeypatch.setattr(cleaning, "CHUNK_PAIRS", chunk)
        monkeypatch.setattr(cleaning, "CHUNK_BYTES", 60 * chunk)
        monkeypatch.setattr(cleaning, "BLOCK_ROWS", 11 * chunk)
        monkeypatch.setattr(cleaning, "PARTITION_ROWS", 10 * chunk)
        scoring = Scoring(score=by_length, worst=0.05)
        out = tmp_path / f"out {processes} {chunk}"
        clean_corpus(files, out, scoring=scoring, num_processes=processes)
        found = contents(out)
        expected = expected or found
        assert found == expected
    assert {"duplicate", "length-ratio", "not-text", "low-score"} <= set(
        reasons(out).values()
    )


def by_length(sources: Sequence[str], targets: Sequence[str]) -> list[TargetScore]:
    """Score pairs by the length of their target."""
    return [
        TargetScore(token_log_probabilities=(-float(len(target)), 0.0))
        for _, target in zip(sources, targets, strict=True)
    ]


def test_unusual_length_ratios_are_learned_from_the_corpus(clean, tmp_path) -> None:
    # About three characters of English for each one of Chinese.
    pairs = [(f"{'word ' * n}{n}", f"{'字词' * (n - n % 2)}{n}") for n in range(2, 130)]
    report = clean(
        [*pairs, ("word " * 20 + "x", "字"), ("dog", "狗"), ("so", "字词" * 30)],
        CleaningConfig(off=("loop", "identical")),
        languages=LanguagesConfig(target="zh"),
    )
    ratio = report.length_ratios["en-zh"]
    assert ratio.usual == pytest.approx(0.5, rel=0.05)
    assert ratio.largest_factor == pytest.approx(2.0)
    found = dropped(tmp_path / "out")
    assert [(each["line"], each["reason"]) for each in found] == [
        (129, "length-ratio"),
        (131, "length-ratio"),
    ]
    factor = (2 + 15) / (81 + 15)
    assert found[0]["detail"] == f"the target is {factor:.2f} times as long as usual"


def test_few_pairs_teach_no_length_ratio(clean) -> None:
    report = clean([("a", f"wort {n} " + "wort" * n) for n in range(99)])
    assert report.length_ratios == {}
    assert "length-ratio" not in report.dropped


def test_short_pairs_teach_no_length_ratio_if_there_are_long_ones(clean) -> None:
    sides = ["abc " * (n % 9 + 9) + "def " * (n // 9) for n in range(120)]
    pairs = [(f"{side}{n}", f"{side * 2}{n}") for n, side in enumerate(sides)]
    short = [(f"a{n}", f"abcde{n}") for n in range(300)]
    config = CleaningConfig(off=("loop", "identical"))
    report = clean([*short, *pairs], config)
    assert report.length_ratios["en-de"].usual == pytest.approx(2, rel=0.05)


def test_ratios_that_differ_widely_allow_larger_deviations(clean, tmp_path) -> None:
    # Equally many targets are 40 % shorter, as long, and 40 % longer.
    words = [f"{a}{b}{c}d" for a in "abcdef" for b in "abcdef" for c in "abcdef"]
    texts = [" ".join(words[n % 180 :][:25]) for n in range(120)]
    pairs = [
        (text, " ".join([*text.split(), *words[-10:]][: (15, 25, 35)[n % 3]]))
        for n, text in enumerate(texts)
    ]
    report = clean(pairs, CleaningConfig(off=("identical",)))
    spread = 1.4826 * math.log(155 / 115)
    expected = math.exp(5 * spread)
    assert report.length_ratios["en-de"].largest_factor == pytest.approx(
        expected, rel=0.02
    )
    config = CleaningConfig(off=("identical",), ratio_spreads=1.0, ratio_factor=1.1)
    report = clean(pairs, config)
    assert report.length_ratios["en-de"].largest_factor == pytest.approx(
        math.exp(spread), rel=0.02
    )
    # The logarithm of 75 / 115 deviates from 0 by less than one spread.
    assert "length-ratio" not in report.dropped
    report = clean(pairs, CleaningConfig(off=("identical",), ratio_spreads=0.8))
    assert report.length_ratios["en-de"].largest_factor == pytest.approx(2.0)


def test_empty_sides_teach_no_length_ratio(clean) -> None:
    pairs = [(f"abc {n}", f"abc abc {n}") for n in range(100)]
    off = ("empty", "few-letters", "duplicate")
    report = clean([*pairs, *[("", "")] * 200], CleaningConfig(off=off))
    assert report.length_ratios["en-de"].usual == pytest.approx(1.6, rel=0.1)
    assert report.kept == 300


def test_the_reason_of_a_duplicate_names_the_first_of_its_kind(clean, tmp_path) -> None:
    clean([("a", "b"), ("c d", "e"), ("f", "g"), ("c  d", "e"), ("c d ", "e")])
    first = f"repeats {tmp_path / 'my.en'}:2"
    assert [each["detail"] for each in dropped(tmp_path / "out")] == [first, first]


def test_pairs_with_exchanged_sides_are_no_duplicates(clean) -> None:
    report = clean([("Berlin", "Hamburg"), ("Hamburg", "Berlin"), ("Hamburg", "Ulm")])
    assert report.kept == 3


def test_length_ratios_differ_by_languages(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.en", "b.en", "a.de", "b.fr")]
    for path, factor in zip(paths, (1, 1, 2, 3), strict=True):
        sides = [("abc " * n) * factor + f"{n}" for n in range(8, 150)]
        path.write_text("".join(f"{line}\n" for line in sides), encoding="utf-8")
    files = CorpusFiles(source=tuple(paths[:2]), target=tuple(paths[2:]))
    config = CleaningConfig(off=("loop", "too-long"))
    report = clean_corpus(files, tmp_path / "out", config, num_processes=1)
    usual = {key: each.usual for key, each in report.length_ratios.items()}
    assert usual == {
        "en-de": pytest.approx(2, rel=0.02),
        "en-fr": pytest.approx(3, rel=0.02),
    }
    assert report.dropped == {}


COSTS = [
    -math.inf,
    -2.5,
    -1e-300,
    0.0,
    1e-300,
    1e-9,
    0.5,
    1.0,
    2.0,
    2.5,
    2.6,
    700.0,
    math.inf,
]


@example([1.0] * 25, 0.3)
@example(COSTS, 0.3)
@example(COSTS, 0.8)
@given(
    st.lists(st.sampled_from(COSTS), max_size=40),
    st.floats(0, 1),
)
@settings(max_examples=20, deadline=None)
def test_the_worst_scores_are_those_that_sorting_finds(costs, worst) -> None:
    """Among equal scores the last go first."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        files = corpus(folder, [(f"{n} x", f"{n} y") for n in range(len(costs) + 1)])
        costs = [*costs, 3.0]

        def score(sources: Sequence[str], _: Sequence[str]) -> list[TargetScore]:
            return [
                TargetScore(token_log_probabilities=(-costs[int(s.split()[0])],))
                for s in sources
            ]

        scoring = Scoring(score=score, worst=worst)
        with patch.object(cleaning, "BLOCK_ROWS", 7):
            out = folder / "out"
            report = clean_corpus(files, out, scoring=scoring, num_processes=1)
        ranked = sorted(range(len(costs)), key=lambda n: (costs[n], n))
        num_dropped = int(worst * len(costs))
        expected = sorted(ranked[len(costs) - num_dropped :])
        assert [each["line"] - 1 for each in dropped(folder / "out")] == expected
        kept = [costs[n] for n in ranked[: len(costs) - num_dropped]]
        assert report.largest_score == (max(kept) if kept else None)


def test_two_models_rank_by_dual_conditional_cross_entropy(clean, tmp_path) -> None:
    forward = {"a dog": 1.0, "a cat": 2.0, "a cow": 1.4}
    reverse = {"ein Hund": 3.0, "eine Katze": 2.2, "eine Kuh": 1.6}

    def scores(table: dict[str, float]) -> cleaning.ScorePairs:
        def score(_: Sequence[str], texts: Sequence[str]) -> list[TargetScore]:
            return [
                TargetScore(token_log_probabilities=(-table[text],) * 4)
                for text in texts
            ]

        return score

    by_target = dict(zip(reverse, forward.values(), strict=True))
    by_source = dict(zip(forward, reverse.values(), strict=True))
    report = clean(
        list(zip(forward, reverse, strict=True)),
        scoring=Scoring(
            score=scores(by_target), score_reverse=scores(by_source), worst=0.34
        ),
    )
    # |1 - 3| + 2 = 4, |2 - 2.2| + 2.1 = 2.3, |1.4 - 1.6| + 1.5 = 1.7
    assert reasons(tmp_path / "out") == {1: "low-score"}
    assert dropped(tmp_path / "out")[0]["detail"] == "score 4.0000"
    assert report.largest_score == pytest.approx(2.3)
    table = (tmp_path / "out" / "scores.tsv").read_text(encoding="utf-8").splitlines()
    where = tmp_path / "my.en"
    assert table == [
        "file\tline\tkept\tscore\tforward\treverse",
        f"{where}\t1\t0\t4.000000\t1.000000\t3.000000",
        f"{where}\t2\t1\t2.300000\t2.000000\t2.200000",
        f"{where}\t3\t1\t1.700000\t1.400000\t1.600000",
    ]


def test_only_pairs_that_all_rules_keep_are_scored(clean, tmp_path) -> None:
    scored: list[str] = []

    def score(sources: Sequence[str], targets: Sequence[str]) -> list[TargetScore]:
        scored.extend(sources)
        return by_length(sources, targets)

    clean(PAIRS, scoring=Scoring(score=score, worst=0))
    assert scored == ["A dog barks.", "A dog barks.", "one\tcat"]
    table = (tmp_path / "out" / "scores.tsv").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[1:3] for line in table[1:]] == [
        ["1", "1"],
        ["5", "1"],
        ["7", "1"],
    ]


@pytest.mark.parametrize("module", [gzip, lzma, bz2])
def test_a_compressed_corpus_is_written_as_the_same_bytes_each_time(
    tmp_path: Path, module: Any
) -> None:
    files = corpus(tmp_path, PAIRS)
    for path in (*files.source, *files.target):
        path.write_bytes(module.compress(path.read_bytes()))
    written = []
    for name in ("one", "other"):
        clean_corpus(files, tmp_path / name, num_processes=1)
        written.append(contents(tmp_path / name))
    assert written[0] == written[1]
    assert module.decompress(written[0]["my.en"]).count(b"\n") == 3
    if module is gzip:
        flags_and_time = written[0]["my.en"][3:8]
        assert flags_and_time == bytes(5)  # neither a name nor a time


def test_given_languages_come_before_the_endings_of_the_files(clean) -> None:
    given = LanguagesConfig(source="fr", target="zh")
    (files,) = clean(PAIRS, languages=given).files
    assert (files.source_language, files.target_language) == ("fr", "zh")
    (files,) = clean(PAIRS, languages=LanguagesConfig(source="fr")).files
    assert (files.source_language, files.target_language) == ("fr", "de")


def test_dev_sources_are_dropped(tmp_path: Path) -> None:
    files = corpus(tmp_path, PAIRS)
    (tmp_path / "dev.en").write_text("one cat\nno\n", encoding="utf-8")
    dev = CorpusFiles(
        source=files.source, target=files.target, dev_source=(tmp_path / "dev.en",)
    )
    report = clean_corpus(dev, tmp_path / "out", num_processes=1)
    assert report.dropped["in-dev"] == 1


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda folder: ((folder / "my.en", folder / "my.en"), (folder / "my.de",)),
            DataError,
            "equally many files, but have 2 and 1",
        ),
        (
            lambda folder: ((folder / "my.en",), (folder / "my.en",)),
            ConfigError,
            "another file of the output folder is named my.en; rename one.",
        ),
        (
            lambda folder: ((folder / "no.en",), (folder / "my.de",)),
            DataError,
            "no.en: the file cannot be read (No such file or directory).",
        ),
        (
            lambda folder: ((folder / "less.en",), (folder / "my.de",)),
            DataError,
            "less.en:2: source and target must have equally many lines",
        ),
        (
            lambda folder: ((folder / "none.en",), (folder / "none.de",)),
            DataError,
            "none.en: a corpus must have at least one line, but is empty.",
        ),
        (
            lambda folder: ((folder / "report.json",), (folder / "my.de",)),
            ConfigError,
            "another file of the output folder is named report.json",
        ),
        (
            lambda folder: ((folder,), (folder / "my.de",)),
            DataError,
            "a corpus must be a file",
        ),
        (
            lambda folder: ((Path("-"),), (folder / "my.de",)),
            ConfigError,
            "as it is read several times, but `-` is standard input",
        ),
    ],
)
def test_files_that_cannot_be_cleaned_leave_nothing(
    tmp_path: Path,
    make: Callable[[Path], tuple[tuple[Path, ...], tuple[Path, ...]]],
    error: type[Exception],
    message: str,
) -> None:
    corpus(tmp_path, PAIRS)
    (tmp_path / "less.en").write_text("one\n", encoding="utf-8")
    for name in ("none.en", "none.de", "report.json"):
        (tmp_path / name).touch()
    before = contents(tmp_path)
    source, target = make(tmp_path)
    with pytest.raises(error) as refused:
        clean_corpus(
            CorpusFiles(source=source, target=target), tmp_path / "out", num_processes=1
        )
    assert message in str(refused.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("number", [0, 10_000])
def test_an_impossible_number_of_processes_is_refused(clean, number: int) -> None:
    with pytest.raises(ConfigError, match="number of processes must be at"):
        clean(PAIRS, num_processes=number)


@pytest.mark.parametrize("worst", [-0.1, 1.1, math.nan])
def test_an_impossible_share_is_refused(worst: float) -> None:
    with pytest.raises(ConfigError, match="`worst` must be at"):
        Scoring(score=by_length, worst=worst)


MORE_THAN_A_CHUNK = [*PAIRS] * (cleaning.CHUNK_PAIRS // len(PAIRS) + 1)
"""Pairs for which several processes are started."""


def test_a_killed_process_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    started: list["subprocess.Popen[bytes]"],
) -> None:
    judged = WorkerProcess.__call__

    def judged_by_a_killed_one(worker: Any, chunk: object) -> object:
        for process in started:
            process.kill()
        return judged(worker, chunk)

    monkeypatch.setattr(WorkerProcess, "__call__", judged_by_a_killed_one)
    files = corpus(tmp_path, MORE_THAN_A_CHUNK)
    before = contents(tmp_path)
    with pytest.raises(RequestError, match="A process that cleans was killed"):
        clean_corpus(files, tmp_path / "out", num_processes=2)
    assert contents(tmp_path) == before


def test_a_process_that_cannot_be_started_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(WorkerProcess, "__init__", start)
    files = corpus(tmp_path, MORE_THAN_A_CHUNK)
    before = contents(tmp_path)
    with pytest.raises(RequestError, match=r"allows none \(Resource temporarily"):
        clean_corpus(files, tmp_path / "out", num_processes=2)
    assert contents(tmp_path) == before


def test_a_script_needs_no_guard_against_its_processes(tmp_path: Path) -> None:
    files = corpus(tmp_path, MORE_THAN_A_CHUNK)
    clean_corpus(files, tmp_path / "expected", num_processes=1)
    (tmp_path / "script.py").write_text(
        "import transduce\n"
        "print('begins')\n"
        "transduce.clean('my.en', 'my.de', 'out', num_processes=2)\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(cleaning.__file__).parents[2])},
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout.split()) == (0, [b"begins"]), done.stderr
    for name in ("my.en", "my.de"):
        expected = (tmp_path / "expected" / name).read_bytes()
        assert (tmp_path / "out" / name).read_bytes() == expected


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("stage", ["read", "scored", "written"])
def test_an_interrupted_cleaning_leaves_the_folder_as_it_was(
    clean, tmp_path: Path, stop: type[BaseException], stage: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("precious", encoding="utf-8")
    (tmp_path / "out" / MADE_BY).write_text("clean", encoding="utf-8")
    scoring = Scoring(score=by_length)

    def on_pairs(what: str, _: int) -> None:
        if what == stage:
            raise stop

    with pytest.raises(stop):
        clean(PAIRS, scoring=scoring, on_pairs=on_pairs, overwrite=True)
    assert contents(tmp_path / "out") == {"old": b"precious", MADE_BY: b"clean"}
    assert {path.name for path in tmp_path.iterdir()} == {"my.en", "my.de", "out"}


@pytest.mark.parametrize("change", [b"", b"A dog.\n", b"x\n" * 7, b"x\n" * 8])
def test_a_corpus_that_changes_meanwhile_is_refused(
    clean, tmp_path: Path, change: bytes
) -> None:
    def on_pairs(what: str, _: int) -> None:
        if what == "scored":
            (tmp_path / "my.en").write_bytes(change)

    with pytest.raises(DataError) as refused:
        clean(PAIRS, scoring=Scoring(score=by_length), on_pairs=on_pairs)
    assert "my.en" in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", [2, 3])
def test_progress_ends_with_the_number_of_all_pairs(
    clean, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("transduce.data.cleaning.CHUNK_PAIRS", size)
    last: dict[str, int] = {}
    clean(PAIRS, on_pairs=last.__setitem__)
    assert last == {"read": len(PAIRS), "written": len(PAIRS)}


def test_a_full_disk_is_reported_and_leaves_nothing(clean, tmp_path: Path) -> None:
    def on_pairs(what: str, _: int) -> None:
        if what == "written":
            raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="free some space and try again"):
        clean(PAIRS, on_pairs=on_pairs)
    assert {path.name for path in tmp_path.iterdir()} == {"my.en", "my.de"}


@pytest.mark.skipif(not hasattr(os, "SEEK_HOLE"), reason="cannot find holes there")
def test_memory_is_mapped_to_files_without_holes(clean, monkeypatch) -> None:
    """A full disk kills a process that fills a hole, without an error to report."""
    with_holes = []
    memmap = cleaning.np.memmap

    def noting(path: Path, **options: Any) -> Any:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if file.seek(0, os.SEEK_HOLE) < size:
                with_holes.append(path.name)
        return memmap(path, **options)

    monkeypatch.setattr(cleaning.np, "memmap", noting)
    monkeypatch.setattr(cleaning, "CHUNK_PAIRS", 1_000)
    clean([(f"A {number} b.", f"Ein {number} b.") for number in range(2_500)])
    assert with_holes == []


@pytest.mark.skipif(sys.platform != "linux", reason="other names are refused there")
def test_a_file_name_that_is_not_utf_8_is_written_as_it_is(tmp_path: Path) -> None:
    files = corpus(tmp_path, PAIRS)
    odd = tmp_path / os.fsdecode(b"caf\xe9.en")
    files.source[0].rename(odd)
    files = CorpusFiles(source=(odd,), target=files.target)
    out, scoring = tmp_path / "out", Scoring(score=by_length)
    clean_corpus(files, out, scoring=scoring, num_processes=1)
    assert (out / odd.name).exists()
    assert dropped(out)[0]["file"] == str(odd)
    assert os.fsencode(odd) in (out / "scores.tsv").read_bytes()
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report["files"][0]["source"] == str(odd)
