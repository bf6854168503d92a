"""Generation settings of imported folders: those applied, and those reported."""

import json
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from transduce.checkpoint import Checkpoint
from transduce.errors import CheckpointError, ConfigError, RequestError
from transduce.interop.generation_settings import differing_settings, read_search
from transduce.interop.marian_export import export
from transduce.search_config import SearchConfig

IDS = (9, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8)
"""The library's ids by this package's: padding and start are 9, the end is 0."""
BEAMS = {"patience": 1.0, "penalty": "power", "length_penalty": 1.0, "beam_size": 4}


def folder_of(folder: Path, **settings: object) -> Path:
    content = {"num_beams": 4, "eos_token_id": 0, **settings}
    (folder / "generation_config.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"no_repeat_ngram_size": 3}, {"no_repeat_ngram": 3}),
        ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"bad_words_ids": [[9], [0], [4], [5, 6]]}, {"bad_words": ((6,), (7, 8))}),
        ({"bad_words_ids": [[4, 0], [0, 4]]}, {"bad_words": ((6, 2),)}),
        ({"suppress_tokens": [1, 9]}, {"bad_words": ((3,),)}),
        ({"min_length": 5}, {"min_length": 4}),
        ({"min_length": 5, "min_new_tokens": 7}, {"min_length": 7}),
        ({"min_length": 9, "min_new_tokens": 3}, {"min_length": 3}),
        ({"max_length": 40}, {"max_length": 39}),
        ({"max_length": 40, "max_new_tokens": 20}, {"max_length": 20}),
        ({"max_length": 40, "forced_eos_token_id": 0}, {"max_length": 38}),
        ({"max_new_tokens": 20, "forced_eos_token_id": [0]}, {"max_length": 19}),
        (
            {"min_length": 8, "max_length": 10, "forced_eos_token_id": 0},
            {"min_length": 7, "max_length": 8},
        ),
        ({"max_length": 3, "forced_eos_token_id": 0}, {"max_length": 1}),
        ({"length_penalty": 0.6, "early_stopping": True}, {"length_penalty": 0.6}),
        ({"early_stopping": "never"}, {"patience": None}),
        ({"early_stopping": False}, {"patience": None}),
    ],
    ids=str,
)
def test_settings_of_search_are_obeyed(
    tmp_path: Path, settings: dict, expected: dict
) -> None:
    folder = folder_of(tmp_path, **settings)
    assert read_search(folder, IDS) == SearchConfig(**{**BEAMS, **expected})
    assert differing_settings(folder) == []


@pytest.mark.parametrize(
    ("settings", "expected", "name"),
    [
        ({"min_length": 9, "max_length": 10}, (7, 8), "min_length"),
        ({"min_length": 10, "max_length": 10}, (7, 8), "min_length"),
        ({"min_new_tokens": 5, "max_new_tokens": 5}, (3, 4), "min_new_tokens"),
        (
            {"min_length": 10, "max_length": 10, "forced_eos_token_id": None},
            (8, 9),
            "min_length",
        ),
        ({"min_length": 2, "max_length": 2}, (0, 1), "max_length"),
        ({"max_length": 2}, (0, 1), "max_length"),
        ({"max_new_tokens": 1}, (0, 1), "max_new_tokens"),
    ],
    ids=str,
)
def test_limits_that_leave_no_choice_are_kept_up_to_one_token_and_reported(
    tmp_path: Path, settings: dict, expected: tuple[int, int], name: str
) -> None:
    folder = folder_of(tmp_path, **{"forced_eos_token_id": 0, **settings})
    search = read_search(folder, IDS)
    assert (search.min_length, search.max_length) == expected
    [differing] = differing_settings(folder)
    assert f"`{name}` = {settings[name]} is not applied as in" in differing


@pytest.mark.parametrize("forced", [0, None])
@pytest.mark.parametrize(
    "limit", [{"max_length": 1}, {"max_length": 0}, {"max_new_tokens": 0}], ids=str
)
def test_a_limit_that_leaves_no_token_is_left_out_and_reported(
    tmp_path: Path, limit: dict, forced: int | None
) -> None:
    folder = folder_of(tmp_path, forced_eos_token_id=forced, **limit)
    assert read_search(folder, IDS) == SearchConfig(**BEAMS)
    [differing] = differing_settings(folder)
    [(name, value)] = limit.items()
    assert f"`{name}` = {value} is not applied as in" in differing
    assert differing.endswith("translations have no such limit here.")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram": 2}),
        ({"min_length": 5, "max_length": 40}, {"min_length": 4, "max_length": 39}),
    ],
    ids=str,
)
def test_search_without_a_number_of_beams_is_greedy_as_in_the_library(
    tmp_path: Path, settings: dict, expected: dict
) -> None:
    folder = folder_of(tmp_path, num_beams=None, **settings)
    greedy = {**BEAMS, "beam_size": 1}
    assert read_search(folder, IDS) == SearchConfig(**{**greedy, **expected})


