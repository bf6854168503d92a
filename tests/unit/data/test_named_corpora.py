"""Named corpora are complete, and are assembled into line-aligned files."""

import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from file_size import limited_file_size
from transduce.data.named_corpora import (
    NAMED_CORPORA,
    NamedCorpus,
    RemoteFile,
    Split,
    SplitCounts,
    Text,
    assemble,
    named_corpus,
)
from transduce.errors import ConfigError, DataError
from transduce.experiments.presets import PRESETS

CORPORA = list(NAMED_CORPORA.values())
WMT = ["wmt14-en-de", "wmt14-en-fr"]


def names(corpora):
    return [corpus.name for corpus in corpora]


@pytest.mark.parametrize("corpus", CORPORA, ids=names(CORPORA))
def test_a_corpus_definition_is_consistent(corpus):
    assert NAMED_CORPORA[corpus.name] is corpus
    parts = [part for split in corpus.splits for part in split.parts]
    assert {len(part) for part in parts} == {len(corpus.languages)}
    for part in parts:
        for text, language in zip(part, corpus.languages, strict=True):
            name = text.member or text.file.name
            assert re.search(rf"\.{language}(\.sgm|\.gz)?$", name)
            assert (text.member is None) != (text.file.name.endswith(("tgz", "tar")))
    assert corpus.preset in PRESETS
    assert len({split.name for split in corpus.splits}) == len(corpus.splits)


@pytest.mark.parametrize("corpus", CORPORA, ids=names(CORPORA))
def test_every_file_has_a_name_of_its_own_and_a_checksum(corpus):
    assert len({file.name for file in corpus.files}) == len(corpus.files)
    for file in corpus.files:
        assert file.url.startswith("https://")
        assert file.checksum is not None
        algorithm, _, digest = file.checksum.partition(":")
        length = hashlib.new(algorithm).digest_size * 2
        assert re.fullmatch(rf"[0-9a-f]{{{length}}}", digest)


@pytest.mark.parametrize("name", WMT)
def test_wmt_is_held_out_as_in_the_paper(name):
    corpus = named_corpus(name)
    assert corpus.dev.name == "newstest2013"
    assert [split.name for split in corpus.tests] == ["newstest2014"]
    assert corpus.dev.num_pairs == 3_000
    assert corpus.tests[0].num_pairs == 3_003


@pytest.mark.parametrize(("name", "gigabytes"), [(WMT[0], 1.66), (WMT[1], 6.62)])
def test_the_size_of_the_training_archives_is_known(name, gigabytes):
    parts = named_corpus(name).train.parts
    sizes = {text.file.size_bytes for part in parts for text in part}
    assert sum(sizes) == pytest.approx(gigabytes * 1e9, rel=0.005)


def test_multi30k_is_held_out_by_year():
    corpus = named_corpus("multi30k")
    assert {split.name: split.num_pairs for split in corpus.splits} == {
        "train": 29_000,
        "val": 1_014,
        "test_2016_flickr": 1_000,
        "test_2017_flickr": 1_000,
        "test_2017_mscoco": 461,
    }


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("wmt14-de-en", "wmt14-en-de"),
        ("multi30", "multi30k"),
        ("wmt14-enfr", "wmt14-en-fr"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name, nearest):
    with pytest.raises(ConfigError) as raised:
        named_corpus(name)
    assert str(raised.value) == (
        f"There is no corpus `{name}`; did you mean `{nearest}`? Known are "
        "wmt14-en-de, wmt14-en-fr, multi30k."
    )


SIDES = ("en", "de")


@pytest.fixture
def make(server) -> Callable[..., NamedCorpus]:
    """Offer a corpus as gzip files, given the two sides of each split."""

    def write(num_pairs: int | None = None, **texts: tuple[bytes, bytes]):
        splits = [
            Split(
                name=name,
                parts=(
                    tuple(
                        Text(
                            file=server.offer(f"{name}.{s}.gz", gzip.compress(content))
                        )
                        for s, content in zip(SIDES, sides, strict=True)
                    ),
                ),
                num_pairs=num_pairs,
            )
            for name, sides in texts.items()
        ]
        train, dev, *tests = splits
        return NamedCorpus(
            name="tiny", languages=SIDES, train=train, dev=dev, tests=tuple(tests),
            preset="tiny", terms="none",
        )  # fmt: skip

    return write


