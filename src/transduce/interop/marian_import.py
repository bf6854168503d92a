"""Import from Hugging Face: a folder of `MarianMTModel`, such as those of OPUS-MT.

Marian's model differs from the paper's in the order of its dimensions, since its
sinusoids have all sines before all cosines, and in settings that `ModelConfig` records:
activation, biases and the layer norm's epsilon. The import permutes dimensions and ids
into this package's order. A token that is both padding and start of the target becomes
two, and neither is ever generated. Of the search settings, beam size, length penalty
and early stopping are kept."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import MarianMTModel

from transduce.checkpoint import Checkpoint, load_model, load_tensors, write_model
from transduce.errors import CheckpointError, RequestError
from transduce.files import atomic_directory
from transduce.foreign_models import describe, is_ours
from transduce.interop.hugging_face import HuggingFaceModel, HuggingFaceTokenizer
from transduce.interop.marian import halved, marian_config
from transduce.interop.marian_settings import SETTINGS, MarianSettings, read_settings
from transduce.interop.marian_tokenizer import read_tokenizer
from transduce.interop.proof import Proof, prove, require_short
from transduce.model.config import ModelConfig
from transduce.model.embedding import sinusoids
from transduce.text.languages import LanguagesConfig
from transduce.text.vocabulary import BOS, PAD

WEIGHTS, PICKLE = "model.safetensors", "pytorch_model.bin"
EMBEDDINGS = (
    "model.shared.weight", "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight", "lm_head.weight",
)  # fmt: skip
"""Names of the shared matrix; each may be present or absent."""
POSITIONS = (
    "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight",
)  # fmt: skip
BIAS = "final_logits_bias"
OPTIONAL = {*EMBEDDINGS, *POSITIONS, BIAS}
READING = {
    "self_attention.project_query": ("self_attn.q_proj",),
    "self_attention.project_key_value": ("self_attn.k_proj", "self_attn.v_proj"),
    "cross_attention.project_query": ("encoder_attn.q_proj",),
    "cross_attention.project_key_value": (
        "encoder_attn.k_proj",
        "encoder_attn.v_proj",
    ),
    "feed_forward.inner": ("fc1",),
}
"""Maps from the model's width: names here, and the Marian parts they concatenate."""
WRITING = {
    "self_attention.project_output": "self_attn.out_proj",
    "cross_attention.project_output": "encoder_attn.out_proj",
    "feed_forward.outer": "fc2",
    "after_self_attention.norm": "self_attn_layer_norm",
    "after_cross_attention.norm": "encoder_attn_layer_norm",
    "after_feed_forward.norm": "final_layer_norm",
}
"""Marian's names of the maps to the model's width, and of the norms."""
NEVER = -1e4
"""Bias that gives a token zero probability in any precision."""
TOLERANCE = 1e-3
"""Tolerance for stored sinusoids, which may have 16 bits."""


def read_weights(folder: Path, settings: MarianSettings) -> dict[str, Tensor]:
    """Read the weights in this package's order.

    Raises `RequestError` if they cannot be imported, `CheckpointError` if damaged.
    """
    path = folder / WEIGHTS
    theirs = {name: each.float() for name, each in load_tensors(path).items()}
    _require_names_and_shapes(theirs, settings, path)
    _require_sinusoids(theirs, settings.model, path)
    order = halved(settings.model.d_model).argsort()
    rows = torch.tensor(settings.ids)
    ours = {"embedding.weight": _embedding(theirs, path)[rows][:, order]}
    if (bias := _bias(theirs, settings)) is not None:
        ours["embedding.bias"] = bias
    layers = {
        "encoder": settings.model.num_layers,
        "decoder": settings.model.num_decoder_layers,
    }
    for stack, num_layers in layers.items():
        for i in range(num_layers):
            for name, weight in _layer(theirs, f"model.{stack}.layers.{i}", order):
                ours[f"{stack}_layers.{i}.{name}"] = weight
    return {name: weight.contiguous() for name, weight in ours.items()}


def _require_names_and_shapes(
    theirs: Mapping[str, Tensor], settings: MarianSettings, path: Path
) -> None:
    """Raise `CheckpointError` unless names and shapes are those of the library's
    model."""
    config = marian_config(settings.model, settings.max_positions)
    config.vocab_size = config.decoder_vocab_size = settings.vocab_size
    with torch.device("meta"):
        expected = MarianMTModel(config).state_dict()
    for name in sorted({*expected, *theirs} - (OPTIONAL - theirs.keys())):
        shapes = [
            tuple(weights[name].shape) if name in weights else "nothing"
            for weights in (expected, theirs)
        ]
        if shapes[0] != shapes[1]:
            raise CheckpointError(
                f"{path}: `{name}` must be {shapes[0]} by the settings beside it, but "
                f"is {shapes[1]}; the files are of different models, or of one that "
                "cannot be imported."
            )


