"""Folder of a Table 3 experiment: the state of its runs and their next commands."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from transduce.data.corpus_files import CorpusFiles
from transduce.errors import ConfigError
from transduce.experiments.presets import BASE, TABLE_3
from transduce.experiments.run_processes import locked
from transduce.experiments.table3 import (
    Experiment,
    RowRun,
    refuse_other_contents,
    row_runs,
)
from transduce.experiments.table3_rows import scaled_base
from transduce.settings import apply_assignments

HOLDER = """
import sys
from pathlib import Path
from transduce.experiments.run_processes import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    files = CorpusFiles(
        source=(Path("/a.en"), Path("/b.en")),
        target=(Path("/a.de"), Path("/b.de")),
        dev_source=(Path("/dev.en"),),
        dev_target=(Path("/dev.de"),),
    )
    return Experiment(
        folder=tmp_path / "out", files=files, base=scaled_base(0.25, 200), device="cpu"
    )


@pytest.fixture
def log(experiment: Experiment) -> Callable[..., RowRun]:
    """Write a run with the given log."""

    def write(*entries: tuple[str, int]) -> RowRun:
        [run] = row_runs(experiment.folder, experiment.base, ["A-h1"], [7])
        run.path.mkdir(parents=True)
        lines = (json.dumps({"kind": kind, "step": step}) for kind, step in entries)
        (run.path / "log.jsonl").write_text("".join(f"{line}\n" for line in lines))
        (run.path / "config.json").write_text("{}")
        return run

    return write


def test_runs_go_seed_by_seed(experiment: Experiment) -> None:
    runs = row_runs(experiment.folder, experiment.base, ["base", "big"], [3, 1])
    assert [run.name for run in runs] == [
        "base-seed3", "big-seed3", "base-seed1", "big-seed1",
    ]  # fmt: skip
    assert [run.config.training.seed for run in runs] == [3, 3, 1, 1]
    assert [run.config.training.steps for run in runs] == [200, 600, 200, 600]


def test_a_new_run_is_its_preset_with_the_changed_settings(
    experiment: Experiment,
) -> None:
    [run] = row_runs(experiment.folder, experiment.base, ["A-h1"], [7])
    assert experiment.next_command(run) == [
        *(sys.executable, "-m", "transduce", "train", "--out", str(run.path)),
        *("--precision", "fp32", "--preset", "A-h1"),
        *("--set", "tokenizer.vocab_size=9250", "model.d_model=128"),
        *("model.d_ff=512", "model.d_k=128", "model.d_v=128"),
        *("training.steps=200", "training.warmup_steps=40"),
        *("training.keep_checkpoints=1", "training.seed=7"),
        *("--source", "/a.en", "/b.en", "--target", "/a.de", "/b.de"),
        *("--dev-source", "/dev.en", "--dev-target", "/dev.de", "--device", "cpu"),
    ]


def test_at_full_scale_a_run_differs_in_averaging_only(experiment: Experiment) -> None:
    full = replace(experiment, base=scaled_base())
    for run in row_runs(full.folder, full.base, ["base", "C-d1024"], [1]):
        assert run.overrides == ("training.keep_checkpoints=1",)
    assert BASE.training.seed == 1


def test_settings_of_all_types_are_passed_on(experiment: Experiment) -> None:
    model = replace(scaled_base().model, neighbourhood=5, norm="pre", output_bias=True)
    base = replace(scaled_base(), model=model)
    [run] = row_runs(experiment.folder, base, ["E-learned"], [1])
    told = apply_assignments(TABLE_3["E-learned"], run.overrides)
    assert told == run.config
    undone = replace(model, neighbourhood=None)
    assert apply_assignments(model, ["neighbourhood=none"]) == undone


def test_a_started_run_is_resumed(
    experiment: Experiment, log: Callable[..., RowRun]
) -> None:
    command = experiment.next_command(log(("step", 10), ("dev", 20)))
    assert command is not None
    assert command[-3:] == ["--resume", "--device", "cpu"]


