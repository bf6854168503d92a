"""Linear maps by the native library, in fp32 or with weights of 8 bits."""

from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Float32

from transduce.machine import num_threads
from transduce.native import api, check, empty_aligned, ffi, library, pointer

NativePrecision = Literal["fp32", "int8"]
"""Precision of matrix products in the native library."""


class PackedLinear:
    """A linear map whose weights are packed in the order that products read.

    In int8, each output's weights have a scale of their own, and each row that is read
    is rounded with a scale and an offset of its own. A row of the result does not
    depend on other rows.
    """

    def __init__(
        self,
        weight: Float[np.ndarray, "outputs inputs"],
        bias: Float[np.ndarray, " outputs"] | None,
        precision: NativePrecision,
    ) -> None:
        native = api()
        assert native is not None
        self._api = native.decode
        self._outputs = len(weight)
        weight = np.ascontiguousarray(weight, dtype=np.float32)
        if bias is not None:
            bias = np.ascontiguousarray(bias, dtype=np.float32)
        handle = ffi.new("td_linear **")
        check(
            self._api.linear_new(
                pointer(weight, "float *"),
                ffi.NULL if bias is None else pointer(bias, "float *"),
                *weight.shape,
                native_precision(precision),
                num_threads(),
                handle,
            )
        )
        self._handle = ffi.gc(handle[0], self._api.linear_free)

    def __call__(
        self, x: Float32[np.ndarray, "*rows inputs"]
    ) -> Float32[np.ndarray, "*rows outputs"]:
        """Map each row."""
        x = np.ascontiguousarray(x)
        y = empty_aligned(*x.shape[:-1], self._outputs)
        check(
            self._api.linear_apply(
                self._handle,
                pointer(x, "float *"),
                y.size // self._outputs,
                pointer(y, "float *"),
                num_threads(),
            )
        )
        return y

    def scales(self) -> Float32[np.ndarray, " outputs"]:
        """Return the step of each output's rounded weights, in int8."""
        scales = np.empty(self._outputs, np.float32)
        check(self._api.linear_scales(self._handle, pointer(scales, "float *")))
        return scales


def native_precision(precision: NativePrecision) -> Any:
    """Return a precision as the library knows it."""
    loaded = library()
    assert loaded is not None
    return loaded.TD_INT8 if precision == "int8" else loaded.TD_FP32
