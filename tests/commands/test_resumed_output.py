"""Interrupted outputs are kept, and a resumed one equals an uninterrupted one."""

import gzip
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest

from file_size import limited_file_size
from transduce.checkpoint import Checkpoint, load_model, save_model
from transduce.cli import USER_ERROR
from transduce.decoding.parser import Parser
from transduce.decoding.translator import Translator
from transduce.errors import CheckpointError, ConfigError
from transduce.files import lock_file
from transduce.model_folder import model_sum
from transduce.native import api
from waiting import wait_until

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
NUM_LINES, NUM_DONE = 12, 5
KEPT = f"The results of {NUM_DONE} lines of the input are kept in "


LINES, OUTPUT = Path("lines"), Path("output")
PART, RECORD = Path("output.part"), Path("output.part.record")


@pytest.fixture(autouse=True)
def _in_a_folder_with_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = (" ".join(WORDS[i % 8 : i % 8 + 1 + i % 3]) for i in range(NUM_LINES))
    LINES.write_text("".join(f"{line}\n" for line in said), encoding="utf-8")


def cut(number: int, error: BaseException) -> Callable[..., Iterator[object]]:
    """Function that ends a stream after some items."""

    def shortened(items: Iterable[object]) -> Iterator[object]:
        for count, each in enumerate(items):
            if count == number:
                raise error
            yield each

    return shortened


