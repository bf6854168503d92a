"""Decoding by PyTorch, in fp32 or with fewer bits."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.architectures.config import require_transformer
from transduce.architectures.models import Stepper, TransductionModel
from transduce.checkpoint import Checkpoint, built
from transduce.data.tensors import pad_rows
from transduce.decoding.cuda_graphs import CudaGraphs, GraphedDecoder, Recorder
from transduce.decoding.fused_step import (
    FusedStep,
    plain_linear,
)
from transduce.decoding.native_model import (
    STEP_OVERHEAD,
    DecodingPrecision,
    NativePrecision,
    PackedLinear,
)
from transduce.decoding.torch_decoder import CoverageDecoder, IncrementalDecoder
from transduce.device import is_good_at_bf16
from transduce.errors import RequestError
from transduce.machine import processor_flags
from transduce.metrics.perplexity import TargetScore
from transduce.model.embedding import SharedEmbedding
from transduce.model.transformer import Memory, Transformer
from transduce.model_folder import ModelFolder
from transduce.native import api
from transduce.nn.fuse import fuse
from transduce.text.vocabulary import BOS, EOS, PAD

MakeMap = Callable[[Tensor, Tensor | None], nn.Module]
"""Function of a weight and a bias that returns their linear map."""

WITHOUT_KERNELS = (
    "Precision int8 is without its compiled kernels, which make it one and a half to "
    "four times as fast; they are compiled as transduce is installed, if there is a C "
    "compiler: install gcc or clang, then transduce once more."
)


def available(device: torch.device) -> list[DecodingPrecision]:
    """Return the precisions that a device computes in without emulation."""
    found: list[DecodingPrecision] = ["fp32"]
    if is_good_at_bf16(device.type):
        found.append("bf16")
    if device.type == "cpu" and _has_int8():
        found.append("int8")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchModel:
    """A model on its device, prepared for decoding in a precision."""

    model: TransductionModel
    stepper: Stepper
    """`FusedStep` for a Transformer, otherwise the model itself."""
    recorder: Recorder | None = None
    """Recorder of steps, on a GPU."""

    @property
    def transformer(self) -> Transformer:
        """The model; `RequestError` if it has another architecture."""
        require_transformer(self.model.config)
        return cast(Transformer, self.model)

    @torch.inference_mode()
    def encode(self, sources: Sequence[Sequence[int]]) -> Memory:
        """Encode sources, which include their end tokens."""
        device = self.model.output_weight.device
        return self.model.encode(pad_rows(list(map(list, sources))).to(device))

    @property
    def step_overhead(self) -> int:
        """Fixed cost of a decoding step, to start it and to read weights, in rows."""
        return STEP_OVERHEAD

    def start(
        self, memory: Memory, *, sum_attention: bool = False
    ) -> IncrementalDecoder:
        """Return a decoder of encoded sources.

        With `sum_attention` it is a `CoverageDecoder`; raises `RequestError` if the
        model is not a Transformer.
        """
        if sum_attention:
            require_transformer(self.model.config)
            return CoverageDecoder(cast(FusedStep, self.stepper), memory)
        if self.recorder is None or not isinstance(self.stepper, FusedStep):
            return IncrementalDecoder(self.stepper, memory)
        return GraphedDecoder(self.stepper, memory, self.recorder)

    def score(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[TargetScore]:
        """Score targets without end tokens for sources with end tokens."""
        return score_by_torch(self.model, list(sources), list(targets))


def prepare(
    checkpoint: ModelFolder | Checkpoint, precision: DecodingPrecision, device: str
) -> TorchModel:
    """Prepare a stored model; raise `RequestError` if the device cannot decode it."""
    weights = {n: torch.from_numpy(w) for n, w in checkpoint.arrays().items()}
    model = built(checkpoint.config, weights)
    return prepared(model, precision, torch.device(device))


@torch.no_grad()
def prepared(
    model: TransductionModel, precision: DecodingPrecision, device: torch.device
) -> TorchModel:
    """Prepare a model, whose parameters may be converted in place.

    Raises `RequestError` if the device cannot decode in this precision.
    """
    model = fuse(model)
    is_transformer = isinstance(model, Transformer)
    if precision == "int8":
        require_transformer(model.config)
        _require_int8(device)
        return _packed(
            cast(Transformer, model), _natively("int8") or _by_torch_in_int8()
        )
    model.to(device)
    if precision == "fp32" and device.type == "cpu" and is_transformer:
        natively = _natively("fp32")
        if natively is not None:
            return _packed(cast(Transformer, model).float(), natively)
    # Unlike the paper: bf16, if it is asked for, several times faster where the
    # processor has it.
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    stepper = (
        FusedStep(model, plain_linear, dtype)
        if isinstance(model, Transformer)
        else model
    )
    recorder = CudaGraphs(device) if device.type == "cuda" else None
    model.to(dtype)
    return TorchModel(model=model, stepper=stepper, recorder=recorder)


def _natively(precision: NativePrecision) -> MakeMap | None:
    return None if api() is None else partial(PackedMap, precision)


def _packed(model: Transformer, make_map: MakeMap) -> TorchModel:
    made: MakeMap = cache(make_map)  # a shared matrix is packed once
    stepper = FusedStep(model, made)
    return TorchModel(model=_with_maps(model, made), stepper=stepper)


def _by_torch_in_int8() -> MakeMap:
    warnings.warn(WITHOUT_KERNELS, RuntimeWarning, stacklevel=4)
    return Int8Linear


def _has_int8() -> bool:
    """Whether the native library or PyTorch multiplies in int8."""
    # On other processors, PyTorch's sums of 16 bits would overflow.
    return api() is not None or "avx512_vnni" in processor_flags()


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
    """A linear map with weights of 8 bits by PyTorch.

    For installations without the native library. All rows are rounded with one scale,
    so that a result depends a little on the other rows.
    """

    def __init__(
        self, weight: Float[Tensor, "outputs inputs"], bias: Tensor | None
    ) -> None:
        super().__init__()
        largest = weight.detach().abs().amax(dim=1).clamp(min=1e-8)
        with warnings.catch_warnings():
            # Deprecated, but its successor multiplies more slowly.
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


class PackedMap(nn.Module):
    """A linear map by the native library."""

    def __init__(
        self,
        precision: NativePrecision,
        weight: Float[Tensor, "outputs inputs"],
        bias: Tensor | None,
    ) -> None:
        super().__init__()
        self.packed = PackedLinear(
            weight.detach().float().numpy(),
            None if bias is None else bias.detach().float().numpy(),
            precision,
        )

    def forward(
        self, x: Float[Tensor, "*rows inputs"]
    ) -> Float[Tensor, "*rows outputs"]:
        return torch.from_numpy(self.packed(x.detach().float().numpy()))


class PackedEmbedding(SharedEmbedding):
    """The target embedding, with logits by a packed map."""

    def __init__(self, embedding: SharedEmbedding, make_map: MakeMap) -> None:
        nn.Module.__init__(self)  # the weight is there
        self.d_model = embedding.d_model
        self.weight, self.bias = embedding.weight, embedding.bias
        self.output = make_map(embedding.weight, embedding.bias)

    def logits(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows vocab"]:
        """Return the logits of rows."""
        return cast(Tensor, self.output(x))


def _with_maps(model: Transformer, make_map: MakeMap) -> Transformer:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                module.add_module(name, make_map(child.weight, child.bias))
    name = "embedding" if model.target_embedding is None else "target_embedding"
    model.add_module(name, PackedEmbedding(model.output_embedding, make_map))
    return model


LOGIT_POSITIONS = 256
"""Positions whose logits are computed at once: 38 MB for 37,000 tokens."""


def score_by_torch(
    model: TransductionModel, sources: list[list[int]], targets: list[list[int]]
) -> list[TargetScore]:
    """Score a batch; sources include their end tokens, targets do not."""
    device = model.output_weight.device
    return score_targets(model, pad_rows(sources).to(device), targets)


@torch.no_grad()
def score_targets(
    model: TransductionModel,
    source: Int[Tensor, "batch source"],
    targets: list[list[int]],
) -> list[TargetScore]:
    """The log-probability of each target, in one pass over the batch."""
    target_in = pad_rows([[BOS, *ids] for ids in targets]).to(source.device)
    target_out = pad_rows([[*ids, EOS] for ids in targets]).to(source.device)
    states = model.decode(target_in, model.encode(source))
    totals = [
        _log_probability(model, row_states, row_out)
        for row_states, row_out in zip(states, target_out, strict=True)
    ]
    return [
        TargetScore(log_probability=total, num_tokens=len(ids) + 1)
        for total, ids in zip(totals, targets, strict=True)
    ]


def _log_probability(
    model: TransductionModel,
    states: Float[Tensor, "target d_model"],
    target_out: Int[Tensor, " target"],
) -> float:
    """Log-probability of a target, a few positions at a time to save memory."""
    total = 0.0
    for some_states, some_out in zip(
        states.split(LOGIT_POSITIONS), target_out.split(LOGIT_POSITIONS), strict=True
    ):
        log_probs = model.logits(some_states).float().log_softmax(dim=-1)
        chosen = log_probs.gather(-1, some_out[:, None]).squeeze(-1).double()
        total += float(chosen.masked_fill(some_out == PAD, 0.0).sum())
    return total
