"""Each kind of damage to a run's files ends a command with one sentence."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from transduce.data.dataset import ID_TYPE, OFFSET_TYPE

pytestmark = pytest.mark.usefixtures("no_trials")


@pytest.fixture
def damaged(run: Path, tmp_path: Path) -> Path:
    """Copy of a run that a test may damage."""
    return Path(shutil.copytree(run, tmp_path / "run"))


def resume(run: Path) -> tuple[object, ...]:
    return ("train", "--out", run, "--resume", "--device", "cpu")


LINES = [
    b"[1, 2]",
    b"\xff",
    b"null",
    b"{}",
    b'{"kind": "step"}',
    b'{"kind": 1, "step": 1}',
    b'{"kind": "step", "step": "1"}',
    b'{"kind": "step", "step": -1}',
    b'{"kind": "dev", "step": 1, "loss": "low"}',
    b'{"kind": "dev", "step": 1, "loss": 1, "bleu": null}',
    b'{"kind": "step", "step": ' + b"9" * 5_000 + b"}",
    b'{"kind": "step", "step": ' + b"9" * 200 + b"}",
    b"[" * 100_000,
    b"\0" * 100,
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: repr(line[:30]))
def test_a_damaged_line_of_the_log_is_named(refuses, damaged: Path, line) -> None:
    log = damaged / "log.jsonl"
    first, *rest = log.read_bytes().split(b"\n")
    log.write_bytes(b"\n".join([first, line, *rest]))
    message = refuses(*resume(damaged))
    assert message.startswith(f"{log}:2: this line of the run's log is damaged")


@pytest.mark.parametrize("line", LINES, ids=lambda line: repr(line[:30]))
def test_a_last_line_cut_short_by_a_crash_is_left_out(
    succeeds, damaged: Path, line
) -> None:
    with (damaged / "log.jsonl").open("ab") as log:
        log.write(line)
    succeeds(*resume(damaged))


@pytest.mark.parametrize(
    ("kind", "name"), [("start", "was_cut"), ("dev", "loss"), ("step", "seconds")]
)
def test_a_missing_value_of_the_log_is_named(
    refuses, damaged: Path, corpus_files, kind: str, name: str
) -> None:
    log = damaged / "log.jsonl"
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    for entry in entries:
        if entry["kind"] == kind:
            del entry[name]
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    source, target = corpus_files
    table = ("reproduce", "table2", damaged, "--out", damaged.parent / "table")
    table += ("--source", source, "--reference", target, "--hardware", "P100")
    message = refuses(*(table if kind == "step" else resume(damaged)))
    assert f"the line of kind '{kind}' at step" in message
    assert f"must have `{name}`" in message


def flipped(place: int) -> Callable[[np.ndarray], None]:
    def flip(numbers: np.ndarray) -> None:
        numbers[place] ^= numbers.dtype.type(1 << (8 * numbers.dtype.itemsize - 6))

    return flip


def test_flipped_offsets_do_not_allocate_petabytes(refuses, damaged: Path) -> None:
    for split in ("training", "dev"):
        for side in ("source", "target"):
            path = damaged / "corpus" / split / f"{side}.offsets"
            before = path.read_bytes()
            for place in (0, 1, 5, -2, -1):
                offsets = np.frombuffer(before, dtype=OFFSET_TYPE).copy()
                flipped(place)(offsets)
                path.write_bytes(offsets.tobytes())
                message = refuses(*resume(damaged))
                assert "the encoded corpus is missing or damaged" in message
            path.write_bytes(before)


def test_ids_outside_the_vocabulary_are_reported(refuses, damaged: Path) -> None:
    for split in ("training", "dev"):
        for side in ("source", "target"):
            path = damaged / "corpus" / split / f"{side}.ids"
            before = path.read_bytes()
            ids = np.frombuffer(before, dtype=ID_TYPE).copy()
            flipped(-1)(ids)
            path.write_bytes(ids.tobytes())
            message = refuses(*resume(damaged))
            assert f"damaged ({side}: id " in message
            path.write_bytes(before)


def test_sides_of_unequal_length_are_reported(refuses, damaged: Path) -> None:
    path = damaged / "corpus" / "training" / "target.offsets"
    offsets = np.fromfile(path, dtype=OFFSET_TYPE)
    np.append(offsets, offsets[-1]).tofile(path)
    assert "damaged (target: " in refuses(*resume(damaged))


@pytest.mark.parametrize(
    ("name", "value"),
    [("files", None), ("files", [1]), ("files", {"source": [1]}),
     ("files", {"dev_names": []}), ("files", {"dev_names": ["home", "news"]}),
     ("files", {"dev_sets": ["news.en", "news.de"]}),
     ("precision", "fp64"), ("precision", [])],
)  # fmt: skip
def test_a_record_that_is_damaged_is_named(
    refuses, damaged: Path, corpus_files, name, value
) -> None:
    record = json.loads((damaged / "config.json").read_text())
    record[name] = value
    if value is None:
        del record[name]
    (damaged / "config.json").write_text(json.dumps(record))
    source, target = corpus_files
    files = ("--source", source, "--target", target)
    files += ("--dev-source", source, "--dev-target", target)
    message = refuses(*resume(damaged), *files)
    assert message.startswith(f"{damaged / 'config.json'}: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [("epoch", -1), ("step", -5), ("lowest_loss", float("nan")), ("flops", -1),
     ("corpus_pairs", [1])],
)  # fmt: skip
def test_impossible_progress_is_set_aside(
    command, damaged: Path, name: str, value
) -> None:
    newest = sorted((damaged / "checkpoints").iterdir())[-1] / "training.json"
    progress = json.loads(newest.read_text())
    newest.write_text(json.dumps({**progress, name: value}))
    outcome = command(*resume(damaged))
    assert outcome.code == 0, outcome.err
    assert f"{newest}: must " in outcome.out.replace("\n", " ")
    assert "use another checkpoint" in outcome.out.replace("\n", " ")


def test_a_checkpoint_of_another_run_is_set_aside(command, damaged: Path) -> None:
    newest = sorted((damaged / "checkpoints").iterdir())[-1]
    config = newest / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "run": "f" * 32}))
    outcome = command(*resume(damaged), "--set", "training.steps=21")
    assert outcome.code == 0, outcome.err
    said = outcome.out.replace("\n", " ")
    assert f"{newest}: must be of the run that it is in, but is of another run" in said
    assert (newest.parent / f"damaged-{newest.name}").is_dir()
    again = json.loads(config.read_text())  # of the same number of updates
    assert again["run"] == json.loads((damaged / "config.json").read_text())["id"]


def test_files_of_another_run_are_refused_and_no_checkpoint_is_changed(
    refuses, damaged: Path
) -> None:
    config, tokenizer = damaged / "config.json", damaged / "tokenizer.json"
    before = sorted((damaged / "checkpoints").iterdir())
    text = config.read_text()
    config.write_text(json.dumps({**json.loads(text), "id": "f" * 32}))
    message = refuses(*resume(damaged), "--set", "training.steps=21")
    assert message.startswith(f"{config}: must be of the run whose checkpoints")
    config.write_text(text)
    content = json.loads(tokenizer.read_text())
    ids = content["model"]["vocab"]
    one, two = (piece for piece, i in ids.items() if i in (270, 271))
    ids[one], ids[two] = ids[two], ids[one]
    tokenizer.write_text(json.dumps(content))
    message = refuses(*resume(damaged), "--set", "training.steps=21")
    assert message.startswith(f"{tokenizer}: must be the tokenizer of the run's")
    assert sorted((damaged / "checkpoints").iterdir()) == before


def test_the_best_checkpoint_of_another_run_is_left_alone(
    command, damaged: Path
) -> None:
    config = damaged / "best" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "run": "f" * 32}))
    shutil.rmtree(damaged / "averaged")
    outcome = command(*resume(damaged))
    assert outcome.code == 0
    said = (outcome.out + outcome.err).replace("\n", " ")
    assert f"{damaged / 'best'}: must be of the run that it is in" in said
    assert (damaged / "averaged").is_dir()


def test_a_checkpoint_under_another_name_is_set_aside(command, damaged: Path) -> None:
    newest = sorted((damaged / "checkpoints").iterdir())[-1]
    later = newest.with_name("step-00000030")
    shutil.copytree(newest, later)
    outcome = command(*resume(damaged), "--set", "training.steps=21")
    assert outcome.code == 0, outcome.err
    said = outcome.out.replace("\n", " ")
    assert f"{later}: must be of the update in its name, but is of update 20" in said
    assert not later.exists()


@pytest.mark.parametrize(
    "name",
    ["log.jsonl", "config.json", "tokenizer.json", "corpus/dev/source.txt",
     "corpus/dev/target.txt", "corpus/dev/source.ids", "corpus/dev/target.offsets",
     "corpus/training/source.offsets", "corpus/training/target.ids"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["folder", "pipe", "link to itself"])
def test_a_run_whose_file_is_not_a_regular_one_is_refused(
    refuses, damaged: Path, name: str, kind: str
) -> None:
    path = damaged / name
    path.unlink()
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case _:
            path.symlink_to(path)
    assert str(damaged) in refuses(*resume(damaged))


def test_a_pipe_in_the_place_of_the_optimizer_is_set_aside(
    command, damaged: Path
) -> None:
    newest = sorted((damaged / "checkpoints").iterdir())[-1] / "training.safetensors"
    newest.unlink()
    os.mkfifo(newest)
    outcome = command(*resume(damaged))
    assert outcome.code == 0, outcome.err
    assert "it is not a regular file" in outcome.out


@pytest.mark.parametrize("name", ["source.txt", "target.txt"])
@pytest.mark.parametrize("num_lines", [0, 3])
def test_a_dev_text_that_is_cut_short_is_named(
    refuses, damaged: Path, name: str, num_lines: int
) -> None:
    path = damaged / "corpus" / "dev" / name
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:num_lines]))
    message = refuses(*resume(damaged))
    assert message.startswith(f"{path.parent}: the text of the dev corpus is missing")


def test_a_run_whose_dev_corpus_was_removed_does_not_continue_unscored(
    refuses, damaged: Path
) -> None:
    shutil.rmtree(damaged / "corpus" / "dev")
    before = contents(damaged)
    for options in ((), ("--set", "training.steps=1000")):
        message = refuses(*resume(damaged), *options)
        assert message.startswith(f"{damaged}/corpus/dev: must hold the dev corpus by")
        assert contents(damaged) == before


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("tokenizer.json", "the tokenizer is missing or damaged"),
        ("corpus/training/source.ids", "the encoded corpus is missing or damaged"),
        ("corpus/dev/target.txt", "the text of the dev corpus is missing or damaged"),
        ("checkpoints/*/model.safetensors", "must hold the run's newest checkpoint"),
        ("checkpoints/*/training.json", "must hold the run's newest checkpoint"),
    ],
)
def test_a_damaged_run_is_not_changed_by_a_refused_number_of_updates(
    refuses, damaged: Path, pattern: str, said: str
) -> None:
    """Its average stays where programs that use it look for it."""
    for path in damaged.glob(pattern):
        os.truncate(path, 10)
    before = contents(damaged)
    assert said in refuses(*resume(damaged), "--set", "training.steps=1000")
    assert contents(damaged) == before


def contents(folder: Path) -> dict[Path, bytes]:
    """Contents of all files of a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
