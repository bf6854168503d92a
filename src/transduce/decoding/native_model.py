"""A Transformer in the native library: it encodes sources and decodes step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64

from transduce.decoding.native_search import NativeSearch
from transduce.machine import num_threads
from transduce.model.config import ModelConfig
from transduce.native import api, check, empty_aligned, ffi, library, pointer

NativePrecision = Literal["fp32", "int8"]
"""Precision of matrix products in the native library."""


class PackedLinear:
    """A linear map whose weights are packed in the order that products read.

    In int8, each output's weights have a scale of their own, and each row that is read
    is rounded with a scale and an offset of its own. A row of the result does not
    depend on other rows.
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
        self._outputs = len(weight)
        weight = np.ascontiguousarray(weight, dtype=np.float32)
        if bias is not None:
            bias = np.ascontiguousarray(bias, dtype=np.float32)
        handle = ffi.new("td_linear **")
        check(
            self._api.linear_new(
                pointer(weight, "float *"),
                ffi.NULL if bias is None else pointer(bias, "float *"),
                *weight.shape,
                native_precision(precision),
                num_threads(),
                handle,
            )
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
                pointer(x, "float *"),
                y.size // self._outputs,
                pointer(y, "float *"),
                num_threads(),
            )
        )
        return y

    def scales(self) -> Float32[np.ndarray, " outputs"]:
        """Return the step of each output's rounded weights, in int8."""
        scales = np.empty(self._outputs, np.float32)
        check(self._api.linear_scales(self._handle, pointer(scales, "float *")))
        return scales


def native_precision(precision: NativePrecision) -> Any:
    """Return a precision as the library knows it."""
    loaded = library()
    assert loaded is not None
    return loaded.TD_INT8 if precision == "int8" else loaded.TD_FP32


MAX_ROWS = 1_024
"""Rows of all steps that one call takes; a search can be stopped between calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSources:
    """The encoder's output (section 3.2.3), sentences one after another."""

    states: Float32[np.ndarray, "tokens d_model"]
    lengths: Int64[np.ndarray, " sentences"]
    """Tokens of each sentence."""


class NativeModel:
    """Encoder and decoder of a config with packed weights."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Float[np.ndarray, "..."]],
        precision: NativePrecision,
    ) -> None:
        native = api()
        assert native is not None
        self.config = config
        self._api = native.decode
        handle = ffi.new("td_model **")
        check(self._api.model_new(_native_config(config, precision), handle))
        self._handle = ffi.gc(handle[0], self._api.model_free)
        kept = [self._set(name, values) for name, values in weights.items()]
        check(self._api.model_finish(self._handle, num_threads()))
        del kept  # until here the library reads them

    @property
    def vocab_size(self) -> int:
        """Tokens that logits are of."""
        return self.config.target_vocab_size or self.config.vocab_size

    def encode(self, sources: Sequence[Sequence[int]]) -> EncodedSources:
        """Encode sources (Figure 1, left), which include their end tokens.

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
        """Return a decoder that has read nothing yet.

        Its `coverage` can be called if it sums attention.
        """
        handle = ffi.new("td_decoder **")
        check(
            self._api.decoder_new(
                self._handle,
                pointer(encoded.states, "float *"),
                pointer(encoded.lengths, "int64_t *"),
                len(encoded.lengths),
                sum_attention,
                num_threads(),
                handle,
            )
        )
        return NativeDecoder(
            self,
            ffi.gc(handle[0], self._api.decoder_free),
            sums_attention=sum_attention,
        )

    def _set(
        self, name: str, values: Float[np.ndarray, "..."]
    ) -> Float32[np.ndarray, "rows columns"]:
        """Tell the library of a parameter, and return the numbers that it will read."""
        values = np.ascontiguousarray(values, dtype=np.float32)
        values = values.reshape(len(values), -1)
        numbers = pointer(values, "float *")
        check(self._api.model_set(self._handle, name.encode(), numbers, *values.shape))
        return values


class NativeDecoder:
    """A decoder of a native model, with a group of hypotheses for each sentence."""

    def __init__(
        self, model: NativeModel, handle: Any, *, sums_attention: bool
    ) -> None:
        native = api()
        assert native is not None
        self._api = native.decode
        self.model = model  # which must not be freed before
        self.handle = handle
        """The decoder in the library (`td_decoder`)."""
        self.sums_attention = sums_attention
        """Whether `coverage` can be called."""

    def step(
        self, last_ids: Int64[np.ndarray, "sentences group"]
    ) -> Float32[np.ndarray, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        assert last_ids.shape == self._shape
        last_ids = np.ascontiguousarray(last_ids)
        logits = empty_aligned(*last_ids.shape, self.model.vocab_size)
        check(
            self._api.decoder_step(
                self.handle,
                pointer(last_ids, "int64_t *"),
                pointer(logits, "float *"),
                num_threads(),
            )
        )
        return logits

    def take_steps(
        self, last_ids: Int64[np.ndarray, "sentences group"], search: Any, few: int
    ) -> Int64[np.ndarray, "kept grown"] | None:
        """Take steps together with a native search; return what is read next.

        None follows a step that leaves `few` sentences or fewer. Returns None without a
        step if the search is another, has a mask, or has yet to fill its beams.
        """
        if not isinstance(search, NativeSearch) or search.is_masked:
            return None
        if type(search).grow is not NativeSearch.grow:
            return None  # somebody watches its steps
        if last_ids.shape[1] != search.beam_size:
            return None
        if search.is_covered and not self.sums_attention:
            return None
        max_steps = max(MAX_ROWS // last_ids.size, 1)
        return search.run(self.handle, last_ids, max_steps, few)

    def reorder(self, rows: Int64[np.ndarray, "kept group"]) -> None:
        """Keep these hypotheses, numbered through all groups, in this order.

        Those of a new group must be of one sentence, and no sentence in two groups.
        """
        rows = np.ascontiguousarray(rows)
        numbers = pointer(rows, "int64_t *")
        check(self._api.decoder_reorder(self.handle, numbers, *rows.shape))

    def join(self, other: "NativeDecoder") -> None:
        """Append the sentences of another decoder of the same model."""
        check(self._api.decoder_join(self.handle, other.handle))

    def coverage(self) -> Float64[np.ndarray, "sentences group"]:
        """Return the sum of log(min(attention, 1)) over each hypothesis's source.

        Attention is the mean over the last layer's heads, summed over all steps.
        """
        coverage = np.empty(self._shape)
        check(self._api.decoder_coverage(self.handle, pointer(coverage, "double *")))
        return coverage

    @property
    def _shape(self) -> tuple[int, int]:
        """Sentences, and hypotheses of each."""
        sentences = self._api.decoder_sentences(self.handle)
        return sentences, self._api.decoder_group(self.handle)


def _native_config(config: ModelConfig, precision: NativePrecision) -> Any:
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
            "output_bias": config.output_bias,
            "precision": native_precision(precision),
        },
    )
