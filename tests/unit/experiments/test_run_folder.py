import errno
import json
import os
import shutil
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from transduce.architectures.config import architecture_of
from transduce.data.corpus_files import CorpusFiles
from transduce.data.prepared_corpus import PreparedCorpus
from transduce.errors import (
    AccessError,
    CheckpointError,
    ConfigError,
    DataError,
    VersionError,
)
from transduce.experiments.experiment import PresetRun
from transduce.experiments.presets import PRESETS, RunConfig
from transduce.experiments.resuming import refuse_changed_precision
from transduce.experiments.run_folder import (
    RENAMED,
    RunFolder,
    require_replaceable_run,
)
from transduce.model_folder import MODEL_FILES
from transduce.settings import apply_assignments, flattened, nested

TINY = PRESETS["tiny"]
OLDER_RECORDS = sorted((Path(__file__).parents[2] / "data/run_settings").glob("*.json"))
"""Settings of runs by architecture, as versions of these dates recorded them."""


@pytest.fixture
def files(corpus_files: tuple[Path, Path]) -> CorpusFiles:
    source, target = corpus_files
    return CorpusFiles(source=(source,), target=(target,))


def create(path: Path, files: CorpusFiles, config: RunConfig = TINY) -> PreparedCorpus:
    with RunFolder.create(path, files, config, "fp32") as (_, _, corpus):
        return corpus


@pytest.fixture
def run(tmp_path: Path, files: CorpusFiles) -> RunFolder:
    create(tmp_path / "run", files)
    return RunFolder(tmp_path / "run")


def change_record(run: RunFolder, **values: object) -> None:
    path = run.path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_run_opens_with_its_settings(tmp_path: Path, files: CorpusFiles) -> None:
    config = replace(TINY, model=replace(TINY.model, dropout=0.35))
    corpus = create(tmp_path / "run", files, config)
    # The corpus decides the size of the vocabulary.
    model = replace(config.model, vocab_size=corpus.vocab_size)
    assert RunFolder.open(tmp_path / "run")[1] == replace(config, model=model)


def test_the_record_names_the_files_and_every_setting(
    run: RunFolder, files: CorpusFiles
) -> None:
    record = json.loads((run.path / "config.json").read_text())
    assert record["files"]["source"] == [str(files.source[0])]
    assert record["files"]["dev_source"] == []
    assert record["settings"]["model"]["d_model"] == TINY.model.d_model


def test_resuming_in_another_precision_is_refused(run: RunFolder) -> None:
    refuse_changed_precision(run, "fp32")
    message = "the precision of the run to resume is fp32, but bf16 is requested; leave"
    with pytest.raises(ConfigError, match=message):
        refuse_changed_precision(run, "bf16")


def test_a_run_without_a_recorded_precision_takes_any(run: RunFolder) -> None:
    path = run.path / "config.json"
    record = json.loads(path.read_text())
    assert record.pop("precision") == "fp32"
    path.write_text(json.dumps(record))
    assert run.precision == "auto"
    refuse_changed_precision(run, "bf16")


def test_an_empty_folder_may_hold_a_new_run(tmp_path: Path, files: CorpusFiles) -> None:
    (tmp_path / "run").mkdir()
    create(tmp_path / "run", files)
    assert (tmp_path / "run" / "config.json").is_file()


def test_a_folder_that_is_filled_while_a_run_is_prepared_is_kept(
    tmp_path: Path, files: CorpusFiles
) -> None:
    run = tmp_path / "run"

    def create_late() -> None:
        with RunFolder.create(run, files, TINY, "fp32"):
            run.mkdir()
            (run / "translations").write_text("theirs")

    with pytest.raises(ConfigError, match="must be new or empty, but is not; choose"):
        create_late()
    assert [path.name for path in run.iterdir()] == ["translations"]
    assert list(tmp_path.iterdir()) == [run]


@pytest.mark.skipif(os.name == "nt", reason="Windows locks no folder")
def test_a_run_that_begins_to_train_while_its_replacement_is_prepared_is_kept(
    run: RunFolder, files: CorpusFiles
) -> None:
    before = run.id

    def replace_late() -> None:
        with (
            ExitStack() as training,
            RunFolder.create(run.path, files, TINY, "fp32", overwrite=True),
        ):
            training.enter_context(run.locked())

    with pytest.raises(ConfigError, match="but another one is training it; wait for"):
        replace_late()
    assert run.id == before


@pytest.mark.skipif(os.name == "nt", reason="Windows locks no folder")
def test_a_run_that_is_removed_before_its_lock_is_not_said_to_be_trained(
    run: RunFolder,
) -> None:
    shutil.rmtree(run.path)
    message = f"^{run.path}: .* another one has just removed or replaced it; try again"
    with pytest.raises(ConfigError, match=message), run.locked():
        pass


