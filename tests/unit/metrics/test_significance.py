"""The tests of significance against sacreBLEU's own command."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transduce.errors import ConfigError
from transduce.metrics.significance import SEED_VARIABLE, Trials, paired_scores

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


@pytest.mark.parametrize("name", ["resamples", "shuffles", "seed"])
def test_sizes_and_seeds_below_their_bounds_are_refused(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^`{name}` must be at least 1, but is 0\.$"
    ):
        Trials(**{name: 0})
