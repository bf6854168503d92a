import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transduce.decoding.kernels import library as of_decoding
from transduce.model.operators.kernels import library as of_training

from transduce.kernels import loading
from transduce.kernels.loading import BUILDS, SUFFIX, address, room_for
from transduce.kernels.openmp import run_in_threads
from transduce.machine import processor_flags


@pytest.fixture(params=[of_decoding, of_training], ids=["decoding", "training"])
def library(request):
    """Each, asked for anew."""
    request.param.kernels.cache_clear()
    yield request.param
    request.param.kernels.cache_clear()


def runnable(build: str) -> bool:
    return BUILDS[build] <= processor_flags()


@pytest.fixture(params=BUILDS)
def build(request, monkeypatch):
    """Each that this processor can run, as if it could run no other."""
    if not runnable(request.param):
        pytest.skip("this processor cannot run it")
    monkeypatch.setattr(loading, "processor_flags", lambda: BUILDS[request.param])
    return request.param


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_each_is_compiled_and_found_where_it_can_run(library, build):
    if not (library.FOLDER / f"{build}.c").is_file():
        pytest.skip("it is of other kernels")
    assert isinstance(found := library.kernels(), ctypes.CDLL)
    assert Path(found._name).name.startswith(build)


@pytest.mark.skipif(not runnable("avx2"), reason="this processor can run none")
def test_the_next_best_serves_where_one_is_lacking(library, monkeypatch, tmp_path):
    shutil.copy(library.FOLDER / f"avx2{SUFFIX}", tmp_path)
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    every = frozenset().union(*BUILDS.values())
    monkeypatch.setattr(loading, "processor_flags", lambda: every)
    assert Path(library.kernels()._name) == tmp_path / f"avx2{SUFFIX}"


def test_a_processor_that_cannot_run_them_has_none(library, monkeypatch):
    monkeypatch.setattr(loading, "processor_flags", lambda: {"avx", "avx512f"})
    assert library.kernels() is None


def test_an_installation_without_a_compiler_has_none(library, monkeypatch, tmp_path):
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    assert library.kernels() is None


def test_what_was_compiled_for_another_system_is_passed_over(
    library, monkeypatch, tmp_path
):
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    for build in BUILDS:
        (tmp_path / f"{build}{SUFFIX}").write_bytes(b"not for this one")
    assert library.kernels() is None


def test_what_lacks_a_kernel_is_passed_over(library, monkeypatch, tmp_path):
    # A library, but not that one.
    for build in BUILDS:
        shutil.copy(torch._C.__file__, tmp_path / f"{build}{SUFFIX}")
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    assert library.kernels() is None


def test_what_reads_other_fields_is_passed_over(library, monkeypatch):
    class OtherFields(ctypes.Structure):
        _fields_ = [("another", ctypes.c_int64)]

    monkeypatch.setattr(library, "FIELDS", (OtherFields, *library.FIELDS[1:]))
    assert library.kernels() is None


@pytest.mark.skipif(not runnable("avx2"), reason="this processor can run none")
def test_pytorchs_threads_are_there():
    assert run_in_threads() is not None


def test_an_address_is_of_numbers_in_a_row():
    numbers = np.zeros((2, 3), np.float32)
    assert address(numbers) == numbers.ctypes.data
    with pytest.raises(AssertionError):
        address(numbers.T)
    with pytest.raises(AssertionError):
        address(numbers, np.int64)


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (100, 1_000)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_])
def test_room_begins_with_a_cache_line(shape, dtype):
    room = room_for(*shape, dtype=dtype)
    assert (room.shape, room.dtype) == (shape, dtype)
    assert address(room, dtype) % 64 == 0
    room[...] = 1
    assert room.all()
