"""Files that are translated whole, as LibreTranslate does.

A translation is kept in memory until it is downloaded by an address that nobody can
guess. Time and memory are bounded.
"""

import asyncio
import codecs
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import PurePosixPath

from transduce.decoding.documents import Format
from transduce.errors import TooLongError
from transduce.serving.messages import (
    CHARSET,
    CODECS,
    MARK,
    RefusedError,
    UploadedFile,
    label_of,
    quoted,
)

FORMATS: Mapping[str, Format] = {
    ".txt": "text",
    ".html": "html",
    ".htm": "html",
    ".srt": "srt",
    ".vtt": "vtt",
}
"""Format of a file by the ending of its name."""
TYPES: Mapping[Format, str] = {
    "text": "text/plain",
    "html": "text/html",
    "srt": "application/x-subrip",
    "vtt": "text/vtt",
}
LIFE_S = 600.0
"""Seconds for which a translated file is kept."""
MAX_BYTES = 2**26
"""Maximum size of all translated files that are kept; the oldest make room."""
BYTES_OF_ENTRY = 1_000
"""Size that counts for a file besides its content."""
MAX_STEM = 100
"""Maximum number of characters of a file's name without its ending."""
META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w:.-]+)", re.I)
"""Pattern of the charset that a page names, among its first bytes."""
META_BYTES = 1_024
NOT_TEXT = re.compile("[\0\x1b]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """Text of a file, with its format."""

    stem: str
    """Name without its ending, of letters, digits and a few signs."""
    ending: str
    format: Format
    text: str
    has_mark: bool
    """Whether its translation begins with a byte order mark, as the file does, or as it
    names a charset other than UTF-8, in which the translation is."""

    @classmethod
    def read(cls, file: UploadedFile) -> "TextFile":
        """Read a file; `RefusedError` for another kind or an unknown charset."""
        path = PurePosixPath(file.name.replace("\\", "/"))
        ending = path.suffix.lower()
        if ending not in FORMATS:
            raise RefusedError(
                HTTPStatus.BAD_REQUEST,
                f"`file` must be one of {', '.join(FORMATS)}, but is "
                f"{quoted(file.name)}.",
            )
        named = META_CHARSET.search(file.content[:META_BYTES])
        label = label_of(named[1].decode("latin-1")) if named else ""
        is_marked_html = FORMATS[ending] == "html" and label not in ("", "utf8")
        text = _decoded(file, label if FORMATS[ending] == "html" else "")
        if NOT_TEXT.search(text):
            raise RefusedError(
                HTTPStatus.BAD_REQUEST,
                f"`file` must be text, but {quoted(file.name)} has control characters.",
            )
        stem = re.sub(r"[^\w .()-]+", "_", path.stem)[:MAX_STEM].strip(". ")
        return cls(
            stem=stem or "file",
            ending=ending,
            format=FORMATS[ending],
            text=text.removeprefix(MARK),
            has_mark=is_marked_html or text.startswith(MARK),
        )

    def translated(self, text: str, language: str) -> "TranslatedFile":
        """Return the file of a translation, named by its language: letter.de.txt."""
        return TranslatedFile(
            name=f"{self.stem}.{language}{self.ending}",
            media_type=f"{TYPES[self.format]}; charset=utf-8",
            content=((MARK if self.has_mark else "") + text).encode(),
        )


def _decoded(file: UploadedFile, meta_label: str) -> str:
    """Return the text of a file, with its byte order mark.

    It is in UTF-8, in UTF-16 with a mark, or in the charset that a page or the part of
    the form names.
    """
    marked = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    if file.content.startswith(marked):
        is_little = file.content.startswith(marked[0])
        tried = ["utf-16-le" if is_little else "utf-16-be"]
    else:
        given = CHARSET.search(file.content_type)
        labels = meta_label, label_of(given[1]) if given else ""
        tried = ["utf-8", *(CODECS[each] for each in labels if each in CODECS)]
    for codec in tried:
        try:
            return file.content.decode(codec)
        except UnicodeDecodeError:
            continue
    raise RefusedError(
        HTTPStatus.BAD_REQUEST,
        "`file` must be text in UTF-8 or UTF-16, or name its charset as pages can, but "
        f"{quoted(file.name)} is in another; save it in UTF-8.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedFile:
    """Translated file as it is downloaded."""

    name: str
    media_type: str
    content: bytes

    @property
    def size(self) -> int:
        """Size that counts for it."""
        return len(self.content) + BYTES_OF_ENTRY


class TranslatedFiles:
    """Translated files of one event loop, each with a key."""

    def __init__(self, max_bytes: int = MAX_BYTES, life_s: float = LIFE_S) -> None:
        self.life_s = life_s
        self._max_bytes = max_bytes
        self._files: dict[str, TranslatedFile] = {}
        """Files by their keys, the oldest first."""
        self._size = 0

    def add(self, file: TranslatedFile) -> str:
        """Keep a file for a while; return its key.

        Raises `TooLongError` for a file that has more bytes than all may have.
        """
        if file.size > self._max_bytes:
            raise TooLongError(
                f"A translated file must have fewer than {self._max_bytes:,} bytes, "
                f"but has {len(file.content):,}; send it in parts."
            )
        while self._size + file.size > self._max_bytes:
            self._drop(next(iter(self._files)))
        key = secrets.token_urlsafe()
        self._files[key] = file
        self._size += file.size
        asyncio.get_running_loop().call_later(self.life_s, self._drop, key)
        return key

    def get(self, key: str) -> TranslatedFile | None:
        """Return the file of a key; None if it is not kept, or no longer."""
        return self._files.get(key)

    def _drop(self, key: str) -> None:
        if (file := self._files.pop(key, None)) is not None:
            self._size -= file.size
