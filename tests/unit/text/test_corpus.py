"""Line-aligned files: the ends of lines, messages about malformed files, windows."""

import bz2
import gzip
import io
import lzma
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from shutil import which
from threading import Event

import pytest

from transduce.errors import DataError
from transduce.text.corpus import (
    BYTE_ORDER_MARK,
    MAX_LINE_BYTES,
    STANDARD_INPUT,
    SentencePair,
    Windows,
    aligned_lines,
    arriving_windows,
    full_windows,
    read_document,
    read_lines,
    read_pairs,
    read_text,
    require_one_standard_input,
    write_lines,
)
from waiting import PATIENCE_S

COMPRESSED = pytest.mark.parametrize(
    "compress",
    [gzip.compress, lzma.compress, bz2.compress],
    ids=["gzip", "xz", "bzip2"],
)
NO_LINE_ENDS = ["\u2028", "\u2029", "\u0085", "\f", "\v", "\r", "\x1c", "\x1e"]


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, bytes], Path]:
    def write(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def texts(path: Path) -> list[str]:
    return list(read_text([path]))


@pytest.mark.parametrize("character", NO_LINE_ENDS, ids=ascii)
def test_other_control_characters_stay_inside_the_line(file, character):
    path = file("text", f"a{character}b\n{character}c\nd\n".encode())
    assert texts(path) == [f"a{character}b", f"{character}c", "d"]


def test_crlf_ends_a_line_like_lf(file):
    assert texts(file("text", b"a\r\nb\nc\r\n")) == ["a", "b", "c"]


def test_only_one_cr_belongs_to_the_line_end(file):
    assert texts(file("text", b"a\r\r\nb\n")) == ["a\r", "b"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"a\n\n\nb\n",
        b"a\r\nb\r\n",
        b"a\rb\rc\n",
        "a\u2028b\u0085c\fd\ve\n".encode(),
        b"\r\n\r\n",
    ],
)
def test_line_counts_equal_those_of_wc(file, content):
    path = file("text", content)
    told = subprocess.run(
        ["wc", "-l", path], capture_output=True, check=True, text=True
    ).stdout
    assert len(texts(path)) == int(told.split()[0])


@pytest.mark.parametrize("last", ["b", "b\r", "\r"], ids=ascii)
def test_the_last_line_needs_no_line_feed(file, last):
    assert texts(file("text", b"a\n" + last.encode())) == ["a", last]


def test_lines_have_a_place_numbered_from_one(file):
    path = file("text", b"a\n\nc\n")
    assert [line.place for line in read_lines(path)] == [
        f"{path}:{n}" for n in (1, 2, 3)
    ]


def test_a_byte_order_mark_is_removed(file):
    assert texts(file("text", BYTE_ORDER_MARK + b"a\nb\n")) == ["a", "b"]


def test_a_byte_order_mark_is_text_after_the_first_line(file):
    content = b"a\n" + BYTE_ORDER_MARK + b"b\n"
    assert texts(file("text", content)) == ["a", "\ufeffb"]


@COMPRESSED
def test_a_compressed_file_is_recognised_by_its_content_not_its_name(file, compress):
    path = file("text", compress("ä\r\nb\u2028c\n".encode()))
    assert texts(path) == ["ä", "b\u2028c"]


@pytest.mark.parametrize("ending", ["gz", "xz", "bz2", "zst"])
def test_a_plain_file_may_be_named_like_a_compressed_one(file, ending):
    assert texts(file(f"text.{ending}", b"a\n")) == ["a"]


@COMPRESSED
def test_a_compressed_file_may_begin_with_a_byte_order_mark(file, compress):
    assert texts(file("text", compress(BYTE_ORDER_MARK + b"a\n"))) == ["a"]


@COMPRESSED
def test_a_compressed_file_may_be_empty(file, compress):
    assert texts(file("text", compress(b""))) == []


@COMPRESSED
def test_concatenated_compressed_files_are_one_file(file, compress):
    parts = [b"a\nb", b"", b"c\n" * 100_000, b"d"]
    path = file("text", b"".join(map(compress, parts)))
    assert texts(path) == ["a", "bc", *["c"] * 99_999, "d"]


