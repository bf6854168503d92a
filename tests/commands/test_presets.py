import json
from collections.abc import Callable

import pytest

from transduce.cli.presets import preset_summaries
from transduce.experiments.presets import PRESETS, TABLE_3


def test_presets_are_listed_with_purpose_parameters_and_updates(
    succeeds: Callable[..., str],
) -> None:
    lines = succeeds("presets").splitlines()
    listed = {line.split()[0]: line.split() for line in lines if line[:1] == " "}
    assert listed.keys() == PRESETS.keys()
    assert listed["base"][1:4] == ["63.1M", "100,000", "The"]
    assert listed["tiny"][1:4] == ["34k", "20", "Trying"]
    assert listed["A-h1"][3:] == ["num_heads=1,", "d_k=512,", "d_v=512"]


def test_rows_of_table_3_are_described_by_their_changes_to_base() -> None:
    purposes = {each.name: each.purpose for each in preset_summaries()}
    assert [name for name in TABLE_3 if not purposes[name]] == []
    assert purposes["C-d256"] == "d_model=256, d_k=32, d_v=32"
    assert purposes["D-smooth0"] == "label_smoothing=0.0"
    assert purposes["E-learned"] == "positions=learned"


def test_the_json_list_of_presets_has_their_sizes(succeeds: Callable[..., str]) -> None:
    listed = json.loads(succeeds("presets", "--json"))
    assert {each["name"] for each in listed} == PRESETS.keys()
    [tiny] = [each for each in listed if each["name"] == "tiny"]
    assert tiny["steps"] == PRESETS["tiny"].training.steps
    assert tiny["target_tokens"] == PRESETS["tiny"].batching.target_tokens


@pytest.mark.parametrize("columns", ["40", "60", "79", "80", "120", "200"])
def test_the_list_of_presets_fits_any_terminal(
    succeeds: Callable[..., str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", columns)
        text = succeeds("presets")
    assert max(map(len, text.splitlines())) <= int(columns)
    assert "".join(text.split()) == "".join(succeeds("presets").split())
