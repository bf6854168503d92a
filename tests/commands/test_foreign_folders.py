"""A model folder with arbitrary content works, or is refused in one sentence."""

import base64
import copy
import json
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fork_server import ForkServer, fork_server
from transduce.checkpoint import Checkpoint, save_model
from transduce.model_folder import MODEL_CONFIG, WEIGHTS
from transduce.search_config import SearchConfig
from transduce.text.tokenizer import TOKENIZER_FILE

MEMORY = 6 << 30
"""Bytes that a command may take."""
BEYOND_ALL = (2**63 - 1, 2**63, 2**64, 10**30, int("9" * 400))
"""Values that no field may have."""
VALUES: tuple[object, ...] = (
    *BEYOND_ALL, 2**31, 0, -1, 1e308, float("nan"), float("inf"), 0.5, 2.0, True, None,
    "", "x" * 100_000, "\ud800", [], {"a": 1},
)  # fmt: skip
"""Values to try in each field; most are refused."""


Translate = Callable[[Path], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    """Process without PyTorch, in which each command takes half the time."""
    with fork_server() as server:
        yield server


@pytest.fixture
def translate(forks: ForkServer) -> Translate:
    """Function that translates two lines with a folder, in a process of its own."""
    return lambda folder: forks.command(
        *("translate", str(folder), "--processes", "1"),
        stdin="one two\nthree\n",
        memory=MEMORY,
    )


@pytest.fixture
def folder(trained_checkpoint: Checkpoint, tmp_path: Path) -> Path:
    search = SearchConfig(max_length=8)
    saved = replace(trained_checkpoint, search=search, source_language="en", run="r")
    save_model(saved, tmp_path / "model")
    return tmp_path / "model"


def fields(content: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[Any]:
    for name, value in content.items():
        yield (*before, name)
        if isinstance(value, dict):
            yield from fields(value, (*before, name))


def changed(content: dict[str, Any], field: tuple[str, ...], value: object) -> str:
    content = copy.deepcopy(content)
    table = content
    for name in field[:-1]:
        table = table[name]
    table[field[-1]] = value
    return json.dumps(content)


def assert_translated_or_refused(code: int, said: str, what: str) -> None:
    assert code in (0, 2), (what, said[-1_000:])
    assert "Traceback" not in said, (what, said[-1_000:])
    if code == 2:
        assert len(said.strip().splitlines()) == 1, (what, said)
        assert said.strip().endswith("."), (what, said)
        assert len(said) < 1_500, what


EACH_VALUE = """
import contextlib, io, json, pathlib, traceback
config, lines, *contents = sys.argv[1:]
command = ["translate", os.path.dirname(config), "--processes", "1", "--input", lines]
for content in contents:
    pathlib.Path(config).write_text(content, encoding="utf-8")
    out, said, code = io.TextIOWrapper(io.BytesIO()), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            transduce.cli.main(command)
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
            code = 99
    print(json.dumps([code, said.getvalue()]), flush=True)
"""
"""Program that translates with several contents of a model's file, one after another,
and prints exit codes and messages. A process for each would take longer."""


def test_any_value_of_any_field_works_or_is_refused(
    folder: Path, tmp_path: Path, forks: ForkServer
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one two\nthree\n")
    content = json.loads((folder / MODEL_CONFIG).read_text(encoding="utf-8"))
    # Other tests cover the bounds of a search.
    for field in [each for each in fields(content) if each[0] != "search"]:
        texts = [changed(content, field, value) for value in VALUES]
        files = (str(folder / MODEL_CONFIG), str(lines))
        done = forks.run(EACH_VALUE, "each", *files, *texts, memory=MEMORY)
        outcomes = [json.loads(line) for line in done.stdout.splitlines()]
        where = ".".join(field)
        assert (done.returncode, len(outcomes)) == (0, len(VALUES)), (where, done)
        for value, (code, said) in zip(VALUES, outcomes, strict=True):
            what = f"{where} = {str(value)[:40]!r}"
            assert_translated_or_refused(code, said, what)
            assert code == 2 or value not in BEYOND_ALL, what


@pytest.fixture
def refused(translate: Translate) -> Callable[[Path], str]:
    """Function that translates with a folder, which must be refused."""

    def message(folder: Path) -> str:
        done = translate(folder)
        assert_translated_or_refused(done.returncode, done.stderr, "")
        assert done.returncode == 2
        return done.stderr

    return message


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def circular(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def nested(path: Path) -> None:
    path.write_text('{"a":' * 100_000 + "1" + "}" * 100_000, encoding="utf-8")


def gigabyte(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(2**30)


@pytest.mark.parametrize("name", [MODEL_CONFIG, TOKENIZER_FILE])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (pipe, "it is not a regular file"),
        (endless, "it is not a regular file"),
        (circular, "Too many levels of symbolic links"),
        (nested, "it is nested too deep"),
        (gigabyte, "bytes); "),
    ],
)
def test_a_damaged_file_of_a_model_is_refused(
    folder, refused, name, change, said
) -> None:
    change(folder / name)
    found = refused(folder)
    assert f"{folder / name}: " in found
    assert said in found


@pytest.mark.parametrize("change", [pipe, endless, circular, nested, gigabyte])
def test_a_damaged_file_of_weights_is_refused(folder, refused, change) -> None:
    change(folder / WEIGHTS)
    found = refused(folder)
    assert "must be a model or a run, but" in found or "missing or damaged" in found


def test_a_repeated_key_is_refused(folder: Path, refused) -> None:
    text = (folder / MODEL_CONFIG).read_text(encoding="utf-8")
    text = text.replace('"d_ff":', '"d_ff": 1, "d_ff":')
    (folder / MODEL_CONFIG).write_text(text, encoding="utf-8")
    assert "the key 'd_ff' is there twice" in refused(folder)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [-1, -100])
def test_weights_that_are_not_finite_are_refused(folder, refused, value, place) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    numbers = np.frombuffer(content, dtype="<f4", offset=len(content) % 4)
    numbers[place] = value
    (folder / WEIGHTS).write_bytes(content)
    assert "the weights must be finite numbers, but" in refused(folder)


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def with_overlap(header: dict[str, Any]) -> None:
    one, other, *_ = (each for each in header if each != "__metadata__")
    header[one]["data_offsets"] = header[other]["data_offsets"]


def with_too_far_an_end(header: dict[str, Any]) -> None:
    header[next(each for each in header if each != "__metadata__")]["data_offsets"] = [
        0, 2**62,
    ]  # fmt: skip


def with_too_large_a_shape(header: dict[str, Any]) -> None:
    header[next(each for each in header if each != "__metadata__")]["shape"] = [2**62]


@pytest.mark.parametrize(
    "lie", [with_overlap, with_too_far_an_end, with_too_large_a_shape, None]
)
def test_a_false_header_of_weights_is_refused(
    folder: Path, refused, lie: Callable[[dict[str, Any]], None] | None
) -> None:
    content = (folder / WEIGHTS).read_bytes()
    header, data = header_of(content)
    if lie is None:
        changed_content = struct.pack("<Q", 2**63) + content[8:]
    else:
        lie(header)
        text = json.dumps(header).encode()
        changed_content = struct.pack("<Q", len(text)) + text + data
    (folder / WEIGHTS).write_bytes(changed_content)
    assert "the weights are missing or damaged" in refused(folder)


def token(content: str) -> dict[str, object]:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": 4, "content": content, **dict.fromkeys(flags, False)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"added_tokens": [token("one")]}, "must have no `added_tokens`"),
        ({"normalizer": {"type": "Lowercase"}}, "must have no `normalizer`"),
        (
            {
                "truncation": {
                    "direction": "Right", "max_length": 1, "stride": 0,
                    "strategy": "LongestFirst",
                }
            },
            "must have no `truncation`",
        ),
        (
            {
                "pre_tokenizer": {
                    "type": "Split", "pattern": {"Regex": "(a+)+$"},
                    "behavior": "Isolated", "invert": False,
                }
            },
            "its `pre_tokenizer` is not one that transduce writes, and might not end",
        ),
        ({"model.dropout": 0.5}, "must have no `model.dropout`"),
        ({"model.continuing_subword_prefix": "##"}, "no `model.continuing_subword"),
        ({"model.type": "Unigram"}, "must be BPE, WordPiece or WordLevel"),
        ({"model.vocab": {"<pad>": 0, "<s>": 1, "</s>": 5}}, "missing or damaged"),
    ],
)  # fmt: skip
def test_a_tokenizer_that_cuts_otherwise_is_refused(
    folder, refused, change, said
) -> None:
    content = json.loads((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
    for name, value in change.items():
        table = content["model"] if name.startswith("model.") else content
        table[name.removeprefix("model.")] = value
    (folder / TOKENIZER_FILE).write_text(json.dumps(content), encoding="utf-8")
    assert said in refused(folder)


UNIGRAM: dict[str, Any] = {
    "pieces": [["a", -1.0]], "character_map": "", "adds_space": True,
    "removes_spaces": True,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"pieces": [[1, -1.0]]},
        {"pieces": [["a", float("nan")]]},
        {"pieces": [["a", "b"]]},
        {"pieces": [["\ud800", -1.0]]},
        {
            "character_map": base64.b64encode(
                struct.pack("<5I", 16, *[2**32 - 1] * 4)
            ).decode()
        },
    ],
    ids=["no text", "no number", "a word", "half a character", "a map"],
)
def test_a_damaged_tokenizer_of_sentence_pieces_is_refused(
    folder, refused, change
) -> None:
    model = json.loads((folder / MODEL_CONFIG).read_text(encoding="utf-8"))["model"]
    others = [f"p{i}" for i in range(model["vocab_size"] - 4)]
    content = {
        "type": "SentencePiece",
        "vocabulary": ["<pad>", "<s>", "</s>", "<unk>", *others],
        "source": UNIGRAM | change,
        "target": UNIGRAM,
    }
    (folder / TOKENIZER_FILE).write_text(json.dumps(content), encoding="utf-8")
    assert "the tokenizer is missing or damaged" in refused(folder)
