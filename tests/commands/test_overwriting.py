"""No command overwrites a file without --force."""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from transduce.cli.resumable_output import Destination, _Part
from transduce.errors import ConfigError

CORPUS = ("--source", "text/my.en", "--target", "text/my.de")
SENTENCE = ("--source", "one two")
FILES = {
    "translate": ("translate", "model", "--input", "lines", "--output"),
    "sample": ("sample", "model", "--input", "lines", "--output"),
    "score": ("score", "model", "--source", "lines", "--target", "lines", "--output"),
    "parse": ("parse", "parser", "--input", "lines", "--output"),
    "parse picture": ("parse", "parser", "--input", "lines", "--svg"),
    "attention page": ("attention", "model", *SENTENCE, "--out"),
    "attention figure": ("attention", "model", *SENTENCE, "--figure"),
    "compare": ("compare", "lines", "others", "--reference", "lines", "--html"),
}
"""Commands that write a file; its name comes last."""


@pytest.fixture(autouse=True)
def _in_a_folder(
    model: Path, parsing_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model, "model")
    shutil.copytree(parsing_model, "parser")
    Path("lines").write_text("one two\nthree\n", encoding="utf-8")
    Path("others").write_text("one\nthree\n", encoding="utf-8")
    Path("text").mkdir()
    Path("text/my.en").write_text("One.\nTwo.\n", encoding="utf-8")
    Path("text/my.de").write_text("Eins.\nZwei.\n", encoding="utf-8")


