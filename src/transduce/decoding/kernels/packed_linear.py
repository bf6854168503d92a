"""Linear maps in 8 bits, by kernels of our own."""

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transduce.decoding.kernels.fields import LinearFields
from transduce.decoding.kernels.library import (
    address,
    loaded_kernels,
    require_done,
)


class PackedLinear(nn.Module):
    """A linear map with weights of 8 bits, an own scale for each output.

    What it reads is put into 8 bits as it comes, each row with a scale and an offset of
    its own; so what comes out does not depend on the rows beside it.
    """

    def __init__(
        self, weight: Float[Tensor, "outputs inputs"], bias: Tensor | None
    ) -> None:
        super().__init__()
        self._library = library = loaded_kernels()
        outputs, inputs = weight.shape
        padded = library.transduce_padded(outputs)
        num_bytes = library.transduce_packed_bytes(outputs, inputs)
        self._packed = torch.zeros(num_bytes, dtype=torch.int8)
        self._scales, self._sums, self._bias = torch.zeros(3, padded)
        if bias is not None:
            self._bias[:outputs] = bias.detach()
        numbers = weight.detach().float().contiguous()
        packed = address(self._packed, torch.int8)
        scales, sums = address(self._scales), address(self._sums)
        library.transduce_pack(address(numbers), outputs, inputs, packed, scales, sums)
        self.fields = LinearFields(
            outputs, inputs, packed, scales, sums, address(self._bias)
        )

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
