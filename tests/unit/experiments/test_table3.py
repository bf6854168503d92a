"""Rows of Table 3 at every scale, and the folder with the state of their runs."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from transduce.data.corpus_files import CorpusFiles
from transduce.data.prepared_corpus import TRAINING
from transduce.errors import ConfigError
from transduce.experiments.experiment import (
    changes,
    kept_precision,
    locked,
    read_record,
    refuse_other_contents,
    settings,
)
from transduce.experiments.presets import BASE, TABLE_3, RunConfig
from transduce.experiments.run_folder import RUN_FORMAT
from transduce.experiments.table3 import (
    EXPERIMENT,
    RowRun,
    Table3Experiment,
    base_for,
    require_rows,
    require_same_rows,
    row_config,
    row_runs,
    scaled_base,
)
from transduce.machine import Precision
from transduce.model.config import count_parameters
from transduce.processes import PYTHON
from transduce.settings import apply_assignments

HOLDER = """
import sys
from pathlib import Path
from transduce.experiments.experiment import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Table3Experiment:
    names = ("a.en", "b.en", "a.de", "b.de", "dev.en", "dev.de")
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.write_text(f"a line of {path.name}\n")
    files = CorpusFiles(
        source=tuple(paths[:2]),
        target=tuple(paths[2:4]),
        dev_source=(paths[4],),
        dev_target=(paths[5],),
    )
    return Table3Experiment(
        folder=tmp_path / "out", files=files, base=scaled_base(0.25, 200), device="cpu"
    )


@pytest.fixture
def log(experiment: Table3Experiment) -> Callable[..., RowRun]:
    """Write a run with the given log."""

    def write(*entries: tuple[str, int]) -> RowRun:
        [run] = row_runs(experiment.folder, experiment.base, ["A-h1"], [7])
        run.path.mkdir(parents=True)
        lines = (json.dumps({"kind": kind, "step": step}) for kind, step in entries)
        (run.path / "log.jsonl").write_text("".join(f"{line}\n" for line in lines))
        (run.path / "config.json").write_text("{}")
        return run

    return write


def test_runs_go_seed_by_seed(experiment: Table3Experiment) -> None:
    runs = row_runs(experiment.folder, experiment.base, ["base", "big"], [3, 1])
    assert [run.name for run in runs] == [
        "base-seed3", "big-seed3", "base-seed1", "big-seed1",
    ]  # fmt: skip
    assert [run.config.training.seed for run in runs] == [3, 3, 1, 1]
    assert [run.config.training.steps for run in runs] == [200, 600, 200, 600]


def test_a_new_run_is_its_preset_with_the_changed_settings(
    experiment: Table3Experiment,
) -> None:
    [run] = row_runs(experiment.folder, experiment.base, ["A-h1"], [7])
    a_en, b_en, a_de, b_de, dev_en, dev_de = (
        str(experiment.folder.parent / name)
        for name in ("a.en", "b.en", "a.de", "b.de", "dev.en", "dev.de")
    )
    assert experiment.next_command(run) == [
        *(*PYTHON, "-m", "transduce", "train", "--out", str(run.path)),
        *("--precision", "fp32", "--preset", "A-h1", "--however-long"),
        *("--set", "tokenizer.vocab_size=9250", "model.d_model=128"),
        *("model.d_ff=512", "model.d_k=128", "model.d_v=128"),
        *("training.steps=200", "training.warmup_steps=40"),
        *("training.keep_checkpoints=1", "training.seed=7"),
        *("--source", a_en, b_en, "--target", a_de, b_de),
        *("--dev-source", dev_en, "--dev-target", dev_de, "--device", "cpu"),
    ]


def test_at_full_scale_a_run_differs_in_averaging_only(
    experiment: Table3Experiment,
) -> None:
    full = replace(experiment, base=scaled_base())
    for run in row_runs(full.folder, full.base, ["base", "C-d1024"], [1]):
        assert run.overrides == ("training.keep_checkpoints=1",)
    assert BASE.training.seed == 1


