"""Models in PyTorch, prepared for decoding: on GPUs, in bf16, or for analysis.

The second half computes candidates, samples and scores from logits that are tensors, as
`search` and `sampling` do from arrays.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int, Int32, Int64, Shaped
from torch import Tensor, nn

from transduce.architectures.config import architecture_of, require_transformer
from transduce.architectures.interface import EncodedSource, Stepper, TransductionModel
from transduce.checkpoint import Checkpoint, built, require_fitting_weights
from transduce.data.tensors import pad_rows
from transduce.decoding.native_decoder import (
    STEP_OVERHEAD,
    DecodingPrecision,
    NativePrecision,
    PackedLinear,
)
from transduce.decoding.search import (
    NOT_FORCED,
    AllowedTokens,
    Candidates,
    Restrictions,
    RowTokens,
)
from transduce.decoding.torch_decoder import (
    CudaGraphs,
    FusedStep,
    GraphedDecoder,
    StepGraphs,
    TorchCoverageDecoder,
    TorchDecoder,
    plain_linear,
    recorded_weights,
)
from transduce.device import is_good_at_bf16, warn_if_emulated
from transduce.errors import RequestError, TransduceWarning
from transduce.machine import processor_flags
from transduce.metrics.scores import TargetScore
from transduce.model.embedding import OutputLayer, SharedEmbedding
from transduce.model.transformer import Transformer
from transduce.model_folder import ModelFolder, QuantizedWeight
from transduce.native import api
from transduce.nn.fuse import fuse
from transduce.nn.operators import has_triton
from transduce.search_config import SamplingConfig
from transduce.text.shortlist import Shortlist
from transduce.text.vocabulary import BOS, EOS, PAD

MakeLinearModule = Callable[[Tensor, Tensor | None], nn.Module]
"""Function of a weight and a bias that returns their linear map."""

WITHOUT_KERNELS = (
    "Precision int8 is without its compiled kernels, which make it one and a half to "
    "four times as fast; they are compiled as transduce is installed, if there is a C "
    "compiler: install gcc or clang, then transduce once more."
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
        """Return the model; raise `RequestError`, with the task, for others."""
        require_transformer(self.model.config, task)
        return cast(Transformer, self.model)

    @torch.inference_mode()
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
                    "set --coverage-penalty to 0."
                )
            return TorchCoverageDecoder(self.stepper, memory, taps[-1])
        if self.graphs is None or not isinstance(self.stepper, FusedStep):
            return TorchDecoder(self.stepper, memory)
        return GraphedDecoder(self.stepper, memory, self.graphs)

    @torch.inference_mode()
    def cross_attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[Float[np.ndarray, "layers target source"]]:
        """Return each layer's weights at the steps that predict the target tokens.

        Sources are with end tokens. The weights are the mean over a layer's heads. The
        model must have cross-attention.
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

    def score(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[TargetScore]:
        """Score targets without end tokens for sources with end tokens."""
        device = self.model.output_weight.device
        padded = pad_rows(list(sources)).to(device)
        return score_targets(self.model, padded, list(targets))


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
    model = built(checkpoint.config, weights)
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
    warnings.warn(WITHOUT_KERNELS, TransduceWarning, stacklevel=5)
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
    """A linear map with int8 weights in PyTorch, where there is no native library.

    All input rows share one scale, so a result depends slightly on the other rows.
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


class PackedEmbedding(SharedEmbedding):
    """The target embedding, with logits computed by a packed linear map."""

    def __init__(
        self, embedding: SharedEmbedding, make_linear: MakeLinearModule
    ) -> None:
        nn.Module.__init__(self)  # the weight is there
        self.d_model = embedding.d_model
        self.weight, self.bias = embedding.weight, embedding.bias
        self.output = make_linear(embedding.weight, embedding.bias)

    def logits(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows vocab"]:
        """Return the logits of rows."""
        return cast(Tensor, self.output(x))


class PackedOutput(OutputLayer):
    """The output's own matrix as a packed linear map."""

    def __init__(self, layer: OutputLayer, make_linear: MakeLinearModule) -> None:
        nn.Module.__init__(self)  # the weight is there
        self.weight, self.bias = layer.weight, layer.bias
        self.output = make_linear(layer.weight, layer.bias)

    def logits(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows vocab"]:
        """Return the logits of rows."""
        return cast(Tensor, self.output(x))


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


@torch.no_grad()
def score_targets(
    model: TransductionModel,
    source: Int[Tensor, "batch source"],
    targets: list[list[int]],
) -> list[TargetScore]:
    """Return the log-probability of each target, from one pass over the batch."""
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
    """Return the log-probability of a target, in blocks of positions to save memory."""
    total = 0.0
    for some_states, some_out in zip(
        states.split(LOGIT_POSITIONS), target_out.split(LOGIT_POSITIONS), strict=True
    ):
        log_probs = model.logits(some_states).float().log_softmax(dim=-1)
        chosen = log_probs.gather(-1, some_out[:, None]).squeeze(-1).double()
        total += float(chosen.masked_fill(some_out == PAD, 0.0).sum())
    return total


SPAN = 64
"""Tokens of a span; in a first pass only the maxima of spans are compared."""


@torch.inference_mode()
def find_by_torch(
    logits: Float[Any, "sentences group vocab"],
    log_probabilities: Float64[np.ndarray, "sentences group"],
    count: int,
    excluded: Sequence[int] | Bool[np.ndarray, "sentences group vocab"],
    forced: Int64[np.ndarray, " sentences"] | None,
    diversity: float,
    restrictions: Restrictions | None = None,
) -> Candidates:
    """Find the likeliest continuations, as `search.find_candidates` does."""
    values, tokens = _likeliest(
        torch.as_tensor(logits), count, excluded, forced, restrictions
    )
    # Few numbers are left, for which numpy is faster.
    after = values + log_probabilities[..., None]
    ranked = after - diversity * np.arange(values.shape[-1]) if diversity else after
    chosen = np.argsort(-_flat(ranked), axis=1, kind="stable")[:, :count]
    sentences = np.arange(len(chosen))[:, None]
    return Candidates(
        _padded(_flat(after)[sentences, chosen], count, -math.inf),
        _padded(chosen // values.shape[-1], count, 0),
        _padded(_flat(tokens)[sentences, chosen], count, 0),
    )


def _likeliest(
    logits: Float[Tensor, "sentences group vocab"],
    count: int,
    excluded: Sequence[int] | Bool[np.ndarray, "sentences group vocab"],
    forced: Int64[np.ndarray, " sentences"] | None,
    restrictions: Restrictions | None,
) -> tuple[
    Float32[np.ndarray, "sentences group found"],
    Int64[np.ndarray, "sentences group found"],
]:
    """Return log-probabilities and tokens of the likeliest tokens of each row.

    All log-probabilities of a row with NaN are NaN.
    """
    is_plain = (
        restrictions is None and forced is None and not isinstance(excluded, np.ndarray)
    )
    if is_plain and has_top_k(logits, count):
        return top_k_on_gpu(logits, count, tuple(excluded))
    # `log_softmax` takes half the time of subtracting `logsumexp`.
    log_probs = logits.float().log_softmax(dim=-1)
    is_nan = _numpy(log_probs[..., 0].isnan())  # then the whole row is NaN
    if restrictions is not None:
        _restrict(log_probs, restrictions, forced)
    _exclude(log_probs, excluded, forced)
    values, tokens = map(_numpy, _largest(log_probs, count))
    values[is_nan] = math.nan
    return values, tokens


def has_top_k(logits: Float[Tensor, "sentences group vocab"], count: int) -> bool:
    """Whether Triton's kernels find the candidates of each row."""
    if not (logits.is_cuda and has_triton()):
        return False
    from transduce.nn import gpu_kernels

    num_spans = logits.size(-1) // gpu_kernels.SPAN
    return count <= min(gpu_kernels.MAX_CANDIDATES, num_spans)


def top_k_on_gpu(
    logits: Float[Tensor, "sentences group vocab"],
    count: int,
    excluded: tuple[int, ...],
) -> tuple[
    Float32[np.ndarray, "sentences group {count}"],
    Int64[np.ndarray, "sentences group {count}"],
]:
    """Return log-probabilities and tokens of the likeliest tokens of each row."""
    from transduce.nn.gpu_kernels import top_k

    rows, device = logits.flatten(0, 1), logits.device
    # Triton launches kernels on the current GPU.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        found = top_k(rows, count, _ids_on(device, excluded)).cpu().numpy()
    log_probs, tokens = found.reshape(2, *logits.shape[:2], count)
    return log_probs.view(np.float32), tokens.astype(np.int64)


@cache
def _ids_on(device: torch.device, ids: tuple[int, ...]) -> Int32[Tensor, " ids"]:
    return torch.tensor(ids, dtype=torch.int32, device=device)


def _restrict(
    log_probs: Float[Tensor, "sentences group vocab"],
    restrictions: Restrictions,
    forced: Int64[np.ndarray, " sentences"] | None,
) -> None:
    """Penalize repeated tokens, and set banned ones to minus infinity, in place."""
    rows = log_probs.flatten(0, 1)
    is_free = np.ones(len(rows), dtype=np.bool_)
    if forced is not None:
        is_free = np.repeat(forced == NOT_FORCED, log_probs.size(1))

    def places(of: RowTokens) -> tuple[Int64[Tensor, " _"], Int64[Tensor, " _"]]:
        """Return rows and tokens; bad words may have tokens beyond the vocabulary."""
        applies = is_free[of.rows] & (of.tokens < rows.size(1))
        row, token = (
            torch.from_numpy(each[applies]).to(rows.device)
            for each in (of.rows, of.tokens)
        )
        return row, token

    rows[places(restrictions.repeated)] *= restrictions.penalty
    rows[places(restrictions.banned)] = -math.inf


def _exclude(
    log_probs: Float[Tensor, "sentences group vocab"],
    excluded: Sequence[int] | Bool[np.ndarray, "sentences group vocab"],
    forced: Int64[np.ndarray, " sentences"] | None,
) -> None:
    """Set tokens that must not come next to minus infinity, in place."""
    if isinstance(excluded, np.ndarray):
        mask = torch.from_numpy(excluded).to(log_probs.device)
        log_probs.masked_fill_(mask, -math.inf)
    else:
        for token in excluded:
            log_probs[..., token] = -math.inf
    for sentence, token in enumerate([] if forced is None else forced.tolist()):
        if token == NOT_FORCED:
            continue
        only = log_probs[sentence, :, token].clone()
        log_probs[sentence] = -math.inf
        log_probs[sentence, :, token] = only


def _flat(
    each: Shaped[np.ndarray, "sentences group found"],
) -> Shaped[np.ndarray, "sentences candidates"]:
    return each.reshape(len(each), -1)


def _padded(
    each: Shaped[np.ndarray, "sentences found"], count: int, filling: float | int
) -> Shaped[np.ndarray, "sentences {count}"]:
    """Pad to `count` columns."""
    missing = count - each.shape[1]
    return np.pad(each, ((0, 0), (0, missing)), constant_values=filling)


def _numpy(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.cpu().numpy()
    return array


def _largest(
    log_probs: Float[Tensor, "sentences group vocab"], count: int
) -> tuple[
    Float[Tensor, "sentences group found"], Int[Tensor, "sentences group found"]
]:
    """Return the `count` largest values of each row and their tokens, best first.

    Of equal values, those of lower tokens come first. All lie in the spans with the
    largest maxima, so only these spans are sorted.
    """
    num_spans = log_probs.size(-1) // SPAN
    if num_spans <= count:
        return _first_sorted(log_probs, count)
    in_spans = num_spans * SPAN
    spans = log_probs[..., :in_spans].unflatten(-1, (num_spans, SPAN))
    _, chosen = _first_sorted(spans.amax(dim=-1), count)
    starts = chosen.sort(dim=-1).values[..., None] * SPAN
    tokens = (starts + torch.arange(SPAN, device=log_probs.device)).flatten(-2)
    rest = torch.arange(in_spans, log_probs.size(-1), device=log_probs.device)
    tokens = torch.cat([tokens, rest.expand(*tokens.shape[:-1], -1)], dim=-1)
    values, indices = _first_sorted(log_probs.gather(-1, tokens), count)
    return values, tokens.gather(-1, indices)


def _first_sorted(
    values: Float[Tensor, "*rows columns"], count: int
) -> tuple[Float[Tensor, "*rows found"], Int[Tensor, "*rows found"]]:
    """Return the `count` largest values and their columns; of equal ones the first."""
    # `topk` takes any of equal values, and a stable sort takes five times as long. So
    # `topk` compares integers: in the upper half the bits of a value, in the order of
    # the values, and in the lower half its distance from the last column.
    bits = (values + 0.0).view(torch.int32)  # without negative zeros
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    last = values.size(-1) - 1
    distances = torch.arange(last, -1, -1, device=values.device)
    keys = (ordered << 32) + distances
    columns = last - (keys.topk(min(count, last + 1)).values & 0xFFFFFFFF)
    return values.gather(-1, columns), columns


@torch.inference_mode()
def keep_shortlists(
    logits: Float[Tensor, "sentences group vocab"],
    shortlists: Sequence[AllowedTokens],
) -> Float[Tensor, "sentences group vocab"]:
    """Return logits that are minus infinity except for each sentence's shortlist."""
    is_allowed = np.zeros((len(shortlists), logits.size(-1)), dtype=bool)
    for row, own in zip(is_allowed, shortlists, strict=True):
        row[slice(None) if own is None else own] = True
    mask = torch.from_numpy(is_allowed).to(logits.device)
    return logits.masked_fill(~mask[:, None], -torch.inf)


@torch.inference_mode()
def log_mean_by_torch(
    logits: Sequence[Float[Any, "*rows vocab"]],
) -> Float[Tensor, "*rows vocab"]:
    """Return the logarithm of the mean probability over several models."""
    each = [torch.as_tensor(x).float().log_softmax(dim=-1) for x in logits]
    return torch.stack(each).logsumexp(dim=0) - math.log(len(each))


@torch.inference_mode()
def draw_by_torch(
    logits: Float[Tensor, "sentences group vocab"],
    chances: Float64[np.ndarray, "sentences samples"],
    config: SamplingConfig,
    excluded: Sequence[int],
) -> tuple[
    Int64[np.ndarray, "sentences samples"], Float32[np.ndarray, "sentences samples"]
]:
    """Return the token of each sample and its log-probability among all tokens.

    Tokens are drawn as by `sampling.draw`. In the first step a group has one
    hypothesis, which all samples of the sentence extend.
    """
    logits = logits.float()
    log_probs = logits.log_softmax(dim=-1)
    allowed = logits.clone()  # the decoder may reuse its logits
    allowed[..., list(excluded)] = -torch.inf
    shape = (*chances.shape, logits.size(-1))
    on_device = torch.from_numpy(chances).to(logits.device)
    tokens = _draw(allowed.expand(shape), on_device, config)
    gains = log_probs.expand(shape).gather(-1, tokens[..., None]).squeeze(-1)
    return tokens.cpu().numpy(), gains.cpu().numpy()


def _draw(
    logits: Float[Tensor, "sentences samples vocab"],
    chances: Float64[Tensor, "sentences samples"],
    config: SamplingConfig,
) -> Int64[Tensor, "sentences samples"]:
    values = logits / config.temperature
    vocab_size = logits.size(-1)
    count = min(config.top_k or vocab_size, vocab_size)
    is_restricted = count < vocab_size or config.top_p < 1
    tokens: Tensor | None = None  # in the order of the vocabulary
    if is_restricted:
        values, tokens = _largest(values, count)
    probabilities = values.double().softmax(dim=-1)
    reached = probabilities.cumsum(dim=-1)
    if is_restricted:
        # The token at which the sum reaches `top_p` belongs to the nucleus.
        is_outside = reached - probabilities >= config.top_p
        probabilities = probabilities.masked_fill(is_outside, 0.0)
        reached = probabilities.cumsum(dim=-1)
    total = reached[..., -1:]
    # Below the total, so that rounding never draws a token of probability 0.
    below = torch.nextafter(total, torch.zeros_like(total))
    aims = (chances[..., None] * total).minimum(below)
    index = torch.searchsorted(reached, aims, right=True)
    index = index.clamp(max=reached.size(-1) - 1)  # NaN
    return (index if tokens is None else tokens.gather(-1, index)).squeeze(-1)
