"""Conversion of the native library's header to the forms that cffi reads.

The build runs this module as a script. It writes the declarations as Python source,
which loads in a fraction of the time that parsing the header takes:

    python native_header.py transduce.h transduce.ffi
"""

import hashlib
import io
import re
import sys
from pathlib import Path


def declarations(header: str) -> str:
    """Return the declarations of a header: no comments, no preprocessor lines."""
    without_comments = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    return re.sub(r"^\s*#.*$", "", without_comments, flags=re.MULTILINE)


def hash_of(header: bytes) -> str:
    """Return the hash that a library reports if it was compiled with this header."""
    return hashlib.sha256(header).hexdigest()


def write_interface(header: Path, interface: Path) -> None:
    """Write Python source that sets `ffi`, the types of a header, and `HEADER_HASH`."""
    from cffi import FFI

    text = header.read_bytes()
    ffi = FFI()
    ffi.cdef(declarations(text.decode()))
    ffi.set_source(interface.stem, None)
    source = io.StringIO()
    ffi.emit_python_code(source)
    interface.write_text(
        f'{source.getvalue()}\nHEADER_HASH = "{hash_of(text)}"\n', encoding="utf-8"
    )


if __name__ == "__main__":
    write_interface(Path(sys.argv[1]), Path(sys.argv[2]))
