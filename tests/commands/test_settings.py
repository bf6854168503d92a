import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from transduce.cli.options import run_config
from transduce.cli.settings import (
    as_assigned,
    field_meanings,
    repeated_tables,
    setting_tables,
)
from transduce.data.treebank import TreeAugmentationConfig
from transduce.experiments.presets import ADAPT, PRESETS, RunConfig
from transduce.settings import apply_mapping


def words(text: str) -> str:
    return " ".join(text.split())


def test_settings_are_listed_with_default_type_and_meaning(
    succeeds: Callable[..., str],
) -> None:
    text = words(succeeds("settings"))
    assert (
        "model.num_layers=6 Number of layers N of the encoder and of the decoder. "
        "[whole number]" in text
    )
    assert "[choices: adam, muon, sgd, nesterov]" in text
    assert "* " not in text


def test_the_tables_of_a_mixture_are_listed_with_their_fields(
    succeeds: Callable[..., str],
) -> None:
    text = words(succeeds("settings"))
    assert "[[corpora]]: Corpora of a mixture" in text
    assert (
        "source Text file, or several, one sentence per line. [text or list; " in text
    )
    assert "weight=none Share of the training pairs" in text
    assert "[[stages]]: Stages of training" in text
    assert "weights={} Weights by the names of corpora; " in text
    tables = list(repeated_tables())
    assert [each.name for each in tables] == ["corpora", "stages"]
    for table in tables:
        assert all(setting.meaning for setting in table.settings)
    toml = succeeds("settings", "--toml")
    assert "# [[corpora]]\n# name: Name in the log" in toml


def test_changes_of_a_preset_are_marked_and_shown_with_the_default(
    succeeds: Callable[..., str],
) -> None:
    text = words(succeeds("settings", "multi30k"))
    assert "* model.num_layers=4 " in text
    assert "[whole number; default: 6]" in text
    assert " model.positions=sinusoidal " in text
    assert "* model.positions" not in text


def test_every_setting_has_a_meaning_and_can_be_set() -> None:
    tables = list(setting_tables())
    found = [setting for table in tables for setting in table.settings]
    assert [each.name for each in found if not each.meaning] == []
    assert [table.name for table in tables if not table.meaning] == []
    for setting in found:
        assignment = f"{setting.name}={as_assigned(setting.value)}"
        assert run_config("base", None, (assignment,)) is not None


def test_settings_that_the_data_determine_are_not_listed(
    succeeds: Callable[..., str], refuses: Callable[..., str]
) -> None:
    assert "model.vocab_size" not in succeeds("settings")
    assert "tokenizer.vocab_size" in succeeds("settings")


def test_tables_within_tables_are_listed_after_their_own() -> None:
    names = [table.name for table in setting_tables()]
    assert names[names.index("treebank") + 1] == "treebank.augmentation"


def test_meanings_are_the_docstrings_below_the_fields() -> None:
    meanings = field_meanings(TreeAugmentationConfig)
    assert meanings["seed"] == "Seed of the variants."


@pytest.mark.parametrize("name", PRESETS)
def test_the_toml_file_of_a_preset_has_all_of_its_settings(
    succeeds: Callable[..., str], tmp_path: Path, name: str
) -> None:
    file = tmp_path / "my.toml"
    file.write_text(succeeds("settings", name, "--toml"), encoding="utf-8")
    config = PRESETS[name]
    assert run_config(name, file, ()) == config
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    model = type(config.model)()
    found = apply_mapping(RunConfig(model=model), content, where="")
    expected = replace(config, model=replace(config.model, vocab_size=model.vocab_size))
    if name == ADAPT:  # it is that of the model's width
        training = replace(config.training, learning_rate=None)
        expected = replace(expected, training=training)
    assert found == expected


def test_the_json_list_of_settings_has_whole_descriptions(
    succeeds: Callable[..., str],
) -> None:
    listed = json.loads(succeeds("settings", "big", "--json"))
    [dropout] = [each for each in listed if each["name"] == "model.dropout"]
    assert dropout["value"] == 0.3
    assert dropout["default"] == 0.1
    assert dropout["type"] == "number"
    [optimizer] = [each for each in listed if each["name"] == "training.optimizer"]
    assert optimizer["choices"] == ["adam", "muon", "sgd", "nesterov"]


def test_an_unknown_preset_has_no_settings(refuses: Callable[..., str]) -> None:
    assert "did you mean `multi30k`?" in refuses("settings", "multi30")


@pytest.mark.parametrize("options", [(), ("big",), ("parsing-small",)], ids=str)
@pytest.mark.parametrize("columns", ["40", "60", "80", "120", "200"])
def test_the_list_of_settings_fits_any_terminal(
    succeeds: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
    options: tuple[str, ...],
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", columns)
        text = succeeds("settings", *options)
    assert max(map(len, text.splitlines())) <= min(int(columns), 100)
    usual = succeeds("settings", *options)
    assert "".join(text.split()) == "".join(usual.split())


def test_settings_are_listed_in_one_format(refuses: Callable[..., str]) -> None:
    assert refuses("settings", "--toml", "--json") == (
        "--toml and --json exclude each other, but both are given; leave one out."
    )
