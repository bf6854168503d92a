"""Linear maps by kernels of our own, in fp32 or in 8 bits."""

import ctypes
from abc import ABC, abstractmethod

import numpy as np
from jaxtyping import Float, Float32

from transduce.decoding.kernels.fields import LinearFields
from transduce.decoding.kernels.library import loaded_kernels, require_done
from transduce.kernels.loading import address, room_for
from transduce.kernels.openmp import num_threads


class PackedLinear(ABC):
    """A linear map whose weights stand in the order in which the kernels read them.

    What comes out of a row does not depend on the rows beside it.
    """

    def __init__(
        self,
        weight: Float[np.ndarray, "outputs inputs"],
        bias: Float[np.ndarray, " outputs"] | None,
    ) -> None:
        self._library = loaded_kernels()
        outputs = len(weight)
        self._bias = np.zeros(self._library.transduce_padded(outputs), np.float32)
        if bias is not None:
            self._bias[:outputs] = bias
        self.fields = self._pack(np.ascontiguousarray(weight, dtype=np.float32))

    def __call__(
        self, x: Float32[np.ndarray, "*rows inputs"]
    ) -> Float32[np.ndarray, "*rows outputs"]:
        """The map of each row."""
        x = np.ascontiguousarray(x)
        y = room_for(*x.shape[:-1], self.fields.outputs)
        status = self._library.transduce_linear(
            ctypes.byref(self.fields),
            address(x),
            y.size // self.fields.outputs,
            address(y),
            num_threads(),
        )
        require_done(status)
        return y

    @abstractmethod
    def _pack(self, weight: Float32[np.ndarray, "outputs inputs"]) -> LinearFields:
        """The map as the kernels read it; what that points to is kept."""


class PackedFloats(PackedLinear):
    """That with weights of 32 bits, as they are."""

    def _pack(self, weight: Float32[np.ndarray, "outputs inputs"]) -> LinearFields:
        num_bytes = self._library.transduce_packed_bytes(*weight.shape, False)
        self._packed = room_for(num_bytes // 4)
        packed = address(self._packed)
        self._library.transduce_pack(
            address(weight), *weight.shape, packed, num_threads()
        )
        return LinearFields(*weight.shape, packed, None, None, address(self._bias))


class PackedInt8(PackedLinear):
    """That with weights of 8 bits, an own scale for each output.

    What it reads is put into 8 bits as it comes, each row with a scale and an offset of
    its own.
    """

    def _pack(self, weight: Float32[np.ndarray, "outputs inputs"]) -> LinearFields:
        num_bytes = self._library.transduce_packed_bytes(*weight.shape, True)
        self._packed = room_for(num_bytes, dtype=np.int8)
        self._packed[:] = 0
        self._scales, self._sums = np.zeros((2, len(self._bias)), np.float32)
        packed = address(self._packed, np.int8)
        scales, sums = address(self._scales), address(self._sums)
        self._library.transduce_pack_int8(
            address(weight), *weight.shape, packed, scales, sums, num_threads()
        )
        return LinearFields(*weight.shape, packed, scales, sums, address(self._bias))
