"""Models in PyTorch, prepared for decoding: on GPUs, in bf16, or for analysis."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor, nn

from transduce.architectures.config import architecture_of, require_transformer
from transduce.architectures.interface import EncodedSource, Stepper, TransductionModel
from transduce.checkpoint import Checkpoint, build_with_weights, require_fitting_weights
from transduce.data.tensors import pad_rows
from transduce.decoding.graphed_decoder import CudaGraphs, GraphedDecoder, StepGraphs
from transduce.decoding.native_decoder import (
    STEP_OVERHEAD,
    DecodingPrecision,
    NativePrecision,
    native_precision,
)
from transduce.decoding.torch_decoder import (
    FusedStep,
    TorchCoverageDecoder,
    TorchDecoder,
    plain_linear,
)
from transduce.device import (
    for_inference,
    is_good_at_bf16,
    keep_forks_usable,
    torch_defaults,
    warn_if_emulated,
)
from transduce.errors import RequestError, warn_caller
from transduce.machine import num_threads, processor_flags
from transduce.metrics.scores import TargetScore
from transduce.model.attention import recorded_weights
from transduce.model.embedding import OutputLayer, SharedEmbedding
from transduce.model.transformer import Transformer
from transduce.model_folder import ModelFolder, QuantizedWeight
from transduce.native import LOADING, api, check, empty_aligned, ffi, pointer
from transduce.nn.fuse import fuse
from transduce.text.shortlist import Shortlist
from transduce.text.vocabulary import BOS, EOS

MakeLinearModule = Callable[[Tensor, Tensor | None], nn.Module]
"""Function of a weight and a bias that returns their linear map."""

WITHOUT_KERNELS = (
    "Precision int8 is without its compiled kernels, which make it 1.5 to 4 times as "
    "fast; they are compiled when transduce is installed, if there is a C compiler: "
    "install gcc or clang, then transduce again."
)


def available_precisions(device: torch.device) -> list[DecodingPrecision]:
    """Return the precisions in which a device computes without emulation."""
    found: list[DecodingPrecision] = ["fp32"]
    if is_good_at_bf16(device.type):
        found.append("bf16")
    if device.type == "cpu" and _has_int8():
        found.append("int8")
    return found


IDLE_SHARE = 1 / 8
"""Share of a GPU's memory that recorded steps may keep while no decoder has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchModel:
    """A model of any architecture on its device, prepared for decoding."""

    model: TransductionModel
    stepper: Stepper
    """Decoding steps: `FusedStep` for a Transformer, otherwise the model itself."""
    graphs: StepGraphs | None = None
    """Recorded steps of a Transformer, on a GPU."""
    shortlist: Shortlist | None = None
    """Shortlist of target pieces; None if the model has none."""

    def transformer(self, task: str) -> Transformer:
        """Return the Transformer; for others raise `RequestError` with the task."""
        require_transformer(self.model.config, task)
        return cast(Transformer, self.model)

    @for_inference
    def encode(self, sources: Sequence[Sequence[int]]) -> EncodedSource:
        """Encode sources, which include their end tokens."""
        device = self.model.output_weight.device
        return self.model.encode(pad_rows(list(map(list, sources))).to(device))

    @property
    def step_overhead(self) -> int:
        """Fixed cost of a decoding step, to start it and to read weights, in rows."""
        return STEP_OVERHEAD

    def start(self, memory: Any, *, sum_attention: bool = False) -> TorchDecoder:
        """Return a decoder of encoded sources.

        With `sum_attention` it is a `TorchCoverageDecoder`; raises `RequestError` if
        the model has no cross-attention.
        """
        if sum_attention:
            taps = self.model.cross_attention_taps
            if not taps:
                raise RequestError(
                    "A coverage penalty must have cross-attention, but the model's "
                    f'architecture "{architecture_of(self.model.config)}" has none; '
                    "set `search.coverage_penalty` to 0."
                )
            return TorchCoverageDecoder(self.stepper, memory, taps[-1])
        if self.graphs is None or not isinstance(self.stepper, FusedStep):
            return TorchDecoder(self.stepper, memory)
        return GraphedDecoder(self.stepper, memory, self.graphs)

    @for_inference
    def cross_attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[Float[np.ndarray, "layers target source"]]:
        """Return each layer's attention when it predicts the target tokens.

        It is the mean over the layer's heads. Sources have end tokens. The model must
        have cross-attention.
        """
        target_in = pad_rows([[BOS, *ids[:-1]] for ids in targets])
        with ExitStack() as stack:
            taps = self.model.cross_attention_taps
            recorded = [stack.enter_context(recorded_weights(tap)) for tap in taps]
            memory = self.encode(sources)
            self.model.decode(target_in.to(memory.mask.device), memory)
        layers = [weights.float().mean(dim=1) for [weights] in recorded]
        maps = torch.stack(layers, dim=1).cpu().numpy()
        return [
            weights[:, : len(target), : len(source)]
            for weights, source, target in zip(maps, sources, targets, strict=True)
        ]

    @for_inference
    def score(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[TargetScore]:
        """Score targets without end tokens for sources with end tokens."""
        device = self.model.output_weight.device
        padded = pad_rows(list(sources)).to(device)
        return score_targets(self.model, padded, list(targets))


@torch_defaults()
def prepare(
    checkpoint: ModelFolder | Checkpoint, precision: DecodingPrecision, device: str
) -> TorchModel:
    """Prepare a stored model.

    Raises `RequestError` if the device cannot decode in this precision,
    `CheckpointError` if the weights are of another model.
    """
    if isinstance(checkpoint, ModelFolder):
        require_fitting_weights(checkpoint)
    weights = {n: torch.from_numpy(w) for n, w in checkpoint.arrays.items()}
    model = build_with_weights(checkpoint.config, weights)
    ready = prepare_model(model, precision, torch.device(device))
    return replace(ready, shortlist=checkpoint.shortlist)


@torch.no_grad()
def prepare_model(
    model: TransductionModel, precision: DecodingPrecision, device: torch.device
) -> TorchModel:
    """Prepare a model, whose parameters may be converted in place.

    Raises `RequestError` if the device cannot decode in this precision, and warns
    (`TransduceWarning`) if it emulates it.
    """
    keep_forks_usable()
    model = fuse(model)
    if precision == "int8":
        return _in_int8(model, device)
    warn_if_emulated(device.type, precision)
    model.to(device)
    # Unlike the paper: products in bf16, several times faster on processors that have
    # them. Off by default: `--precision bf16`.
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    if not isinstance(model, Transformer):
        return TorchModel(model=model.to(dtype), stepper=model)
    is_plain = precision == "fp32" and device.type == "cpu"
    if is_plain and (native_linear := _native_linear("fp32")) is not None:
        return _with_linear(model.float(), native_linear)
    # Before the model is converted, so that joint weights are rounded only once.
    step, graphs = FusedStep(model, plain_linear, dtype), None
    if device.type == "cuda":
        max_idle_bytes = torch.cuda.mem_get_info(device)[1] * IDLE_SHARE
        graphs = StepGraphs(step, CudaGraphs(device), max_idle_bytes)
    return TorchModel(model=model.to(dtype), stepper=step, graphs=graphs)


def _in_int8(model: TransductionModel, device: torch.device) -> TorchModel:
    """Prepare a model in int8, by the native library or else by PyTorch."""
    require_transformer(model.config, "Precision int8", "use fp32 or bf16")
    _require_int8(device)
    assert isinstance(model, Transformer)
    packed = _with_linear(model, _native_linear("int8") or _torch_linear_in_int8())
    _round_embeddings(model)
    return packed


def _native_linear(precision: NativePrecision) -> MakeLinearModule | None:
    return None if api() is None else partial(NativeLinear, precision)


def _with_linear(model: Transformer, make_linear: MakeLinearModule) -> TorchModel:
    """Return a model whose linear maps are made by a function."""
    make_once: MakeLinearModule = cache(make_linear)  # packs a shared matrix only once
    stepper = FusedStep(model, make_once)
    _replace_linear(model, make_once)
    return TorchModel(model=model, stepper=stepper)


def _torch_linear_in_int8() -> MakeLinearModule:
    warn_caller(WITHOUT_KERNELS)
    return Int8Linear


def _has_int8() -> bool:
    """Whether the native library or PyTorch multiplies in int8."""
    # On other processors, PyTorch's sums of 16 bits would overflow.
    return api() is not None or "avx512_vnni" in processor_flags()


def _require_int8(device: torch.device) -> None:
    if device.type != "cpu":
        raise RequestError(
            f"Precision int8 must have a CPU, but the device is {device.type}; choose "
            "the device `cpu`, or the precision `bf16`."
        )
    if _has_int8():
        return
    if "avx2" in processor_flags():
        raise RequestError(
            "Precision int8 must have kernels here, which are compiled when transduce "
            "is installed, but there are none; install gcc or clang, then transduce "
            "again, or use precision fp32."
        )
    raise RequestError(
        "Precision int8 must have an x86 processor with AVX2 instructions under Linux, "
        "but none is seen here; use precision fp32 or bf16."
    )


MAX_INT8_INPUTS = (2**31 - 1) // (255 * 127)
"""Maximum number of inputs of a linear map in PyTorch's int8. It sums products of an
input from 0 to 255 and a weight from -127 to 127 in 32 bits; the native library splits
longer sums."""


class Int8Linear(nn.Module):
    """A linear map with int8 weights in PyTorch, where there is no native library.

    All input rows share one scale, so a result depends slightly on the other rows.
    """

    def __init__(
        self, weight: Float[Tensor, "outputs inputs"], bias: Tensor | None
    ) -> None:
        """Round the weights; `RequestError` if sums of so many inputs may overflow."""
        super().__init__()
        if weight.size(1) > MAX_INT8_INPUTS:
            raise RequestError(
                "Without the native library, the linear maps of precision int8 must "
                f"have at most {MAX_INT8_INPUTS:,} inputs, as PyTorch's sums would "
                f"overflow, but one has {weight.size(1):,}; install gcc or clang, then "
                "transduce again, or use precision fp32."
            )
        largest = weight.detach().abs().amax(dim=1).clamp(min=1e-8)
        with warnings.catch_warnings():
            # Deprecated, but its successor multiplies more slowly.
            warnings.simplefilter("ignore")
            quantized = torch.quantize_per_channel(
                weight.detach(),
                scales=largest.double() / 127,
                zero_points=torch.zeros_like(largest, dtype=torch.int64),
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


class PackedLinear:
    """A linear map with weights packed in the order in which products read them.

    In int8, the weights of each output have a scale, and each input row is rounded with
    its own scale and offset. A row of the result does not depend on the other rows.
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
        self._outputs, self._inputs = weight.shape
        weight = np.ascontiguousarray(weight, dtype=np.float32)
        if bias is not None:
            bias = np.ascontiguousarray(bias, dtype=np.float32)
        handle = ffi.new("td_linear **")
        check(
            self._api.linear_new(
                pointer(weight, "float *"),
                pointer(bias, "float *", (self._outputs,)),
                *weight.shape,
                native_precision(precision),
                num_threads(),
                handle,
            ),
            LOADING,
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
                pointer(x, "float *", (*x.shape[:-1], self._inputs)),
                y.size // self._outputs,
                pointer(y, "float *"),
                num_threads(),
            )
        )
        return y

    def scales(self) -> Float32[np.ndarray, " outputs"]:
        """Return the scale of each output's weights, in int8."""
        scales = np.empty(self._outputs, np.float32)
        check(self._api.linear_scales(self._handle, pointer(scales, "float *")))
        return scales


class NativeLinear(nn.Module):
    """A linear map in the native library, as a module."""

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


class PackedOutput(OutputLayer):
    """Output layer whose logits are computed by a packed linear map."""

    def __init__(self, layer: OutputLayer, make_linear: MakeLinearModule) -> None:
        nn.Module.__init__(self)  # the weight is there
        self.weight, self.bias = layer.weight, layer.bias
        self.output = make_linear(layer.weight, layer.bias)

    def logits(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows vocab"]:
        """Return the logits of rows."""
        return cast(Tensor, self.output(x))


class PackedEmbedding(PackedOutput, SharedEmbedding):
    """Target embedding whose logits are computed by a packed linear map."""

    def __init__(self, layer: SharedEmbedding, make_linear: MakeLinearModule) -> None:
        super().__init__(layer, make_linear)
        self.d_model = layer.d_model


def _replace_linear(model: Transformer, make_linear: MakeLinearModule) -> None:
    """Replace the linear maps of a model, its output included."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                module.add_module(name, make_linear(child.weight, child.bias))
    if model.output is not None:
        model.output = PackedOutput(model.output, make_linear)
        return
    name = "embedding" if model.target_embedding is None else "target_embedding"
    model.add_module(name, PackedEmbedding(model.output_embedding, make_linear))


def _round_embeddings(model: Transformer) -> None:
    """Replace embeddings by their int8 values times scales, as the library does."""
    for module in model.modules():
        if isinstance(module, SharedEmbedding):
            rounded = QuantizedWeight.of(module.weight.detach().float().numpy())
            numbers = torch.from_numpy(rounded.dequantized())
            module.weight = nn.Parameter(numbers, requires_grad=False)


LOGIT_POSITIONS = 256
"""Positions whose logits are computed at once: they take 38 MB for 37,000 tokens."""


@for_inference
def score_targets(
    model: TransductionModel,
    source: Int[Tensor, "batch source"],
    targets: list[list[int]],
) -> list[TargetScore]:
    """Score each target, from one pass over the batch."""
    target_in = pad_rows([[BOS, *ids] for ids in targets]).to(source.device)
    target_out = pad_rows([[*ids, EOS] for ids in targets]).to(source.device)
    states = model.decode(target_in, model.encode(source))
    return [
        TargetScore(
            token_log_probabilities=_log_probabilities(
                model, row_states[: len(ids) + 1], row_out[: len(ids) + 1]
            )
        )
        for row_states, row_out, ids in zip(states, target_out, targets, strict=True)
    ]


def _log_probabilities(
    model: TransductionModel,
    states: Float[Tensor, "target d_model"],
    target_out: Int[Tensor, " target"],
) -> tuple[float, ...]:
    """Return each token's log-probability, in blocks of positions to save memory."""
    found: list[float] = []
    for some_states, some_out in zip(
        states.split(LOGIT_POSITIONS), target_out.split(LOGIT_POSITIONS), strict=True
    ):
        log_probs = model.logits(some_states).float().log_softmax(dim=-1)
        found += log_probs.gather(-1, some_out[:, None]).squeeze(-1).tolist()
    return tuple(found)
