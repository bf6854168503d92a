"""Linear maps by kernels of our own, in fp32 or in 8 bits."""

import ctypes
from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transduce.decoding.kernels.fields import LinearFields
from transduce.decoding.kernels.library import loaded_kernels, require_done
from transduce.kernels.loading import address


class PackedLinear(nn.Module, ABC):
    """A linear map whose weights stand in the order in which the kernels read them.

    What comes out of a row does not depend on the rows beside it.
    """

    def __init__(
        self, weight: Float[Tensor, "outputs inputs"], bias: Tensor | None
    ) -> None:
        super().__init__()
        self._library = loaded_kernels()
        outputs = len(weight)
        self._bias = torch.zeros(self._library.transduce_padded(outputs))
        if bias is not None:
            self._bias[:outputs] = bias.detach()
        self.fields = self._pack(weight.detach().float().contiguous())

    def forward(
        self, x: Float[Tensor, "*rows inputs"]
    ) -> Float[Tensor, "*rows outputs"]:
        x = x.float().contiguous()
        y = x.new_empty(*x.shape[:-1], self.fields.outputs)
        status = self._library.transduce_linear(
            ctypes.byref(self.fields),
            address(x),
            y.numel() // self.fields.outputs,
            address(y),
            torch.get_num_threads(),
        )
        require_done(status)
        return y

    @abstractmethod
    def _pack(self, weight: Float[Tensor, "outputs inputs"]) -> LinearFields:
        """The map as the kernels read it; what that points to is kept."""


class PackedFloats(PackedLinear):
    """That with weights of 32 bits, as they are."""

    def _pack(self, weight: Float[Tensor, "outputs inputs"]) -> LinearFields:
        num_bytes = self._library.transduce_packed_bytes(*weight.shape, False)
        self._packed = torch.empty(num_bytes // 4)
        packed, threads = address(self._packed), torch.get_num_threads()
        self._library.transduce_pack(address(weight), *weight.shape, packed, threads)
        return LinearFields(*weight.shape, packed, None, None, address(self._bias))


class PackedInt8(PackedLinear):
    """That with weights of 8 bits, an own scale for each output.

    What it reads is put into 8 bits as it comes, each row with a scale and an offset of
    its own.
    """

    def _pack(self, weight: Float[Tensor, "outputs inputs"]) -> LinearFields:
        num_bytes = self._library.transduce_packed_bytes(*weight.shape, True)
        self._packed = torch.zeros(num_bytes, dtype=torch.int8)
        self._scales, self._sums = torch.zeros(2, len(self._bias))
        packed = address(self._packed, torch.int8)
        scales, sums = address(self._scales), address(self._sums)
        threads = torch.get_num_threads()
        self._library.transduce_pack_int8(
            address(weight), *weight.shape, packed, scales, sums, threads
        )
        return LinearFields(*weight.shape, packed, scales, sums, address(self._bias))
