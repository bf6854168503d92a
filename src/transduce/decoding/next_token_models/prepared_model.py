"""Models made ready to decode, by kernels of our own or in fewer bits than 32."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal, cast, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.decoding.kernels.library import kernels
from transduce.decoding.kernels.packed_linear import (
    PackedFloats,
    PackedInt8,
    PackedLinear,
)
from transduce.decoding.next_token_models.compiled_stacks import (
    CompiledDecoder,
    CompiledEncoder,
    CompiledStack,
)
from transduce.decoding.next_token_models.flat_step import (
    FlatLayer,
    FlatStep,
    MakeLinear,
    plain_linear,
)
from transduce.decoding.next_token_models.incremental import IncrementalDecoder, Step
from transduce.device import is_good_at_bf16, keep_freed_memory, processor_flags
from transduce.errors import ConfigError, RequestError
from transduce.model.embedding import SharedEmbedding
from transduce.model.transformer import Memory, Transformer

DecodingPrecision = Literal["fp32", "bf16", "int8"]
"""Of the matrix products of decoding: fp32 is exact."""

MakePacked = Callable[[Tensor, Tensor | None], nn.Module]
"""Of a weight and a bias: their linear map, ready for a kernel."""
Encode = Callable[[Tensor], Memory]
"""`Transformer.encode`, or what does the same."""
Start = Callable[[Memory], IncrementalDecoder]
"""What reads translations of the sources that the memory is of."""

WITHOUT_KERNELS = (
    "Precision int8 is without its compiled kernels, which make it one and a half to "
    "four times as fast; they are compiled as transduce is installed, if there is a C "
    "compiler: install gcc or clang, then transduce once more."
)


def available(device: torch.device) -> list[DecodingPrecision]:
    """The precisions that a device computes in without emulating them."""
    found: list[DecodingPrecision] = ["fp32"]
    if is_good_at_bf16(device.type):
        found.append("bf16")
    if device.type == "cpu" and _has_int8():
        found.append("int8")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """A model on its device, ready to decode in a precision."""

    model: Transformer
    encode: Encode
    """What `model.encode` does, as fast as may be."""
    step: Step
    """What `model.step` does, fast, and watched if anyone looks at attention."""
    start: Start
    """The decoder before its first step, as fast as may be."""

    def read(self, source: Int[Tensor, "batch source"]) -> IncrementalDecoder:
        """The model, which has read sources, and reads their translations."""
        return self.start(self.encode(source))


def prepared(
    model: Transformer, precision: DecodingPrecision, device: torch.device
) -> PreparedModel:
    """The model made ready, in place; of what is packed, it has the weights no more.

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
        return _packed(model, PackedInt8 if kernels() else _by_torch_in_int8())
    model = model.to(device)
    if precision == "fp32" and device.type == "cpu" and kernels():
        return _packed(model.float(), PackedFloats)
    # Unlike the paper: bf16, if it is asked for, several times faster where the
    # processor has it.
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    step = _step(model, plain_linear, dtype)
    return _by_operators(model.to(dtype), step)


@torch.no_grad()
def _step(model: Transformer, make_linear: MakeLinear, dtype: torch.dtype) -> Step:
    # Additive scores are no product of queries and keys.
    is_product = model.config.scores != "additive"
    return FlatStep(model, make_linear, dtype) if is_product else model.step


@torch.no_grad()
def _packed(model: Transformer, make_linear: MakePacked) -> PreparedModel:
    """By kernels of our own, where there are such."""
    packed: MakePacked = cache(make_linear)  # a matrix that both have is packed once
    step = _step(model, packed, torch.float32)
    if not kernels() or not isinstance(step, FlatStep):
        return _by_operators(_with_packed_maps(model, packed), step)
    layers = model.encoder_layers
    encoder = [FlatLayer(each, packed, torch.float32) for each in layers]
    model = _with_packed_maps(model, packed)
    output = cast(PackedEmbedding, model.output_embedding).output
    stack = CompiledStack(model, step, cast(PackedLinear, output))
    return PreparedModel(
        model=model,
        encode=CompiledEncoder(model, encoder),
        step=step,
        start=partial(CompiledDecoder, stack),
    )


def _by_torch_in_int8() -> MakePacked:
    warnings.warn(WITHOUT_KERNELS, RuntimeWarning, stacklevel=3)
    return Int8Linear


def _by_operators(model: Transformer, step: Step) -> PreparedModel:
    return PreparedModel(
        model=model,
        encode=model.encode,
        step=step,
        start=lambda memory: IncrementalDecoder(model, memory, step),
    )


def _has_int8() -> bool:
    """Whether there are kernels for int8, ours or those of PyTorch."""
    # On other processors, PyTorch's sums of 16 bits would overflow.
    return kernels() is not None or "avx512_vnni" in processor_flags()


def _require_int8(device: torch.device) -> None:
    if device.type != "cpu":
        raise RequestError(
            f"Precision int8 must have a CPU, but the device is {device.type}; use "
            "--device cpu, or precision bf16."
        )
    if _has_int8():
        return
    if "avx2" in processor_flags():
        raise RequestError(
            "Precision int8 must have kernels here that are compiled as transduce is "
            "installed, but there are none; install gcc or clang, then transduce once "
            "more, or use precision fp32."
        )
    raise RequestError(
        "Precision int8 must have an x86 processor with AVX2 instructions under Linux, "
        "but none is seen here; use precision fp32 or bf16."
    )


class Int8Linear(nn.Module):
    """A linear map with weights of 8 bits, by PyTorch's kernels.

    For installations that have none of ours. What it reads is put into 8 bits as it
    comes, with one scale for all rows; so what comes out depends a little on the rows
    beside it.
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


class PackedEmbedding(SharedEmbedding):
    """That of the target, its product with the decoder's states by a packed map."""

    def __init__(self, embedding: SharedEmbedding, packed: MakePacked) -> None:
        nn.Module.__init__(self)  # the weight is there
        self.d_model = embedding.d_model
        self.weight, self.bias = embedding.weight, embedding.bias
        self.output = packed(embedding.weight, embedding.bias)

    def logits(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows vocab"]:
        """How well each output fits each row."""
        return cast(Tensor, self.output(x))


def _with_packed_maps(model: Transformer, packed: MakePacked) -> Transformer:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                module.add_module(name, packed(child.weight, child.bias))
    name = "embedding" if model.target_embedding is None else "target_embedding"
    model.add_module(name, PackedEmbedding(model.output_embedding, packed))
    return model
