"""Model folders that older versions wrote load, and translate as they did there.

`tests/data/model_format_N` was written by the version of that format, with random
weights; its `translations.json` has the translations of that version by beam search.
"""

import json
from pathlib import Path

import pytest

import transduce
from transduce.checkpoint import load_model

FOLDERS = sorted((Path(__file__).parents[1] / "data").glob("model_format_*"))


def test_every_older_format_has_a_stored_folder() -> None:
    formats = [
        json.loads((folder / "config.json").read_text(encoding="utf-8"))["format"]
        for folder in FOLDERS
    ]
    assert formats == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_stored_folder_translates_as_its_version_did(folder: Path) -> None:
    lines = json.loads((folder / "translations.json").read_text(encoding="utf-8"))
    translator = transduce.load(folder)

    found = translator.translate([line["source"] for line in lines])

    assert [each.text for each in found] == [line["target"] for line in lines]
    scores = [each.score for each in found]
    # Kernels of other versions add in another order.
    assert scores == pytest.approx([line["score"] for line in lines], abs=1e-3)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_stored_folder_has_the_weight_names_of_today(folder: Path) -> None:
    checkpoint = load_model(folder)
    model = checkpoint.build()
    assert checkpoint.step == 7
    assert set(model.state_dict()) == set(checkpoint.weights)
