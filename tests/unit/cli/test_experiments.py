"""Checks of an experiment before its first training, and after its last."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from transduce.cli.experiments import (
    complete,
    opened,
    replace_report,
    require_possible,
    sound,
)
from transduce.data.corpus_files import CorpusFiles
from transduce.device import choose_hardware
from transduce.errors import CheckpointError, ConfigError, DataError
from transduce.experiments.experiment import Experiment, PresetRun
from transduce.experiments.presets import PRESETS
from transduce.report.report import Report


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


def test_a_run_with_damaged_results_has_failed(tmp_path: Path) -> None:
    text = (tmp_path / "text",)
    runs = [
        PresetRun(
            row=row, preset="tiny", seed=1, config=PRESETS["tiny"], folder=tmp_path
        )
        for row in ("sound", "truncated", "damaged")
    ]
    for run in runs:
        run.path.mkdir(parents=True)
        (run.path / "log.jsonl").write_text('{"kind": "final", "step": 50}\n')

    def read(run: PresetRun) -> None:
        if run.row == "truncated":
            raise DataError("There must be 2 lines, but there is 1.")
        if run.row == "damaged":
            raise CheckpointError("The settings must be JSON, but are not.")

    experiment = Experiment(
        folder=tmp_path, files=CorpusFiles(source=text, target=text)
    )
    failures = complete(experiment, runs, [{}], (), read)
    assert failures == {
        "truncated-seed1": "There must be 2 lines, but there is 1.",
        "damaged-seed1": "The settings must be JSON, but are not.",
    }
    assert sound(runs, failures) == runs[:1]


def test_a_report_in_the_place_of_other_files_is_refused_before_the_work(
    tmp_path: Path,
) -> None:
    (tmp_path / "scaling.json").touch()
    report = tmp_path / "report"
    report.mkdir()
    (report / "notes.txt").touch()
    with (
        pytest.raises(ConfigError, match=f"^{report}: only a folder that the same co"),
        opened(tmp_path, "scaling", "scaling.json", "an experiment"),
    ):
        pass
    (report / ".made-by").write_text("reproduce scaling\n")
    with opened(tmp_path, "scaling", "scaling.json", "an experiment") as lock:
        assert lock


def test_a_report_that_is_written_again_keeps_the_notes_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(title="Scaling", sections=())
    replace_report(report, {"rows": []}, tmp_path, "scaling")
    (tmp_path / "report" / "notes.md").write_text("mine", encoding="utf-8")
    replace_report(report, {"rows": [1]}, tmp_path, "scaling")
    assert "The report is in" in capsys.readouterr().out
    assert json.loads((tmp_path / "report" / "scaling.json").read_text())["rows"] == [1]
    assert (tmp_path / "report" / "notes.md").read_text(encoding="utf-8") == "mine"
