import json
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from transduce.checkpoint import Checkpoint, save_model
from transduce.decoding.native_decoder import EncodedSources, NativeModel
from transduce.decoding.translator import Translator, load
from transduce.metrics.scores import TargetScore


@pytest.fixture
def pair_options(tmp_path: Path) -> tuple[object, ...]:
    (tmp_path / "source").write_text("one two\nthree\n\n")
    (tmp_path / "target").write_text("eins zwei\n\nacht\n")
    return ("--source", tmp_path / "source", "--target", tmp_path / "target")


def test_every_pair_has_a_log_probability_and_all_have_a_total(
    succeeds: Callable[..., str], model: Path, pair_options: tuple[object, ...]
) -> None:
    *lines, total = succeeds("score", model, *pair_options).splitlines()
    assert len(lines) == 3
    assert all(float(line) < 0 for line in lines)
    assert total.startswith("# 3 pairs, ")
    assert f"log-probability {sum(map(float, lines)):.4f}" in total


def test_json_lines_end_with_the_total(
    succeeds: Callable[..., str], model: Path, pair_options: tuple[object, ...]
) -> None:
    out = succeeds("score", model, "--jsonl", *pair_options)
    *pairs, total = (json.loads(line) for line in out.splitlines())
    log_probability = sum(pair["log_probability"] for pair in pairs)
    num_tokens = sum(pair["num_tokens"] for pair in pairs)
    assert total == {
        "total_log_probability": pytest.approx(log_probability),
        "total_tokens": num_tokens,
        "perplexity": pytest.approx(math.exp(-log_probability / num_tokens)),
    }
    assert pairs[1]["num_tokens"] == 1  # the end token of an empty line
    assert "".join(pairs[0]["tokens"]) == " eins zwei"
    assert pairs[1]["tokens"] == []
    for pair in pairs:
        assert len(pair["token_log_probabilities"]) == len(pair["tokens"]) + 1
        of_tokens = sum(pair["token_log_probabilities"])
        assert of_tokens == pytest.approx(pair["log_probability"])


def test_a_perplexity_that_is_too_large_is_null_in_json(
    succeeds: Callable[..., str],
    model: Path,
    pair_options: tuple[object, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unlikely(
        _: object, sources: list[str], targets: list[str]
    ) -> list[TargetScore]:
        return [TargetScore(token_log_probabilities=(-1e6,)) for _ in targets]

    monkeypatch.setattr(Translator, "score", unlikely)
    *_, total = succeeds("score", model, "--jsonl", *pair_options).splitlines()
    assert '"perplexity": null' in total


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_translation_is_scored_as_search_scored_it(
    succeeds: Callable[..., str],
    model: Path,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
    beam_size: int,
) -> None:
    options = ("--input", corpus_files[0], "--beam-size", beam_size, "--jsonl")
    lines = succeeds("translate", model, *options).splitlines()
    found = [json.loads(line)["hypotheses"][0] for line in lines]
    (tmp_path / "target").write_text("".join(f"{h['text']}\n" for h in found))
    pair = ("--source", corpus_files[0], "--target", tmp_path / "target")
    scores = succeeds("score", model, *pair).splitlines()[:-1]
    differences = [
        abs(float(score) - hypothesis["log_probability"])
        for score, hypothesis in zip(scores, found, strict=True)
    ]
    # The same text in other pieces has another probability.
    assert sum(difference < 1e-4 for difference in differences) >= 30


def test_several_models_score_by_the_mean_probability_of_each_token(
    succeeds: Callable[..., str],
    model: Path,
    trained_checkpoint: Checkpoint,
    pair_options: tuple[object, ...],
    tmp_path: Path,
) -> None:
    weights = {name: each * 0.9 for name, each in trained_checkpoint.weights.items()}
    other = tmp_path / "other"
    save_model(replace(trained_checkpoint, weights=weights), other)

    def scores(*arguments: object) -> list[dict[str, Any]]:
        out = succeeds("score", *arguments, "--jsonl", *pair_options)
        return list(map(json.loads, out.splitlines()))

    ones, others = scores(model), scores(other)
    both = scores(model, "--ensemble", other)
    name = "token_log_probabilities"
    for one, two, mean in zip(ones[:-1], others[:-1], both[:-1], strict=True):
        assert mean["tokens"] == one["tokens"]
        expected = [
            math.log((math.exp(a) + math.exp(b)) / 2)
            for a, b in zip(one[name], two[name], strict=True)
        ]
        assert mean[name] == pytest.approx(expected, abs=1e-6)
        assert mean["log_probability"] == pytest.approx(sum(expected), abs=1e-5)
    totals = [each["total_log_probability"] for each in (ones[-1], others[-1])]
    assert both[-1]["total_log_probability"] > sum(totals) / 2  # by Jensen's inequality
    twice = scores(model, "--ensemble", model)
    for mean, one in zip(twice[:-1], ones[:-1], strict=True):
        assert mean[name] == pytest.approx(one[name], abs=1e-6)


def test_scores_in_another_precision_are_those_of_a_translator_in_it(
    succeeds: Callable[..., str], model: Path, pair_options: tuple[object, ...]
) -> None:
    options = ("--precision", "int8", "--device", "cpu")
    lines = succeeds("score", model, *options, *pair_options).splitlines()[:-1]
    translator = load(model, device="cpu", precision="int8")
    expected = translator.score(["one two", "three", ""], ["eins zwei", "", "acht"])
    assert lines == [f"{each.log_probability:.6f}" for each in expected]
    assert lines != succeeds("score", model, *pair_options).splitlines()[:-1]


def test_an_empty_corpus_has_no_probability(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    files = ("--source", tmp_path / "empty", "--target", tmp_path / "empty")
    said = succeeds("score", model, *files)
    assert said.startswith("# 0 pairs, 0 tokens")
    assert said.endswith("perplexity nan a token\n")
    assert json.loads(succeeds("score", model, *files, "--jsonl"))["perplexity"] is None


def test_unequal_line_counts_are_refused_before_any_output(
    command: Callable[..., object],
    model: Path,
    pair_options: tuple[object, ...],
    tmp_path: Path,
) -> None:
    (tmp_path / "target").write_text("eins zwei\n")
    outcome = command("score", model, *pair_options)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "target:2: source and target must have equally many lines" in outcome.err


def test_signals_act_while_a_long_line_is_encoded(
    succeeds: Callable[..., str],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would wait for the end of a native call in the main thread."""
    encode, callers = NativeModel.encode, list[threading.Thread]()

    def noted(native: NativeModel, sources: Sequence[Sequence[int]]) -> EncodedSources:
        callers.append(threading.current_thread())
        return encode(native, sources)

    monkeypatch.setattr(NativeModel, "encode", noted)
    (tmp_path / "lines").write_text("one two\n", encoding="utf-8")
    given = ("--source", tmp_path / "lines", "--target", tmp_path / "lines")
    succeeds("score", model, *given, "--device", "cpu")
    assert callers
    assert threading.main_thread() not in callers
