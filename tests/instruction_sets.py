"""Instruction sets of the native library that this processor can run."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from jaxtyping import Float32, Float64

from transduce import native
from transduce.model_folder import QuantizedWeight
from transduce.nn.kernels import nn_api


def runnable_isas() -> list[str]:
    """Return names of instruction sets, fastest first."""
    library = native.library()
    if library is None:
        return []
    names = native.string(library.td_isa_names()).split()
    return [name for name in names if library.td_load_isa(name.encode())]


@contextmanager
def chosen_isa(name: str) -> Iterator[None]:
    """Use this instruction set until the context ends; with "none", no native library.

    Weights and caches that exist already stay those of the previous set.
    """
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRANSDUCE_ISA", name)
            _reload()
            yield
    finally:
        _reload()


def _reload() -> None:
    for cached in (native.library, native.api, nn_api):
        cached.cache_clear()


def packed_weights(
    weight: Float32[np.ndarray, "outputs inputs"],
    scales: Float32[np.ndarray, " outputs"],
) -> Float64[np.ndarray, "outputs inputs"]:
    """Return the weights by which an int8 map with these scales multiplies.

    Where products are added in 16 bits, the int8 values of an output are divided by
    n / 126 and rounded once more, halves away from zero; n is a whole number.
    """
    fine = QuantizedWeight.of(weight)
    values, sums = fine.values.astype(int), np.rint(scales / fine.scales * 126)
    sums = sums.astype(int)[:, None]
    sizes = (2 * 126 * np.abs(values) + sums) // (2 * sums)
    return np.sign(values) * sizes * scales[:, None].astype(np.float64)
