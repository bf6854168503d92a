"""Checks of an experiment before its first training."""

from dataclasses import replace
from pathlib import Path

import pytest

from transduce.cli.experiments import require_possible
from transduce.data.corpus_files import CorpusFiles
from transduce.device import choose_hardware
from transduce.errors import ConfigError
from transduce.experiments.presets import PRESETS
from transduce.experiments.run_processes import PresetRun


def test_a_row_is_checked_unless_all_its_trainings_have_begun(tmp_path: Path) -> None:
    text = (tmp_path / "text",)
    text[0].write_text("a dog\n")
    files = CorpusFiles(source=text, target=text, dev_source=text, dev_target=text)
    hardware = choose_hardware("cpu", "fp32")
    tiny = PRESETS["tiny"]
    wrong = replace(tiny, training=replace(tiny.training, sgd_from_step=3))
    runs = [
        PresetRun(row=row, preset="tiny", seed=seed, config=config, folder=tmp_path)
        for seed in (1, 2)
        for row, config in (("right", tiny), ("wrong", wrong))
    ]
    for run in (runs[3], runs[1]):
        with pytest.raises(ConfigError, match=r"^wrong: `training.sgd_from_step` need"):
            require_possible(runs, files, hardware)
        run.path.mkdir(parents=True)
        (run.path / "config.json").touch()
    require_possible(runs, files, hardware)