@COMPRESSED
def test_zeros_may_pad_a_compressed_file(file, compress):
    path = file("text", compress(b"a\n") + bytes(100_000))
    assert texts(path) == ["a"]


@COMPRESSED
def test_a_large_compressed_file_is_read_whole(file, compress):
    content = b"".join(b"%d\n" % (i * i) for i in range(200_000))
    path = file("text", compress(content))
    assert "\n".join(texts(path)) + "\n" == content.decode()


@pytest.mark.parametrize("program", ["gzip", "xz", "bzip2"])
def test_a_file_that_the_usual_program_has_compressed_is_read(file, program):
    if which(program) is None:
        pytest.skip(f"{program} is not installed")
    packed = subprocess.run(
        [program, "-c"], input=b"a\nb\n", capture_output=True, check=True
    ).stdout
    assert texts(file("text", packed)) == ["a", "b"]


def test_text_compressed_by_zstd_is_read_where_python_can(file):
    zstd = pytest.importorskip("compression.zstd")
    skipped = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    whole = zstd.compress(b"a\n" * 100_000)
    assert texts(file("text", skipped + whole + zstd.compress(b"b"))) == [
        *["a"] * 100_000,
        "b",
    ]
    for damaged in (whole[:-3], whole + b"x", whole[:9] + b"\xff\xff" + whole[11:]):
        with pytest.raises(DataError, match="the zstd file is damaged or cut short"):
            texts(file("text", damaged))


