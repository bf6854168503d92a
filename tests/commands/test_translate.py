import asyncio
import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

import transduce
from transduce.checkpoint import Checkpoint, save_model
from transduce.cli import main
from transduce.decoding.translator import Translator
from transduce.model.transformer import Transformer
from transduce.search_config import SearchConfig
from transduce.serving.request_queue import RequestQueue
from transduce.serving.translation import (
    DocumentOptions,
    Step,
    translate_documents,
)
from transduce.text.tokenizer import learn_tokenizer, load_tokenizer
from transduce.text.vocabulary import TokenizerConfig

LINES = b"one two\n\nthree four five\n  \neight\n"


def test_every_line_has_one_line(succeeds: Callable[..., str], model: Path) -> None:
    lines = succeeds("translate", model, stdin=LINES).split("\n")
    assert [bool(line) for line in lines] == [True, False, True, False, True, False]


def test_files_and_streams_are_translated_alike(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").write_bytes(LINES)
    files = ("--input", tmp_path / "in", "--output", tmp_path / "out")
    assert succeeds("translate", model, *files) == ""
    expected = succeeds("translate", model, stdin=LINES)
    assert (tmp_path / "out").read_bytes() == expected.encode()


def test_several_processes_and_one_write_the_same(
    succeeds: Callable[..., str], model: Path
) -> None:
    expected = succeeds("translate", model, "--processes", 1, stdin=LINES * 8)
    assert succeeds("translate", model, "--processes", 2, stdin=LINES * 8) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda text: b"\xef\xbb\xbf" + text,
        lambda text: text.removesuffix(b"\n"),
    ],
    ids=["CRLF", "byte order mark", "no last line end"],
)
def test_the_format_of_the_text_changes_nothing(
    succeeds: Callable[..., str], model: Path, change: Callable[[bytes], bytes]
) -> None:
    expected = succeeds("translate", model, stdin=LINES)
    assert succeeds("translate", model, stdin=change(LINES)) == expected


def test_an_empty_input_gives_an_empty_output(
    succeeds: Callable[..., str], model: Path
) -> None:
    assert succeeds("translate", model, stdin=b"") == ""


def test_line_separators_of_unicode_end_no_line(
    succeeds: Callable[..., str], model: Path
) -> None:
    odd = "one\u2028two\x85three\ffour\n".encode()
    assert succeeds("translate", model, stdin=odd).count("\n") == 1


def test_the_n_best_stand_together_and_begin_with_the_best(
    succeeds: Callable[..., str], model: Path
) -> None:
    best = succeeds("translate", model, stdin=LINES).splitlines()
    three = succeeds("translate", model, "--nbest", 3, stdin=LINES).splitlines()
    assert len(three) == 3 * len(best)
    assert three[::3] == best
    assert three[3:6] == ["", "", ""]


def test_an_over_long_line_is_translated_in_parts_and_named(
    command: Callable[..., Any], model: Path
) -> None:
    sentences = [f"{'one two ' * 45}{end}" for end in ("three.", "four!", "five six.")]
    long = " ".join(sentences)
    alone = [
        command("translate", model, stdin=s.encode() + b"\n").out.strip()
        for s in sentences
    ]
    outcome = command("translate", model, stdin=f"one\n\n{long}\ntwo\n".encode())
    lines = outcome.out.split("\n")
    assert len(lines) == 5
    assert lines[2] == " ".join(alone)
    assert outcome.err == (
        "Warning: line 3 is too long, and is translated in 3 parts.\n"
    )


