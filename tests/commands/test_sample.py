"""`transduce sample` depends on the seed and the line alone."""

import json
from collections.abc import Callable
from pathlib import Path

LINES = b"one two\n\nthree four five\none two\n"


def test_every_line_has_the_requested_number_of_samples(
    succeeds: Callable[..., str], model: Path
) -> None:
    drawn = succeeds("sample", model, "--number", 3, stdin=LINES).splitlines()
    assert len(drawn) == 12
    assert drawn[3:6] == ["", "", ""]


def test_the_seed_determines_the_samples(
    succeeds: Callable[..., str], model: Path
) -> None:
    def draw(seed: int) -> str:
        options = ("--number", 5, "--temperature", 5.0, "--seed", seed)
        return succeeds("sample", model, *options, stdin=LINES)

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_the_likeliest_token_alone_is_greedy_search(
    succeeds: Callable[..., str], model: Path
) -> None:
    greedy = succeeds("translate", model, "--beam-size", 1, stdin=LINES)
    assert succeeds("sample", model, "--top-k", 1, stdin=LINES) == greedy
    assert succeeds("sample", model, "--top-p", 1e-9, stdin=LINES) == greedy


def test_an_option_selects_the_precision(
    succeeds: Callable[..., str], model: Path
) -> None:
    out = succeeds("sample", model, "--precision", "bf16", stdin=LINES)
    assert len(out.splitlines()) == len(LINES.splitlines())


def test_json_lines_have_the_samples_and_their_tokens(
    succeeds: Callable[..., str], model: Path
) -> None:
    options = ("--jsonl", "--number", 2)
    line, *_ = succeeds("sample", model, *options, stdin=LINES).splitlines()
    first, second = json.loads(line)["hypotheses"]
    assert first["score"] >= second["score"]
    assert "".join(first["tokens"]).split() == first["text"].split()


def test_an_impossible_setting_is_refused(
    refuses: Callable[..., str], model: Path
) -> None:
    message = refuses("sample", model, "--number", 0, stdin=LINES)
    assert message == "`number` must be at least 1, but is 0."
    assert refuses("sample", model, "--top-p", 0, stdin=LINES) == (
        "`top_p` must be above 0 and at most 1, but is 0.0."
    )