def test_text_compressed_by_zstd_is_refused_before_python_3_14(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    path = file("text.zst", bytes.fromhex("28b52ffd2001090000") + b"a")
    said = rf"^{path}: .* by zstd needs Python 3\.14 .* is 3\.\d+; decompress it first"
    with pytest.raises(DataError, match=said):
        texts(path)


def test_several_files_are_read_as_one_text(file):
    paths = [file("one", b"a\nb"), file("two", gzip.compress(b"c\n"))]
    assert list(read_text(paths)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "compress", [bytes, gzip.compress, lzma.compress, bz2.compress]
)
def test_standard_input_is_read_like_a_file(file, monkeypatch, compress):
    content = compress(BYTE_ORDER_MARK + "a\r\nb\u2028c\n\nd".encode())
    with file("text", content).open("rb") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert list(read_text([STANDARD_INPUT])) == ["a", "b\u2028c", "", "d"]


class OneByteAtATime(io.BytesIO):
    """Bytes as a pipe delivers them whose program writes single bytes."""

    def readinto(self, buffer: memoryview, /) -> int:
        return super().readinto(buffer[:1])


@pytest.mark.parametrize(
    "compress", [bytes, gzip.compress, lzma.compress, bz2.compress]
)
def test_a_pipe_may_deliver_a_file_byte_by_byte(monkeypatch, compress):
    pipe = io.BufferedReader(OneByteAtATime(compress("ähnlich\nb".encode())))
    monkeypatch.setattr("transduce.text.corpus.standard_input", lambda: pipe)
    assert list(read_text([STANDARD_INPUT])) == ["ähnlich", "b"]


def test_each_name_of_standard_input_stands_for_it(monkeypatch):
    reading, writing = os.pipe()
    os.close(writing)
    with open(reading, "rb") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        names = ["-", f"/dev/fd/{reading}", f"/proc/self/fd/{reading}"]
        for name in names:
            require_one_standard_input([Path(name), Path("text"), Path("/dev/null")])
            for other in names:
                with pytest.raises(DataError, match="must stand for one file"):
                    require_one_standard_input([Path(name), Path(other)])


def test_a_file_is_read_from_its_beginning_beside_standard_input(file, monkeypatch):
    path = file("text", b"a\n")
    with path.open("rb") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        paths = [STANDARD_INPUT, path]
        require_one_standard_input(paths)
        assert list(read_text(paths)) == ["a", "a"]


def test_the_first_line_of_standard_input_does_not_wait_for_the_second(monkeypatch):
    reading, writing = os.pipe()
    with open(reading, "rb") as stream, open(writing, "wb", buffering=0) as pipe:
        monkeypatch.setattr(sys, "stdin", stream)
        pipe.write(b"a\n")
        lines = read_text([STANDARD_INPUT])
        assert next(lines) == "a"
        pipe.write(b"b\n")
        assert next(lines) == "b"


def test_a_malformed_line_of_standard_input_is_named_by_its_number(file, monkeypatch):
    with file("text", b"a\n\xff\n").open("rb") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        lines = read_text([STANDARD_INPUT])
        assert next(lines) == "a"
        with pytest.raises(DataError, match="^standard input:2: .* valid UTF-8"):
            next(lines)


def test_pairs_come_line_by_line_and_file_by_file(file):
    source = [file("one.en", b"a\nb\n"), file("two.en", b"c\n")]
    target = [file("one.de", b"A\r\nB\r\n"), file("two.de", gzip.compress(b"C\n"))]
    assert list(read_pairs(source, target)) == [
        SentencePair(source=source, target=target)
        for source, target in [("a", "A"), ("b", "B"), ("c", "C")]
    ]


def test_aligned_lines_are_not_decoded(file):
    path = file("latin", b"caf\xe9\n")
    [(source, target)] = aligned_lines([path], [path])
    assert source.content == target.content == b"caf\xe9"


@pytest.mark.parametrize(
    ("source", "target", "shorter", "line", "counts"),
    [
        (b"a\nb\n", b"A\nB\nC\nD\n", "source", 3, (2, 4)),
        (b"a\nb\nc\n", b"A\n", "target", 2, (1, 3)),
        (b"", b"A\n", "source", 1, (0, 1)),
        (b"a\n" * 1_200, b"A\n", "target", 2, (1, "1,200")),
    ],
)
def test_unequal_counts_name_the_place_and_both_totals(
    file, source, target, shorter, line, counts
):
    paths = {"source": file("s.en", source), "target": file("t.de", target)}
    longer = "target" if shorter == "source" else "source"
    message = (
        f"^{paths[shorter]}:{line}: source and target must have equally many lines, "
        f"but {paths[shorter]} has {counts[0]} and {paths[longer]} has {counts[1]}\\.$"
    )
    with pytest.raises(DataError, match=message):
        list(read_pairs([paths["source"]], [paths["target"]]))


def test_unequal_counts_are_reported_for_the_pair_of_files(file):
    source = [file("one.en", b"a\nb\n"), file("two.en", b"c\n")]
    target = [file("one.de", b"A\n"), file("two.de", b"C\nD\n")]
    with pytest.raises(DataError, match=f"^{target[0]}:2: "):
        list(read_pairs(source, target))


def test_pairs_before_the_end_of_the_shorter_side_are_returned(file):
    pairs = read_pairs([file("s", b"a\nb\n")], [file("t", b"A\n")])
    assert next(pairs) == SentencePair(source="a", target="A")


def test_sides_with_unequal_numbers_of_files_are_refused(file):
    path = file("text", b"a\n")
    with pytest.raises(DataError, match="equally many files, but have 2 and 1"):
        list(read_pairs([path, path], [path]))


def test_invalid_utf8_is_reported_with_file_line_and_byte(file):
    path = file("text", b"a\nb\ncaf\xe9 au lait\n")
    message = f"^{path}:3: a line must be valid UTF-8, but byte 4 .* 0xe9; convert"
    with pytest.raises(DataError, match=message):
        texts(path)


@pytest.mark.parametrize(
    "content", [b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xe2\x82"]
)
def test_surrogates_overlong_and_unfinished_forms_are_invalid_utf8(file, content):
    path = file("text", b"a\n" + content + b"\n")
    with pytest.raises(DataError, match=f"^{path}:2: a line must be valid UTF-8"):
        texts(path)


def test_a_nul_byte_is_reported_with_file_and_line(file):
    path = file("text", b"a\nb\0c\n")
    with pytest.raises(DataError, match=f"^{path}:2: .* holds a NUL byte; remove it"):
        texts(path)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"PK\x03\x04\x14\0\0\0\x08\0", "zip"),
        (b"7z\xbc\xaf\x27\x1c\0\x04", "7z"),
        (b"Rar!\x1a\x07\x01\0", "rar"),
        (b"\x1f\x9d\x90a\x14", "compress"),
        (b"\x04\x22\x4d\x18\x64", "lz4"),
        (b"LZIP\x01\x0c", "lzip"),
    ],
)
def test_a_file_of_another_compression_is_named_as_such(file, content, name):
    path = file("text", content)
    with pytest.raises(DataError, match=f"^{path}: .* but this is {name}; unpack"):
        texts(path)


