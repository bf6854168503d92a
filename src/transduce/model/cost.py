"""What a model costs: its parameters, and the FLOPs of training it.

Counted from the configuration and from lengths of sentences alone, so that it can be
done as a run goes. A multiply-add is two FLOPs. Only matrix products are counted, since
norms, softmax, dropout and sums are a small part. Scores that a mask then hides count
too: they are formed.
"""

from dataclasses import astuple, dataclass

import numpy as np
from jaxtyping import Integer

from transduce.model.config import ModelConfig

PASSES = 3
"""Forward, and backward the gradients of both factors of each product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Numbers learned, by what they are for."""

    embedding: int
    """The one matrix of source, target and output, or that of each side, and a bias of
    the output."""
    positions: int
    self_attention: int
    """Of encoder and decoder."""
    cross_attention: int
    feed_forward: int
    norms: int

    @property
    def total(self) -> int:
        return sum(astuple(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFlops:
    """FLOPs of one forward pass, by what they are for."""

    projections: int
    """Of queries, keys, values and what comes out of the heads."""
    attention: int
    """Scores, and sums of values weighted by them."""
    feed_forward: int
    output: int
    """The logits of every target token."""

    @property
    def total(self) -> int:
        return sum(astuple(self))


def count_parameters(config: ModelConfig) -> ParameterCounts:
    """The numbers that a model of these sizes learns."""
    encoder, decoder = config.num_layers, config.num_decoder_layers
    d_model = config.d_model
    num_outputs = config.target_vocab_size or config.vocab_size
    has_table = config.positions == "learned"
    num_norms = 2 * encoder + 3 * decoder + (2 if config.norm == "pre" else 0)
    return ParameterCounts(
        embedding=config.vocab_size * d_model
        + (config.target_vocab_size or 0) * d_model
        + num_outputs * config.output_bias,
        positions=config.max_positions * d_model if has_table else 0,
        self_attention=(encoder + decoder) * _attention_parameters(config),
        cross_attention=decoder * _attention_parameters(config),
        feed_forward=(encoder + decoder) * _feed_forward_parameters(config),
        norms=num_norms * 2 * d_model,
    )


def forward_flops(
    config: ModelConfig,
    source_lengths: Integer[np.ndarray, " pairs"],
    target_lengths: Integer[np.ndarray, " pairs"],
) -> ForwardFlops:
    """Of sentence pairs of these lengths, each with its end token.

    A padded batch costs as much as pairs that are all of its widths.
    """
    num_source, num_target = int(source_lengths.sum()), int(target_lengths.sum())
    encoder, decoder = config.num_layers, config.num_decoder_layers
    num_scores = (
        encoder * _dot(source_lengths, source_lengths)
        + decoder * _dot(target_lengths, target_lengths)
        + decoder * _dot(target_lengths, source_lengths)
    )
    own = encoder * num_source + decoder * num_target
    d_model = config.d_model
    num_outputs = config.target_vocab_size or config.vocab_size
    heads_width = config.num_heads * (config.d_k + config.d_v)
    return ForwardFlops(
        # Four matrices on each side's own attention; and of the third attention two on
        # the target, for queries and output, and two on the source, for its memory.
        projections=(4 * own + 2 * decoder * (num_source + num_target))
        * (d_model * heads_width),
        attention=2 * num_scores * heads_width,
        feed_forward=4 * own * d_model * config.d_ff,
        output=2 * num_target * d_model * num_outputs,
    )


def update_flops(
    config: ModelConfig,
    source_lengths: Integer[np.ndarray, " pairs"],
    target_lengths: Integer[np.ndarray, " pairs"],
) -> int:
    """Of one training update on sentence pairs of these lengths, with their end token.

    Adam forms no products of matrices; those of Muon are left out (some sixth of the
    whole in the preset `multi30k`, nothing beside large updates).
    """
    return PASSES * forward_flops(config, source_lengths, target_lengths).total


def _attention_parameters(config: ModelConfig) -> int:
    """Weights and biases of one multi-head attention."""
    queries, values = config.num_heads * config.d_k, config.num_heads * config.d_v
    inward = (config.d_model + 1) * (2 * queries + values)
    outward = (values + 1) * config.d_model
    return inward + outward + (queries if config.scores == "additive" else 0)


def _feed_forward_parameters(config: ModelConfig) -> int:
    inner = (config.d_model + 1) * config.d_ff
    return inner + (config.d_ff + 1) * config.d_model


def _dot(
    queries: Integer[np.ndarray, " pairs"], keys: Integer[np.ndarray, " pairs"]
) -> int:
    """How many scores there are, over all pairs."""
    return int((queries.astype(np.int64) * keys).sum())
