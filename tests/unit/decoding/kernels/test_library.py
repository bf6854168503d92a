import ctypes
import math
import shutil
from pathlib import Path

import pytest
import torch

from transduce.decoding.kernels import library
from transduce.decoding.kernels.fields import LinearFields
from transduce.decoding.kernels.library import (
    BUILDS,
    OUT_OF_MEMORY,
    address,
    kernels,
    require_done,
)
from transduce.decoding.kernels.packed_linear import PackedFloats, PackedInt8
from transduce.device import processor_flags
from transduce.errors import RequestError


@pytest.fixture
def asked_anew():
    kernels.cache_clear()
    yield
    kernels.cache_clear()


def runnable(build: str) -> bool:
    return BUILDS[build] <= processor_flags()


@pytest.fixture(params=BUILDS)
def build(request, monkeypatch, asked_anew):
    """Each that this processor can run, as if it could run no other."""
    if not runnable(request.param):
        pytest.skip("this processor cannot run it")
    monkeypatch.setattr(library, "processor_flags", lambda: BUILDS[request.param])
    return request.param


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_each_is_compiled_and_found_where_it_can_run(build):
    assert isinstance(found := kernels(), ctypes.CDLL)
    assert Path(found._name).name.startswith(build)


@pytest.mark.skipif(not runnable("avx2"), reason="this processor can run none")
@pytest.mark.usefixtures("asked_anew")
def test_the_next_best_serves_where_one_is_lacking(monkeypatch, tmp_path):
    shutil.copy(library.FOLDER / f"avx2{library.SUFFIX}", tmp_path)
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    every = frozenset().union(*BUILDS.values())
    monkeypatch.setattr(library, "processor_flags", lambda: every)
    assert Path(kernels()._name) == tmp_path / f"avx2{library.SUFFIX}"


@pytest.mark.skipif(not runnable("avx512"), reason="this processor can run but one")
@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize("packed_linear", [PackedFloats, PackedInt8])
@torch.no_grad()
def test_all_say_the_same(monkeypatch, packed_linear):
    weight, bias, x = torch.randn(70, 33), torch.randn(70), torch.randn(13, 33)
    best = packed_linear(weight, bias)(x)
    monkeypatch.setattr(library, "processor_flags", lambda: BUILDS["avx2"])
    kernels.cache_clear()
    other = packed_linear(weight, bias)
    torch.testing.assert_close(other(x), best, rtol=1e-6, atol=1e-5)


@pytest.mark.usefixtures("asked_anew")
def test_a_processor_that_cannot_run_them_has_none(monkeypatch):
    monkeypatch.setattr(library, "processor_flags", lambda: {"avx", "avx512f"})
    assert kernels() is None


@pytest.mark.usefixtures("asked_anew")
def test_an_installation_without_a_compiler_has_none(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    assert kernels() is None


@pytest.mark.usefixtures("asked_anew")
def test_what_was_compiled_for_another_system_is_passed_over(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    for build in BUILDS:
        (tmp_path / f"{build}{library.SUFFIX}").write_bytes(b"not for this one")
    assert kernels() is None


@pytest.mark.usefixtures("asked_anew")
def test_what_lacks_a_kernel_is_passed_over(monkeypatch, tmp_path):
    # A library, but not that one.
    for build in BUILDS:
        shutil.copy(math.__file__, tmp_path / f"{build}{library.SUFFIX}")
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    assert kernels() is None


@pytest.mark.usefixtures("asked_anew")
def test_what_reads_other_fields_is_passed_over(monkeypatch):
    class OtherFields(LinearFields):
        _fields_ = [("another", ctypes.c_int64)]

    monkeypatch.setattr(library, "LinearFields", OtherFields)
    assert kernels() is None


def test_lack_of_memory_is_told():
    require_done(0)
    with pytest.raises(RequestError, match="must have memory for a step, but there is"):
        require_done(OUT_OF_MEMORY)


def test_an_address_is_of_numbers_in_a_row():
    numbers = torch.zeros(2, 3)
    assert address(numbers) == numbers.data_ptr()
    with pytest.raises(AssertionError):
        address(numbers.t())
    with pytest.raises(AssertionError):
        address(numbers, torch.int64)
