"""Downloads and refusals of `transduce data`, from a server of the test."""

import gzip
import io
import json
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from rich.filesize import decimal

from file_server import FileServer, unchecked
from transduce.cli.data import DataDisplay
from transduce.data import named_corpora
from transduce.data.named_corpora import NAMED_CORPORA, NamedCorpus

LINES = 2_000


def path_of(corpus: NamedCorpus, number: int) -> str:
    return urlsplit(corpus.files[number].url).path


def text_of(split: str, language: str) -> bytes:
    lines = [f"{language} {split} {number}" for number in range(LINES)]
    if split == "train":
        lines[7] = ""
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.fixture
def multi30k(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> NamedCorpus:
    """Invented corpus at the paths of the real one."""
    corpus = unchecked(NAMED_CORPORA["multi30k"])
    monkeypatch.setitem(named_corpora.NAMED_CORPORA, "multi30k", corpus)
    for split in corpus.splits:
        for text, language in zip(split.parts[0], corpus.languages, strict=True):
            content = gzip.compress(text_of(split.name, language))
            server.files[urlsplit(text.file.url).path] = content
    return corpus


@pytest.fixture
def data(
    succeeds: Callable[..., str], server: FileServer, tmp_path: Path
) -> Callable[[], str]:
    """Prepare multi30k, which must succeed."""
    return lambda: succeeds(*command_line(server, tmp_path))


def command_line(server: FileServer, tmp_path: Path) -> tuple[object, ...]:
    out = tmp_path / "my data"
    return ("data", "multi30k", "--out", out, "--mirror", server.address)


def test_a_prepared_corpus_is_followed_by_the_next_command(
    data: Callable[[], str], multi30k: NamedCorpus, tmp_path: Path
) -> None:
    out = tmp_path / "my data"
    said = data()
    assert f"multi30k is in {out}:\n         1,999 pairs  train.en train.de " in said
    assert "         2,000 pairs  val.en val.de val.fr\n" in said
    assert "Left out of train: 1 pair with an empty side, 0 that are not text." in said
    assert f"The archives in {out}/downloads are no longer needed.\n" in said
    assert "Terms: for research and education" in said
    assert said.endswith(
        "Train on it:\n  transduce train --preset multi30k \\\n"
        f"    --source '{out}/train.en' \\\n    --target '{out}/train.de' \\\n"
        f"    --dev-source '{out}/val.en' \\\n    --dev-target '{out}/val.de' \\\n"
        "    --out runs/multi30k\n"
    )
    for split in multi30k.splits:
        for language in multi30k.languages:
            expected = text_of(split.name, language).replace(b"\n\n", b"\n")
            assert (out / f"{split.name}.{language}").read_bytes() == expected
    record = json.loads((out / "corpus.json").read_text())
    assert record["corpus"] == "multi30k"


def test_an_existing_corpus_is_reported_and_left_alone(
    data: Callable[[], str], server: FileServer, multi30k: NamedCorpus, tmp_path: Path
) -> None:
    first = data()
    server.asked.clear()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = data()
    assert f"{tmp_path}/my data holds multi30k already:\n" in again
    assert again.endswith(first[first.index("         1,999 pairs") :])
    assert server.asked == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_prepared_corpus_can_be_trained_on(
    data: Callable[[], str],
    succeeds: Callable[..., str],
    multi30k: NamedCorpus,
    tmp_path: Path,
) -> None:
    out = tmp_path / "my data"
    data()
    files = ("--source", out / "train.en", "--target", out / "train.de")
    said = succeeds("check", "--preset", "tiny", *files)
    assert "Training would start." in said


def test_wmt_is_prepared_from_its_archives(
    succeeds: Callable[..., str],
    server: FileServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corpus = unchecked(NAMED_CORPORA["wmt14-en-de"])
    monkeypatch.setitem(named_corpora.NAMED_CORPORA, corpus.name, corpus)
    for split in corpus.splits:
        for part in split.parts:
            members = [str(text.member) for text in part]
            path = urlsplit(part[0].file.url).path
            server.files[path] = tgz(members)
    out = tmp_path / "wmt"
    said = succeeds("data", corpus.name, "--out", out, "--mirror", server.address)
    assert "3 pairs  train.en train.de\n" in said
    assert "1 pairs  newstest2013.en newstest2013.de\n" in said
    assert f"train --preset base \\\n    --source {out}/train.en \\\n" in said
    assert f"--dev-source {out}/newstest2013.en \\\n" in said
    assert (out / "train.de").read_text().splitlines() == [
        "training/europarl-v7.de-en.de & \u2026",
        "commoncrawl.de-en.de & \u2026",
        "training/news-commentary-v9.de-en.de & \u2026",
    ]
    assert (out / "newstest2014.de").read_text() == (
        "test-full/newstest2014-deen-ref.de.sgm & \u2026\n"
    )


def tgz(members: list[str]) -> bytes:
    """Archive whose members contain their names, with one member outside its folder."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for member in ["../../../evil", *members]:
            line = f"{member} & \u2026\n"
            if member.endswith(".sgm"):
                line = f"<doc>\n<seg id='1'>{member} &amp; &#8230;</seg>\n</doc>\n"
            entry = tarfile.TarInfo(member)
            entry.size = len(line.encode())
            archive.addfile(entry, io.BytesIO(line.encode()))
    return stream.getvalue()


def test_a_broken_connection_keeps_the_downloaded_part(
    data: Callable[[], str],
    refuses: Callable[..., str],
    server: FileServer,
    multi30k: NamedCorpus,
    tmp_path: Path,
) -> None:
    server.breaks_at = 1_000
    path = path_of(multi30k, 0)
    size = len(server.files[path])
    message = refuses(*command_line(server, tmp_path))
    assert message == (
        f"{server.address}{path}: cannot be fetched (the connection broke off after "
        f"1,000 of {size:,} bytes); run the command again, which keeps what has come, "
        "or name another server by `transduce data --mirror`."
    )
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [tmp_path / "my data" / "downloads" / "train.en.gz.part"]
    server.breaks_at = None
    server.asked.clear()
    said = data()
    assert server.asked[:2] == [(path, "bytes=1000-"), (path_of(multi30k, 1), None)]
    assert "1,999 pairs" in said


def test_a_log_file_gets_occasional_lines_of_progress(
    command: Callable[..., Any],
    server: FileServer,
    multi30k: NamedCorpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("transduce.cli.terminal.LINE_SECONDS", 0.0)
    monkeypatch.setattr("transduce.data.named_corpora.REPORT_LINES", LINES)
    monkeypatch.setattr(named_corpora, "CHUNK_BYTES", 500)
    server.breaks_at = 1_000
    size = decimal(len(server.files[path_of(multi30k, 0)]))
    broken = command(*command_line(server, tmp_path)).out.splitlines()
    assert broken[0] == f"train.en.gz: 500 bytes of {size}"
    assert "train.en.gz: the connection broke off after 1,000 of " in broken[2]
    assert broken[2].endswith(" bytes; trying again in 0 seconds.")
    server.breaks_at = None
    lines = command(*command_line(server, tmp_path)).out.splitlines()
    assert lines[0] == f"train.en.gz: 1.5 kB of {size}"
    assert f"train.en.gz: {size}" in lines
    assert "Writing train: 2,000 lines" in lines


def test_an_interrupted_download_keeps_its_part(
    command: Callable[..., Any],
    data: Callable[[], str],
    server: FileServer,
    multi30k: NamedCorpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DataDisplay, "received", interrupt)
        patch.setattr(named_corpora, "CHUNK_BYTES", 500)
        outcome = command(*command_line(server, tmp_path))
    assert outcome.code == 2
    assert (
        outcome.out == "Downloads are kept; give the same command again to continue.\n"
    )
    assert outcome.err == "transduce: Interrupted.\n"
    server.asked.clear()
    data()
    assert server.asked[0] == (path_of(multi30k, 0), "bytes=500-")


def test_an_archive_of_another_size_is_refused(
    refuses: Callable[..., str], server: FileServer, tmp_path: Path
) -> None:
    server.files["/wmt13/training-parallel-europarl-v7.tgz"] = b"too little"
    out = tmp_path / "parent" / "out"
    message = refuses("data", "wmt14-en-de", "--out", out, "--mirror", server.address)
    assert message == (
        f"{server.address}/wmt13/training-parallel-europarl-v7.tgz: must be "
        "657,632,379 bytes long, but the server announces 10; name another server by "
        "`transduce data --mirror`."
    )
    assert list(tmp_path.iterdir()) == []


def test_an_archive_of_other_content_is_refused(
    refuses: Callable[..., str], server: FileServer, tmp_path: Path
) -> None:
    server.files[path_of(NAMED_CORPORA["multi30k"], 0)] = b"\x1f\x8b no such captions"
    message = refuses(*command_line(server, tmp_path))
    assert "must have the md5 sum 0065d13af80720a55ca8153d126e6627, but has" in message
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_damaged_archive_is_refused(
    refuses: Callable[..., str],
    server: FileServer,
    multi30k: NamedCorpus,
    tmp_path: Path,
) -> None:
    path = path_of(multi30k, 0)
    server.files[path] = server.files[path][:-100]
    out = tmp_path / "my data"
    assert refuses(*command_line(server, tmp_path)) == (
        f"{out}/downloads/train.en.gz: the archive is damaged; delete it and run the "
        "command again."
    )
    assert [path.name for path in out.iterdir()] == ["downloads"]
    assert all(path.suffix == ".gz" for path in (out / "downloads").iterdir())


def test_a_file_missing_on_the_server_is_refused(
    refuses: Callable[..., str],
    server: FileServer,
    multi30k: NamedCorpus,
    tmp_path: Path,
) -> None:
    del server.files[path_of(multi30k, 0)]
    assert refuses(*command_line(server, tmp_path)) == (
        f"{server.address}{path_of(multi30k, 0)}: the server must send the file, but "
        "answers 404 Not Found; name another server by `transduce data --mirror`."
    )
    assert list(tmp_path.iterdir()) == []


def test_a_missing_server_is_refused(
    refuses: Callable[..., str], server: FileServer, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server.address = f"http://127.0.0.1:{free.getsockname()[1]}"
    message = refuses(*command_line(server, tmp_path))
    assert "cannot be fetched (Connection refused); run the command again" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("multi3k --out new", "no corpus `multi3k`; did you mean `multi30k`?"),
        ("multi30k --out full", "full: the output folder must be new or empty, but is"),
        ("multi30k --out full/mine", "mine: the output folder must be new or empty"),
        ("multi30k --out new --mirror here", "The mirror must be an address such as"),
        ("multi30k", "--out must be given."),
        ("--out new", "NAME must be given."),
    ],
)
def test_an_impossible_command_is_refused_before_any_download(
    refuses: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    message: str,
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    monkeypatch.chdir(tmp_path)
    assert message in refuses("data", *options.split())
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["full", "mine"]
