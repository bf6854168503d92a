import ctypes
import shutil

import pytest
import torch

from transduce.decoding.kernels import library
from transduce.decoding.kernels.library import address, kernels, require_memory
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
    (tmp_path / "compiled.another-system.so").write_bytes(b"not for this one")
    assert kernels() is None


def test_lack_of_memory_is_told():
    require_memory(0)
    with pytest.raises(RequestError, match="must have memory for a step, but there is"):
        require_memory(1)


def test_numbers_must_follow_each_other():
    assert address(None) is None
    assert address(torch.zeros(2, 2)) is not None
    with pytest.raises(AssertionError):
        address(torch.zeros(2, 3).t())