def test_settings_of_all_types_are_passed_on(experiment: Table3Experiment) -> None:
    model = replace(scaled_base().model, neighbourhood=5, norm="pre", output_bias=True)
    base = replace(scaled_base(), model=model)
    [run] = row_runs(experiment.folder, base, ["E-learned"], [1])
    told = apply_assignments(TABLE_3["E-learned"], run.overrides)
    assert told == run.config
    undone = replace(model, neighbourhood=None)
    assert apply_assignments(model, ["neighbourhood=none"]) == undone


def test_a_started_run_is_resumed(
    experiment: Table3Experiment, log: Callable[..., RowRun]
) -> None:
    command = experiment.next_command(log(("step", 10), ("dev", 20)))
    assert command is not None
    assert command[-3:] == ["--resume", "--device", "cpu"]


def test_a_trained_run_translates_with_its_last_checkpoint(
    experiment: Table3Experiment, log: Callable[..., RowRun]
) -> None:
    run = log(("dev", 100), ("step", 200), ("dev", 200), ("final", 100))
    assert experiment.next_command(run) == [
        *(*PYTHON, "-m", "transduce", "translate"),
        str(run.path / "checkpoints" / "step-00000200"),
        *("--input", str(run.path / "corpus" / "dev" / "source.txt")),
        *("--output", str(run.path / "dev_translations.txt"), "--force"),
        *("--device", "cpu"),
    ]


def test_a_run_with_translations_is_done(
    experiment: Table3Experiment, log: Callable[..., RowRun]
) -> None:
    run = log(("dev", 200), ("final", 200))
    run.translations.touch()
    assert run.is_done
    assert experiment.next_command(run) is None


def test_the_same_experiment_is_continued(experiment: Table3Experiment) -> None:
    experiment.begin()
    refuse_other_contents(experiment.folder, EXPERIMENT, "a reproduction of Table 3")
    before = (experiment.folder / "experiment.json").read_bytes()
    experiment.begin()
    assert (experiment.folder / "experiment.json").read_bytes() == before


