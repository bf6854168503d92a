"""Models whose matrix products are in fewer bits than 32, for speed."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transduce.decoding.next_token_models.flat_step import (
    FlatStep,
    MakeLinear,
    plain_linear,
)
from transduce.decoding.next_token_models.incremental import Step
from transduce.device import has_int8_products, is_good_at_bf16, keep_freed_memory
from transduce.errors import ConfigError, RequestError
from transduce.model.embedding import SharedEmbedding
from transduce.model.transformer import Transformer

DecodingPrecision = Literal["fp32", "bf16", "int8"]
"""Of the matrix products of decoding: fp32 is exact."""


def available(device: torch.device) -> list[DecodingPrecision]:
    """The precisions that a device computes in without emulating them."""
    found: list[DecodingPrecision] = ["fp32"]
    if is_good_at_bf16(device.type):
        found.append("bf16")
    if device.type == "cpu" and has_int8_products():
        found.append("int8")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """A model on its device, ready to decode in a precision."""

    model: Transformer
    step: Step
    """What `model.step` does, as fast as may be."""


def prepared(
    model: Transformer, precision: DecodingPrecision, device: torch.device
) -> PreparedModel:
    """The model made ready, in place.

    `RequestError` if the device cannot.
    """
    if precision not in get_args(DecodingPrecision):
        raise ConfigError(
            f'`precision` must be "fp32", "bf16" or "int8", but is "{precision}".'
        )
    if device.type == "cpu":
        keep_freed_memory()  # each step allots the logits of all hypotheses
    if precision == "int8":
        _require_int8(device)
        # Unlike the paper: 8 bits, if they are asked for, for speed on processors that
        # multiply them faster.
        # A matrix that both have is packed once.
        packed = cache(Int8Linear)
        step = _step(
            model, lambda weight, bias: packed(weight, bias).forward, torch.float32
        )
        return PreparedModel(model=_in_int8(model, packed), step=step)
    # Unlike the paper: bf16, if it is asked for, several times faster where the
    # processor has it.
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = model.to(device)
    step = _step(model, plain_linear, dtype)
    return PreparedModel(model=model.to(dtype), step=step)


@torch.no_grad()
def _step(model: Transformer, make_linear: MakeLinear, dtype: torch.dtype) -> Step:
    # Additive scores are no product of queries and keys.
    is_product = model.config.scores != "additive"
    return FlatStep(model, make_linear, dtype) if is_product else model.step


def _require_int8(device: torch.device) -> None:
    if device.type != "cpu":
        raise RequestError(
            f"Precision int8 must have a CPU, but the device is {device.type}; use "
            "--device cpu, or precision bf16."
        )
    if not has_int8_products():
        raise RequestError(
            "Precision int8 must have a processor with AVX-512 VNNI instructions, but "
            "this one has none; use precision fp32 or bf16."
        )


class Int8Linear(nn.Module):
    """A linear map with weights of 8 bits, an own scale for each output.

    What it reads is put into 8 bits as it comes, with one scale for all rows; so what
    comes out depends a little on the rows beside it.
    """

    def __init__(
        self, weight: Float[Tensor, "outputs inputs"], bias: Tensor | None
    ) -> None:
        super().__init__()
        largest = weight.detach().abs().amax(dim=1).clamp(min=1e-8)
        with warnings.catch_warnings():
            # Such tensors are to go, but what multiplies faster is not there yet.
            warnings.simplefilter("ignore")
            quantized = torch.quantize_per_channel(
                weight.detach(),
                scales=largest.double() / 127,
                zero_points=torch.zeros(len(weight), dtype=torch.int64),
                axis=0,
                dtype=torch.qint8,
            )
        self._packed = torch.ops.quantized.linear_prepack(
            quantized, None if bias is None else bias.detach()
        )

    def forward(
        self, x: Float[Tensor, "*rows inputs"]
    ) -> Float[Tensor, "*rows outputs"]:
        return torch.ops.quantized.linear_dynamic(x, self._packed, False)


class Int8Embedding(SharedEmbedding):
    """That of the target, its product with the decoder's states in 8 bits."""

    def __init__(self, embedding: SharedEmbedding) -> None:
        nn.Module.__init__(self)  # the weight is there
        self.d_model = embedding.d_model
        self.weight, self.bias = embedding.weight, embedding.bias
        self.output = Int8Linear(embedding.weight, embedding.bias)

    def logits(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows vocab"]:
        """How well each output fits each row."""
        return cast(Tensor, self.output(x))


def _in_int8(model: Transformer, packed: Callable[..., Int8Linear]) -> Transformer:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                module.add_module(name, packed(child.weight, child.bias))
    name = "embedding" if model.target_embedding is None else "target_embedding"
    model.add_module(name, Int8Embedding(model.output_embedding))
    return model