@pytest.fixture
def corpus(make) -> NamedCorpus:
    return make(train=(b"one\ntwo\n", b"eins\nzwei\n"), dev=(b"a\n", b"b\n"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_a_corpus_is_written_side_by_side(corpus, out, observer, listed):
    assembled = assemble(corpus, out, observer)
    assert (out / "train.en").read_bytes() == b"one\ntwo\n"
    assert (out / "train.de").read_bytes() == b"eins\nzwei\n"
    assert (out / "dev.de").read_bytes() == b"b\n"
    assert assembled.is_new
    assert assembled.counts == {
        "train": SplitCounts(num_pairs=2),
        "dev": SplitCounts(num_pairs=1),
    }
    assert assembled.path(corpus.dev, "de") == out / "dev.de"
    assert listed() == [
        "out/corpus.json", "out/dev.de", "out/dev.en", "out/downloads/dev.de.gz",
        "out/downloads/dev.en.gz", "out/downloads/train.de.gz",
        "out/downloads/train.en.gz", "out/train.de", "out/train.en",
    ]  # fmt: skip


def test_an_assembled_corpus_is_not_downloaded_again(corpus, out, observer, server):
    first = assemble(corpus, out, observer)
    server.asked.clear()
    again = assemble(corpus, out, observer)
    assert server.asked == []
    assert again.counts == first.counts
    assert not again.is_new


def test_a_corpus_is_assembled_by_one_process_at_a_time(corpus, out, observer, listed):
    refused = []

    class Impatient(type(observer)):
        """Observer that gives the same command again meanwhile."""

        def received(self, file: RemoteFile, num_bytes: int, total: int | None) -> None:
            super().received(file, num_bytes, total)
            with pytest.raises(ConfigError, match="another command is preparing") as no:
                assemble(corpus, out, observer)
            refused.append(no)

    assert assemble(corpus, out, Impatient()).is_new
    assert refused
    assert (out / "train.de").read_bytes() == b"eins\nzwei\n"


def test_a_refused_mirror_leaves_no_empty_folder(corpus, out, observer):
    with pytest.raises(ConfigError, match="The mirror must be"):
        assemble(corpus, out, observer, mirror="nowhere")
    assert not out.exists()


def test_a_deleted_text_is_written_again(corpus, out, observer, server):
    assemble(corpus, out, observer)
    (out / "train.de").unlink()
    server.asked.clear()
    assert assemble(corpus, out, observer).is_new
    assert (out / "train.de").read_bytes() == b"eins\nzwei\n"
    assert server.asked == []


def test_unusable_training_pairs_are_left_out_and_counted(make, out, observer):
    lines = [
        (b"one", b"eins"),
        (b"", b"leer"),
        (b"empty", "\u2003\u00a0 \t".encode()),
        (b"caf\xe9", b"kaffee"),
        (b"nul", b"n\0ll"),
        (b"long", b"x" * 1_000_001),
        ("a\u2028b\u0085c\rd".encode(), b"zwei"),
        (b"crlf\r", b"drei\r"),
    ]
    sides = tuple(b"".join(row[side] + b"\n" for row in lines) for side in (0, 1))
    assembled = assemble(make(train=sides, dev=(b"a\n", b"b\n")), out, observer)
    assert assembled.counts["train"] == SplitCounts(
        num_pairs=3, num_empty=2, num_no_text=3
    )
    assert (out / "train.de").read_bytes() == b"eins\nzwei\ndrei\n"
    assert (out / "train.en").read_bytes() == (
        "one\na\u2028b\u0085c\rd\ncrlf\n".encode()
    )


def test_every_line_of_held_out_text_is_kept(make, out, observer):
    held_out = (b"a\n\nc\n", b"b\nd\n\n")
    assembled = assemble(make(train=(b"x\n", b"y\n"), dev=held_out), out, observer)
    assert assembled.counts["dev"] == SplitCounts(num_pairs=3)
    assert (out / "dev.en").read_bytes() == held_out[0]


def test_held_out_text_that_is_not_utf8_is_refused(make, out, observer, listed):
    corpus = make(train=(b"x\n", b"y\n"), dev=(b"a\n\xff\n", b"b\nc\n"))
    with pytest.raises(DataError, match=r"dev\.en\.gz:2: a line must be valid UTF-8"):
        assemble(corpus, out, observer)
    assert all("downloads/" in name for name in listed())


@pytest.mark.parametrize(
    ("sides", "shorter"),
    [((b"a\n", b"b\nc\n"), "en"), ((b"a\nb\nc\n", b"c\nd\n"), "de")],
)
def test_sides_of_unequal_length_are_refused(
    make, out, observer, listed, sides, shorter
):
    corpus = make(train=sides, dev=(b"a\n", b"b\n"))
    message = rf"train\.{shorter}\.gz: must have as many lines as .*train.*, but has \d"
    with pytest.raises(DataError, match=message):
        assemble(corpus, out, observer)
    assert all("downloads/train" in name or "dev" in name for name in listed())


def test_a_known_number_of_pairs_is_checked(make, out, observer):
    corpus = make(num_pairs=3, train=(b"a\nb\n", b"c\nd\n"), dev=(b"a\n", b"b\n"))
    with pytest.raises(DataError, match="train must have 3 pairs, but has 2; delete"):
        assemble(corpus, out, observer)


def test_parts_of_a_split_are_concatenated(make, out, observer, server):
    parts = make(a=(b"\xef\xbb\xbf1\n", b"2"), b=(b"3\n", b"4\n"), c=(b"5\n", b"6\n"))
    train = Split(name="train", parts=parts.train.parts + parts.dev.parts)
    corpus = NamedCorpus(
        name="tiny", languages=SIDES, train=train, dev=parts.tests[0], tests=(),
        preset="tiny", terms="none",
    )  # fmt: skip
    assemble(corpus, out, observer)
    assert (out / "train.en").read_bytes() == b"1\n3\n"
    assert (out / "train.de").read_bytes() == b"2\n4\n"


def test_the_observer_gets_the_progress_of_many_lines(make, out, observer):
    corpus = make(train=(b"a\n" * 25_000, b"b\n" * 25_000), dev=(b"a\n", b"b\n"))
    assemble(corpus, out, observer)
    assert observer.lines == [("train", 10_000), ("train", 20_000)]


@pytest.mark.parametrize("content", ["a file", "something", "another corpus"])
def test_a_folder_with_other_contents_is_refused(
    corpus, out, observer, server, listed, content
):
    if content == "a file":
        out.touch()
    else:
        out.mkdir()
        (out / "train.en").touch()
    if content == "another corpus":
        record = {"corpus": "other", "splits": {}}
        (out / "corpus.json").write_text(json.dumps(record))
    before = listed()
    with pytest.raises(ConfigError, match="the output folder must be new or"):
        assemble(corpus, out, observer)
    assert listed() == before
    assert server.asked == []


@pytest.mark.parametrize(
    "record",
    [
        *("", "{", "[]", "{}"),
        "[" * 100_000,
        '{"corpus": "tiny", "splits": {"train": {"x": 1}}}',
        '{"corpus": "tiny", "splits": {"train": {"num_pairs": 1}}}',
        '{"corpus": "tiny", "splits": {"train": {"num_pairs": "1"}, "dev": {}}}',
    ],
)
def test_a_damaged_record_is_reported_in_one_sentence(corpus, out, observer, record):
    assemble(corpus, out, observer)
    (out / "corpus.json").write_text(record)
    with pytest.raises(DataError, match=r"corpus\.json: the file is damaged; delete"):
        assemble(corpus, out, observer)


def test_a_failed_download_leaves_no_texts_and_can_be_continued(
    corpus, out, observer, server, listed
):
    content = server.files.pop("/dev.de.gz")
    with pytest.raises(DataError, match="dev.de.gz: the server must send the file"):
        assemble(corpus, out, observer)
    assert "out/downloads/train.en.gz" in listed()
    assert all("downloads/" in name for name in listed())
    server.files["/dev.de.gz"] = content
    server.asked.clear()
    assert assemble(corpus, out, observer).is_new
    assert [path for path, _ in server.asked] == ["/dev.de.gz"]


def test_a_full_disk_keeps_the_downloads(make, out, observer, server, listed):
    corpus = make(train=(b"a\n" * 9_000, b"b\n" * 9_000), dev=(b"a\n", b"b\n"))
    with (
        limited_file_size(5_000),
        pytest.raises(DataError, match="out: the texts cannot be written .File"),
    ):
        assemble(corpus, out, observer)
    assert len(listed()) == 4
    assert all(name.startswith("out/downloads/") for name in listed())
    assemble(corpus, out, observer)
    assert (out / "train.en").read_bytes() == b"a\n" * 9_000


def test_an_interruption_between_the_moves_is_repaired(
    corpus, out, observer, monkeypatch
):
    move, moves = Path.replace, []

    def interrupted(self: Path, target: Path) -> Path:
        if self.parent.name == "unfinished":
            moves.append(target.name)
        if len(moves) == 3:
            raise KeyboardInterrupt
        return move(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            assemble(corpus, out, observer)
    assert moves[0] == "corpus.json"
    assert not (out / "dev.de").exists()
    assert assemble(corpus, out, observer).is_new
    assert (out / "dev.de").read_bytes() == b"b\n"


def packed(files: dict[str, bytes], mode: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def content_of(text: Text, number: int) -> bytes:
    """Line with the name and number of its place."""
    line = f"{text.member or text.file.name} {number}"
    if text.member and text.member.endswith(".sgm"):
        return f'<seg id="1">{line} &amp; so on</seg>\n'.encode()
    if not text.member or text.member.endswith(".gz"):
        return gzip.compress(f"{line}\n".encode())
    return f"{line}\n".encode()


def archive_of(file: RemoteFile, corpus: NamedCorpus) -> bytes:
    parts = [part for split in corpus.splits for part in split.parts]
    texts = [text for part in parts for text in part if text.file == file]
    if texts[0].member is None:
        return content_of(texts[0], 1)
    # As the archives have it: the other languages come first.
    files = {str(text.member): content_of(text, 1) for text in reversed(texts)}
    return packed(
        {"x/other": b"?", **files}, "w" if file.name[-3:] == "tar" else "w:gz"
    )


@pytest.mark.parametrize("name", NAMED_CORPORA)
def test_every_named_corpus_is_assembled_from_its_archive_members(
    server, out, observer, without_checks, name
):
    corpus = without_checks(NAMED_CORPORA[name])
    for file in corpus.files:
        path = file.on(server.address).url.removeprefix(server.address)
        server.files[path] = archive_of(file, corpus)
    assembled = assemble(corpus, out, observer, server.address)
    for split in corpus.splits:
        assert assembled.counts[split.name].num_pairs == len(split.parts)
        for number, language in enumerate(corpus.languages):
            text = assembled.path(split, language).read_text(encoding="utf-8")
            expected = [part[number] for part in split.parts]
            assert [line.split()[0] for line in text.splitlines()] == [
                each.member or each.file.name for each in expected
            ]
    assert [path for path, _ in server.asked] == [
        file.on(server.address).url.removeprefix(server.address)
        for file in corpus.files
    ]


def test_a_malformed_mirror_is_refused_before_any_download(
    corpus, out, observer, server
):
    with pytest.raises(ConfigError, match="The mirror must be an address"):
        assemble(corpus, out, observer, "nowhere")
    assert not out.exists()
    assert server.asked == []