def test_a_setting_missing_from_the_record_had_its_default(
    experiment: Table3Experiment,
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


def test_a_folder_of_another_experiment_is_refused(
    experiment: Table3Experiment,
) -> None:
    experiment.begin()
    other = replace(experiment, base=scaled_base(0.25, 300))
    pattern = r"`training.steps` of the experiment in this folder is 200, but 300 is re"
    with pytest.raises(ConfigError, match=pattern):
        other.begin()


def test_an_experiment_with_other_text_is_refused(experiment: Table3Experiment) -> None:
    experiment.begin()
    place = experiment.folder.parent
    record = (experiment.folder / EXPERIMENT).read_bytes()
    for name, part, files in (
        ("a.de", "training", "a.en, .*b.en, .*a.de, .*b.de"),
        ("dev.en", "dev", "dev.en, .*dev.de"),
    ):
        before = (place / name).read_bytes()
        (place / name).write_text("another line\n")
        pattern = rf"the {part} text must be the one .* with \(.*{files}\), but differ"
        with pytest.raises(ConfigError, match=pattern):
            experiment.begin()
        (place / name).write_bytes(before)
    assert (experiment.folder / EXPERIMENT).read_bytes() == record
    experiment.begin()


def test_an_experiment_continues_with_the_same_text_in_another_place(
    experiment: Table3Experiment,
) -> None:
    experiment.begin()
    other = experiment.folder.parent / "other.en"
    experiment.files.dev_source[0].rename(other)
    replace(experiment, files=replace(experiment.files, dev_source=(other,))).begin()


@pytest.mark.parametrize(("before", "after"), [(600, 1_500), (1_500, 600)])
def test_a_row_does_not_mix_runs_with_other_checkpoints(
    experiment: Table3Experiment, before: int, after: int
) -> None:
    chosen = {600: (), 1_500: ("training.checkpoint_steps",)}
    first, new = (
        row_runs(experiment.folder, experiment.base, ["base", "big"], [1], chosen[each])
        for each in (before, after)
    )
    for run in first:
        (run.path / TRAINING).mkdir(parents=True)
        record = {"format": RUN_FORMAT, "settings": asdict(run.config)}
        # A run has the size of its vocabulary, and languages that were guessed.
        record["settings"]["model"]["vocab_size"] = 321
        record["settings"]["languages"]["source"] = "en"
        (run.path / "config.json").write_text(json.dumps(record))
    require_same_rows(first)
    big = first[1].path
    with pytest.raises(ConfigError) as refused:
        require_same_rows(new)
    assert str(refused.value) == (
        f"{big}: `training.checkpoint_steps` of the run to resume is {before}, but "
        f"{after} is requested; give the same settings, or remove this folder to train "
        "the run anew."
    )
    (big / "config.json").write_text("{}")
    require_same_rows(new)  # the run itself tells what is damaged


def older(experiment: Table3Experiment, files: CorpusFiles) -> None:
    """Rewrite the record as an older version did: absolute names, no digests."""
    path = experiment.folder / EXPERIMENT
    record = json.loads(path.read_text())
    del record["digests"]
    record["files"] = files.absolute_names()
    path.write_text(json.dumps(record))


def test_an_experiment_of_an_older_version_is_accepted_once(
    experiment: Table3Experiment,
) -> None:
    experiment.begin()
    older(experiment, experiment.files)
    place = experiment.folder.parent
    other = replace(experiment.files, source=(place / "b.en", place / "a.en"))
    with pytest.raises(ConfigError, match="the training text must be the one that the"):
        replace(experiment, files=other).begin()
    experiment.begin()
    (place / "dev.de").write_text("another line\n")
    with pytest.raises(ConfigError, match="the dev text must be the one that the"):
        experiment.begin()


@pytest.mark.parametrize("is_older", [False, True])
def test_an_experiment_with_its_own_corpus_can_be_moved(
    experiment: Table3Experiment, tmp_path: Path, is_older: bool
) -> None:
    def files_in(folder: Path) -> CorpusFiles:
        text = (folder / "corpus" / "text",)
        return CorpusFiles(source=text, target=text, dev_source=text, dev_target=text)

    (experiment.folder / "corpus").mkdir(parents=True)
    (experiment.folder / "corpus" / "text").write_text("a dog\n")
    before = replace(experiment, files=files_in(experiment.folder))
    before.begin()
    if is_older:
        older(before, before.files)
    moved = tmp_path / "moved"
    experiment.folder.rename(moved)
    after = replace(experiment, folder=moved, files=files_in(moved))
    after.begin()
    record = json.loads((moved / EXPERIMENT).read_text())
    assert record["files"]["dev_target"] == ["corpus/text"]
    (moved / "corpus" / "text").write_text("a cat\n")
    with pytest.raises(ConfigError, match="the training text must be the one that the"):
        after.begin()


def test_resuming_with_another_precision_is_refused(
    experiment: Table3Experiment,
) -> None:
    experiment.begin()
    pattern = r"experiment in this folder is fp32, but bf16 is requested; choose"
    with pytest.raises(ConfigError, match=pattern):
        replace(experiment, precision="bf16").begin()


@pytest.mark.parametrize(
    ("requested", "recorded", "kept"),
    [
        ("auto", "bf16", "bf16"),
        ("fp32", "bf16", "fp32"),
        ("auto", None, "auto"),
        ("auto", ["fp32"], "auto"),
    ],
)
def test_an_experiment_keeps_its_precision_unless_another_is_requested(
    requested: Precision, recorded: object, kept: Precision
) -> None:
    assert kept_precision(requested, recorded) == kept


def test_an_unreadable_record_is_refused(experiment: Table3Experiment) -> None:
    assert read_record(experiment.folder / EXPERIMENT) == {}
    experiment.begin()
    path = experiment.folder / EXPERIMENT
    path.write_text("{")
    with pytest.raises(ConfigError, match=f"{path}: the record of the experiment is"):
        experiment.begin()


def test_an_experiment_of_another_format_is_refused(
    experiment: Table3Experiment,
) -> None:
    experiment.begin()
    (experiment.folder / "experiment.json").write_text('{"format": 0}')
    with pytest.raises(ConfigError, match="format must be 2, but is 0; the experiment"):
        experiment.begin()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    refuse_other_contents(
        tmp_path, EXPERIMENT, "a reproduction of Table 3"
    )  # an interrupted download
    refuse_other_contents(tmp_path / "new", EXPERIMENT, "a reproduction of Table 3")
    (tmp_path / "mine").touch()
    for folder in (tmp_path, tmp_path / "mine"):
        with pytest.raises(ConfigError, match=f"{folder}: the output folder must be"):
            refuse_other_contents(folder, EXPERIMENT, "a reproduction of Table 3")


def test_a_folder_of_a_command_that_was_killed_before_its_record_is_free(
    tmp_path: Path,
) -> None:
    for name in ("corpus", "logs", "runs"):
        (tmp_path / name).mkdir()
    (tmp_path / ".experiment.json.transduce-new").touch()
    refuse_other_contents(tmp_path, EXPERIMENT, "a reproduction of Table 3")
    (tmp_path / "runs" / "mine").mkdir()
    with pytest.raises(ConfigError, match=f"{tmp_path}: the output folder must be"):
        refuse_other_contents(tmp_path, EXPERIMENT, "a reproduction of Table 3")


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


SCALES = [part / 8 for part in range(1, 9)]
SIZES = {"model.d_model", "model.d_ff", "model.d_k", "model.d_v"} | {
    "model.num_heads",
    "model.num_layers",
    "training.steps",
}


def without_averaging(config: RunConfig) -> RunConfig:
    return replace(config, training=replace(config.training, keep_checkpoints=1))


@pytest.mark.parametrize("row", TABLE_3)
def test_a_row_at_full_scale_has_the_papers_settings(row: str) -> None:
    assert row_config(scaled_base(), row) == without_averaging(TABLE_3[row])


@pytest.mark.parametrize("scale", SCALES)
def test_the_scaled_base_differs_in_its_dimensions_only(scale: float) -> None:
    base = scaled_base(scale)
    assert changes(base, without_averaging(BASE)) == (
        {}
        if scale == 1
        else {
            "tokenizer.vocab_size": 37_000 * scale,
            "model.d_model": 512 * scale,
            "model.d_ff": 2048 * scale,
            "model.d_k": 64 * scale,
            "model.d_v": 64 * scale,
        }
    )


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("row", [row for row in TABLE_3 if row != "base"])
def test_a_row_changes_the_same_at_every_scale(row: str, scale: float) -> None:
    base = scaled_base(scale, 3_000)
    ours = changes(row_config(base, row), base)
    theirs = changes(without_averaging(TABLE_3[row]), without_averaging(BASE))
    assert ours.keys() == theirs.keys()
    before = settings(base)
    paper = settings(BASE)
    for name, value in ours.items():
        if name in SIZES:
            assert value / before[name] == theirs[name] / paper[name]
        else:
            assert value == theirs[name]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("row", ["A-h1", "A-h4", "A-h16", "A-h32"])
def test_the_number_of_heads_does_not_change_the_parameters(
    row: str, scale: float
) -> None:
    base = scaled_base(scale)
    assert count_parameters(row_config(base, row).model) == count_parameters(base.model)


@pytest.mark.parametrize("corpus", ["wmt14-en-de", None])
def test_the_base_without_a_scale_has_the_papers_settings(corpus: str | None) -> None:
    assert base_for(corpus, None, None) == scaled_base()
    assert base_for(corpus, None, 50) == scaled_base(1.0, 50)


def test_multi30k_has_a_base_of_its_own_unless_a_scale_is_named() -> None:
    base = base_for("multi30k", None, None)
    assert (base.model.d_model, base.model.num_layers) == (128, 3)
    assert (base.training.steps, base.batching.target_tokens) == (2_000, 1_024)
    assert base_for("multi30k", None, 50).training.steps == 50
    for row in TABLE_3:
        row_config(base, row)  # must not raise an error
    assert base_for("multi30k", 1.0, None) == scaled_base()


def test_big_has_checkpoints_by_the_minute_if_the_base_has() -> None:
    base, minutes = scaled_base(), {"checkpoint_steps": None, "checkpoint_minutes": 5.0}
    base = replace(base, training=replace(base.training, **minutes))
    training = row_config(base, "big").training
    assert (training.checkpoint_steps, training.checkpoint_minutes) == (None, 5.0)


@pytest.mark.parametrize("row", ["C-N2", "big"])
def test_rows_have_the_checkpoints_of_a_base_that_sets_them(row: str) -> None:
    base = scaled_base()
    base = replace(base, training=replace(base.training, checkpoint_steps=100))
    assert row_config(base, row).training.checkpoint_steps == 100


def test_big_has_the_default_number_of_checkpoints_if_the_user_gives_it() -> None:
    base = scaled_base()
    chosen = row_config(base, "big", {"training.checkpoint_steps"}).training
    assert chosen.checkpoint_steps == base.training.checkpoint_steps == 1_500
    assert row_config(base, "big").training.checkpoint_steps == 600


def test_big_trains_three_times_as_long() -> None:
    assert row_config(scaled_base(0.25, 2_000), "big").training.steps == 6_000


@pytest.mark.parametrize(
    ("steps", "warmup_steps"), [(100_000, 4_000), (20_000, 4_000), (500, 100), (3, 1)]
)
def test_fewer_steps_warm_up_for_a_fifth_of_them(steps: int, warmup_steps: int) -> None:
    training = scaled_base(1.0, steps).training
    assert (training.steps, training.warmup_steps) == (steps, warmup_steps)


@pytest.mark.parametrize("scale", [0.0, -1.0, 0.1, 1.125, 2.0, float("nan")])
def test_a_scale_that_gives_odd_dimensions_is_refused(scale: float) -> None:
    pattern = r"`scale` must be a multiple of 1/8 from 1/8 to 1, but is "
    with pytest.raises(ConfigError, match=pattern + f"{scale:g}"):
        scaled_base(scale)


def test_a_base_that_gives_fractional_sizes_is_refused() -> None:
    base = scaled_base(0.125)
    base = replace(base, model=replace(base.model, num_layers=4))
    pattern = r"`num_layers` of row C-N2 must be .* but is 1/3 of the base's 4; leave"
    with pytest.raises(ConfigError, match=pattern):
        row_config(base, "C-N2")


def test_a_row_of_fewer_layers_has_fewer_in_a_decoder_with_its_own_number() -> None:
    base = scaled_base()
    base = replace(base, model=replace(base.model, decoder_layers=3))
    model = row_config(base, "C-N2").model
    assert (model.num_layers, model.decoder_layers) == (2, 1)
    assert row_config(base, "A-h1").model.decoder_layers == 3
    base = replace(base, model=replace(base.model, decoder_layers=2))
    with pytest.raises(ConfigError, match="`decoder_layers` of row C-N2 .* is 1/3 of"):
        row_config(base, "C-N2")


def test_a_row_that_changes_nothing_is_refused() -> None:
    base = scaled_base()
    base = replace(base, model=replace(base.model, dropout=0.2))
    with pytest.raises(ConfigError, match=r"Row D-drop0\.2 must differ from base, but"):
        row_config(base, "D-drop0.2")


def test_rows_are_in_the_papers_order_after_base() -> None:
    assert require_rows(("C-N2", "A-h1")) == ["base", "A-h1", "C-N2"]
    assert require_rows(()) == list(TABLE_3)


def test_an_unknown_row_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no row `A-h2`; did you mean `A-h"):
        require_rows(("base", "A-h2"))
