"""Where the numbers of tensors stand, for kernels."""

import torch
from torch import Tensor


def address(tensor: Tensor, dtype: torch.dtype = torch.float32) -> int:
    """Where a tensor's numbers begin; they must be such, and follow each other.

    It is good for as long as the tensor is kept.
    """
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    return tensor.data_ptr()
