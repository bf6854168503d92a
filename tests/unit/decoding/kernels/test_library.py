import ctypes
import math
import shutil
from pathlib import Path

import pytest
import torch

from transduce.decoding.kernels import library
from transduce.decoding.kernels.fields import LinearFields
from transduce.decoding.kernels.library import (
    OUT_OF_MEMORY,
    address,
    kernels,
    require_done,
)
from transduce.device import has_int8_products
from transduce.errors import RequestError


@pytest.fixture
def asked_anew():
    kernels.cache_clear()
    yield
    kernels.cache_clear()


@pytest.mark.skipif(not has_int8_products(), reason="this processor has no VNNI")
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_they_are_compiled_where_they_can_be():
    assert isinstance(kernels(), ctypes.CDLL)


@pytest.mark.usefixtures("asked_anew")
def test_a_processor_that_cannot_run_them_has_none(monkeypatch):
    monkeypatch.setattr(library, "has_int8_products", lambda: False)
    assert kernels() is None


@pytest.mark.usefixtures("asked_anew")
def test_an_installation_without_a_compiler_has_none(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    assert kernels() is None


@pytest.mark.usefixtures("asked_anew")
def test_what_was_compiled_for_another_system_is_passed_over(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    (tmp_path / library.FILE).write_bytes(b"not for this one")
    assert kernels() is None


@pytest.mark.usefixtures("asked_anew")
def test_what_lacks_a_kernel_is_passed_over(monkeypatch):
    # A library, but not that one.
    monkeypatch.setattr(library, "FOLDER", Path(math.__file__).parent)
    monkeypatch.setattr(library, "FILE", Path(math.__file__).name)
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