def test_a_trained_run_translates_with_its_last_checkpoint(
    experiment: Experiment, log: Callable[..., RowRun]
) -> None:
    run = log(("dev", 100), ("step", 200), ("dev", 200), ("final", 100))
    assert experiment.next_command(run) == [
        *(sys.executable, "-m", "transduce", "translate"),
        str(run.path / "checkpoints" / "step-00000200"),
        *("--input", str(run.path / "corpus" / "dev" / "source.txt")),
        *("--output", str(run.path / "dev_translations.txt"), "--force"),
        *("--beam-size", "4", "--length-penalty", "0.6", "--penalty", "gnmt"),
        *("--coverage-penalty", "0.0", "--diversity", "0.0", "--min-length", "0"),
        *("--extra-length", "50", "--device", "cpu"),
    ]


def test_a_run_with_translations_is_done(
    experiment: Experiment, log: Callable[..., RowRun]
) -> None:
    run = log(("dev", 200), ("final", 200))
    run.translations.touch()
    assert run.is_done
    assert experiment.next_command(run) is None


def test_the_same_experiment_is_continued(experiment: Experiment) -> None:
    experiment.begin()
    refuse_other_contents(experiment.folder)
    before = (experiment.folder / "experiment.json").read_bytes()
    experiment.begin()
    assert (experiment.folder / "experiment.json").read_bytes() == before


def test_a_setting_missing_from_the_record_had_its_default(
    experiment: Experiment,
) -> None:
    experiment.begin()
    path = experiment.folder / "experiment.json"
    record = json.loads(path.read_text())
    del record["settings"]["model.norm"]
    path.write_text(json.dumps(record))
    experiment.begin()
    pre = replace(experiment.base.model, norm="pre")
    other = replace(experiment, base=replace(experiment.base, model=pre))
    with pytest.raises(ConfigError, match="`model.norm` of the experiment in this"):
        other.begin()


def test_a_folder_of_another_experiment_is_refused(experiment: Experiment) -> None:
    experiment.begin()
    other = replace(experiment, base=scaled_base(0.25, 300))
    pattern = r"`training.steps` of the experiment in this folder is 200, but 300 is re"
    with pytest.raises(ConfigError, match=pattern):
        other.begin()


def test_other_corpus_files_are_refused(experiment: Experiment) -> None:
    experiment.begin()
    files = replace(experiment.files, dev_source=(Path("/other.en"),))
    pattern = (
        r"was started with other files "
        r"\(/a.en, /b.en, /a.de, /b.de, /dev.en, /dev.de\); give those, or choose"
    )
    with pytest.raises(ConfigError, match=pattern):
        replace(experiment, files=files).begin()


def test_resuming_with_another_precision_is_refused(experiment: Experiment) -> None:
    experiment.begin()
    pattern = r"experiment in this folder is fp32, but bf16 is requested; give"
    with pytest.raises(ConfigError, match=pattern):
        replace(experiment, precision="bf16").begin()


def test_an_experiment_of_another_format_is_refused(experiment: Experiment) -> None:
    experiment.begin()
    (experiment.folder / "experiment.json").write_text('{"format": 0}')
    with pytest.raises(ConfigError, match="format must be 2, but is 0; the experiment"):
        experiment.begin()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    refuse_other_contents(tmp_path)  # an interrupted download
    refuse_other_contents(tmp_path / "new")
    (tmp_path / "mine").touch()
    for folder in (tmp_path, tmp_path / "mine"):
        with pytest.raises(ConfigError, match=f"{folder}: the output folder must be"):
            refuse_other_contents(folder)


def test_two_commands_cannot_use_one_folder(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        pattern = "one command at a time may use this folder, but another one, or a"
        with pytest.raises(ConfigError, match=pattern), locked(tmp_path):
            pass
        holder.communicate()
    with locked(tmp_path) as lock:
        assert len(lock) == 1
