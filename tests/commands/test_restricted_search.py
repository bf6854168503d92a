"""Options of `translate` and `serve` that restrict the next token."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import transduce
from transduce.checkpoint import Checkpoint, save_model
from transduce.cli.serve import loaded
from transduce.cli.terminal import warnings_as_sentences
from transduce.search_config import SearchConfig

LINES = b"one two one two one two\nfour four four\n"


def tokens(output: str) -> list[list[str]]:
    found = map(json.loads, output.splitlines())
    return [each["hypotheses"][0]["tokens"] for each in found]


def test_no_token_occurs_twice_with_ngrams_of_one(
    succeeds: Callable[..., str], model: Path
) -> None:
    plain = tokens(succeeds("translate", model, "--jsonl", stdin=LINES))
    assert any(len(set(each)) < len(each) for each in plain)
    options = ("--jsonl", "--no-repeat-ngram", 1)
    for each in tokens(succeeds("translate", model, *options, stdin=LINES)):
        assert len(set(each)) == len(each)


def test_bad_words_do_not_occur(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    plain = succeeds("translate", model, stdin=LINES)
    word = plain.split()[0]
    (tmp_path / "words").write_text(f"{word}\n\n")
    found = succeeds("translate", model, "--bad-words", tmp_path / "words", stdin=LINES)
    assert word not in found.split()
    translator = transduce.load(model)
    config = replace(translator.search, bad_words=translator.token_ids([word, ""]))
    sources = LINES.decode().splitlines()
    texts = [each.text for each in translator.translate_stream(sources, config)]
    assert found.splitlines() == texts


def test_a_repetition_penalty_changes_scores_and_choices(
    succeeds: Callable[..., str], model: Path
) -> None:
    options = ("--jsonl", "--repetition-penalty", 50)
    plain = tokens(succeeds("translate", model, "--jsonl", stdin=LINES))
    penalized = tokens(succeeds("translate", model, *options, stdin=LINES))
    assert [len(set(each)) / len(each) for each in penalized] > [
        len(set(each)) / len(each) for each in plain
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--no-repeat-ngram", -1), "`search.no_repeat_ngram` must be at least 0"),
        (("--repetition-penalty", 0), "must be above 0 and at most 1,000"),
        (("--bad-words", "nowhere"), "nowhere"),
        (("--bad-words", "-"), "must stand for one file"),
    ],
)
def test_impossible_restrictions_are_refused(
    refuses: Callable[..., str], model: Path, options: tuple[object, ...], said: str
) -> None:
    assert said in refuses("translate", model, *options, stdin=LINES)


def test_ids_outside_the_vocabulary_are_refused(model: Path) -> None:
    translator = transduce.load(model)
    config = SearchConfig(bad_words=((1_000_000,),))
    with pytest.raises(transduce.TransduceError, match="one is 1,000,000"):
        next(translator.translate_stream(["one"], config))


def test_a_models_own_restrictions_are_obeyed(
    trained_checkpoint: Checkpoint, tmp_path: Path, succeeds: Callable[..., str]
) -> None:
    search = SearchConfig(no_repeat_ngram=1, bad_words=((5, 6),))
    save_model(replace(trained_checkpoint, search=search), tmp_path / "model")
    assert transduce.load(tmp_path / "model").search == search
    for each in tokens(
        succeeds("translate", tmp_path / "model", "--jsonl", stdin=LINES)
    ):
        assert len(set(each)) == len(each)
    options = ("--jsonl", "--no-repeat-ngram", 0)
    free = tokens(succeeds("translate", tmp_path / "model", *options, stdin=LINES))
    assert any(len(set(each)) < len(each) for each in free)


def test_a_server_restricts_the_search_of_translators(
    model: Path, parsing_model: Path
) -> None:
    given = {"no_repeat_ngram": 2, "repetition_penalty": None}
    served = loaded([model], "cpu", "fp32", 1, given)
    assert served.search == replace(transduce.load(model).search, no_repeat_ngram=2)
    parser = loaded([parsing_model], "cpu", "fp32", 1, given)
    assert parser.search == transduce.load(parsing_model).search


def test_a_server_says_once_that_a_model_has_no_shortlist(
    trained_checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = SearchConfig(shortlist=True)
    save_model(replace(trained_checkpoint, search=search), tmp_path / "model")
    with warnings_as_sentences():
        served = loaded([tmp_path / "model"], "cpu", "fp32", 1, {})
    assert capsys.readouterr().err == (
        "Warning: `search.shortlist` is set, but the model has no shortlist; the whole "
        "vocabulary is used instead. Make one with `transduce shortlist`.\n"
    )
    assert served.search == replace(search, shortlist=False)
    assert served.translate("one")  # without a warning, which would be an error