def test_special_ids_that_differ_from_the_model_are_reported(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, decoder_start_token_id=5)
    (folder / "config.json").write_text('{"eos_token_id": 0, "pad_token_id": 9}')
    assert differing_settings(folder) == []
    (folder / "config.json").write_text('{"decoder_start_token_id": 9}')
    [differing] = differing_settings(folder)
    assert (
        "`decoder_start_token_id` = 5 is not applied as in the library; the model's is "
        "9" in differing
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"do_sample": True},
            "`do_sample` = true is not applied as in the library; `transduce",
        ),
        ({"num_beam_groups": 2}, "`num_beam_groups` = 2 is not applied"),
        ({"forced_bos_token_id": 5}, "`forced_bos_token_id` = 5 is not applied"),
        ({"forced_eos_token_id": 5}, "`forced_eos_token_id` = 5 is not applied"),
        ({"encoder_no_repeat_ngram_size": 2}, "sources restrict nothing here."),
        (
            {"renormalize_logits": True, "no_repeat_ngram_size": 2},
            "`renormalize_logits` = true is not applied as in the library; tokens that",
        ),
        ({"renormalize_logits": True, "bad_words_ids": [[9], [4]]}, "tokens that"),
        ({"renormalize_logits": True, "suppress_tokens": [4]}, "tokens that"),
        (
            {"decoder_start_token_id": 9, "bad_words_ids": [[9, 4]]},
            "sequences that begin with the start token exclude nothing here.",
        ),
        ({"suppress_tokens": [0]}, "the end token may always follow."),
        ({"decoder_start_token_id": 0, "no_repeat_ngram_size": 1}, "is also the start"),
        ({"decoder_start_token_id": 0, "repetition_penalty": 2}, "is also the start"),
        ({"num_beams": 1, "repetition_penalty": 1.2}, "to logits."),
    ],
    ids=str,
)
def test_other_settings_are_reported(tmp_path: Path, settings: dict, said: str) -> None:
    [differing] = differing_settings(folder_of(tmp_path, **settings))
    assert differing.startswith(f"{tmp_path}/generation_config.json: `")
    assert said in differing


def test_spaces_that_the_library_removes_are_reported(tmp_path: Path) -> None:
    folder, path = folder_of(tmp_path), tmp_path / "tokenizer_config.json"
    path.write_text('{"clean_up_tokenization_spaces": false}')
    assert differing_settings(folder) == []
    path.write_text('{"clean_up_tokenization_spaces": true}')
    assert differing_settings(folder) == [
        f"{path}: `clean_up_tokenization_spaces` = true is not applied as in the "
        "library; translations keep spaces before marks."
    ]


@pytest.mark.parametrize("forced", [0, [0]], ids=str)
def test_a_list_of_one_id_is_that_id(tmp_path: Path, forced: object) -> None:
    lists = {"eos_token_id": [0], "forced_eos_token_id": forced}
    folder = folder_of(tmp_path, **lists)
    (folder / "config.json").write_text('{"eos_token_id": 0}')
    assert differing_settings(folder) == []
    (folder / "config.json").write_text('{"eos_token_id": 5}')
    [differing] = differing_settings(folder)
    assert "`eos_token_id` = [0] is not applied as in the library" in differing


