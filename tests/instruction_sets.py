"""Instruction sets of the native library that this processor can run."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from transduce import native
from transduce.nn.native_operators import nn_api


def runnable_isas() -> list[str]:
    """Return names of instruction sets, fastest first."""
    library = native.library()
    if library is None:
        return []
    names = native.string(library.td_isa_names()).split()
    return [name for name in names if library.td_load_isa(name.encode())]


@contextmanager
def chosen_isa(name: str) -> Iterator[None]:
    """Let the native functions use this instruction set until the context ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSDUCE_ISA", name)
        _reload()
        yield
    _reload()


def _reload() -> None:
    for cached in (native.api, nn_api):
        cached.cache_clear()
