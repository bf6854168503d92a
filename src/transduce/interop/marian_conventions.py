"""Conventions and checks for Marian's models in its own format and Hugging Face's."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from transduce.errors import CheckpointError, RequestError
from transduce.model.config import ModelConfig, parameter_shapes
from transduce.search_config import SearchConfig
from transduce.settings import shown
from transduce.text.sentence_pieces import SentencePieceTokenizer
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import corpus_tags, find_language_tag

NEVER = -1e4
"""Bias that gives a token zero probability in any precision."""
ACTIVATION_SCALE = "_QuantMultA"
"""Ending of the names of the activations' scales, for products in 8 bits."""
NORM_EPSILON = 1e-5
"""Fixed epsilon of its layer norms; a smaller one of a model hardly differs."""
LEARNED_START = "learned_start"
"""Setting that an export adds to `config.json` if the start token's embedding is zero
and not learned."""
READING = ("project_query", "project_key_value", "inner")
WRITING = ("project_output", "outer")
"""Maps of a layer from the model's width to another, and from another to it."""
LAYER_WEIGHT = re.compile(r"(encoder|decoder)_layers\.(\d+)\.(.+)\.(weight|bias)")
"""Pattern of the name of a layer's weight: stack, number, module, and kind."""
USUAL_LENGTH = 25
"""Length in tokens at which both length penalties grow alike."""


def halved(d_model: int) -> Int64[Tensor, " d_model"]:
    """Return the permutation to Marian's order: even dimensions first, then odd."""
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])


class LayerWeight(NamedTuple):
    """Name of a weight of a layer, and what it is."""

    name: str
    stack: str
    """Either "encoder" or "decoder"."""
    layer: int
    """Number of the layer, from 0."""
    module: str
    """Module of the layer, such as "feed_forward.inner"."""
    kind: str
    """Either "weight" or "bias"."""


def layer_weights(config: ModelConfig) -> Iterator[LayerWeight]:
    """Yield the names of the weights of all layers, in the model's order."""
    for name in parameter_shapes(config):
        if match := LAYER_WEIGHT.fullmatch(name):
            stack, number, module, kind = match.groups()
            yield LayerWeight(name, stack, int(number), module, kind)


def reordered(
    name: str, weight: Float[Tensor, "..."], order: Int64[Tensor, " d_model"]
) -> Float[Tensor, "..."]:
    """Return a weight of a layer, or of a norm, with the model's width in an order."""
    module = name.split(".")[-2]
    if module not in READING:
        weight = weight[order]
    if weight.dim() > 1 and module not in WRITING:
        weight = weight[:, order]
    return weight


def require_small_epsilon(target: str, config: ModelConfig) -> None:
    """Raise `RequestError` if a model's epsilon is larger than that of Marian."""
    if config.norm_epsilon > NORM_EPSILON:
        raise RequestError(
            f"A model for {target} must have `model.norm_epsilon` of at most "
            f"{NORM_EPSILON:g}, but has {config.norm_epsilon:g}; it cannot be exported "
            "there."
        )


def require_even_heads(name: str, d_model: int, num_heads: int, path: Path) -> None:
    """Raise `RequestError` if the heads of a width, a setting of a file, are odd."""
    if (width := d_model // num_heads) % 2:
        raise RequestError(
            f"{path}: `{name}` must give each of the {num_heads} attention heads an "
            f"even width, but gives {width}; such a model cannot be imported."
        )


def power_penalty(search: SearchConfig) -> float:
    """Return the exponent by which Marian's length penalty comes closest to a
    search's."""
    if search.penalty == "power":
        return search.length_penalty
    return search.length_penalty * USUAL_LENGTH / (5 + USUAL_LENGTH)


def require_known_target(
    language: str | None, tokenizer: Tokenizer, origin: Path
) -> None:
    """Raise `RequestError` if a model with tags of languages has none of its target.

    No tag would come before its sources, unlike in its training.
    """
    if language is not None and (tags := tokenizer.language_tags):
        find_language_tag(language, tags, f"{origin}: the target language")


def with_corpus_tags(
    tokenizer: SentencePieceTokenizer, tags: object, place: str
) -> SentencePieceTokenizer:
    """Return a tokenizer with the tags of corpora that an export has kept.

    Raises `CheckpointError`, which names their place, unless they are a list of such
    tags of the vocabulary. Tags of languages are none.
    """
    known = corpus_tags(tokenizer.vocabulary)
    if not isinstance(tags, list) or any(tag not in known for tag in tags):
        raise CheckpointError(
            f"{place} must be a list of tags of corpora in the vocabulary, such as "
            f"<bt>, but is {shown(tags)}."
        )
    return tokenizer.trained_with(tags)


def require_finite(weight: Tensor, name: str, path: Path) -> None:
    """Raise `CheckpointError` if numbers of a weight of a file are not finite."""
    if not torch.isfinite(weight).all():
        raise CheckpointError(
            f"{path}: the weights must be finite numbers, but those of `{name}` are "
            "not; fetch another file."
        )
