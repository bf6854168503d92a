"""The native library is used only if it matches its header."""

import re
import shutil
from pathlib import Path
from typing import Any

import _cffi_backend
import pytest

from transduce import native, native_header
from transduce.errors import RequestError, TransduceWarning
from transduce.native import HEADER, INTERFACE, LIBRARY
from transduce.nn.kernels import nn_api

pytestmark = pytest.mark.skipif(
    native.library() is None, reason="there is no native library"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder with a copy of the library and its header."""
    for name in LIBRARY, HEADER:
        shutil.copy(native.library_folder() / name, tmp_path / name)
    return tmp_path


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRANSDUCE_ISA", raising=False)
    native.api.cache_clear()


def change_header(folder: Path, pattern: str, replacement: str) -> None:
    header = folder / HEADER
    text, count = re.subn(pattern, replacement, header.read_text(), count=1)
    assert count == 1
    header.write_text(text)


def loaded(folder: Path) -> Any:
    return native.load(folder)[1]


def refuses(folder: Path) -> None:
    with pytest.warns(TransduceWarning, match="of another version of transduce"):
        assert loaded(folder) is None


def test_library_with_its_header_is_loaded(folder: Path) -> None:
    assert loaded(folder) is not None


def test_a_library_whose_header_swaps_two_fields_is_refused(folder: Path) -> None:
    change_header(
        folder, r"(const td_nn_api \*nn;)\s*(const td_decode_api \*decode;)", r"\2 \1"
    )
    refuses(folder)


def test_a_library_whose_header_has_another_parameter_is_refused(folder: Path) -> None:
    change_header(folder, r"td_load_isa\(const char \*name", r"\g<0>, int flags")
    refuses(folder)


def test_a_library_with_a_malformed_header_is_refused(folder: Path) -> None:
    change_header(folder, r"typedef enum", "typedef enumeration")
    refuses(folder)


def test_missing_library_gives_no_warning(folder: Path) -> None:
    (folder / LIBRARY).unlink()
    assert loaded(folder) is None


def test_a_library_without_a_header_is_refused(folder: Path) -> None:
    (folder / HEADER).unlink()
    refuses(folder)


def test_a_damaged_library_is_refused(folder: Path) -> None:
    (folder / LIBRARY).unlink()  # do not change the mapped file
    (folder / LIBRARY).write_bytes(b"\x7fELF and nothing else")
    refuses(folder)


def test_library_with_the_interface_of_the_build_needs_no_header(folder: Path) -> None:
    native_header.write_interface(folder / HEADER, folder / INTERFACE)
    (folder / HEADER).unlink()
    assert loaded(folder) is not None


def test_interface_of_another_header_is_ignored(folder: Path) -> None:
    original = (folder / HEADER).read_bytes()
    change_header(folder, r"td_load_isa\(const char \*name", r"\g<0>, int flags")
    native_header.write_interface(folder / HEADER, folder / INTERFACE)
    refuses(folder)
    (folder / HEADER).write_bytes(original)
    types, functions = native.load(folder)
    assert functions is not None
    assert len(types.typeof(functions.td_load_isa).args) == 1


@pytest.mark.parametrize("size", [0, 10, 2_000, -20])
def test_the_header_is_read_in_place_of_a_truncated_interface(
    folder: Path, size: int
) -> None:
    native_header.write_interface(folder / HEADER, folder / INTERFACE)
    (folder / INTERFACE).write_bytes((folder / INTERFACE).read_bytes()[:size])
    assert loaded(folder) is not None
    (folder / HEADER).write_bytes((folder / HEADER).read_bytes()[:size])
    refuses(folder)


def test_the_interface_of_the_build_has_the_layout_of_the_header(folder: Path) -> None:
    parsed, _ = native.load(folder)
    native_header.write_interface(folder / HEADER, folder / INTERFACE)
    built, _ = native.load(folder)
    names = sorted(built.list_types()[0])
    assert names == sorted(parsed.list_types()[0])
    assert "td_api" in names
    for name in names:
        assert layout(built, name) == layout(parsed, name)


def layout(types: Any, name: str) -> Any:
    described = types.typeof(name)
    try:
        size = types.sizeof(described)
    except (ValueError, _cffi_backend.FFI.error):
        return plain(described)  # opaque: cffi aborts if its fields are read
    if described.kind != "struct":
        return plain(described), size
    return size, [
        (field, place.offset, plain(place.type)) for field, place in described.fields
    ]


def plain(described: Any) -> str:
    """Return the name of a type without `struct` or `enum`, which cffi may add."""
    return re.sub(r"\b(struct|enum) ", "", str(described))


def test_an_instruction_set_is_found_by_name() -> None:
    library = native.library()
    names = native.isa_names()
    assert names[-1] == "generic"
    assert library.td_load_isa(b"generic")
    assert not library.td_load_isa(b"mmx")
    runnable = [name for name in names if library.td_load_isa(name.encode())]
    assert native.string(native.api().isa) == runnable[0]


def test_the_environment_chooses_the_instruction_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRANSDUCE_ISA", "generic")
    assert native.string(native.api().isa) == "generic"
    native.api.cache_clear()


def test_unknown_instruction_set_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSDUCE_ISA", "mmx")
    with pytest.raises(RequestError, match=r"TRANSDUCE_ISA is mmx.* generic\."):
        native.api()


@pytest.mark.usefixtures("without_native_library")
def test_the_environment_turns_the_library_off() -> None:
    assert (native.library(), native.api(), nn_api()) == (None, None, None)
    assert not native.isa_names()


def test_each_status_becomes_an_error() -> None:
    library = native.library()
    native.check(library.TD_OK)
    with pytest.raises(RequestError, match="memory"):
        native.check(library.TD_OUT_OF_MEMORY)
    with pytest.raises(IndexError, match="vocabulary"):
        native.check(library.TD_BAD_TOKEN)
    with pytest.raises(ValueError, match="TD_BAD_ARGUMENT"):
        native.check(library.TD_BAD_ARGUMENT)


def test_aligned_arrays_begin_at_a_cache_line() -> None:
    for shape in [(3,), (5, 7), (1, 64)]:
        array = native.empty_aligned(*shape)
        assert array.shape == shape
        address = int(native.ffi.cast("uintptr_t", native.pointer(array, "float *")))
        assert address % native.CACHE_LINE == 0
