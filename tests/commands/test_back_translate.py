"""`transduce back-translate`: pairs from monolingual text, after interruptions too."""

import gzip
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import transduce
from file_size import limited_file_size
from transduce.checkpoint import Checkpoint, save_model
from transduce.cli import main
from transduce.decoding.translator import Translator
from transduce.errors import ConfigError, DataError
from transduce.experiments.synthetic_text import InputText
from transduce.search_config import SamplingConfig, SearchConfig
from transduce.text.tokenizer import load_tokenizer

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
LINES = [
    " ".join(WORDS[(i * j) % 8] for j in range(1, 2 + i % 5)) for i in range(1, 25)
]
FILES = ("back-translated.de", "back-translated.en", "translations.jsonl")


@pytest.fixture(scope="module")
def teacher(
    trained_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Model from English to German; so English counts as the target language."""
    folder = tmp_path_factory.mktemp("teacher") / "model"
    tagged = replace(trained_checkpoint, source_language="en", target_language="de")
    save_model(tagged, folder)
    return folder


@pytest.fixture(autouse=True)
def mono(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("mono.en")
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def records() -> list[dict[str, Any]]:
    lines = Path("out/translations.jsonl").read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def test_pairs_are_the_translations_and_the_lines_of_the_input(
    succeeds: Callable[..., str], teacher: Path, mono: Path
) -> None:
    out = Path("out")
    printed = succeeds("back-translate", teacher, "--input", mono, "--out", out)
    targets = (out / "back-translated.en").read_text().splitlines()
    sources = (out / "back-translated.de").read_text().splitlines()
    different = list(dict.fromkeys(LINES))
    assert [each["input"] for each in records()] == different
    assert targets == [each["input"] for each in records() if not each["dropped"]]
    translated = dict(zip(different, succeeds(
        "translate", teacher, stdin="\n".join(different).encode()
    ).splitlines(), strict=True))  # fmt: skip
    assert sources == [translated[line] for line in targets]
    assert f"{len(LINES)} lines, 0 of them blank and" in printed
    report = json.loads((out / "report.json").read_text())
    assert report["lines"]["repeated"] == len(LINES) - len(different)
    assert sum(report["pairs"].values()) == len(different)
    assert report["pairs"]["kept"] == len(targets)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ((), 4),
        (("--sampling", "--temperature", 2), 4),
        # Scores in int8 may depend on the other lines of a window.
        (("--precision", "int8"), 0),
    ],
)
def test_an_interrupted_command_goes_on_to_the_same_result(
    refuses, succeeds, teacher, mono, monkeypatch, options, kept
) -> None:
    arguments = ("back-translate", teacher, "--input", mono, "--device", "cpu")
    succeeds(*arguments, "--out", "whole", *options)
    name = "sample_stream" if "--sampling" in options else "translate_stream"
    whole = getattr(Translator, name)

    def stopped(self, *given, **named):
        for count, each in enumerate(whole(self, *given, **named)):
            if count == 5:
                raise KeyboardInterrupt
            yield each

    with monkeypatch.context() as patch:
        patch.setattr(Translator, name, stopped)
        message = refuses(*arguments, "--out", "cut", *options)
    assert message == (
        "Interrupted. What is done is kept in cut: the same command continues."
    )
    written = Path("cut/translations.jsonl").read_bytes()
    assert written.count(b"\n") == 5
    Path("cut/translations.jsonl").write_bytes(written[:-7])  # as a crash leaves it
    begun = []

    def continued(self, *given, **named):
        found = list(whole(self, *given, **named))
        begun.append(len(found))
        return iter(found)

    monkeypatch.setattr(Translator, name, continued)
    succeeds(*arguments, "--out", "cut", *options)
    assert begun == [len(set(LINES)) - kept]
    assert contents(Path("cut")) == contents(Path("whole"))


KILLED = """
import os, signal, sys
from transduce.cli import main
from transduce.experiments import synthetic_text

write, calls = synthetic_text.write_all, []

def write_and_die(descriptor, content):
    calls.append(content)
    if len(calls) == 101:
        write(descriptor, content[:-9])
        os.kill(os.getpid(), signal.SIGKILL)
    write(descriptor, content)

synthetic_text.write_all = write_and_die
main(sys.argv[1:])
"""


def test_a_killed_command_goes_on_to_the_same_result(succeeds, teacher, mono) -> None:
    words = (" ".join(WORDS[int(c)] for c in f"{i:o}") for i in range(64, 512))
    mono.write_text("".join(f"{line}\n" for line in words))
    options = ("--input", mono, "--sampling", "--seed", "7", "--device", "cpu")
    command = ["back-translate", teacher, *options, "--processes", "2"]
    process = subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, command), "--out", "killed"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL
    assert Path("killed/translations.jsonl").read_bytes().count(b"\n") == 100
    assert not Path("killed/report.json").exists()
    succeeds("back-translate", teacher, *options, "--out", "killed")
    succeeds("back-translate", teacher, *options, "--out", "whole")
    assert contents(Path("killed")) == contents(Path("whole"))


def test_a_command_goes_on_that_was_killed_while_it_recorded_its_settings(
    succeeds, teacher, mono
) -> None:
    Path("killed").mkdir()
    Path("killed/.settings.json.transduce-new").write_text('{"begun', encoding="utf-8")
    succeeds("back-translate", teacher, "--input", mono, "--out", "killed")
    assert Path("killed/report.json").is_file()
    assert not Path("killed/.settings.json.transduce-new").exists()


def test_an_interruption_names_a_folder_only_if_it_has_been_begun(
    teacher, mono, monkeypatch, capsys
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(InputText, "figures", interrupted)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        main(["back-translate", str(teacher), "--input", str(mono), "--out", "never"])
    assert "never" not in capsys.readouterr().err
    assert not Path("never").exists()


def test_a_full_disk_is_named_and_what_is_done_is_kept(
    refuses, succeeds, teacher, mono
) -> None:
    arguments = ("back-translate", teacher, "--input", mono, "--device", "cpu")
    succeeds(*arguments, "--out", "whole")
    with limited_file_size(1_500):
        message = refuses(*arguments, "--out", "cut")
    assert message == (
        "cut/translations.jsonl: cannot be read or written (File too large). What is "
        "done is kept in cut: the same command continues."
    )
    succeeds(*arguments, "--out", "cut")
    assert contents(Path("cut")) == contents(Path("whole"))


def test_a_sample_depends_on_the_seed_and_the_line_alone(
    succeeds, teacher, mono
) -> None:
    def drawn(*options: object) -> bytes:
        arguments = ("--input", mono, "--out", "out", "--force", "--sampling")
        succeeds("back-translate", teacher, *arguments, *options)
        return Path("out/translations.jsonl").read_bytes()

    first = drawn("--temperature", 2)
    assert drawn("--temperature", 2, "--processes", 2) == first
    assert drawn("--temperature", 2, "--seed", 2) != first
    with mono.open("a") as file:
        file.write("eight eight one\n")
    assert drawn("--temperature", 2).startswith(first)


def test_the_input_may_be_compressed_and_in_several_files(
    succeeds, teacher, mono
) -> None:
    half = len(LINES) // 2
    Path("one.en.gz").write_bytes(gzip.compress("\n".join(LINES[:half]).encode()))
    Path("two.en").write_text("\r\n".join(LINES[half:]) + "\r\n", newline="")
    succeeds("back-translate", teacher, "--input", mono, "--out", "whole")
    inputs = ("--input", "one.en.gz", "two.en")
    succeeds("back-translate", teacher, *inputs, "--out", "parts")
    assert contents(Path("parts")) == contents(Path("whole"))


def test_hostile_lines_cost_nothing_but_themselves(succeeds, teacher) -> None:
    Path("mono.en").write_text(
        "\ufeffone two\r\n\r\n \u3000\t\r\nthree\u2028four\n你好，世界。\n"
        f"{'one ' * 40_000}\n{'x' * 900_000}\none\x00two\n".replace("\x00", "\x01"),
        newline="",
    )
    printed = succeeds(
        "back-translate",
        teacher,
        "--input",
        "mono.en",
        "--out",
        "out",
        "--processes",
        1,
    )
    assert "Input: 8 lines, 2 of them blank and 0 repeated" in printed
    dropped = [each["dropped"] for each in records()]
    assert dropped[3:5] == ["too-long", "too-long"]
    sources = Path("out/back-translated.de").read_bytes()
    targets = Path("out/back-translated.en").read_bytes()
    assert sources.count(b"\n") == targets.count(b"\n") == dropped.count(None)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "mono.en: at least one line must have text, but none has."),
        (b"\n \r\n", "mono.en: at least one line must have text, but none has."),
        (b"one\ntwo\0three\n", "mono.en:2: a line must be text, but this one holds"),
        (b"one\n\xff\n", "mono.en:2: a line must be valid UTF-8"),
        (b"x" * 1_000_001, "mono.en:1: a line must be at most 1,000,000 bytes long"),
        (b"\x1f\x8bno gzip", "mono.en: the gzip file is damaged or cut short"),
    ],
)
def test_an_unusable_input_is_refused_before_any_work(
    refuses, teacher, mono, content, said
) -> None:
    mono.write_bytes(content)
    message = refuses("back-translate", teacher, "--input", mono, "--out", "out")
    assert message.startswith(said)
    assert not Path("out").exists()


def test_another_number_of_processes_is_refused_where_scores_depend_on_it(
    refuses, succeeds, teacher, mono
):
    arguments = ("back-translate", teacher, "--input", mono, "--device", "cpu")
    for precision in ("fp32", "int8"):
        options = ("--precision", precision, "--out", precision)
        succeeds(*arguments, *options, "--processes", 1)
        if precision == "fp32":
            succeeds(*arguments, *options, "--processes", 2)
    assert refuses(*arguments, *options, "--processes", 2).startswith(
        "int8: was begun with back-translation.processes 1, but now it is 2; give the"
    )


def test_other_settings_are_refused_and_lose_nothing(refuses, succeeds, teacher, mono):
    arguments = ("back-translate", teacher, "--input", mono, "--out", "out")
    succeeds(*arguments)
    kept = contents(Path("out"))
    for options, said in (
        (
            ("--beam-size", 2),
            "with back-translation.search.beam_size 4, but now it is 2",
        ),
        (
            ("--sampling",),
            "without back-translation.sampling.number, but now it is 1",
        ),
        (
            ("--max-ratio", 2),
            "with back-translation.max_ratio 3.0, but now it is 2.0",
        ),
        (("--ensemble", teacher), "with other models"),
    ):
        message = refuses(*arguments, *options)
        assert message.startswith(f"out: was begun {said}; give the same input, ")
        assert "overwrite it with --force" in message
    mono.write_text("one\n")
    message = refuses(*arguments)
    assert message.startswith("out: was begun with other input; give the same input, ")
    assert contents(Path("out")) == kept
    succeeds(*arguments, "--force")
    assert Path("out/translations.jsonl").read_text().count("\n") == 1


def test_old_pairs_are_removed_when_a_command_starts_over(
    refuses, succeeds, teacher, mono, monkeypatch
) -> None:
    arguments = ("back-translate", teacher, "--input", mono, "--out", "out")
    succeeds(*arguments)
    own = ("back-translated.en.gz", "back-translated.fr", "back-translated.clean")
    for name in own:  # the user's
        Path("out", name).touch()
    report = json.loads(Path("out/report.json").read_text())
    report["source"] = "back-translated.sv"  # of a model of other languages
    Path("out/report.json").write_text(json.dumps(report))
    Path("out/back-translated.sv").touch()

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    old = ("--input", "out/back-translated.en", "--out", "out", "--force")
    assert "holds out/back-trans" in refuses("back-translate", teacher, *old)
    monkeypatch.setattr(Translator, "translate_stream", stopped)
    assert refuses(*arguments, "--beam-size", 2, "--force").startswith("Interrupted.")
    begun = {"settings.json", "translations.jsonl"}
    assert set(os.listdir("out")) == {*begun, *own}


def test_a_folder_with_other_content_is_refused(refuses, teacher, mono) -> None:
    Path("out").mkdir()
    Path("out/thesis.txt").write_text("precious")
    message = refuses(
        "back-translate", teacher, "--input", mono, "--out", "out", "--force"
    )
    assert message.startswith("out: the output folder must be new, empty, or one that")
    assert os.listdir("out") == ["thesis.txt"]


@pytest.mark.parametrize(
    "record",
    [
        {"x": 1},
        {"begun by": {"format": 1}, "translation": {}, "pairs": {}, "student": {}},
        {"begun by": {}, "back-translation": {}},
    ],
)
def test_the_folder_of_another_command_is_kept_even_with_force(
    refuses, teacher, mono, record
) -> None:
    Path("out").mkdir()
    Path("out/settings.json").write_text(json.dumps(record))
    Path("out/translations.jsonl").write_text("precious")
    command = ("back-translate", teacher, "--input", mono, "--out", "out")
    for options in ((), ("--force",)):
        message = refuses(*command, *options)
        assert message.startswith("out: the output folder must be new, empty, or one")
        assert Path("out/translations.jsonl").read_text() == "precious"
        assert json.loads(Path("out/settings.json").read_text()) == record
        assert sorted(os.listdir("out")) == ["settings.json", "translations.jsonl"]


def test_a_damaged_record_is_refused_with_a_remedy(refuses, teacher, mono) -> None:
    Path("out").mkdir()
    command = ("back-translate", teacher, "--input", mono, "--out", "out", "--force")
    for content in ('{"begun', "[]"):
        Path("out/settings.json").write_text(content)
        message = refuses(*command)
        assert message.startswith("out/settings.json: the record of this folder's")
        assert message.endswith("choose another folder.")
        assert Path("out/settings.json").read_text() == content


def test_another_version_continues_unless_the_format_differs(
    succeeds, refuses, teacher, mono
) -> None:
    command = ("back-translate", teacher, "--input", mono, "--out", "out")
    succeeds(*command)
    path = Path("out/settings.json")
    record = json.loads(path.read_text())
    record["begun by"]["version"] = "0.0.9"
    path.write_text(json.dumps(record))
    inode = Path("out/translations.jsonl").stat().st_ino
    succeeds(*command)
    assert Path("out/translations.jsonl").stat().st_ino == inode
    record["begun by"]["format"] = 1
    path.write_text(json.dumps(record))
    message = refuses(*command)
    assert message.startswith("out: was begun by another version of transduce (0.0.9)")
    succeeds(*command, "--force")
    assert json.loads(path.read_text())["begun by"]["format"] == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--top-k", 5), "--top-k needs --sampling, which is not given; add it."),
        (("--sampling", "--beam-size", 2), "--beam-size has no effect with --sampling"),
        (("--max-ratio", 0.5), "`max_ratio` must be at least 1, but is 0.5."),
        (("--max-ratio", "nan"), "`max_ratio` must be at least 1, but is nan."),
        (("--max-ratio", "inf"), "`max_ratio` must be at most 1,000,000, but is inf."),
        (("--drop-worst", 1), "`drop_worst` must be from 0 to less than 1, but is 1.0"),
        (("--sampling", "--top-k", 0), "`top_k` must be at least 1, but is 0."),
    ],
)
def test_impossible_options_are_refused(refuses, teacher, mono, options, said) -> None:
    arguments = ("back-translate", teacher, "--input", mono, "--out", "out")
    assert refuses(*arguments, *options).startswith(said)
    assert not Path("out").exists()


def test_the_printed_command_trains_on_the_pairs(
    succeeds, teacher, mono, corpus_files
) -> None:
    printed = succeeds("back-translate", teacher, "--input", mono, "--out", "my out")
    command = shlex.split(printed.splitlines()[-1])
    assert command[:2] == ["transduce", "train"]
    source, target = corpus_files
    given = {"SOURCE": target, "TARGET": source, "RUN": "run"}
    words = [given.get(word, word) for word in command[1:]]
    options = ("--preset", "tiny", "--set", "training.steps=2", "--no-dev")
    succeeds(*words, *options, "--device", "cpu", "--precision", "fp32")
    tokenizer = load_tokenizer(Path("run/tokenizer.json"))
    assert "<bt>" in tokenizer.pieces(range(tokenizer.vocab_size))


def test_a_parser_cannot_translate_back(refuses, parsing_model, mono) -> None:
    message = refuses("back-translate", parsing_model, "--input", mono, "--out", "out")
    assert "use `transduce parse`" in message
    assert not Path("out").exists()


def test_the_worst_pairs_are_dropped_by_their_score(succeeds, teacher, mono) -> None:
    arguments = ("back-translate", teacher, "--input", mono, "--out", "out")
    succeeds(*arguments)
    usable = sorted(each["score"] for each in records() if each["dropped"] is None)
    printed = succeeds(*arguments, "--drop-worst", 0.5)
    kept = Path("out/back-translated.en").read_text().splitlines()
    scores = [each["score"] for each in records() if each["input"] in kept]
    assert sorted(scores) == usable[len(usable) // 2 :]
    assert f"{len(usable) // 2} low-score" in printed


def test_the_function_gives_the_same_pairs_as_the_command(
    succeeds, teacher, mono
) -> None:
    seen: list[tuple[int, int]] = []
    config = SamplingConfig(top_k=3, seed=5)
    both = {"sampling": config, "search": SearchConfig()}
    with pytest.raises(ConfigError, match="Either `sampling` or `search` must be"):
        transduce.back_translate(teacher, mono, "both", **both)
    result = transduce.back_translate(
        teacher,
        mono,
        "function",
        sampling=config,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    options = ("--sampling", "--top-k", 3, "--seed", 5)
    succeeds("back-translate", teacher, "--input", mono, "--out", "command", *options)
    assert contents(Path("function")) == contents(Path("command"))
    assert result.source == Path("function/back-translated.de")
    assert seen[0] == (0, result.figures.different)
    assert seen[-1] == (result.figures.different,) * 2
    again = transduce.back_translate(teacher, mono, "function", sampling=config)
    assert again == result


def test_the_function_refuses_impossible_arguments(
    teacher, mono, unchecked_types: None
) -> None:
    with pytest.raises(ConfigError, match="must be at least one file, but none is"):
        transduce.back_translate(teacher, [], "out")
    for share in ("0.1", float("nan"), 1):
        with pytest.raises(ConfigError, match="`drop_worst` must be from 0 to less th"):
            transduce.back_translate(teacher, mono, "out", drop_worst=share)
    assert not Path("out").exists()


def test_a_text_of_another_language_is_refused(refuses, teacher, mono) -> None:
    mono.rename("mono.de")
    command = ("back-translate", teacher, "--out", "out", "--input", "mono.de")
    message = refuses(*command)
    assert "its source is en and here de" in message
    assert message.endswith("rename mono.de if its ending is wrong.")
    Path("more.en").write_text("one two\n")
    assert "here de" in refuses(*command, "more.en")
    assert not Path("out").exists()


def test_an_ensemble_of_both_directions_is_refused(
    refuses, teacher, trained_checkpoint, mono
) -> None:
    opposite = replace(trained_checkpoint, source_language="de", target_language="en")
    save_model(opposite, Path("opposite"))
    for command in (
        ("back-translate", teacher, "--input", mono, "--out", "out"),
        ("translate", teacher, "--input", mono),
    ):
        message = refuses(*command, "--ensemble", "opposite")
        assert message == (
            "Models of an ensemble must have the same languages, but their "
            "source languages are en and de; load models of one direction."
        )
    assert not Path("out").exists()


def test_the_other_processes_end_after_an_error(teacher, mono, monkeypatch) -> None:
    closed = []
    monkeypatch.setattr(Translator, "close", lambda self: closed.append(self))
    mono.write_text("")
    with pytest.raises(DataError):
        transduce.back_translate(teacher, mono, "out")
    assert len(closed) == 1


def test_a_model_of_several_languages_translates_into_its_own_by_default(
    command, tagged_checkpoint, mono
) -> None:
    save_model(tagged_checkpoint, Path("several"))
    german = transduce.load("several", device="cpu", target_language="de")
    different = list(dict.fromkeys(LINES))
    # Translations by random weights are cut off, so that no pair is kept.
    options = ("--device", "cpu", "--out", "out")
    outcome = command("back-translate", "several", "--input", mono, *options)
    assert "all are useless" in outcome.err
    assert [each["output"] for each in records()] == [
        each.text for each in german.translate(different)
    ]
    # An earlier version put no tag before the lines.
    settings = Path("out/settings.json")
    content = json.loads(settings.read_text("utf-8"))
    assert content["back-translation"].pop("tag") == ">>de<<"
    settings.write_text(json.dumps(content), encoding="utf-8")
    outcome = command("back-translate", "several", "--input", mono, *options)
    assert outcome.err.startswith("transduce: out: was begun ")


def test_a_line_that_is_too_long_with_its_tag_is_named_as_such(
    tagged_checkpoint: Checkpoint, command: Callable[..., Any]
) -> None:
    model = Path("several")
    save_model(tagged_checkpoint, model)
    longest = " ".join(["two"] * 250)
    assert len(tagged_checkpoint.tokenizer.encode(longest)) == 250
    lines = [longest, longest[:-4], f">>fr<< {longest}", f">>fr<< {longest[:-4]}"]
    lines.append(lines[1].replace("w", "\u00adw"))  # the model reads no soft hyphens
    Path("long.en").write_text("\n".join(lines) + "\n", encoding="utf-8")
    given = ("--input", "long.en", "--out", "out", "--target-language", "fr")
    command("back-translate", model, *given)
    reasons = [each["dropped"] == "too-long" for each in records()]
    assert reasons == [True, False, True, False, False]