def test_a_folder_is_refused_before_everything_in_it_is_looked_at(
    tmp_path: Path, files: CorpusFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine" / "photos").mkdir(parents=True)
    monkeypatch.setattr("os.walk", lambda *_, **__: pytest.fail("it is looked at"))
    with pytest.raises(ConfigError, match="must be new or empty, but is not; choose"):
        create(tmp_path / "mine", files)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_that_cannot_be_read_does_not_become_a_run(
    tmp_path: Path, files: CorpusFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "private").mkdir()

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(AccessError, match="private: cannot be read .Permission denied"):
        create(tmp_path / "private", files)


@pytest.mark.parametrize(("name", "what"), [("run/mine", "not"), ("run", "a file")])
def test_an_existing_file_or_folder_is_not_overwritten(
    tmp_path: Path, files: CorpusFiles, name: str, what: str
) -> None:
    out, there = tmp_path / "run", tmp_path / name
    there.parent.mkdir(exist_ok=True)
    there.write_text("precious")
    said = f"must be new or empty, but is {what}; choose another"
    with pytest.raises(ConfigError, match=said):
        create(out, files)
    assert there.read_text() == "precious"


def test_a_folder_with_a_similar_name_is_not_touched(
    tmp_path: Path, files: CorpusFiles
) -> None:
    (tmp_path / "run.new").mkdir()
    (tmp_path / "run.new" / "mine").write_text("precious")
    create(tmp_path / "run", files)
    assert (tmp_path / "run.new" / "mine").read_text() == "precious"


def test_a_faulty_corpus_leaves_no_files(tmp_path: Path, files: CorpusFiles) -> None:
    faulty = replace(files, target=(tmp_path / "missing",))
    with pytest.raises(DataError, match="missing: the file cannot be read"):
        create(tmp_path / "a" / "run", faulty)
    assert not list(tmp_path.glob("a/*"))


def test_a_new_run_does_not_replace_the_current_folder(
    tmp_path: Path, files: CorpusFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its relative paths would lead to the folder that was replaced."""
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="another folder than the current one"):
        create(Path(), files)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("missing", [".", "config.json"])
def test_a_folder_that_is_not_a_run_is_refused(run: RunFolder, missing: str) -> None:
    (run.path / missing).rename(run.path.parent / "elsewhere")
    with pytest.raises(
        CheckpointError, match="must be a run to resume, but holds none"
    ):
        RunFolder.open(run.path)


@pytest.mark.parametrize("missing", ["corpus", "corpus/training"])
def test_a_run_without_its_text_is_told_from_none(run: RunFolder, missing: str) -> None:
    (run.path / missing).rename(run.path.parent / "elsewhere")
    with pytest.raises(
        CheckpointError,
        match=f"^{run.path}/corpus/training: .* is missing; restore it, "
        "or start another run from the run's model\\.$",
    ):
        RunFolder.open(run.path)


def test_a_run_of_another_version_is_refused(run: RunFolder) -> None:
    change_record(run, format=99)
    message = r"config\.json: the format must be 1, but is 99; the run was started by"
    with pytest.raises(CheckpointError, match=message):
        RunFolder.open(run.path)


@pytest.mark.parametrize("settings", [None, [], "x"], ids=repr)
def test_a_record_without_settings_is_refused(run: RunFolder, settings: object) -> None:
    change_record(run, settings=settings)
    with pytest.raises((CheckpointError, ConfigError), match=r"config\.json: "):
        RunFolder.open(run.path)


def test_a_record_with_a_setting_of_another_version_is_refused(run: RunFolder) -> None:
    change_record(run, settings={"model": {"d_modl": 3}})
    with pytest.raises(VersionError) as raised:
        RunFolder.open(run.path)
    assert str(raised.value) == (
        f"{run.path}/config.json: there is no setting `model.d_modl`; did you mean "
        "`model.d_model`? The run was started by another version of transduce."
    )


def test_a_setting_that_was_renamed_is_read_by_its_older_name(run: RunFolder) -> None:
    for older, present in RENAMED.items():
        value = flattened(asdict(RunConfig()))[present] * 2
        change_record(run, settings=nested([(older, value)]))
        _, config = RunFolder.open(run.path)
        assert flattened(asdict(config))[present] == value


@pytest.mark.parametrize("record", OLDER_RECORDS, ids=lambda path: path.stem)
def test_every_setting_of_an_older_record_is_known(
    run: RunFolder, record: Path
) -> None:
    for architecture, settings in json.loads(record.read_text("utf-8")).items():
        change_record(run, architecture=architecture, settings=settings)
        _, config = RunFolder.open(run.path)
        assert architecture_of(config.model) == architecture


@pytest.mark.parametrize(
    "assignments",
    [
        ["training.patience=5"],
        ['training.best_by="loss"'],
        ['training.schedule="plateau"', "training.learning_rate=1e-3"],
    ],
    ids=lambda assignments: assignments[0],
)
def test_settings_that_need_a_dev_corpus_are_refused_if_pairs_are_too_few_for_one(
    tmp_path: Path, files: CorpusFiles, assignments: list[str]
) -> None:
    config = apply_assignments(TINY, assignments)
    assert config.evaluation.hold_out
    name = assignments[0].partition("=")[0]
    message = (
        f"`{name}` .*needs a dev corpus, but there is none, as the corpus is too small "
        "to hold one out; give dev files"
    )
    with pytest.raises(ConfigError, match=message):
        create(tmp_path / "run", files, config)
    assert not (tmp_path / "run").exists()


def test_no_pair_left_beside_those_held_out_is_a_fault_of_the_given_file(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "s.en", tmp_path / "s.de"
    for path in (source, target):
        path.write_text("".join(f"word {i}\n" for i in range(200)) + "\n" * 200)
    message = r"s\.en without the pairs held out: at least one pair must be left"
    with pytest.raises(DataError, match=message):
        create(tmp_path / "run", CorpusFiles(source=(source,), target=(target,)))


def test_a_run_without_dev_text_has_no_dev_corpus(run: RunFolder) -> None:
    assert not run.has_dev_corpus


def test_checkpoints_are_in_the_order_of_their_steps(run: RunFolder) -> None:
    for step in (100, 20, 3):
        run.checkpoint(step).mkdir(parents=True)
    (run.path / "checkpoints" / "step-00000200.new").mkdir()
    assert run.checkpoints() == [run.checkpoint(step) for step in (3, 20, 100)]


@pytest.mark.parametrize(
    ("sign", "remedy"),
    [
        (
            "averaged",
            "start another run from the run's model",
        ),
        (
            "averaged-00000020",
            "start another run from the run's model",
        ),
        (
            "checkpoints/damaged-stopped",
            "start the run over",
        ),
    ],
)
def test_a_trained_run_without_checkpoints_is_refused_with_a_remedy(
    run: RunFolder, sign: str, remedy: str
) -> None:
    for kind in ("start", "step", "saved"):  # of the only checkpoint
        run.log.append(kind, step=20)
    run.require_checkpoints()
    (run.path / sign).mkdir(parents=True)
    with pytest.raises(CheckpointError, match=f"restore it, or {remedy}\\.$"):
        run.require_checkpoints()
    run.checkpoint(20).mkdir(parents=True)
    run.require_checkpoints()


def test_a_run_may_begin_anew_after_a_crash_in_its_first_save(run: RunFolder) -> None:
    (run.path / "best").mkdir()  # the model that it started from
    for kind in ("start", "step", "saved", "lengthened"):
        run.log.append(kind, step=20)
        run.require_checkpoints()
    run.log.append("start", step=20)
    with pytest.raises(CheckpointError, match="must hold the run's newest checkpoint"):
        run.require_checkpoints()


def test_a_checkpoint_is_set_aside_again_where_open_files_stay(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On NFS, a folder stays as long as one of its files is open.
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    for number in range(3):
        run.checkpoint(1).mkdir(parents=True)
        name = sorted(MODEL_FILES)[number]
        (run.checkpoint(1) / name).touch()
        run.set_aside(run.checkpoint(1))
        [aside] = run.path.glob("checkpoints/damaged-*")
        assert [each.name for each in aside.iterdir()] == [name]


@pytest.mark.parametrize(
    "name", ["notes", "checkpoints/mine", "averaged/notes", "checkpoints/step-1/notes"]
)
def test_a_run_is_not_overwritten_together_with_a_persons_file(
    run: RunFolder, name: str
) -> None:
    (run.path / "config.json").touch()
    name = name.replace("step-1", run.checkpoint(1).name)
    run.checkpoint(1).mkdir(parents=True)
    (run.checkpoint(1) / "training.json").touch()
    require_replaceable_run(run.path)
    (run.path / name).parent.mkdir(exist_ok=True)
    (run.path / name).touch()
    with pytest.raises(ConfigError, match=f"the folder also holds {name}; move it"):
        require_replaceable_run(run.path)


def test_an_experiments_run_without_its_record_is_to_be_restored_or_removed(
    tmp_path: Path,
) -> None:
    run = PresetRun(
        row="A", preset="tiny", seed=1, config=PRESETS["tiny"], folder=tmp_path
    )
    run.path.mkdir(parents=True)
    with pytest.raises(CheckpointError) as error:
        run.recorded_settings()
    assert str(error.value) == (
        f"{run.path}: must hold a run of the experiment, but lacks config.json or the "
        "encoded corpus; restore them, or remove the folder to train the run again."
    )
