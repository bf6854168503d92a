"""The Transformer in the native library, on a CPU.

`NativeModel` encodes sources, and its `NativeDecoder` decodes step by step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64

from transduce.decoding.native_search import NativeSearch
from transduce.decoding.search import (
    AllowedTokens,
    Decoder,
    log_likelihoods,
)
from transduce.machine import num_threads
from transduce.metrics.scores import TargetScore
from transduce.model.config import ModelConfig
from transduce.model_folder import QuantizedWeight
from transduce.native import (
    LOADING,
    api,
    check,
    empty_aligned,
    ffi,
    has_amx_int8,
    library,
    pointer,
)
from transduce.signals import call_interruptibly
from transduce.text.shortlist import Shortlist
from transduce.text.vocabulary import BOS, EOS

DecodingPrecision = Literal["fp32", "bf16", "int8"]
"""Precision of matrix products in decoding; fp32 is exact, bf16 is PyTorch's."""
PrecisionChoice = Literal["auto", "fp32", "bf16", "int8"]
"""Precision, or "auto": int8 for quantized models on a CPU, otherwise fp32."""
NativePrecision = Literal["fp32", "int8"]
"""Precision of matrix products in the native library."""
STEP_OVERHEAD = 4
"""Fixed cost of a decoding step, in equivalent rows of its matrix products."""
AMX_STEP_OVERHEAD = 16
"""Fixed cost of a step with AMX, where reading the weights takes a larger share of the
time."""
MAX_ROWS = 1_024
"""Maximum number of rows in the steps of one call; a search can be stopped between
calls."""
MAX_SCORED = 256
"""Targets scored at once: their logits take 38 MB for 37,000 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSources:
    """Encoder output (section 3.1) of several sentences, one after another."""

    states: Float32[np.ndarray, "tokens d_model"]
    lengths: Int64[np.ndarray, " sentences"]
    """Tokens of each sentence."""


class NativeModel:
    """Encoder and decoder with packed weights in the native library, on a CPU."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Float[np.ndarray, "..."] | QuantizedWeight],
        precision: NativePrecision,
        shortlist: Shortlist | None = None,
    ) -> None:
        """Pack weights, which have the parameter names of `Transformer`.

        In int8, weights that are rounded already are packed as they are.
        """
        native = api()
        assert native is not None
        self.config = config
        self.shortlist = shortlist
        """Shortlist of target pieces; None if the model has none."""
        self._is_int8 = precision == "int8"
        self._api = native.decode
        handle = ffi.new("td_model **")
        check(self._api.model_new(_native_config(config, precision), handle), LOADING)
        self._handle = ffi.gc(handle[0], self._api.model_free)
        # Arrays that model_finish reads.
        arrays = [self._set(name, values) for name, values in weights.items()]
        check(self._api.model_finish(self._handle, num_threads()), LOADING)
        del arrays

    @property
    def vocab_size(self) -> int:
        """Size of the target vocabulary: logits of one position."""
        return self.config.target_vocab_size or self.config.vocab_size

    @property
    def step_overhead(self) -> int:
        """Fixed cost of a decoding step, to start it and to read weights, in rows."""
        has_amx = self._is_int8 and has_amx_int8()
        return AMX_STEP_OVERHEAD if has_amx else STEP_OVERHEAD

    def encode(self, sources: Sequence[Sequence[int]]) -> EncodedSources:
        """Encode sources, which include their end tokens (Figure 1, left).

        Raises `IndexError` if an id is outside the vocabulary.
        """
        lengths = np.array([len(ids) for ids in sources], dtype=np.int64)
        ids = np.array([i for each in sources for i in each], dtype=np.int64)
        states = empty_aligned(len(ids), self.config.d_model)
        check(
            self._api.encode(
                self._handle,
                pointer(ids, "int64_t *"),
                pointer(lengths, "int64_t *"),
                len(lengths),
                pointer(states, "float *"),
                num_threads(),
            )
        )
        return EncodedSources(states=states, lengths=lengths)

    def start(
        self, encoded: EncodedSources, *, sum_attention: bool = False
    ) -> "NativeDecoder":
        """Return a decoder before its first step.

        It has `coverage` only with `sum_attention`.
        """
        return self._start(encoded, int(sum_attention))

    def cross_attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[Float32[np.ndarray, "layers target source"]]:
        """Return each layer's weights at the steps that predict the target tokens.

        Sources include their end tokens. The weights are the mean over a layer's heads.
        """
        num_layers = self.config.num_decoder_layers
        maps = [
            np.empty((num_layers, len(target), len(source)), dtype=np.float32)
            for source, target in zip(sources, targets, strict=True)
        ]
        # Longest first, as `_read_targets` needs; empty targets have no steps.
        order = [i for i, target in enumerate(targets) if target]
        order.sort(key=lambda i: -len(targets[i]))
        if not order:
            return maps
        encoded = self.encode([sources[i] for i in order])
        decoder = self._start(encoded, num_layers)
        longest = int(encoded.lengths.max(initial=0))
        logits_of_steps = _read_targets(decoder, [targets[i] for i in order])
        for position, logits in enumerate(logits_of_steps):
            live = order[: len(logits)]
            attention = decoder.take_attention(longest)[:, 0]
            for i, weights in zip(live, attention, strict=True):
                maps[i][:, position] = weights[:, : len(sources[i])]
        return maps

    def score(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[TargetScore]:
        """Score targets without end tokens for sources with end tokens.

        The longest targets must come first: rows that end are then the last ones.
        """
        scores: list[TargetScore] = []
        for start in range(0, len(sources), MAX_SCORED):
            outputs = [[*each, EOS] for each in targets[start : start + MAX_SCORED]]
            # One source may be a line of a megabyte, which takes hours in one call.
            encode = partial(self.encode, sources[start : start + MAX_SCORED])
            decoder = self.start(call_interruptibly(encode))
            scores += [
                TargetScore(token_log_probabilities=tuple(each))
                for each in _log_probabilities(decoder, outputs)
            ]
        return scores

    def _start(self, encoded: EncodedSources, summed_layers: int) -> "NativeDecoder":
        """Return a decoder that sums the attention of the last layers."""
        shape = int(encoded.lengths.sum()), self.config.d_model
        handle = ffi.new("td_decoder **")
        check(
            self._api.decoder_new(
                self._handle,
                pointer(encoded.states, "float *", shape),
                pointer(encoded.lengths, "int64_t *"),
                len(encoded.lengths),
                summed_layers,
                num_threads(),
                handle,
            )
        )
        return NativeDecoder(
            self,
            ffi.gc(handle[0], self._api.decoder_free),
            summed_layers=summed_layers,
        )

    def _set(
        self, name: str, values: Float[np.ndarray, "..."] | QuantizedWeight
    ) -> Float32[np.ndarray, "rows columns"] | QuantizedWeight:
        """Set a parameter; return the arrays, which the library reads later."""
        if isinstance(values, QuantizedWeight):
            check(
                self._api.model_set_int8(
                    self._handle,
                    name.encode(),
                    pointer(values.values, "int8_t *"),
                    pointer(values.scales, "float *", values.values.shape[:1]),
                    *values.values.shape,
                ),
                LOADING,
            )
            return values
        values = np.ascontiguousarray(values, dtype=np.float32)
        values = values.reshape(len(values), -1)
        check(
            self._api.model_set(
                self._handle, name.encode(), pointer(values, "float *"), *values.shape
            ),
            LOADING,
        )
        return values


def native_precision(precision: NativePrecision) -> Any:
    """Return the library's constant for a precision."""
    loaded = library()
    assert loaded is not None
    return loaded.TD_INT8 if precision == "int8" else loaded.TD_FP32


def _native_config(config: ModelConfig, precision: NativePrecision) -> Any:
    """Return the settings of a model as a `td_model_config`."""
    loaded = library()
    assert loaded is not None
    scores = {
        "scaled": loaded.TD_SCALED,
        "unscaled": loaded.TD_UNSCALED,
        "additive": loaded.TD_ADDITIVE,
    }
    return ffi.new(
        "td_model_config *",
        {
            "vocab_size": config.vocab_size,
            "target_vocab_size": config.target_vocab_size or 0,
            "encoder_layers": config.num_layers,
            "decoder_layers": config.num_decoder_layers,
            "d_model": config.d_model,
            "d_ff": config.d_ff,
            "num_heads": config.num_heads,
            "d_k": config.d_k,
            "d_v": config.d_v,
            "max_positions": (
                config.max_positions if config.positions == "learned" else 0
            ),
            "neighbourhood": config.neighbourhood or 0,
            "norm_epsilon": config.norm_epsilon,
            "norm": loaded.TD_PRE_NORM if config.norm == "pre" else loaded.TD_POST_NORM,
            "scores": scores[config.scores],
            "activation": (
                loaded.TD_SILU if config.activation == "silu" else loaded.TD_RELU
            ),
            "is_recurrent": config.decoder_self_attention == "ssru",
            "output_bias": config.output_bias,
            "has_output": not config.tied_output,
            "position_base": config.position_base,
            "precision": native_precision(precision),
        },
    )


class NativeDecoder:
    """A decoder of a native model, with a group of hypotheses for each sentence."""

    def __init__(self, model: NativeModel, handle: Any, *, summed_layers: int) -> None:
        native = api()
        assert native is not None
        self._api = native.decode
        self.model = model  # keeps it alive
        self.handle = handle
        """The decoder in the library (`td_decoder`)."""
        self._summed_layers = summed_layers
        """Number of last layers whose attention is summed; `coverage` needs one."""

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float32[np.ndarray, "sentences group vocab"]:
        """Read the last token of each hypothesis and return the logits of the next."""
        last_ids = np.ascontiguousarray(last_ids)
        logits = empty_aligned(*last_ids.shape, self.model.vocab_size)
        check(
            self._api.decoder_step(
                self.handle,
                pointer(last_ids, "int64_t *", self._shape),
                pointer(logits, "float *"),
                num_threads(),
            )
        )
        return logits

    def take_steps(
        self, last_ids: Int64[np.ndarray, "sentences group"], search: Any, max_live: int
    ) -> Int64[np.ndarray, "kept group"] | None:
        """Take steps with a native search until at most `max_live` sentences are live.

        Returns the last tokens, after one step or more of at most `MAX_ROWS` rows
        together. Returns None, without a step, if the search is of another kind, or
        cannot run with this decoder.
        """
        group_size, sums_attention = last_ids.shape[1], self._summed_layers == 1
        if not isinstance(search, NativeSearch) or not search.can_run(
            group_size, sums_attention=sums_attention
        ):
            return None
        max_steps = max(MAX_ROWS // last_ids.size, 1)
        return search.run(self.handle, last_ids, max_steps, max_live)

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses in this order, as `Decoder.reorder`.

        No sentence may be in two groups.
        """
        rows = np.ascontiguousarray(rows)
        check(
            self._api.decoder_reorder(
                self.handle, pointer(rows, "int64_t *"), *rows.shape
            )
        )

    def join(self, other: "NativeDecoder") -> None:
        """Append the sentences of another decoder of the same model."""
        check(self._api.decoder_join(self.handle, other.handle))

    def set_shortlists(self, shortlists: Sequence[AllowedTokens]) -> None:
        """Restrict each sentence to the tokens of its shortlist.

        Logits of other tokens are minus infinity from now on.
        Raises `IndexError` if an id is outside the vocabulary.
        """
        counts = [0 if each is None else len(each) for each in shortlists]
        none = np.zeros(0, dtype=np.int32)
        ids = np.concatenate([none if each is None else each for each in shortlists])
        ids = np.ascontiguousarray(ids, dtype=np.int32)
        sizes = np.array(counts, dtype=np.int64)
        check(
            self._api.decoder_set_shortlists(
                self.handle,
                pointer(sizes, "int64_t *", self._shape[:1]),
                pointer(ids, "int32_t *"),
            )
        )

    def coverage(self) -> Float64[np.ndarray, "sentences group"]:
        """Return the sum of log(min(attention, 1)) over each hypothesis's source.

        Attention is the mean over the last layer's heads, summed over all steps.
        """
        coverage = np.empty(self._shape)
        check(self._api.decoder_coverage(self.handle, pointer(coverage, "double *")))
        return coverage

    def take_attention(
        self, positions: int
    ) -> Float32[np.ndarray, "sentences group layers positions"]:
        """Return the attention to the source since the last call.

        It is the mean over the heads, summed over the steps, and 0 beyond the end of a
        source, whose length is at most `positions`.
        """
        attention = np.empty(
            (*self._shape, self._summed_layers, positions), dtype=np.float32
        )
        check(
            self._api.decoder_take_attention(
                self.handle, pointer(attention, "float *"), positions
            )
        )
        return attention

    @property
    def _shape(self) -> tuple[int, int]:
        """Number of sentences, and of hypotheses of each."""
        sentences = self._api.decoder_sentences(self.handle)
        return sentences, self._api.decoder_group(self.handle)


def _log_probabilities(
    decoder: Decoder, targets: Sequence[Sequence[int]]
) -> list[list[float]]:
    """Return the log-probabilities of each target's tokens, read one by one.

    The decoder has one hypothesis for each source. Targets include their end tokens,
    and the longest come first.
    """
    found: list[list[float]] = [[] for _ in targets]
    for position, logits in enumerate(_read_targets(decoder, targets)):
        live = len(logits)
        next_ids = np.array([target[position] for target in targets[:live]])
        for row, each in enumerate(log_likelihoods(logits, next_ids).tolist()):
            found[row].append(each)
    return found


def _read_targets(
    decoder: Decoder, targets: Sequence[Sequence[int]]
) -> Iterator[Float32[np.ndarray, "live vocab"]]:
    """Yield the logits before each token is read, for the targets that have it.

    The longest targets come first.
    """
    lengths = np.array([len(target) for target in targets])
    last_ids = np.full((len(targets), 1), BOS, dtype=np.int64)
    for position in range(lengths[0]):
        live = int((lengths > position).sum())
        if position:
            decoder.reorder(np.arange(live)[:, None])
            ids = [target[position - 1] for target in targets[:live]]
            last_ids = np.array(ids, dtype=np.int64)[:, None]
        yield decoder.step(last_ids)[:, 0]