def test_settings_that_change_nothing_are_not_reported(tmp_path: Path) -> None:
    settings = {
        "do_sample": False, "forced_eos_token_id": 0, "renormalize_logits": True,
        "bad_words_ids": [[9], [10]], "max_length": 512, "guidance_scale": 1,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(
        '{"pad_token_id": 9, "decoder_start_token_id": 9, "vocab_size": 10}'
    )
    assert differing_settings(folder_of(tmp_path, **settings)) == []


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"no_repeat_ngram_size": -1}, CheckpointError, "`no_repeat_ngram_size` must"),
        ({"no_repeat_ngram_size": "two"}, CheckpointError, "must be a whole number"),
        ({"repetition_penalty": "much"}, CheckpointError, "must be a number, but is"),
        ({"length_penalty": True}, CheckpointError, "must be a number, but is True"),
        ({"length_penalty": 10**400}, RequestError, "must be at most 10, but is inf"),
        ({"length_penalty": -math.inf}, RequestError, "at least 0, but is -inf"),
        ({"length_penalty": math.nan}, RequestError, "at least 0, but is nan"),
        ({"repetition_penalty": 0}, RequestError, "must be above 0 and at most 1,000"),
        ({"bad_words_ids": [3]}, CheckpointError, "must be lists of ids, but one is 3"),
        ({"bad_words_ids": {"a": 1}}, CheckpointError, "must be lists of ids"),
        (
            {"bad_words_ids": [[5]], "suppress_tokens": 7},
            CheckpointError,
            "must be lists of ids, but one is 7",
        ),
        ({"max_length": 4, "min_length": 9}, RequestError, "`search.max_length` must"),
        (
            {"max_length": 4, "min_length": 9, "forced_eos_token_id": 0},
            RequestError,
            "`search.max_length` must be at least 9, .*, but is 3; change it there",
        ),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(
    tmp_path: Path, settings: dict, error: type, said: str
) -> None:
    with pytest.raises(error, match=said):
        read_search(folder_of(tmp_path, **settings), IDS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("most", [None, 30])
def test_restrictions_of_an_exported_model_come_back(
    trained_checkpoint: Checkpoint, tmp_path: Path, most: int | None
) -> None:
    search = SearchConfig(
        no_repeat_ngram=1, repetition_penalty=1.5, bad_words=((7,), (8, 9)),
        min_length=2, max_length=most, penalty="power", patience=1.0,
        length_penalty=0.5,
    )  # fmt: skip
    checkpoint = replace(trained_checkpoint, search=search)
    export(checkpoint, tmp_path / "out", ["one two"])
    assert differing_settings(tmp_path / "out") == []
    ids = range(checkpoint.tokenizer.vocab_size)
    found = read_search(tmp_path / "out", ids)
    assert found == replace(search, max_length=most or 1_023)


@pytest.mark.filterwarnings("ignore")  # raised by the libraries
@pytest.mark.parametrize(
    ("search", "named"),
    [
        (SearchConfig(coverage_penalty=0.2, length_penalty=0.5), ["coverage_penalty"]),
        (SearchConfig(patience=2, extra_length=5), ["patience", "extra_length"]),
        (SearchConfig(beam_size=1, repetition_penalty=2.0), ["repetition_penalty"]),
        (SearchConfig(beam_size=1, patience=2), []),
        (SearchConfig(patience=1, bad_words=((7,),), no_repeat_ngram=3), []),
    ],
    ids=str,
)
def test_settings_of_search_that_the_library_lacks_are_named(
    trained_checkpoint: Checkpoint,
    tmp_path: Path,
    search: SearchConfig,
    named: list[str],
) -> None:
    checkpoint = replace(trained_checkpoint, search=search)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        export(checkpoint, tmp_path / "out", ["one two"])
    said = [str(each.message) for each in caught]
    names = ", ".join(f"`search.{name}`" for name in named)
    found = [each for each in said if "searches differently from these" in each]
    assert [each.rpartition("lacks: ")[2] for each in found] == [f"{names}."] * (
        named != []
    )


def test_a_long_value_is_cut_in_messages(tmp_path: Path) -> None:
    ids = list(range(10_000))
    content = {"force_words_ids": [ids], "eos_token_id": ids, "pad_token_id": ids}
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": ids[1:]}))
    said = differing_settings(tmp_path)
    assert len(said) == 2
    for each in said:
        assert "[0, 1, 2, 3," in each
        assert "... is not applied" in each
        assert len(each) < len(str(tmp_path)) + 350


def test_bad_words_outside_the_vocabulary_are_not_exported(
    trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    size = trained_checkpoint.tokenizer.vocab_size
    checkpoint = replace(trained_checkpoint, search=SearchConfig(bad_words=((size,),)))
    with pytest.raises(ConfigError, match=rf"below the vocabulary.*but one is {size}"):
        export(checkpoint, tmp_path / "out", ["one two"])
    assert not list(tmp_path.iterdir())


def test_settings_that_are_no_file_are_reported(
    put_no_file: Callable[[Path], None], tmp_path: Path
) -> None:
    """Without them the model would be imported with another search."""
    (tmp_path / "config.json").write_text('{"num_beams": 2}')
    put_no_file(tmp_path / "generation_config.json")
    for read in (
        lambda: read_search(tmp_path, IDS),
        lambda: differing_settings(tmp_path),
    ):
        with pytest.raises(
            CheckpointError, match=r"generation_config.json: the file is"
        ):
            read()