def test_sentences_of_a_text_are_translated_one_by_one(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").write_bytes(b"  One two. Three four!\r\n\r\n- 5\nSix seven")
    sentences = b"One two.\nThree four!\nSix seven\n"
    first, second, third = succeeds("translate", model, stdin=sentences).splitlines()
    files = ("--input", tmp_path / "in", "--output", tmp_path / "out")
    succeeds("translate", model, "--format", "text", *files)
    expected = f"  {first} {second}\r\n\r\n- 5\n{third}"
    assert (tmp_path / "out").read_bytes() == expected.encode()


def test_html_keeps_its_tags_as_the_server_places_them(
    succeeds: Callable[..., str], model: Path
) -> None:
    document = "<!doctype html>\n<p>One <b>two</b> three. <i>Four</i>.\n<pre>a</pre>\n"
    found = succeeds("translate", model, "--format", "html", stdin=document.encode())
    options = DocumentOptions(format="html", language="en")
    with RequestQueue(transduce.load(model, device="cpu")) as queue:
        [served] = asyncio.run(
            translate_documents([Step(queue=queue)], [document], options, 0)
        )
    assert found == served.text
    assert re.findall("<[^>]+>", found).count("<b>") == 1
    assert found.startswith("<!doctype html>\n<p>")
    assert found.endswith("\n<pre>a</pre>\n")


def test_subtitles_keep_their_times(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    subtitles = "1\n00:00:01,000 --> 00:00:02,000\nOne two.\n"
    [line] = succeeds("translate", model, stdin=b"One two.\n").splitlines()
    found = succeeds("translate", model, "--format", "srt", stdin=subtitles.encode())
    assert found == subtitles.replace("One two.", line)


def test_text_without_times_is_refused_as_subtitles(
    command: Callable[..., Any], model: Path
) -> None:
    outcome = command("translate", model, "--format", "vtt", stdin=b"One two.\n")
    assert (outcome.code, outcome.out) == (2, "")
    assert "Subtitles must have lines of times" in outcome.err


def test_a_document_is_translated_with_a_glossary(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "terms").write_text("two\tpaar\n")
    options = ("--format", "html", "--glossary", tmp_path / "terms")
    found = succeeds("translate", model, *options, stdin=b"<p>one two three</p>")
    plain = ("--glossary", tmp_path / "terms")
    [line] = succeeds("translate", model, *plain, stdin=b"one two three").splitlines()
    assert "paar" in found
    assert found == f"<p>{line}</p>"


@pytest.mark.parametrize(
    "option", [("--nbest", 2), ("--jsonl",), ("--resume",), ("--prefixes", "prefixes")]
)
def test_options_of_lines_are_refused_for_a_document(
    refuses: Callable[..., str], model: Path, option: tuple[object, ...]
) -> None:
    error = refuses("translate", model, "--format", "text", *option)
    assert error == (
        f"{option[0]} is for lines, but --format names a document; leave out one of "
        "them."
    )


@pytest.fixture
def over_long() -> bytes:
    """Two lines, of which the first is too long."""
    words = b"one two " * 45
    return b"%bthree. %bfour! %bfive six.\ntwo\n" % (words, words, words)


def test_an_over_long_line_has_one_translation(
    command: Callable[..., Any], model: Path, over_long: bytes
) -> None:
    best = command("translate", model, stdin=over_long).out.splitlines()
    lines = command("translate", model, "--nbest", 3, stdin=over_long).out.splitlines()
    assert len(lines) == 6
    assert lines[:3] == [best[0], "", ""]
    assert lines[3] == best[1]
    assert lines[4]


def test_the_first_part_of_an_over_long_line_has_the_prefix(
    command: Callable[..., Any], model: Path, over_long: bytes, tmp_path: Path
) -> None:
    (tmp_path / "prefixes").write_text("acht\n\n")
    options = ("--prefixes", tmp_path / "prefixes")
    found = command("translate", model, *options, stdin=over_long).out.splitlines()
    free = command("translate", model, stdin=over_long).out.splitlines()
    assert found[0].startswith("acht")
    assert not free[0].startswith("acht")
    # The later parts are unchanged.
    assert found[0].split()[-4:] == free[0].split()[-4:]
    assert found[1] == free[1]


def test_an_over_long_line_has_scores_but_not_by_token(
    command: Callable[..., Any], model: Path, over_long: bytes
) -> None:
    printed = command("translate", model, "--jsonl", stdin=over_long).out
    long, short = map(json.loads, printed.splitlines())
    [only] = long["hypotheses"]
    assert only["token_log_probabilities"] == []
    assert only["log_probability"] < 0
    assert only["tokens"]
    assert (long["num_parts"], short["num_parts"]) == (3, 1)
    assert short["hypotheses"][0]["token_log_probabilities"]


def test_an_over_long_line_is_sampled_in_parts(
    command: Callable[..., Any], model: Path, over_long: bytes
) -> None:
    outcome = command("sample", model, "--seed", 3, stdin=over_long)
    assert len(outcome.out.splitlines()) == 2
    assert "line 1 is too long, and is translated in 3 parts" in outcome.err


def test_the_translations_begin_with_their_prefixes(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "prefixes").write_text("acht\n\n\n\nzwei drei\n")
    options = ("--prefixes", tmp_path / "prefixes")
    lines = succeeds("translate", model, *options, stdin=LINES).splitlines()
    free = succeeds("translate", model, stdin=LINES).splitlines()
    assert lines[0].startswith("acht")
    assert lines[1:4] == free[1:4]
    assert lines[4].startswith("zwei drei")


@pytest.mark.parametrize(("count", "which"), [(4, "prefixes"), (6, "sources")])
def test_a_number_of_prefixes_other_than_that_of_lines_is_refused(
    refuses: Callable[..., str], model: Path, tmp_path: Path, count: int, which: str
) -> None:
    (tmp_path / "prefixes").write_text("\n" * count)
    options = ("--prefixes", tmp_path / "prefixes")
    assert refuses("translate", model, *options, stdin=LINES) == (
        f"Sources and prefixes must be equally many, but the {which} end before number "
        f"{min(count, 5) + 1}."
    )


def test_a_model_together_with_itself_is_that_model(
    succeeds: Callable[..., str], model: Path
) -> None:
    alone = succeeds("translate", model, stdin=LINES)
    assert succeeds("translate", model, "--ensemble", model, stdin=LINES) == alone


def test_models_with_different_vocabularies_do_not_translate_together(
    refuses: Callable[..., str],
    model: Path,
    trained_checkpoint: Checkpoint,
    tmp_path: Path,
) -> None:
    pieces = learn_tokenizer(["other words"], TokenizerConfig(vocab_size=270))
    config = replace(trained_checkpoint.config, vocab_size=pieces.vocab_size)
    weights = Transformer(config).state_dict()
    other = replace(
        trained_checkpoint, tokenizer=pieces, config=config, weights=weights
    )
    save_model(other, tmp_path / "other")
    assert "must have one tokenizer, but have different ones" in refuses(
        "translate", model, "--ensemble", tmp_path / "other", stdin=LINES
    )


def test_minimum_and_maximum_length_are_kept(
    succeeds: Callable[..., str], model: Path
) -> None:
    options = ("--jsonl", "--min-length", 6, "--extra-length", 6)
    [line] = succeeds("translate", model, *options, stdin=b"one\n").splitlines()
    [best] = json.loads(line)["hypotheses"]
    num_source_tokens = len(load_tokenizer(model / "tokenizer.json").encode("one"))
    assert len(best["tokens"]) >= 6
    assert len(best["token_log_probabilities"]) <= num_source_tokens + 1 + 6
    assert len(best["token_log_probabilities"]) - len(best["tokens"]) in (0, 1)
    assert sum(best["token_log_probabilities"]) == pytest.approx(
        best["log_probability"]
    )


@pytest.mark.parametrize(
    ("options", "patience"),
    [((), 2.0), (("--patience", 1), 1.0), (("--patience", "none"), None)],
)
def test_patience_is_the_models_unless_an_option_changes_it(
    options: tuple[object, ...],
    patience: float | None,
    succeeds: Callable[..., str],
    trained_checkpoint: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = SearchConfig(patience=2.0)
    save_model(replace(trained_checkpoint, search=search), tmp_path / "patient")
    asked, translate = [], Translator.translate_stream
    monkeypatch.setattr(
        Translator,
        "translate_stream",
        lambda self, lines, config, *others: (
            asked.append(config) or translate(self, lines, config, *others)
        ),
    )
    assert succeeds("translate", tmp_path / "patient", *options, stdin=b"one two\n")
    assert [config.patience for config in asked] == [patience]


def test_json_lines_have_text_scores_and_hypotheses(
    succeeds: Callable[..., str], model: Path
) -> None:
    options = ("--jsonl", "--nbest", 2, "--length-penalty", 1.0)
    out = succeeds("translate", model, *options, stdin=b"one two\n\n")
    full, empty = (json.loads(line) for line in out.splitlines())
    assert full["text"] == full["hypotheses"][0]["text"]
    assert full["score"] == full["hypotheses"][0]["score"]
    assert len(full["hypotheses"]) == 2
    assert all(h["log_probability"] < h["score"] < 0 for h in full["hypotheses"])
    assert empty == {"text": "", "score": 0.0, "num_parts": 1, "hypotheses": []}


def test_a_length_penalty_of_zero_scores_by_probability(
    succeeds: Callable[..., str], model: Path
) -> None:
    options = ("--jsonl", "--length-penalty", 0)
    [line] = succeeds("translate", model, *options, stdin=b"one two\n").splitlines()
    best = json.loads(line)["hypotheses"][0]
    assert best["score"] == best["log_probability"]


def test_letters_are_not_escaped_in_json(
    succeeds: Callable[..., str], model: Path
) -> None:
    out = succeeds("translate", model, "--jsonl", stdin=b"five five\n")
    assert "\\u" not in out
    assert "fünf" in out


def test_a_run_translates_as_its_average(
    succeeds: Callable[..., str], run: Path
) -> None:
    expected = succeeds("translate", run / "averaged", "--jsonl", stdin=LINES)
    assert succeeds("translate", run, "--jsonl", stdin=LINES) == expected


def test_python_and_the_command_translate_alike(
    succeeds: Callable[..., str], model: Path
) -> None:
    translator = transduce.load(str(model))
    sources = LINES.decode().split("\n")[:-1]
    texts = [t.text for t in translator.translate(sources)]
    assert succeeds("translate", model, stdin=LINES) == "\n".join(texts) + "\n"
    [translation] = translator.translate(["one two"], beam_size=4, length_penalty=0.6)
    assert isinstance(translation, transduce.Translation)
    assert translation.score == translation.hypotheses[0].score
    config = transduce.SearchConfig(beam_size=4, num_best=3)
    [several] = translator.translate_stream(["one two"], config)
    command = ("translate", model, "--beam-size", "4", "--nbest", "3")
    best = succeeds(*command, stdin=b"one two\n")
    assert best == "".join(f"{each.text}\n" for each in several.hypotheses[:3])
    drawn = translator.sample(["one two"], transduce.SamplingConfig(number=5))
    assert [len(each.hypotheses) for each in drawn] == [5]


def test_a_pipe_may_be_the_input_file(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Open for reading too, so that a second reader does not wait for ever.
    keep = os.open(pipe, os.O_RDWR)
    os.write(keep, LINES)
    threading.Timer(1.0, os.close, [keep]).start()
    threading.Timer(1.5, _open_and_close, [pipe]).start()
    out = succeeds("translate", model, "--input", pipe)
    assert out == succeeds("translate", model, stdin=LINES)


def _open_and_close(pipe: Path) -> None:
    with contextlib.suppress(OSError):  # the pipe has no reader
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


def test_a_reader_that_goes_away_is_no_error(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"one\n" * 5_000)
    command = [sys.executable, "-m", "transduce", "translate", str(model)]
    options = ["--beam-size", "1", "--input", str(tmp_path / "in")]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@contextlib.contextmanager
def translating(
    model: Path, *options: object, stdout: IO[bytes] | int = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    """Interactive process, which is killed if it takes too long."""
    arguments = ["translate", str(model), "--beam-size", "1", *map(str, options)]
    with subprocess.Popen(
        [sys.executable, "-m", "transduce", *arguments],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def _ask(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    return process.stdout.readline()


def test_a_program_may_wait_for_each_translation_before_the_next_line(
    succeeds: Callable[..., str], model: Path
) -> None:
    options = ("--beam-size", 1)
    expected = succeeds("translate", model, *options, stdin=LINES).encode()
    with translating(model) as process:
        answers = [_ask(process, line) for line in LINES.splitlines(keepends=True)]
        assert b"".join(answers) == expected
        assert process.communicate() == (b"", b"")
    assert process.returncode == 0


def test_a_reader_may_go_away_while_a_line_is_waited_for(model: Path) -> None:
    with translating(model) as process:
        _ask(process, b"one\n")
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"two\n")
        process.stdin.flush()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_an_output_whose_reader_goes_away_is_no_error(
    model: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with translating(model, "--output", tmp_path / "pipe") as process:
        (tmp_path / "pipe").open("rb").close()
        assert process.communicate(b"one\n" * 3_000) == (b"", b"")
    assert process.returncode == 0


def test_a_standard_input_that_cannot_be_read_is_named(
    model: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "transduce", "translate", str(model)]
    output = tmp_path / "out"
    only_written = os.open(tmp_path / "in", os.O_WRONLY | os.O_CREAT)
    found = subprocess.run(
        [*command, "--output", str(output)],
        stdin=only_written, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(only_written)
    message = b"transduce: standard input: cannot be read (Bad file descriptor).\n"
    assert (found.returncode, found.stderr) == (2, message)
    assert not output.exists()


@pytest.mark.parametrize("name", ["translate", "sample", "parse"])
def test_a_closed_standard_input_is_refused(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit, match="2"):
        main([name, str(model)])
    assert capsys.readouterr().err == (
        "transduce: Standard input must be open, but is closed; name a file: --input "
        "FILE\n"
    )


def test_a_closed_standard_output_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit, match="2"):
        main(["translate", str(model)])
    assert capsys.readouterr().err == (
        "transduce: Standard output must be open, but is closed; send it to a file, or "
        "to /dev/null.\n"
    )


def test_messages_to_a_closed_standard_error_are_not_output(model: Path) -> None:
    command = f"'{sys.executable}' -m transduce translate '{model}' --no-such 2>&-"
    found = subprocess.run(command, shell=True, stdout=subprocess.PIPE, check=False)
    assert (found.returncode, found.stdout) == (2, b"")


def test_an_output_that_is_a_link_stays_a_link(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "text").write_text("old")
    (tmp_path / "link").symlink_to("folder/text")
    options = ("--output", tmp_path / "link", "--force")
    succeeds("translate", model, *options, stdin=LINES)
    assert (tmp_path / "link").readlink() == Path("folder/text")
    expected = succeeds("translate", model, stdin=LINES)
    assert (tmp_path / "folder" / "text").read_text() == expected


def test_a_name_of_standard_output_is_no_file_to_replace(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    expected = succeeds("translate", model, "--beam-size", 1, stdin=LINES)
    before = os.lstat("/dev/stdout")
    (tmp_path / "name").symlink_to("/dev/stdout")
    for name in ("/dev/stdout", tmp_path / "name", tmp_path / "out"):
        (tmp_path / "out").write_text("said before\n")
        with (
            (tmp_path / "out").open("ab") as out,
            translating(model, "--output", name, stdout=out) as process,
        ):
            assert process.communicate(LINES) == (None, b"")
        assert (tmp_path / "out").read_text() == "said before\n" + expected
    assert os.path.samestat(before, os.lstat("/dev/stdout"))


def test_the_missing_target_of_a_link_is_created(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("new")
    (tmp_path / "circle").symlink_to("circle")
    for name in ("link", "circle"):
        succeeds("translate", model, "--output", tmp_path / name, stdin=LINES)
    expected = succeeds("translate", model, stdin=LINES)
    assert (tmp_path / "new").read_text() == expected
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "circle").read_text() == expected


def test_an_input_is_never_its_own_output(
    refuses: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_bytes(LINES)
    files = ("--input", tmp_path / "text", "--output", tmp_path / "text")
    message = refuses("translate", model, *files)
    assert message == (
        f"{tmp_path}/text: the output must be another file than the input, but is the "
        "same; choose another name."
    )
    assert (tmp_path / "text").read_bytes() == LINES


@pytest.mark.parametrize("content", [None, b"one\ntwo\n\xff\n"], ids=["missing", "bad"])
def test_an_input_at_fault_leaves_no_output(
    refuses: Callable[..., str], model: Path, tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "in").write_bytes(content)
    files = ("--input", tmp_path / "in", "--output", tmp_path / "out")
    message = refuses("translate", model, *files)
    assert message.startswith(f"{tmp_path}/in:")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("output", "reason"),
    [("no/out", "No such file or directory"), (".", "Is a directory")],
)
def test_an_output_that_cannot_be_written_is_refused(
    refuses: Callable[..., str], model: Path, tmp_path: Path, output: str, reason: str
) -> None:
    message = refuses("translate", model, "--output", tmp_path / output, stdin=LINES)
    assert message == f"{tmp_path / output}: cannot be written ({reason})."
    assert not (tmp_path / "no").exists()


def test_a_full_disk_is_one_sentence(refuses: Callable[..., str], model: Path) -> None:
    message = refuses("translate", model, "--output", "/dev/full", stdin=LINES)
    assert "/dev/full" in message
    assert "No space left on device" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beam-size", 0], "beam.size.* must be at least 1, but is 0"),
        (["--beam-size", 2.5], '--beam-size must be a whole number, but is "2.5". See'),
        (
            ["--beam-size", "1.0e999"],
            '--beam-size must be a whole number, but is "1.0e999".',
        ),
        (["--nbest", 5], "from 1 to the beam size 4, but is 5; see `--beam-size`."),
        (["--nbest", 0], "--nbest must be from 1 to the beam size 4, but is 0"),
        (["--length-penalty", -1], "length_penalty` must be at least 0, but is -1"),
        (["--length-penalty", 1000], "length_penalty` must be"),
        (["--length-penalty", "nan"], "length_penalty` must be"),
        (["--beam-size", "four"], '--beam-size must be a whole number, but is "four".'),
        (["--device", "tpu"], '`device` must be "auto", "cpu" or "cuda"'),
    ],
    ids=str,
)
def test_an_impossible_option_is_refused(
    refuses: Callable[..., str], model: Path, options: list[object], message: str
) -> None:
    assert re.search(message, refuses("translate", model, *options, stdin=LINES))


def test_an_option_selects_the_precision(
    succeeds: Callable[..., str], model: Path
) -> None:
    out = succeeds("translate", model, "--precision", "bf16", stdin=LINES)
    assert len(out.splitlines()) == len(LINES.splitlines())


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_a_terminal_shows_how_many_lines_are_done(model: Path, tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "transduce",
            "translate",
            str(model),
            "--beam-size",
            "1",
        ],
        input=LINES,
        stdout=subprocess.PIPE,
        stderr=theirs,
        check=True,
        env={**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"},
    )
    os.close(theirs)
    assert len(result.stdout.splitlines()) == 5
    assert b"5 lines" in os.read(ours, 100_000)
    os.close(ours)


def test_coverage_is_counted_in_scores(
    succeeds: Callable[..., str], model: Path
) -> None:
    def found(*options: object) -> list[tuple[str, float]]:
        printed = succeeds("translate", model, "--jsonl", *options, stdin=LINES)
        lines = map(json.loads, printed.splitlines())
        return [(line["text"], line["score"]) for line in lines]

    covered, plain = found("--coverage-penalty", 0.1), found()
    # A search with other scores may find another translation, even a better one.
    pairs = [
        (one[1], other[1])
        for one, other in zip(covered, plain, strict=True)
        if one[0] == other[0]
    ]
    assert all(with_penalty < without + 1e-5 for with_penalty, without in pairs)
    assert any(with_penalty < without - 1e-5 for with_penalty, without in pairs)


def test_coverage_without_a_beam_is_refused(
    refuses: Callable[..., str], model: Path
) -> None:
    message = "`search.coverage_penalty` has no effect on greedy search"
    options = ("--coverage-penalty", 0.2, "--beam-size", 1)
    assert refuses("translate", model, *options, stdin=LINES).startswith(message)


def test_an_ensemble_counts_coverage(succeeds: Callable[..., str], model: Path) -> None:
    def found(*options: object) -> tuple[list[str], list[float]]:
        given = ("translate", model, "--jsonl", *options)
        lines = list(map(json.loads, succeeds(*given, stdin=LINES).splitlines()))
        return [each["text"] for each in lines], [each["score"] for each in lines]

    alone = found("--coverage-penalty", 0.2)
    both = found("--coverage-penalty", 0.2, "--ensemble", model)
    assert both == (alone[0], pytest.approx(alone[1], abs=1e-5))


def test_a_termination_leaves_no_partial_output(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "transduce", "translate", str(model)),
            *("--output", str(output)),
        ],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdin is not None
    process.stdin.write(LINES)  # the process waits for more
    process.stdin.flush()
    while not list(tmp_path.iterdir()):
        assert process.poll() is None
    process.terminate()
    _, errors = process.communicate()
    # A line that is finished by then is kept, but no partial line.
    assert process.returncode == 143
    assert bool(errors) == bool(list(tmp_path.iterdir()))
    assert not output.exists()


def test_a_dash_is_standard_input_and_output(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    expected = succeeds("translate", model, stdin=LINES)
    dashes = ("--input", "-", "--output", "-")
    assert succeeds("translate", model, *dashes, stdin=LINES) == expected
    assert succeeds("translate", model, stdin=gzip.compress(LINES)) == expected
    assert succeeds("sample", model, *dashes, stdin=LINES).count("\n") == 5
    prefixes = ("--prefixes", "-", "--input", tmp_path / "input")
    (tmp_path / "input").write_bytes(LINES)
    begun = succeeds("translate", model, *prefixes, stdin=b"zwei\n" * 5)
    assert all(line.startswith("zwei") for line in begun.splitlines() if line)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_dash_may_stand_for_any_file_that_is_read_once(
    succeeds: Callable[..., str], model: Path, tmp_path: Path, compressed: bool
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one two\nthree\n")
    content = path.read_bytes()
    given = gzip.compress(content) if compressed else content
    for call in (
        ("score", model, "--target", path, "--source"),
        ("evaluate", "--reference", path, "--hypothesis"),
        ("evaluate", model, "--reference", path, "--source"),
    ):
        assert succeeds(*call, "-", stdin=given) == succeeds(*call, path)


def test_standard_input_is_one_file_and_no_corpus(
    refuses: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    both = ("--prefixes", "-", "--bad-words", "-")
    for call in (
        ("score", model, "--source", "-", "--target", "-"),
        ("evaluate", "--reference", "-", "--hypothesis", "-"),
        ("translate", model, "--prefixes", "-"),
        ("translate", model, "--bad-words", "-"),
        ("translate", model, *both, "--input", tmp_path / "text"),
    ):
        assert refuses(*call, stdin=b"one\n").startswith(
            "Standard input must stand for one file,"
        )
    for options in (("--source", "-", "--target", "x"), ("--trees", "-")):
        for call in (("train", "--out", tmp_path / "run"), ("check",)):
            message = refuses(*call, *options, stdin=b"one\n")
            assert message.startswith("A corpus must be in files, as it is read sever")