@pytest.fixture
def stops_with(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the stream of results raise an error once, after a few lines."""

    def stop(error: BaseException, number: int = NUM_DONE) -> None:
        for kind, name in (
            (Translator, "translate_stream"),
            (Translator, "sample_stream"),
            (Parser, "parse_stream"),
        ):
            whole = getattr(kind, name)

            def shortened(self, *given, whole=whole, kind=kind, name=name, **named):
                monkeypatch.setattr(kind, name, whole)
                return cut(number, error)(whole(self, *given, **named))

            monkeypatch.setattr(kind, name, shortened)

    return stop


COMMANDS = [
    ("translate", ()),
    ("translate", ("--nbest", 2)),
    ("translate", ("--jsonl",)),
    ("translate", ("--prefixes", "lines")),
    ("sample", ("--number", 2)),
    ("parse", ()),
    ("parse", ("--pretty", "--svg", "picture.svg")),
]


@pytest.mark.parametrize("called", COMMANDS)
@pytest.mark.parametrize("given_as", ["file", "gzip", "standard input"])
def test_a_resumed_output_is_that_of_a_command_that_was_never_interrupted(
    succeeds, refuses, model, parsing_model, stops_with, called, given_as
) -> None:
    name, options = called
    if given_as != "file" and len(options) > 1:
        pytest.skip("the input is read in one way, whatever the options")
    used = parsing_model if name == "parse" else model
    zipped = Path("zipped")
    zipped.write_bytes(gzip.compress(LINES.read_bytes()))
    how = {
        "file": {"input": ("--input", LINES)},
        "gzip": {"input": ("--input", zipped)},
        "standard input": {"input": (), "stdin": LINES.read_bytes()},
    }[given_as]
    arguments = (name, used, *how.pop("input"), *options, "--device", "cpu")
    succeeds(*arguments, "--output", "expected", **how)
    pictures = list(Path().glob("*.svg"))
    expected = [path.read_bytes() for path in (Path("expected"), *pictures)]
    for picture in pictures:
        picture.unlink()
    stops_with(KeyboardInterrupt())
    message = refuses(*arguments, "--output", OUTPUT, **how)
    assert message == (
        f"Interrupted. {KEPT}{PART}: the same command with --resume continues."
    )
    assert not OUTPUT.exists()
    assert expected[0].startswith(PART.read_bytes())
    assert PART.read_bytes().endswith(b"\n")
    succeeds(*arguments, "--output", OUTPUT, "--resume", **how)
    assert [path.read_bytes() for path in (OUTPUT, *pictures)] == expected
    assert not list(Path().glob("output.*"))


def test_a_resumed_picture_has_lines_without_a_tree_and_words_with_brackets(
    succeeds, refuses, parsing_model, stops_with
) -> None:
    LINES.write_text(f"\n( )\n{LINES.read_text()}")
    picture = Path("picture.svg")
    options = ("--tokenized", "--svg", picture, "--device", "cpu")
    arguments = ("parse", parsing_model, "--input", LINES, *options)
    succeeds(*arguments, "--output", "expected")
    expected = picture.read_bytes()
    picture.unlink()
    stops_with(KeyboardInterrupt())
    refuses(*arguments, "--output", OUTPUT)
    succeeds(*arguments, "--output", OUTPUT, "--resume")
    assert picture.read_bytes() == expected


def test_interrupted_scores_are_resumed(succeeds, refuses, model, monkeypatch) -> None:
    LINES.write_text(LINES.read_text() * 172)
    arguments = ("score", model, "--source", LINES, "--target", LINES, "--jsonl")
    expected = succeeds(*arguments)
    write, written = os.write, []

    def interrupted(descriptor: int, content: memoryview) -> int:
        written.append(bytes(content))
        # Lines of results and of their record, after the header and 2,054 pairs.
        if len(written) == 4_111:
            raise KeyboardInterrupt
        return write(descriptor, content)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", interrupted)
        assert "2,054 lines of the input" in refuses(*arguments, "--output", OUTPUT)
    again = (*arguments, "--output", OUTPUT, "--resume")
    assert "as it was begun with other models; give the same" in refuses(
        *again, "--ensemble", model
    )
    succeeds(*arguments, "--output", OUTPUT, "--resume")
    assert OUTPUT.read_text() == expected
    assert len(written) == 4_111


@pytest.mark.parametrize("name", ["translate", "score"])
def test_an_output_is_kept_that_is_interrupted_while_it_is_forced_to_the_disk(
    succeeds, refuses, model, monkeypatch, name
) -> None:
    texts = ("--input", LINES)
    if name == "score":  # whose total comes after the lines
        texts = ("--source", LINES, "--target", LINES)
    arguments = (name, model, *texts, "--device", "cpu", "--output")
    succeeds(*arguments, "expected")

    def interrupted(_descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        assert refuses(*arguments, OUTPUT) == (
            f"Interrupted. The results of {NUM_LINES} lines of the input are kept in "
            f"{PART}: the same command with --resume continues."
        )
    succeeds(*arguments, OUTPUT, "--resume")
    assert OUTPUT.read_bytes() == Path("expected").read_bytes()
    assert not list(Path().glob("output.*"))


@pytest.mark.parametrize(
    "torn",
    [(0, 0), (1, 0), (0, 1), (7, 100), (1_000, 0), (0, 100)],
)
def test_partial_records_are_computed_again(
    command, succeeds, refuses, model, stops_with, torn
) -> None:
    """Partial files, as after a power failure, lose their incomplete end.

    A lost result is warned of; a torn line of the record belongs to the interruption.
    """
    arguments = ("translate", model, "--input", LINES)
    expected = succeeds(*arguments)
    stops_with(KeyboardInterrupt())
    refuses(*arguments, "--output", OUTPUT)
    for path, number in ((PART, torn[0]), (RECORD, torn[1])):
        size = path.stat().st_size
        least = path.read_bytes().index(b"\n") + 1 if path == RECORD else 0
        os.truncate(path, max(size - number, least))
    resumed = command(*arguments, "--output", OUTPUT, "--resume")
    assert ("is damaged; those from line" in resumed.err) == (torn[0] > torn[1])
    assert OUTPUT.read_text() == expected


@pytest.mark.parametrize(
    ("path", "line", "change"),
    [
        (PART, 1, lambda line: bytes(len(line))),  # as a crash of the machine leaves it
        (PART, 1, lambda line: b"[" + line[1:]),
        (PART, 1, lambda line: line[:-1] + b" "),
        (RECORD, 2, lambda line: line.replace(b'["', b'["0')),  # of the input
        (RECORD, 2, lambda line: line.replace(b"null", b"1234")),  # the note
        (RECORD, 2, lambda line: line[:-2] + b"\n"),  # no JSON
        (RECORD, 2, lambda line: bytes(len(line) - 1) + b"\n"),
        (RECORD, 2, lambda line: b"[" + b"9" * 18 + line[line.index(b",") :]),
    ],
)
def test_results_that_were_damaged_are_computed_again(
    command, model, stops_with, path, line, change
) -> None:
    arguments = ("translate", model, "--input", LINES, "--jsonl", "--device", "cpu")
    expected = command(*arguments).out
    stops_with(KeyboardInterrupt())
    assert command(*arguments, "--output", OUTPUT).code == USER_ERROR
    lines = path.read_bytes().splitlines(keepends=True)
    changed = change(lines[line])
    assert changed != lines[line]
    path.write_bytes(b"".join([*lines[:line], changed, *lines[line + 1 :]]))
    resumed = command(*arguments, "--output", OUTPUT, "--resume")
    first = 2 if api() is not None else 1  # PyTorch translates whole batches again
    assert resumed.err == (
        f"Warning: {PART}: the result of line 2 of the input is damaged; those from "
        f"line {first} on are computed again.\n"
    )
    assert OUTPUT.read_text(encoding="utf-8") == expected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("--beam-size", 2), "search.beam_size was 4 and is now 2"),
        (("--nbest", 2), "form.num_best was 1 and is now 2"),
        (("--jsonl",), "form.jsonl was False and is now True"),
        (("--length-penalty", 0.5), "search.length_penalty was 0.6 and is now 0.5"),
        (("--prefixes", "lines"), "prefixes was False and is now True"),
        (("--ensemble", "model"), "as it was begun with other models; give the same"),
        ("another model", "as it was begun with other models; give the same"),
        ("another line", "line 2 of the input has changed"),
        ("fewer lines", "line 4 of the input has changed"),
        ("another command", "command was 'translate' and is now 'sample'"),
    ],
)
def test_an_output_is_resumed_only_with_the_same_model_input_and_options(
    refuses, model, stops_with, tmp_path, monkeypatch, change, said
) -> None:
    shutil.copytree(model, "model")
    stops_with(KeyboardInterrupt())
    refuses("translate", "model", "--input", LINES, "--output", OUTPUT)
    part = PART.read_bytes()
    content = LINES.read_text().splitlines(keepends=True)
    match change:
        case "another model":
            checkpoint = load_model(Path("model"))
            checkpoint.weights[
                "output.weight" if False else next(iter(checkpoint.weights))
            ].view(-1)[0] += 1
            shutil.rmtree("model")
            save_model(checkpoint, Path("model"))
        case "another line":
            LINES.write_text("".join([content[0], "nine\n", *content[2:]]))
        case "fewer lines":
            LINES.write_text("".join(content[:3]))
    name = "sample" if change == "another command" else "translate"
    options = () if isinstance(change, str) else change
    message = refuses(
        name, "model", "--input", LINES, "--output", OUTPUT, "--resume", *options
    )
    assert said in message
    assert "start over with --force" in message
    assert PART.read_bytes() == part


@pytest.mark.parametrize(
    ("precision", "said"),
    [
        ("fp32", None),
        ("bf16", "processes was 1 and is now 2"),
    ],
)
def test_an_output_is_resumed_by_other_processes_if_they_find_the_same(
    refuses, succeeds, model, stops_with, precision, said
) -> None:
    line = ("translate", model, "--input", LINES, "--output", OUTPUT, "--device", "cpu")
    line = (*line, "--precision", precision)
    stops_with(KeyboardInterrupt())
    refuses(*line, "--processes", 1)
    resumed = (*line, "--processes", 2, "--resume")
    if said is None and api() is not None:
        succeeds(*resumed)
    else:
        assert (said or "processes was") in refuses(*resumed)


def test_an_output_of_the_native_library_is_not_resumed_by_pytorch(
    refuses, model, stops_with, monkeypatch
) -> None:
    line = ("translate", model, "--input", LINES, "--output", OUTPUT, "--device", "cpu")
    stops_with(KeyboardInterrupt())
    refuses(*line)
    is_native = Translator.is_native.fget
    monkeypatch.setattr(
        Translator, "is_native", property(lambda self: not is_native(self))
    )
    assert "library was " in refuses(*line, "--resume")


def test_a_line_added_to_the_input_does_not_prevent_resuming(
    succeeds, refuses, model, stops_with
) -> None:
    stops_with(KeyboardInterrupt())
    arguments = ("translate", model, "--input", LINES)
    refuses(*arguments, "--output", OUTPUT)
    with LINES.open("a") as file:
        file.write("eight\n")
    succeeds(*arguments, "--output", OUTPUT, "--resume")
    assert OUTPUT.read_text() == succeeds(*arguments)


def test_a_checksum_distinguishes_models(
    trained_checkpoint: Checkpoint, tmp_path
) -> None:
    save_model(trained_checkpoint, tmp_path / "one")
    save_model(trained_checkpoint, tmp_path / "same")
    sums = {model_sum(tmp_path / "one"), model_sum(tmp_path / "same")}
    assert len(sums) == 1
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        content = bytearray((tmp_path / "one" / name).read_bytes())
        for place in (len(content) - 1, len(content) // 2):
            content[place] ^= 1
            (tmp_path / "same" / name).write_bytes(content)
            sums.add(model_sum(tmp_path / "same"))
            content[place] ^= 1
        (tmp_path / "same" / name).write_bytes(content)
    assert len(sums) == 7
    for name in ("dictionary.json", "shortlist.safetensors"):
        for content in (b"{}", b"[]"):
            (tmp_path / "same" / name).write_bytes(content)
            sums.add(model_sum(tmp_path / "same"))
        (tmp_path / "same" / name).unlink()
    assert len(sums) == 11


@pytest.mark.parametrize("content", [b"", None])
def test_a_run_whose_model_lacks_its_weights_has_no_checksum(
    trained_checkpoint: Checkpoint, tmp_path, content: bytes | None
) -> None:
    for name in ("averaged", "best"):
        save_model(trained_checkpoint, tmp_path / name)
    weights = tmp_path / "averaged" / "model.safetensors"
    weights.unlink() if content is None else weights.write_bytes(content)
    with pytest.raises(CheckpointError, match="the weights are missing"):
        model_sum(tmp_path)


def test_a_part_is_not_overwritten_unless_by_force(
    refuses, succeeds, model, stops_with
) -> None:
    stops_with(KeyboardInterrupt())
    arguments = ("translate", model, "--input", LINES, "--output", OUTPUT)
    refuses(*arguments)
    kept = PART.read_bytes()
    assert refuses(*arguments) == (
        f"{PART}: holds the output of an interrupted command; continue it by "
        "--resume, or overwrite it with --force."
    )
    assert PART.read_bytes() == kept
    succeeds(*arguments, "--force")
    assert len(OUTPUT.read_text().splitlines()) == NUM_LINES
    assert not PART.exists()


@pytest.mark.parametrize("name", [PART, RECORD])
def test_an_input_is_never_the_part_or_the_record_of_its_output(
    refuses, model, name
) -> None:
    content = LINES.read_bytes()
    name.write_bytes(content)
    for command in (
        ("translate", model, "--input", name),
        ("translate", model, "--input", LINES, "--bad-words", name),
        ("sample", model, "--input", name),
        ("score", model, "--source", LINES, "--target", name),
    ):
        message = refuses(*command, "--output", OUTPUT, "--force")
        assert message == (
            f"{name}: the output must be another file than the input, but is the same; "
            "choose another name."
        )
    assert name.read_bytes() == content


def test_standard_input_is_never_the_part_of_the_output(model) -> None:
    LINES.rename(PART)
    content = PART.read_bytes()
    command = [sys.executable, "-m", "transduce", "translate", str(model)]
    with PART.open("rb") as stdin:
        found = subprocess.run(
            [*command, "--output", str(OUTPUT), "--force"],
            stdin=stdin, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert found.returncode == 2
    assert "output.part: the output must be another file than the" in found.stderr
    assert PART.read_bytes() == content


def test_a_record_without_its_part_is_not_overwritten_unless_by_force(
    refuses, succeeds, model
) -> None:
    RECORD.write_text("precious")
    arguments = ("translate", model, "--input", LINES, "--output", OUTPUT)
    assert refuses(*arguments) == (
        f"{RECORD}: must not exist before the output is begun, but does; remove it, or "
        "overwrite it with --force."
    )
    assert RECORD.read_text() == "precious"
    succeeds(*arguments, "--force")
    assert not RECORD.exists()


def test_resuming_needs_an_interrupted_output(
    refuses,
    model,
) -> None:
    arguments = ("translate", model, "--input", LINES, "--resume")
    assert refuses(*arguments, "--output", OUTPUT).startswith(
        f"{PART}: --resume needs the output of an interrupted command, but this file"
    )
    for given in ((), ("--output", "/dev/null"), ("--output", "/dev/stdout")):
        message = refuses(*arguments, *given)
        assert message.startswith("--resume must have an interrupted output file")


@pytest.mark.parametrize("damage", [b"", b"[1, 2]\n", b"\xff\n", b"{", b"[" * 10_000])
def test_a_part_with_a_damaged_record_is_not_resumed(
    refuses, model, stops_with, damage
) -> None:
    stops_with(KeyboardInterrupt())
    arguments = ("translate", model, "--input", LINES, "--output", OUTPUT)
    refuses(*arguments)
    RECORD.write_bytes(damage)
    message = refuses(*arguments, "--resume")
    assert "the record of output.part is missing or damaged" in message
    assert PART.stat().st_size > 0


def test_a_fault_of_the_input_keeps_finished_lines(refuses, succeeds, model) -> None:
    LINES.write_bytes(b"one\n" * 2_050 + b"\xff\n" + b"two\n")
    arguments = ("translate", model, "--input", LINES, "--output", OUTPUT)
    message = refuses(*arguments)
    assert message.startswith(f"{LINES}:2051: a line must be valid UTF-8")
    assert "The results of 2,048 lines of the input are kept in" in message
    LINES.write_bytes(b"one\n" * 2_051 + b"two\n")
    succeeds(*arguments, "--resume")
    assert len(OUTPUT.read_text().splitlines()) == 2_052


def test_a_command_without_a_finished_record_leaves_nothing(
    refuses, model, stops_with
) -> None:
    stops_with(KeyboardInterrupt(), 0)
    message = refuses("translate", model, "--input", LINES, "--output", OUTPUT)
    assert message == "Interrupted."
    assert not list(Path().glob("output*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, 9])
def test_a_command_that_is_ended_keeps_whole_lines(succeeds, model, number) -> None:
    command = [
        *(sys.executable, "-m", "transduce", "translate", str(model)),
        *("--output", str(OUTPUT), "--device", "cpu"),
    ]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("one two\nthree\n")
        process.stdin.flush()
        wait_until(lambda: RECORD.exists() and RECORD.read_bytes().count(b"\n") == 3)
        process.send_signal(number)
        code, errors = process.wait(), process.stderr.read()
    assert code == {signal.SIGINT: 2, 9: -9}.get(number, 128 + number)
    assert ("2 lines of the input" in errors) == (number != 9)
    assert "Traceback" not in errors
    assert not OUTPUT.exists()
    rest = "".join(chain(["one two\nthree\n"], repeat("four five\n", 3))).encode()
    succeeds("translate", model, "--output", OUTPUT, "--resume", stdin=rest)
    assert OUTPUT.read_text() == succeeds("translate", model, stdin=rest)


@pytest.mark.parametrize("option", [(), ("--force",), ("--resume",)])
def test_one_command_at_a_time_writes_an_output(refuses, model, option) -> None:
    with PART.open("w", encoding="utf-8") as part:
        lock_file(part.fileno(), ConfigError("This is the first to lock it."))
        message = refuses(
            "translate", model, "--input", LINES, "--output", OUTPUT, *option
        )
    assert "another command is writing this file" in message


def test_a_disk_that_is_full_at_once_leaves_nothing(refuses, model) -> None:
    with limited_file_size(10):
        message = refuses("translate", model, "--input", LINES, "--output", OUTPUT)
    assert message == "output: cannot be written (File too large)."
    assert not list(Path().glob("output*"))


def test_a_disk_that_fills_up_keeps_whole_lines(refuses, succeeds, model) -> None:
    arguments = ("translate", model, "--input", LINES, "--jsonl", "--device", "cpu")
    expected = succeeds(*arguments)
    with limited_file_size(len(expected) // 2):
        message = refuses(*arguments, "--output", OUTPUT)
    assert message.startswith(
        "output: cannot be written (File too large). The results of"
    )
    assert PART.read_bytes().endswith(b"\n")
    assert PART.read_bytes().count(b"\n") > 2
    succeeds(*arguments, "--output", OUTPUT, "--resume")
    assert OUTPUT.read_text() == expected