def _require_sinusoids(
    theirs: Mapping[str, Tensor], config: ModelConfig, path: Path
) -> None:
    for name in POSITIONS:
        if (positions := theirs.get(name)) is not None:
            expected = sinusoids(len(positions), config.d_model)
            expected = expected[:, halved(config.d_model)]
            if not torch.allclose(positions, expected, rtol=0, atol=TOLERANCE):
                raise RequestError(
                    f"{path}: `{name}` must be sinusoids, but is learned; such a model "
                    "cannot be imported."
                )


def _embedding(theirs: Mapping[str, Tensor], path: Path) -> Tensor:
    found = {name: theirs[name] for name in EMBEDDINGS if name in theirs}
    if not found:
        raise CheckpointError(
            f"{path}: must hold `{EMBEDDINGS[0]}`, but does not; the file is damaged."
        )
    [(first, embedding), *others] = found.items()
    for name, other in others:
        if not torch.equal(other, embedding):
            raise RequestError(
                f"{path}: `{first}` and `{name}` must be one matrix, but differ; such "
                "a model cannot be imported."
            )
    return embedding


def _bias(theirs: Mapping[str, Tensor], settings: MarianSettings) -> Tensor | None:
    """Return the output bias; None if it is zero and no token was split in two."""
    bias = theirs.get(BIAS, torch.zeros(1, settings.vocab_size))[0]
    bias = bias[torch.tensor(settings.ids)]
    if settings.has_double:
        # A split token would count twice; tokens never generated have no probability.
        bias[[PAD, BOS]] = NEVER
    return bias if bias.any() else None


def _layer(
    theirs: Mapping[str, Tensor], prefix: str, order: Tensor
) -> Iterator[tuple[str, Tensor]]:
    for name, parts in READING.items():
        if f"{prefix}.{parts[0]}.weight" in theirs:
            weight = torch.cat([theirs[f"{prefix}.{part}.weight"] for part in parts])
            yield f"{name}.weight", weight[:, order]
            bias = torch.cat([theirs[f"{prefix}.{part}.bias"] for part in parts])
            yield f"{name}.bias", bias
    for name, part in WRITING.items():
        if f"{prefix}.{part}.weight" in theirs:
            for kind in ("weight", "bias"):
                yield f"{name}.{kind}", theirs[f"{prefix}.{part}.{kind}"][order]


def import_model(
    origin: Path,
    out: Path,
    sentences: Sequence[str],
    languages: LanguagesConfig | None = None,
) -> Proof:
    """Write a model folder once the proof on the sentences succeeds.

    Its languages are those given, or else those that the folder names. Raises
    `RequestError` if the model cannot be imported, `CheckpointError` if it is damaged,
    `ProofError` if the proof fails.
    """
    _require_files(origin)
    settings = read_settings(origin)
    checkpoint = _checkpoint(origin, settings, languages or LanguagesConfig())
    require_short(sentences, checkpoint.tokenizer, settings.max_positions)
    model, tokenizer = _theirs(origin, settings)

    with atomic_directory(out) as new:
        write_model(checkpoint, new)
        return prove(model, tokenizer, load_model(new), sentences)


def _checkpoint(
    origin: Path, settings: MarianSettings, given: LanguagesConfig
) -> Checkpoint:
    weights = read_weights(origin, settings)
    return Checkpoint(
        config=replace(settings.model, output_bias="embedding.bias" in weights),
        weights=weights,
        tokenizer=read_tokenizer(origin, settings),
        step=0,
        search=settings.search,
        source_language=given.source or settings.languages.source,
        target_language=given.target or settings.languages.target,
    )


def _theirs(
    origin: Path, settings: MarianSettings
) -> tuple[HuggingFaceModel, HuggingFaceTokenizer]:
    try:
        return (
            HuggingFaceModel(origin, settings.ids),
            HuggingFaceTokenizer(origin, settings.ids),
        )
    except Exception as error:  # the library raises bare exceptions
        reason = " ".join(str(error).split())
        raise RequestError(
            f"{origin}: must be what the package `transformers` loads, or there is no "
            f"proof, but it says: {reason}"
        ) from None


def _require_files(origin: Path) -> None:
    if is_ours(origin):
        raise RequestError(
            f"{origin}: must be a folder of Hugging Face's Marian, but is a model or a "
            "run of transduce; use it as it is."
        )
    if not (origin / SETTINGS).is_file():
        raise RequestError(
            f"{origin}: must be a folder of Hugging Face's Marian, but "
            f"{describe(origin, SETTINGS)}"
        )
    if not (origin / WEIGHTS).is_file() and (origin / PICKLE).is_file():
        raise RequestError(
            f"{origin}: must hold {WEIGHTS}, but has only {PICKLE}, which could run "
            "any program as it is loaded; if you trust it, convert it with: python -c "
            "'from transformers import MarianMTModel; "
            f'MarianMTModel.from_pretrained("{origin}").save_pretrained("{origin}")\''
        )
