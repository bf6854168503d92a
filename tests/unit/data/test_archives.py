"""Lines of archives are read, and damaged archives are reported."""

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from transduce.data.named_corpora import lines_of
from transduce.errors import DataError

SGML = """<?xml version="1.0" encoding="UTF-8"?>
<refset setid="newstest2014" srclang="any" trglang="de">
<doc sysid="ref" docid="a" genre="news" origlang="en">
<hl>
<seg id="1">Über &quot;R&amp;D&quot; &#8211; &lt;b&gt; &#x41;&apos;</seg>
</hl>
<p>
<seg id="2"> two
lines </seg><SEG id="3"></SEG>
<seg id="4">?a=1&lt=2&copy; &amp;lt; \u00a0\u2028</seg>
</p>
</doc>
</refset>
"""


@pytest.fixture
def tar(tmp_path: Path) -> Callable[..., Path]:
    """Write a tar archive with these members, in this order."""

    def write(name: str, members: dict[str, bytes]) -> Path:
        path = tmp_path / name
        with tarfile.open(path, "w" if name.endswith(".tar") else "w:gz") as archive:
            for member, content in members.items():
                entry = tarfile.TarInfo(member)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        return path

    return write


def contents(archive: Path, member: str | None = None) -> list[bytes]:
    return [line.content for line in lines_of(archive, member)]


@pytest.mark.parametrize("name", ["a.tgz", "a.tar"])
def test_a_member_is_read_wherever_it_lies(tar, name):
    archive = tar(name, {"x/a.en": b"one\ntwo\n", "./x/a.de": b"eins\nzwei\n"})
    assert contents(archive, "x/a.en") == [b"one", b"two"]
    assert contents(archive, "x/a.de") == [b"eins", b"zwei"]


def test_a_gzip_file_is_read_and_so_is_one_inside_a_tar(tar, tmp_path):
    packed = gzip.compress(b"one\ntwo")
    (tmp_path / "a.en.gz").write_bytes(packed)
    archive = tar("a.tar", {"b": b"x" * 20_000, "a.en.gz": packed})
    assert contents(tmp_path / "a.en.gz") == [b"one", b"two"]
    assert contents(archive, "a.en.gz") == [b"one", b"two"]


def test_only_a_line_feed_ends_a_line(tar):
    text = "\ufeffa\u2028b\u0085c\x0bd\re\r\n\n\u2029\nlast"
    archive = tar("a.tgz", {"a": text.encode()})
    assert contents(archive, "a") == [
        "a\u2028b\u0085c\x0bd\re".encode(),
        b"",
        "\u2029".encode(),
        b"last",
    ]


def test_a_line_has_a_place_for_messages(tar):
    archive = tar("a.tgz", {"x/a.en": b"one\n\xff\n"})
    with pytest.raises(DataError, match=f"{archive}/x/a.en:2: a line must be valid UT"):
        [line.text() for line in lines_of(archive, "x/a.en")]


def test_a_segment_of_sgml_is_a_line(tar):
    archive = tar("a.tgz", {"a.de.sgm": SGML.encode()})
    assert [line.text() for line in lines_of(archive, "a.de.sgm")] == [
        'Über "R&D" – <b> A\'',
        "two lines",
        "",
        "?a=1&lt=2&copy; &lt; \u00a0\u2028",
    ]


def test_malformed_sgml_is_reported_with_its_segment(tar):
    archive = tar("a.tgz", {"a.sgm": b'<seg id="1">a</seg>\n<seg id="2">\xe9</seg>'})
    lines = list(lines_of(archive, "a.sgm"))
    with pytest.raises(DataError, match=r"a\.sgm:2: .* byte 1 of this one is 0xe9"):
        lines[1].text()


@pytest.mark.parametrize("evil", ["../evil", "/tmp/../evil", "x/../../evil"])
def test_a_member_outside_the_archive_is_skipped(tar, tmp_path, listed, evil):
    archive = tar("a.tgz", {evil: b"bad", "a.en": b"one\n"})
    assert contents(archive, "a.en") == [b"one"]
    with pytest.raises(DataError, match="must hold a.de, but does not; delete it"):
        contents(archive, "a.de")
    assert listed() == ["a.tgz"]
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_a_link_is_not_followed(tmp_path, kind):
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        entry = tarfile.TarInfo("a.en")
        entry.type, entry.linkname = kind, "/etc/hostname"
        archive.addfile(entry)
    with pytest.raises(DataError, match="must hold a.en, but does not"):
        contents(tmp_path / "a.tgz", "a.en")


TEXT = b"".join(b"%d\n" % (n * 7919 % 100_003) for n in range(20_000))
DAMAGES = {
    "cut": lambda content: content[: len(content) // 2],
    "spoilt": lambda content: content[:5_000] + bytes(1_000) + content[6_000:],
    "nearly empty": lambda content: content[:9],
    "a web page": lambda _: b"<html>Please log in.</html>" * 100,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("name", ["a.tgz", "a.gz"])
def test_a_damaged_archive_is_reported_in_one_sentence(tar, tmp_path, name, damage):
    if name == "a.tgz":
        member, archive = "a.en", tar(name, {"a.en": TEXT})
    else:
        member, archive = None, tmp_path / name
        archive.write_bytes(gzip.compress(TEXT))
    archive.write_bytes(damage(archive.read_bytes()))
    message = f"{archive}(/a.en)?: (the archive is damaged|must hold a.en, but does no)"
    with pytest.raises(DataError, match=message):
        contents(archive, member)


def test_a_damaged_gzip_file_inside_a_tar_is_reported_in_one_sentence(tar):
    archive = tar("a.tar", {"a.gz": gzip.compress(TEXT)[:-20]})
    with pytest.raises(DataError, match="a.tar/a.gz: the archive is damaged; delete"):
        contents(archive, "a.gz")


def test_a_missing_archive_is_reported_in_one_sentence(tmp_path):
    with pytest.raises(DataError, match="cannot be read .No such file or directory"):
        contents(tmp_path / "a.tgz", "a.en")