@pytest.mark.parametrize("line", ["LZIP is a program", "BZh1", "PK", "7z", "Rar!"])
def test_text_may_begin_like_a_compressed_file(file, line):
    assert texts(file("text", line.encode())) == [line]


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff"])
@pytest.mark.parametrize("text", ["Hallo\n", "你好"])
def test_text_in_utf_16_is_refused_as_such(file, mark, text):
    codec = "utf-16-le" if mark == b"\xff\xfe" else "utf-16-be"
    path = file("text", mark + text.encode(codec))
    with pytest.raises(DataError, match=f"^{path}:1: .* like UTF-16, .* convert it to"):
        texts(path)


def test_text_in_utf_16_without_a_mark_is_refused(file):
    path = file("text", "Hallo\n".encode("utf-16-le"))
    with pytest.raises(DataError, match=f"^{path}:1: .* holds a NUL byte"):
        texts(path)


@pytest.mark.parametrize("codec", ["iso2022_jp", "iso2022_jp_3", "iso2022_kr"])
def test_text_in_iso_2022_is_not_taken_for_utf_8(file, codec):
    path = file("text", "one\n\x1b[1m\x1b(Btwo\n世界\n".encode(codec))
    with pytest.raises(DataError, match=f"^{path}:3: .* in ISO-2022, such as"):
        texts(path)


def test_escape_sequences_of_terminals_are_text(file):
    lines = ["\x1b[1mone\x1b(B\x1b[m", "$\x1b$", "\x1b$ B", "\x1b\x1b"]
    assert texts(file("text", "\n".join(lines).encode())) == lines


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("begin", [b"", BYTE_ORDER_MARK])
def test_the_longest_line_allowed_is_read_whole(file, begin, end):
    path = file("text", begin + b"a" * MAX_LINE_BYTES + end)
    assert [len(text) for text in texts(path)] == [MAX_LINE_BYTES]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"", b"a" * 10 + b"\n"])
@pytest.mark.parametrize("begin", [b"", BYTE_ORDER_MARK])
def test_a_line_that_is_too_long_is_reported_with_file_and_line(file, begin, end):
    path = file("text", begin + b"a" * (MAX_LINE_BYTES + 1) + end)
    with pytest.raises(DataError, match=f"^{path}:1: .* at most 1,000,000 bytes long"):
        texts(path)


def test_a_document_may_have_lines_of_any_length(file):
    content = "\r\n" + "ä" * MAX_LINE_BYTES + "\n\nb"
    path = file("text", gzip.compress(BYTE_ORDER_MARK + content.encode()))
    assert read_document(path) == content


@pytest.mark.parametrize("line", [b"\xff", b"\0", b"\x1b$B"], ids=ascii)
def test_a_line_of_a_document_that_is_no_text_is_named(file, line):
    path = file("text", b"a" * (MAX_LINE_BYTES + 1) + b"\r\n" + line)
    with pytest.raises(DataError, match=f"^{path}:2: a line must be "):
        read_document(path)


def test_a_line_that_is_too_long_is_found_anywhere(file):
    path = file("text", b"a\nb\n" + b"c" * (2 * MAX_LINE_BYTES))
    said = rf"^{path}:3: .* `transduce clean` drops such pairs\.$"
    with pytest.raises(DataError, match=said):
        texts(path)


