"""Settings of a call override a model's own search."""

import json
import warnings
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from transduce.errors import ConfigError, TransduceWarning
from transduce.search_config import NOT_GREEDY, SearchConfig

OWN = SearchConfig(
    beam_size=6,
    num_best=5,
    patience=1.0,
    coverage_penalty=0.2,
    diversity=0.4,
    min_length=3,
    max_length=40,
)


@pytest.mark.parametrize(
    "own", [SearchConfig(), OWN, SearchConfig(beam_size=1, diversity=0.4)]
)
def test_every_search_has_a_greedy_form(own: SearchConfig) -> None:
    greedy = own.greedy()
    assert greedy.beam_size == 1
    usual = SearchConfig()
    assert all(getattr(greedy, name) == getattr(usual, name) for name in NOT_GREEDY)
    assert (greedy.min_length, greedy.limit(9)) == (own.min_length, own.limit(9))


@pytest.mark.parametrize(
    "settings",
    [{}, {"beam_size": 8}, {"num_best": 2}, {"length_penalty": 1.0}, {"min_length": 9}],
)
def test_a_setting_overrides_the_models_own_and_leaves_the_others(
    settings: dict[str, Any],
) -> None:
    own = replace(OWN, num_best=1)
    assert own.changed(settings) == (replace(own, **settings), ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert own.given({**settings, "penalty": None}) == replace(own, **settings)


@pytest.mark.parametrize("settings", [{}, {"beam_size": 3}, {"beam_size": 8}])
def test_a_models_own_num_best_is_ignored_with_a_message(
    settings: dict[str, Any],
) -> None:
    config, [message] = OWN.changed(settings)
    assert config == replace(OWN, num_best=1, **settings)
    assert message == (
        "The model's own `search.num_best` of 5 is used only when a call asks for it, "
        "and is left out."
    )
    assert OWN.changed({**settings, "num_best": 3}) == (
        replace(OWN, num_best=3, **settings),
        (),
    )


def test_a_patience_of_none_overrides_the_models_own() -> None:
    config, dropped = OWN.changed({"patience": "none", "num_best": 2})
    assert (config, dropped) == (replace(OWN, patience=None, num_best=2), ())


@pytest.mark.parametrize(
    ("settings", "expected", "names"),
    [
        ({"beam_size": 1}, OWN.greedy(), NOT_GREEDY),
        (
            {"max_length": 3, "num_best": 5},
            replace(OWN, max_length=3, min_length=0),
            ["min_length"],
        ),
        (
            {"min_length": 40, "num_best": 5},
            replace(OWN, max_length=None, min_length=40),
            ["max_length"],
        ),
    ],
)
def test_settings_that_lose_their_meaning_are_dropped_with_a_warning(
    settings: dict[str, Any], expected: SearchConfig, names: list[str]
) -> None:
    config, dropped = OWN.changed(settings)
    assert config == expected
    assert len(dropped) == len(names)
    for name, message in zip(names, dropped, strict=True):
        said = f"The model's own `search.{name}` of {getattr(OWN, name)} "
        assert message.startswith(said)
        assert message.endswith(", and is left out.")
    with pytest.warns(TransduceWarning, match="is left out") as warned:
        assert OWN.given(settings) == expected
    assert len(warned) == len(names)


def test_meaningless_default_settings_are_dropped_silently() -> None:
    own = SearchConfig(beam_size=1, patience=1.0)
    assert own.changed({}) == (SearchConfig(beam_size=1), ())


@pytest.mark.parametrize(
    ("own", "settings", "message"),
    [
        (
            OWN,
            {"beam_size": 1, "diversity": 0.5},
            "`search.diversity` has no effect on",
        ),
        (OWN, {"beam_size": 1, "patience": 2.0}, "`search.patience` has no effect on"),
        (OWN, {"beam_size": 1, "num_best": 2}, "`search.num_best` has no effect on"),
        (OWN, {"beam_size": 1, "coverage_penalty": 1.0}, "`search.coverage_penalty` h"),
        (
            SearchConfig(beam_size=1),
            {"patience": 1.0},
            "`search.patience` has no effect",
        ),
        (OWN, {"beam_size": 2, "num_best": 3}, "from 1 to the beam size 2, but is 3"),
        (OWN, {"min_length": 9, "max_length": 9}, "at least 10, one more than"),
        (OWN, {"max_length": "5"}, "`search.max_length` must be a whole number or"),
        (OWN, {"min_length": "5"}, "`search.min_length` must be a whole number, but"),
        (OWN, {"num_best": np.array([1, 2])}, "`search.num_best` must be a whole nu"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    own: SearchConfig, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        own.changed(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_best": 1},
        {"patience": "none"},
        {"diversity": 0.0, "coverage_penalty": 0.0},
    ],
)
def test_a_greedy_search_accepts_default_settings(
    settings: dict[str, Any],
) -> None:
    config, _ = OWN.changed({"beam_size": 1, **settings})
    assert config == OWN.greedy()


def test_a_search_of_numpys_numbers_can_be_written_as_json() -> None:
    size, penalty = np.int64(3), np.float32(0.5)
    config = SearchConfig(beam_size=size, length_penalty=penalty)  # type: ignore[arg-type]
    written = json.loads(json.dumps(asdict(config)))
    assert (written["beam_size"], written["length_penalty"]) == (3, 0.5)


def test_token_ids_of_numpy_become_pythons() -> None:
    config = SearchConfig(bad_words=((np.int64(5), 6),))
    assert config == SearchConfig(bad_words=((5, 6),))
    assert type(config.bad_words[0][0]) is int


@pytest.mark.parametrize("value", [np.True_, True])
def test_a_bool_of_numpy_becomes_pythons(value: Any) -> None:
    assert SearchConfig(shortlist=value).shortlist is True
