"""Comparisons of systems against counts by hand and by sacreBLEU's own command."""

import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transduce.errors import ConfigError, DataError
from transduce.metrics.comparison import (
    FREQUENCY_BOUNDS,
    LENGTH_BOUNDS,
    SEED_VARIABLE,
    Bucket,
    Comparison,
    Trials,
    compare,
    paired_scores,
)
from transduce.metrics.scores import corpus_bleu

WORDS = ["ein", "Hund", "läuft", "über", "das", "Feld", "und", "springt", "."]
FEW = Trials(resamples=50, shuffles=60, seed=7)


@pytest.fixture(scope="module")
def references() -> list[str]:
    random = np.random.default_rng(1)
    return [" ".join(random.choice(WORDS, 8)) for _ in range(40)]


@pytest.fixture(scope="module")
def systems(references: list[str]) -> dict[str, list[str]]:
    """Three systems, each of which omits a share of the words."""
    random = np.random.default_rng(2)
    return {
        name: [
            " ".join(word for word in line.split() if random.random() > share)
            for line in references
        ]
        for name, share in {"baseline": 0.3, "alike": 0.28, "better": 0.1}.items()
    }


@pytest.mark.parametrize("kind", ["bs", "ar"])
def test_scores_and_p_values_equal_those_of_sacrebleus_command(
    systems: dict[str, list[str]], references: list[str], kind: str, tmp_path: Path
) -> None:
    for name, lines in {"references": references, **systems}.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "references", "-i", *systems]
    options = ["--metrics", "bleu", "chrf", "--force", f"--paired-{kind}"]
    options += ["--paired-bs-n", "50", "--paired-ar-n", "60", "--width", "4"]
    printed = subprocess.run(
        [*command, *options, "--format", "text"],
        cwd=tmp_path,
        env=os.environ | {SEED_VARIABLE: "7"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    by_metric = paired_scores(systems, references, [BLEU(force=True), CHRF()], FEW)
    assert [scores.metric for scores in by_metric] == ["BLEU", "chrF2"]
    rows = list(zip(*(scores.systems for scores in by_metric), strict=True))
    found = [score for row in rows for score in row]
    if kind == "bs":
        expected = re.findall(r"([\d.]+) \([\d.]+ ± ([\d.]+)\)", printed)
        assert [(f"{s.score:.4f}", f"{s.interval:.4f}") for s in found] == expected
        chances = [score.bootstrap_p for score in found]
        signatures = [scores.bootstrap_signature for scores in by_metric]
    else:
        chances = [score.randomisation_p for score in found]
        signatures = [scores.randomisation_signature for scores in by_metric]
    assert chances[:2] == [None, None]
    assert [f"{p:.4f}" for p in chances[2:]] == re.findall(r"p = ([\d.]+)", printed)
    assert all(signature in printed for signature in signatures)


def test_differences_are_from_the_baseline(
    systems: dict[str, list[str]], references: list[str]
) -> None:
    [scores] = paired_scores(systems, references, [CHRF()], FEW)
    baseline, _, better = scores.systems
    assert baseline.difference == 0
    assert better.difference == better.score - baseline.score > 0


def test_signatures_name_the_test_its_size_and_its_seed(
    systems: dict[str, list[str]], references: list[str]
) -> None:
    [scores] = paired_scores(systems, references, [BLEU(force=True)], FEW)
    assert "|bs:50|seed:7|" in scores.bootstrap_signature
    assert "|tok:13a|" in scores.bootstrap_signature
    assert "|ar:60|seed:7|" in scores.randomisation_signature


def test_several_references_count_for_scores_and_the_first_for_lengths() -> None:
    systems = {"a": ["ein Hund lief weg", "x"], "b": ["der Hund rannte fort", "x"]}
    first, second = ["ein Hund lief weg", "x"], ["der Hund rannte fort", "x y z"]
    found = compare(systems, first, more_references=[second], trials=FEWEST)
    for scores in found.scores:
        assert scores.bootstrap_signature.startswith("nrefs:2|")
        assert [each.score for each in scores.systems] == pytest.approx([100, 100])
    [of_length] = found.by_length
    assert str(of_length.words) == "1-5"
    assert of_length.chrf == pytest.approx((100, 100))
    assert found.examples[0].better == found.examples[0].worse == ()
    message = "The number of references must be 2"
    with pytest.raises(DataError, match=message):
        compare(systems, first, more_references=[["x"]])
    with pytest.raises(DataError, match="The number of sources must be 2"):
        compare(systems, first, sources=["x"])


@pytest.mark.parametrize("lines", [["x y"], ["x y", "z", "z"]])
def test_a_test_of_unequal_numbers_of_lines_is_refused(lines: list[str]) -> None:
    systems = {"baseline": ["x y", "z"], "other": lines}
    with pytest.raises(DataError, match="The number of references must be"):
        paired_scores(systems, ["x y", "z"], [BLEU(force=True)], FEW)


@pytest.mark.usefixtures("unchecked_types")
def test_a_system_of_one_string_is_refused() -> None:
    systems: dict[str, Any] = {"baseline": ["x", "y"], "other": "xy"}
    with pytest.raises(DataError, match="must be a list of strings, but is str"):
        paired_scores(systems, ["x", "y"], [BLEU(force=True)], FEW)


def test_p_values_depend_on_the_seed_alone(
    systems: dict[str, list[str]],
    references: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once = paired_scores(systems, references, [CHRF()], FEW)
    monkeypatch.setenv(SEED_VARIABLE, "99")
    assert paired_scores(systems, references, [CHRF()], FEW) == once
    other = Trials(resamples=50, shuffles=60, seed=8)
    [first], [second] = once, paired_scores(systems, references, [CHRF()], other)
    assert first.systems[1].bootstrap_p != second.systems[1].bootstrap_p


@pytest.mark.parametrize("before", [None, "99"])
def test_the_environment_is_restored(
    systems: dict[str, list[str]],
    references: list[str],
    before: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(SEED_VARIABLE, before)
    paired_scores(systems, references, [CHRF()], FEW)
    assert os.environ.get(SEED_VARIABLE) == before


def test_equal_translations_have_a_p_value_of_one(references: list[str]) -> None:
    same = {"baseline": references, "copy": list(references)}
    [scores] = paired_scores(same, references, [BLEU(force=True)], FEW)
    copy = scores.systems[1]
    assert (copy.difference, copy.bootstrap_p, copy.randomisation_p) == (0, 1, 1)


@pytest.mark.parametrize(("num_sentences", "least"), [(1, 1.0), (3, 0.25), (5, 0.0625)])
def test_few_sentences_make_no_significant_difference(
    num_sentences: int, least: float
) -> None:
    references = [f"The old dog number {i} sleeps well." for i in range(num_sentences)]
    systems = {"good": references, "bad": ["no"] * num_sentences}
    [paired] = paired_scores(systems, references, [CHRF()], Trials(shuffles=500))
    assert paired.systems[1].randomisation_p == least


@pytest.mark.parametrize("num_different", range(1, 7))
def test_few_sentences_that_differ_make_no_significant_difference(
    num_different: int,
) -> None:
    references = [f"The old dog number {i} sleeps well." for i in range(100)]
    worse = ["no"] * num_different + references[num_different:]
    # The number is counted for each system; all lines of the third differ.
    systems = {"good": references, "bad": worse, "awful": ["no"] * 100}
    [paired] = paired_scores(systems, references, [CHRF()], Trials(shuffles=500))
    _, bad, awful = (score.randomisation_p for score in paired.systems)
    assert bad == 2.0 ** (1 - num_different)
    assert awful == pytest.approx(1 / 501)


@pytest.mark.parametrize("name", ["resamples", "shuffles", "seed"])
def test_sizes_and_seeds_below_their_bounds_are_refused(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^`{name}` must be at least 1, but is 0\.$"
    ):
        Trials(**{name: 0})


FEWEST = Trials(resamples=2, shuffles=2)
REFERENCES = [
    "ein Hund läuft",
    "der Hund springt über den Zaun am Feld",
    "ein Hund",
    "",
]
BASELINE = ["ein Hund", "der Hund läuft über das Feld", "ein Hund", "ja"]
OTHER = ["ein Hund läuft", "der Zaun", "Hund ein", ""]
SYSTEMS = {"baseline": BASELINE, "other": OTHER}

words = st.lists(st.sampled_from("abcdef"), max_size=9).map(" ".join)
corpora = st.lists(st.tuples(words, words, words), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(SYSTEMS, REFERENCES, sources=["1", "2", "3", "4"], trials=FEWEST)


def test_the_first_system_is_the_baseline(comparison: Comparison) -> None:
    assert comparison.systems == ("baseline", "other")
    assert comparison.num_sentences == 4
    assert [scores.metric for scores in comparison.scores] == ["BLEU", "chrF2"]
    assert [e.system for e in comparison.examples] == ["other"]


def test_sentences_are_scored_by_the_length_of_their_reference(
    comparison: Comparison,
) -> None:
    empty, short, long = comparison.by_length
    assert [str(each.words) for each in (empty, short, long)] == ["0", "1-5", "6-10"]
    assert [each.num_sentences for each in (empty, short, long)] == [1, 2, 1]
    for i, lines in enumerate((BASELINE, OTHER)):
        expected = sacrebleu.corpus_bleu(
            [lines[0], lines[2]], [[REFERENCES[0], REFERENCES[2]]], force=True
        )
        assert short.bleu[i] == pytest.approx(expected.score)
        chrf = sacrebleu.corpus_chrf([lines[1]], [[REFERENCES[1]]])
        assert long.chrf[i] == pytest.approx(chrf.score)


def test_recall_of_words_is_grouped_by_their_frequency_in_the_references(
    comparison: Comparison,
) -> None:
    # Hund occurs three times, ein twice, and the other eight words once.
    found = {str(each.occurrences): each.systems for each in comparison.by_frequency}
    assert list(found) == ["1", "2", "3-4"]
    assert [accuracy.num_wanted for accuracy in found["1"]] == [8, 8]
    once, other = found["1"]
    # "läuft" stands in the wrong sentence, and "das" in no reference.
    assert (once.num_met, once.num_written) == (3, 4)
    assert (other.num_met, other.num_written) == (3, 3)
    assert once.f1 == pytest.approx(200 * 3 / (4 + 8))
    assert [accuracy.f1 for accuracy in found["3-4"]] == pytest.approx([100, 80])


def test_word_frequencies_may_come_from_another_text() -> None:
    found = compare(SYSTEMS, REFERENCES, training=["Hund " * 12], trials=FEWEST)
    unseen, frequent = found.by_frequency
    assert str(unseen.occurrences) == "0"
    assert unseen.systems[0].num_wanted == 10
    assert str(frequent.occurrences) == "10-99"
    assert frequent.systems[1].num_met == 2


def test_an_empty_training_text_gives_all_words_frequency_zero() -> None:
    found = compare(SYSTEMS, REFERENCES, training=[], trials=FEWEST)
    assert [str(each.occurrences) for each in found.by_frequency] == ["0"]


@settings(deadline=None)
@given(corpora)
def test_matched_words_equal_bleus_unigram_matches(
    corpus: list[tuple[str, str, str]],
) -> None:
    references, baseline, other = (list(side) for side in zip(*corpus, strict=True))
    found = compare({"a": baseline, "b": other}, references, trials=FEWEST)
    for i, hypotheses in enumerate((baseline, other)):
        _, length, matched, *_ = corpus_bleu(hypotheses, references).statistics
        accuracies = [each.systems[i] for each in found.by_frequency]
        assert sum(accuracy.num_met for accuracy in accuracies) == matched
        assert sum(accuracy.num_wanted for accuracy in accuracies) == length
        assert all(accuracy.f1 <= 100 for accuracy in accuracies)


@settings(deadline=None)
@given(corpora)
def test_every_sentence_is_in_one_bucket_of_lengths(
    corpus: list[tuple[str, str, str]],
) -> None:
    references, baseline, other = (list(side) for side in zip(*corpus, strict=True))
    found = compare({"a": baseline, "b": other}, references, trials=FEWEST)
    assert sum(each.num_sentences for each in found.by_length) == len(references)


def test_the_sentences_that_differ_most_come_first(comparison: Comparison) -> None:
    [examples] = comparison.examples
    assert [example.line for example in examples.better] == [1]
    assert [example.line for example in examples.worse] == [3, 2]
    best = examples.better[0]
    assert (best.source, best.reference) == ("1", "ein Hund läuft")
    assert (best.baseline, best.hypothesis) == ("ein Hund", "ein Hund läuft")
    score = sacrebleu.sentence_chrf("ein Hund", ["ein Hund läuft"]).score
    assert best.baseline_chrf == pytest.approx(score)
    assert best.difference == pytest.approx(100 - score)


def test_no_more_examples_are_shown_than_asked_for() -> None:
    found = compare(SYSTEMS, REFERENCES, trials=FEWEST, num_examples=1)
    [examples] = found.examples
    assert [example.line for example in examples.worse] == [3]
    assert examples.worse[0].source is None


def test_tokenised_text_is_split_at_spaces() -> None:
    systems = {"a": ["ein-Hund."], "b": ["x"]}
    cut = compare(systems, ["ein-Hund."], trials=FEWEST)
    whole = compare(systems, ["ein-Hund."], tokenize="none", trials=FEWEST)
    assert [each.systems[0].num_wanted for each in cut.by_frequency] == [2]
    assert [each.systems[0].num_wanted for each in whole.by_frequency] == [1]
    assert "tok:none" in whole.scores[0].bootstrap_signature


def test_text_in_another_normal_form_is_the_same_text() -> None:
    reference = "ब\u095cा घो\u095cा यहाँ है"
    composed = unicodedata.normalize("NFC", reference)
    systems = {"a": [composed], "b": ["x"]}
    found = compare(systems, [reference], training=[reference], trials=FEWEST)
    assert [each.systems[0].score for each in found.scores] == pytest.approx([100, 100])
    assert all("|nfc:yes" in each.bootstrap_signature for each in found.scores)
    [words] = found.by_frequency
    assert words.systems[0].f1 == pytest.approx(100)
    assert words.occurrences.first > 0


@pytest.mark.parametrize(
    ("bucket", "text"),
    [
        (Bucket(first=0, last=0), "0"),
        (Bucket(first=1, last=1), "1"),
        (Bucket(first=100, last=999), "100-999"),
        (Bucket(first=1000, last=None), "1,000 or more"),
    ],
)
def test_a_bucket_has_a_label(bucket: Bucket, text: str) -> None:
    assert str(bucket) == text


@pytest.mark.parametrize("length", [LENGTH_BOUNDS[-1], LENGTH_BOUNDS[-1] + 1])
def test_the_last_bucket_has_no_bound(length: int) -> None:
    line = " ".join(["x"] * length)
    found = compare({"a": [line], "b": [line]}, [line], trials=FEWEST)
    is_beyond = length > LENGTH_BOUNDS[-1]
    assert (found.by_length[0].words.last is None) == is_beyond
    last = found.by_frequency[0].occurrences.last
    assert last == min(bound for bound in FREQUENCY_BOUNDS if bound >= length)


@pytest.mark.parametrize("systems", [{}, {"a": ["x"]}], ids=["none", "one"])
def test_a_single_system_is_refused(systems: dict[str, list[str]]) -> None:
    message = rf"^The number of systems must be at least 2, but is {len(systems)};"
    with pytest.raises(DataError, match=message):
        compare(systems, ["x"])


def test_a_system_with_missing_translations_is_refused() -> None:
    message = r"^The number of references must be 1, that of the hypotheses, but is 2\."
    with pytest.raises(DataError, match=message):
        compare({"a": ["x", "y"], "b": ["x"]}, ["x", "y"])