@pytest.mark.parametrize(
    "size", [1, 3, 4, 5, 6, MAX_LINE_BYTES + 5, 3 * MAX_LINE_BYTES]
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_the_lines_after_one_that_is_too_long_keep_their_numbers(file, size, end):
    path = file("text", b"a" + end + b"b" * (MAX_LINE_BYTES + size) + end + b"c" + end)
    first, long, last = read_lines(path)
    assert (first.content, last.content, last.number) == (b"a", b"c", 3)
    assert len(long.content) > MAX_LINE_BYTES
    # Where the line is cut, the first half of its end may be left.
    assert set(long.content.removesuffix(b"\r")) == set(b"b")


def test_a_missing_file_is_reported(tmp_path):
    path = tmp_path / "absent"
    with pytest.raises(DataError, match=f"^{path}: .*No such file or directory"):
        texts(path)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=f"^{tmp_path}: .*Is a directory"):
        texts(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="everything may be read by root")
def test_a_file_without_read_permission_is_reported(file):
    path = file("text", b"a\n")
    path.chmod(0)
    with pytest.raises(DataError, match=f"^{path}: .*Permission denied"):
        texts(path)


CONTENT = bytes(range(10, 250)) * 20 + b"\n"
DAMAGES = {
    "no end": lambda whole: whole[:-4],
    "half": lambda whole: whole[: len(whole) // 2],
    "magic alone": lambda whole: whole[:10],
    "payload": lambda whole: whole[:60] + bytes(20) + whole[80:],
    "checksum": lambda whole: whole[:-8] + bytes(byte ^ 1 for byte in whole[-8:]),
    "something after": lambda whole: whole + b"no stream",
    "damaged second stream": lambda whole: whole + whole[:10] + b"\xff" * 50,
    "cut second stream": lambda whole: whole + whole[:-4],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
@pytest.mark.parametrize(
    ("name", "compress"),
    [("gzip", gzip.compress), ("xz", lzma.compress), ("bzip2", bz2.compress)],
)
def test_a_damaged_compressed_file_is_reported(file, name, compress, damage):
    path = file("text.gz", damage(compress(CONTENT)))
    with pytest.raises(DataError, match=f"^{path}: the {name} file is damaged or cut"):
        list(read_lines(path))


def test_written_lines_are_read_back(file, tmp_path):
    lines = ["", "ä\u2028b", "a\u0085b\fc", "d ", "e\r", "\r", "f\r\r", "\ufeffg"]
    write_lines(tmp_path / "text", lines)
    assert texts(tmp_path / "text") == lines


def test_a_byte_order_mark_of_the_first_line_is_read_back(tmp_path):
    write_lines(tmp_path / "text", ["\ufeffa", "b"])
    assert texts(tmp_path / "text") == ["\ufeffa", "b"]


def test_lines_are_written_with_lf(tmp_path):
    write_lines(tmp_path / "text", ["a", "b"])
    assert (tmp_path / "text").read_bytes() == b"a\nb\n"


@pytest.mark.parametrize(
    "kind", [partial(full_windows, size=3), partial(arriving_windows, size=3)]
)
@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_available_lines_are_cut_into_full_windows(kind: Windows, count: int) -> None:
    found = list(kind(iter(range(count))))
    assert found == [list(range(i, min(i + 3, count))) for i in range(0, count, 3)]


def test_arrived_lines_do_not_wait_for_later_ones() -> None:
    asked = Event()

    def lines() -> Iterator[str]:
        yield "one"
        yield "two"
        # Like a user who writes the next line after the answer to this one.
        assert asked.wait(timeout=PATIENCE_S)
        yield "three"

    found = arriving_windows(lines(), pause_s=0.2)
    assert next(found) == ["one", "two"]
    asked.set()
    assert list(found) == [["three"]]


@pytest.mark.parametrize("kind", [full_windows, arriving_windows])
def test_an_error_of_a_stream_is_raised(kind: Windows) -> None:
    def lines() -> Iterator[str]:
        yield "one"
        raise ValueError("no second")

    with pytest.raises(ValueError, match="no second"):
        list(kind(lines()))
