"""The page of departures lists every comment about a departure from the paper."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from transduce.experiments.presets import PRESETS, TABLE_3, RunConfig

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "departures.py"
PAGE = (ROOT / "docs" / "paper" / "departures.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| [")]
MODULES = sorted((ROOT / "src" / "transduce").rglob("*.py"))
OFF: dict[str, Any] = {
    "model.activation": "relu",
    "model.attention_dropout": 0.0,
    "model.decoder_layers": None,
    "model.decoder_self_attention": "attention",
    "model.neighbourhood": None,
    "model.norm": "post",
    "model.output_bias": False,
    "model.position_base": 10_000.0,
    "model.positions": "sinusoidal",
    "model.relu_dropout": 0.0,
    "model.scores": "scaled",
    "model.target_vocab_size": None,
    "model.tied_output": True,
    "search.bad_words": (),
    "search.coverage_penalty": 0.0,
    "search.diversity": 0.0,
    "search.max_length": None,
    "search.min_length": 0,
    "search.no_repeat_ngram": 0,
    "search.patience": None,
    "search.penalty": "gnmt",
    "search.repetition_penalty": 1.0,
    "search.shortlist": False,
    "tokenizer.kind": "bpe",
    "tokenizer.model": None,
    "training.consistency": 0.0,
    "training.clip_norm": None,
    "training.cooldown_share": 0.0,
    "training.learning_rate_scale": 1.0,
    "training.optimizer": "adam",
    "training.patience": None,
    "training.reward": "none",
    "training.schedule": "inverse-sqrt",
    "training.sgd_from_step": None,
    "training.weight_decay": 0.0,
    "treebank.augmentation.copies": 0,
    "treebank.guidance": 0.0,
}
"""The paper's value of each setting that turns a departure on."""
TURNED_ON = {
    ("E-learned", "model.positions"),  # row E of Table 3
    ("base-en-fr", "tokenizer.kind"),  # section 5.1
    ("big-en-fr", "tokenizer.kind"),
    ("parsing-wsj", "model.attention_dropout"),  # section 6.3
    ("parsing-wsj", "training.learning_rate_scale"),
    ("parsing-semi", "training.learning_rate_scale"),
}
"""Settings of the paper's presets that have another value, by the paper or its code."""


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("departures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = _generator()


def test_the_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True
    )
    assert done.stdout == PAGE, f"Run python {SCRIPT} > docs/paper/departures.md"


def test_every_departure_has_its_row() -> None:
    for module in MODULES:
        name = module.relative_to(ROOT / "src" / "transduce").with_suffix("").as_posix()
        rows = [row for row in ROWS if row.startswith(f"| [`{name}`]")]
        # Count comments in any spelling: the script would miss a misspelt one.
        written = module.read_text(encoding="utf-8").lower().count("unlike the paper")
        assert len(rows) == written, name


def test_a_row_links_to_its_module_and_names_the_place() -> None:
    assert ROWS
    for row in ROWS:
        address = row.split("](../../")[1].split(")")[0]
        assert (ROOT / address).is_file()
        name = row.split("), `")[1].split("`")[0].split(".")[-1]
        assert name in (ROOT / address).read_text(encoding="utf-8")


def test_a_row_tells_whether_the_departure_is_on_by_default() -> None:
    states = [row.rsplit(" | ", 1)[1].split("**")[1] for row in ROWS]

    assert set(states) == {"on", "off"}
    assert states == sorted(states, reverse=True)  # those that are on come first


def test_departures_that_are_off_by_default_are_off_in_the_papers_presets() -> None:
    cells = [row.rsplit(" | ", 1)[1] for row in ROWS if "| **off**" in row]
    named = {name for cell in cells for name, _ in GENERATOR.SETTING.findall(cell)}

    assert named == set(OFF)
    papers = {*TABLE_3, "base-en-fr", "big-en-fr", "parsing-wsj", "parsing-semi"}
    for setting, value in OFF.items():
        assert GENERATOR.value_of(RunConfig(), setting) == value, setting
        on = {n for n in papers if GENERATOR.value_of(PRESETS[n], setting) != value}
        assert on == {name for name, other in TURNED_ON if other == setting}


def test_a_row_names_the_presets_that_turn_the_departure_on() -> None:
    [muon] = [row for row in ROWS if "training.optimizer=muon" in row]

    presets = muon.rsplit("; on in ", 1)[1].strip(" |").split(", ")
    assert "`multi30k`" in presets
    assert "`base`" not in presets


def test_a_departure_without_its_default_is_refused(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("# Unlike the paper: the sum is halved.\nX = 1\n", "utf-8")

    with pytest.raises(ValueError, match="must end with a sentence"):
        list(GENERATOR.departures(module))