@pytest.fixture(params=FILES)
def writing(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Command without the name of its output."""
    arguments = FILES[request.param]
    return arguments if arguments[0] != "sample" else (*arguments[:-1], "--output")


def name_for(writing: tuple[str, ...]) -> Path:
    return Path("out.svg" if "--figure" in writing else "out")


def test_a_file_is_overwritten_by_force_only(refuses, succeeds, writing) -> None:
    out = name_for(writing)
    out.write_text("precious")
    assert refuses(*writing, out) == (
        f"{out}: the output must be new or empty, but is not; choose another name, or "
        "overwrite it with --force."
    )
    assert out.read_text() == "precious"
    succeeds(*writing, out, "--force")
    assert out.read_text() != "precious"
    assert not list(Path().glob("*.part*"))
    assert not list(Path().glob(".*"))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_an_overwritten_file_keeps_its_permissions(succeeds) -> None:
    Path("out").write_text("precious")
    Path("out").chmod(0o600)
    succeeds(*FILES["translate"], "out", "--force")
    assert Path("out").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize("is_left", [True, False])
def test_a_private_output_is_private_while_it_is_written(
    tmp_path: Path, is_left: bool
) -> None:
    output = tmp_path / "out"
    files = [tmp_path / "out.part", tmp_path / "out.part.record"]
    output.write_text("precious")
    output.chmod(0o600)
    for path in files if is_left else ():
        path.write_text("of a killed command")
    with Destination(output=output, force=True).opened(dict) as part:
        part.write("line\n")
        assert [path.stat().st_mode & 0o777 for path in files] == [0o600, 0o600]
    assert output.read_text() == "line\n"
    assert output.stat().st_mode & 0o777 == 0o600


def test_a_partial_output_of_another_user_is_kept(tmp_path: Path, monkeypatch) -> None:
    part = tmp_path / "out.part"
    part.write_text("theirs")
    monkeypatch.setattr("os.access", lambda path, _: path != part)
    for ways in ({}, {"force": True}, {"resume": True}):
        destination = Destination(output=tmp_path / "out", **ways)
        with pytest.raises(ConfigError, match=f"{part}: .* user's command, .* choose"):
            destination.require_usable()
    assert part.read_text() == "theirs"


def test_an_empty_output_file_is_overwritten(succeeds, writing) -> None:
    out = name_for(writing)
    out.touch()
    succeeds(*writing, out)
    assert out.stat().st_size > 0


def test_an_input_is_not_overwritten_even_by_force(refuses, writing) -> None:
    if "attention" in writing:
        pytest.skip("it reads no file")
    Path("link").symlink_to("lines")
    before = Path("lines").read_text()
    for name in ("lines", "./lines", "link"):
        message = refuses(*writing, name, "--force")
        assert message.startswith(f"{Path(name)}: the output must be another file than")
    assert Path("lines").read_text() == before


def test_a_folder_is_refused_as_an_output_file(refuses, writing) -> None:
    name_for(writing).mkdir()
    message = refuses(*writing, name_for(writing), "--force")
    assert message.endswith(": cannot be written (Is a directory).")


def test_a_device_is_written_without_force(succeeds, writing) -> None:
    if "--figure" in writing:
        pytest.skip("a figure's kind is told by its name")
    for _ in range(2):
        succeeds(*writing, "/dev/null")
    assert Path("/dev/null").is_char_device()


@pytest.fixture
def fifo(writing) -> Iterator[tuple[Path, list[bytes]]]:
    """Named pipe and the data read from it."""
    path, read = name_for(writing), []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    yield path, read
    reader.join()


def test_a_pipe_may_be_written_and_stays_a_pipe(succeeds, writing, fifo) -> None:
    path, read = fifo
    succeeds(*writing, path)
    while not read:
        pass
    assert read[0]
    assert path.is_fifo()


def test_a_name_of_standard_output_may_be_written(succeeds, writing) -> None:
    if "--figure" in writing or "compare" in writing:
        pytest.skip("it is written to a file")
    out = name_for(writing)
    succeeds(*writing, out)
    if "--svg" in writing:  # the parses must go elsewhere
        writing = (*writing[:-1], "--output", os.devnull, "--svg")
    # It leads to the standard output of the tests, which is not read here.
    succeeds(*writing, "/dev/stdout")
    assert not list(Path().glob("*.part*"))


def test_two_outputs_must_be_two_files(refuses) -> None:
    options = ("--out", "x.svg", "--figure", "x.svg")
    assert refuses("attention", "model", *SENTENCE, *options).startswith(
        "x.svg: the output must be another file than the picture, but is the same"
    )


def test_two_outputs_may_not_both_be_standard_output(refuses) -> None:
    compare = ("compare", "lines", "others", "--reference", "lines", "--html")
    parse = ("parse", "parser", "--input", "lines")
    for name in ("-", "/dev/stdout"):
        for arguments in (
            (*compare, name),
            (*compare, name, "--json"),
            ("attention", "model", *SENTENCE, "--json", "--out", name),
            (*parse, "--svg", name),
            (*parse, "--output", "-", "--svg", name),
        ):
            assert refuses(*arguments).startswith(
                "Standard output must stand for one output, but stands for several"
            )


def test_one_of_two_outputs_may_be_standard_output(succeeds) -> None:
    picture = ("--svg", "-", "--output", "trees")
    assert succeeds("parse", "parser", "--input", "lines", *picture).startswith("<svg ")
    page = succeeds("attention", "model", *SENTENCE, "--out", "-")
    assert page.startswith("<!doctype html>")


FOLDERS = {
    "average": (("average", "model", "--out"), "model.safetensors"),
    "quantize": (("quantize", "model", "--out"), "model.safetensors"),
    "clean": (("clean", *CORPUS, "--out"), "report.json"),
    "split": (("split", *CORPUS, "--dev", "1", "--out"), "dev.en"),
    "heads": (
        ("heads", "model", "--source", "lines", "--target", "lines", "--out"),
        "heads.json",
    ),
    "table2": (
        ("reproduce", "table2", "--presets", "base", "--hardware", "P100", "--out"),
        "table2.json",
    ),
}


@pytest.mark.parametrize(("writing", "mark"), FOLDERS.values(), ids=FOLDERS)
def test_a_folder_is_overwritten_by_force_if_the_command_has_written_it(
    refuses, command, writing, mark
) -> None:
    assert command(*writing, "out").code == 0
    written = sorted(path.name for path in Path("out").iterdir())
    assert mark in written
    assert refuses(*writing, "out") == (
        "out: the output folder must be new or empty, but is not; choose another, or "
        "overwrite it with --force."
    )
    Path("out", mark).write_text("old")
    assert command(*writing, "out", "--force").code == 0
    assert sorted(path.name for path in Path("out").iterdir()) == written
    assert Path("out", mark).read_bytes() != b"old"
    Path("out", "notes.md").write_text("mine")
    Path("out", "folder").mkdir()
    Path("out", "folder", "more.md").write_text("mine, too")
    for _ in range(2):  # the second replaces a folder that kept them
        assert command(*writing, "out", "--force").code == 0
        there = {path.name for path in Path("out").iterdir()}
        assert there == {*written, "notes.md", "folder"}
        assert Path("out", "notes.md").read_text() == "mine"
        assert Path("out", "folder", "more.md").read_text() == "mine, too"


@pytest.mark.parametrize(("writing", "mark"), FOLDERS.values(), ids=FOLDERS)
def test_a_folder_that_the_same_command_wrote_meanwhile_is_kept(
    command, writing, mark, monkeypatch
) -> None:
    """Two commands with one output run at once, and end one after the other."""
    made_by = " ".join(writing[: 2 if writing[0] == "reproduce" else 1])

    def write_meanwhile(out: Path) -> None:
        out.mkdir()
        (out / mark).write_text("theirs")
        (out / ".made-by").write_text(made_by)

    monkeypatch.setattr("transduce.files.require_place", write_meanwhile)
    outcome = command(*writing, "out")
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1] == (
        f"transduce: {Path('out').absolute()}: the output folder must be new or empty, "
        "but another command has written it meanwhile; choose another, or overwrite it "
        "with --force."
    )
    assert Path("out", mark).read_text() == "theirs"


def test_a_file_that_another_command_wrote_meanwhile_is_kept(
    refuses, writing, monkeypatch
) -> None:
    def write_meanwhile(out: Path) -> bool:
        out.write_text("theirs")
        return False

    monkeypatch.setattr("transduce.cli.files._is_regular_file", write_meanwhile)
    assert refuses(*writing, name_for(writing)) == (
        f"{name_for(writing)}: the output must be new or empty, but another command "
        "has written it meanwhile; choose another name, or overwrite it with --force."
    )
    assert name_for(writing).read_text() == "theirs"
    assert not list(Path().glob("*.part*"))
    assert not list(Path().glob(".*"))


TRANSLATION = FILES["translate"]


def test_a_partial_output_that_another_command_left_meanwhile_is_kept(
    refuses, monkeypatch
) -> None:
    require_usable = Destination.require_usable

    def write_meanwhile(destination: Destination, *inputs: Path) -> None:
        require_usable(destination, *inputs)
        Path("out.part").write_text("theirs")

    monkeypatch.setattr(Destination, "require_usable", write_meanwhile)
    assert refuses(*TRANSLATION, "out") == (
        "out.part: holds the output of an interrupted command; continue it by "
        "--resume, or overwrite it with --force."
    )
    assert Path("out.part").read_text() == "theirs"


def test_an_output_that_another_command_just_completed_is_kept(
    refuses, monkeypatch
) -> None:
    """It is renamed between the opening and the lock of its partial file."""

    def complete(_descriptor: int, _refusal: Exception) -> None:
        Path("out.part").rename("out")
        Path("out").write_text("theirs")

    monkeypatch.setattr("transduce.cli.resumable_output.lock_file", complete)
    assert refuses(*TRANSLATION, "out") == (
        "out.part: another command is writing this file; wait for it to end, or choose "
        "another name."
    )
    assert Path("out").read_text() == "theirs"


def test_a_complete_output_is_kept_beside_one_that_was_written_meanwhile(
    refuses, succeeds, monkeypatch
) -> None:
    finish = _Part.finish

    def write_meanwhile(part: _Part, output: Path, *, overwrite: bool) -> None:
        output.write_text("theirs")
        finish(part, output, overwrite=overwrite)

    with monkeypatch.context() as patched:
        patched.setattr(_Part, "finish", write_meanwhile)
        message = refuses(*TRANSLATION, "out")
    assert message.endswith(
        " with --force. The complete output is in out.part: rename it, or give the "
        "same command with --resume --force."
    )
    assert Path("out").read_text() == "theirs"
    complete = Path("out.part").read_text()
    succeeds(*TRANSLATION, "out", "--resume", "--force")
    assert Path("out").read_text() == complete


def test_another_folder_is_not_overwritten_even_by_force(refuses) -> None:
    Path("home").mkdir()
    Path("home", "precious").touch()
    for writing, _ in FOLDERS.values():
        message = refuses(*writing, "home", "--force")
        assert message.startswith("home: only a folder that the same")
    assert Path("home", "precious").is_file()


def test_a_model_of_a_run_or_of_another_command_is_not_overwritten(
    refuses, succeeds, run
) -> None:
    """All of these folders have a config.json and weights."""
    shutil.copytree(run, "run")
    succeeds("quantize", "model", "--out", "int8")
    for folder in ("run", "run/averaged", "run/best", "model", "int8"):
        before = {p: p.read_bytes() for p in Path(folder).iterdir() if p.is_file()}
        message = refuses("average", "model", "--out", folder, "--force")
        assert message.startswith(f"{folder}: only a folder that the same")
        assert {p: p.read_bytes() for p in before} == before


def test_an_average_does_not_overwrite_one_that_it_reads(refuses, succeeds) -> None:
    succeeds("average", "model", "--out", "mean")
    before = {path: path.read_bytes() for path in Path("mean").iterdir()}
    message = refuses("average", "mean", "model", "--out", "mean", "--force")
    assert message.startswith("mean: the output folder must be another than")
    assert {path: path.read_bytes() for path in Path("mean").iterdir()} == before


def test_a_run_is_overwritten_by_force_only(
    refuses, command, run, corpus_files, monkeypatch
) -> None:
    shutil.copytree(run, "run")
    source, target = corpus_files
    arguments = (
        *("train", "--preset", "tiny", "--device", "cpu", "--out", "run"),
        *("--source", source, "--target", target, "--set", "training.steps=1"),
    )
    assert "or overwrite it with --force." in refuses(*arguments)
    assert Path("run", "checkpoints", "step-00000020").is_dir()
    assert "but both are" in refuses(*arguments, "--force", "--resume")
    outcome = command(*arguments, "--force")
    assert outcome.code == 0, outcome.err
    assert not list(Path("run", "checkpoints").glob("step-00000020"))
    for other in ("model", "lines"):
        assert refuses(*(arguments[:6]), other, *arguments[7:], "--force")
    assert Path("model", "config.json").is_file()


def test_a_run_is_not_overwritten_together_with_other_files(refuses, run) -> None:
    def training(*, source: str, target: str) -> str:
        return refuses(
            *("train", "--preset", "tiny", "--device", "cpu", "--out", "run"),
            *("--source", source, "--target", target, "--force"),
        )

    shutil.copytree(run, "run")
    Path("link.en").symlink_to("run/corpus/dev/source.txt")
    said = training(source="link.en", target="text/my.de")
    assert said == (
        "run: the output must be a folder without the input in it, but holds link.en, "
        "which it would replace; choose another."
    )
    shutil.copytree("text", "run/data")
    for folder in ("run/data", "text"):
        said = training(source=f"{folder}/my.en", target=f"{folder}/my.de")
        assert said.startswith("run: only the files of a run can be overwritten by ")
        assert said.endswith("also holds data; move it, or choose another folder.")
    assert Path("run/data/my.en").read_text(encoding="utf-8") == "One.\nTwo.\n"


def test_force_is_not_offered_for_a_run_beside_other_files(refuses, run) -> None:
    shutil.copytree(run, "run")
    shutil.copytree("text", "run/data")
    said = refuses("train", "--preset", "tiny", *CORPUS, "--no-dev", "--out", "run")
    assert said == (
        "run: the output folder must be new or empty, but is not; resume that run "
        "by `transduce train --resume`, or choose another folder."
    )


@pytest.mark.parametrize(
    "call",
    [("clean", *CORPUS), ("split", *CORPUS, "--dev", "1"), ("quantize", "model"),
     ("average", "model"), ("train", "--preset", "tiny", *CORPUS, "--no-dev"),
     ("train", "--from", "model", *CORPUS, "--no-dev"),
     ("back-translate", "model", "--input", "lines"),
     ("distill", "model", "--source", "lines"), ("shortlist", "loop", *CORPUS)],
    ids=lambda call: " ".join(call[:2]),
)  # fmt: skip
@pytest.mark.parametrize("where", ["loop", "loop/out"])
def test_a_link_that_leads_to_itself_is_refused(refuses, call, where: str) -> None:
    Path("loop").symlink_to("loop")
    out = () if call[0] == "shortlist" else ("--out", where)
    assert "loop" in refuses(*call, *out)


@pytest.mark.parametrize(
    "call",
    [("clean", "--source", "loop", *CORPUS[2:], "--out", "out"),
     ("split", *CORPUS[:3], "loop", "--dev", "1", "--out", "out"),
     ("average", "loop", "--out", "out"), ("quantize", "loop", "--out", "out"),
     ("serve", "en-de=loop", "--port", "0"), ("serve", "loop", "--port", "0"),
     ("import", "loop", "--out", "out")],
    ids=lambda call: " ".join(call[:2]),
)  # fmt: skip
def test_an_input_that_is_a_link_to_itself_is_refused(refuses, call) -> None:
    Path("loop").symlink_to("loop")
    assert "loop" in refuses(*call)
    assert not Path("out").exists()
