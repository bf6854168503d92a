"""Settings of a Marian folder, translated to this package's."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from transduce.errors import CheckpointError, ConfigError, RequestError
from transduce.files import read_json
from transduce.interop.marian import NORM_EPSILON
from transduce.model.config import MAX, Activation, ModelConfig
from transduce.search_config import SearchConfig
from transduce.settings import shown
from transduce.text.languages import LanguagesConfig, canonical, is_known

SETTINGS = "config.json"
SEARCH = "generation_config.json"
TOKENIZER = "tokenizer_config.json"
VOCABULARY = "vocab.json"
TARGET_TOKEN = re.compile(r">>[^<>]+<<")
"""Pattern of a token that names the target's language."""
ACTIVATIONS: dict[object, Activation] = {
    "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip
FIXED = {
    "model_type": "marian",
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
    "scale_embedding": True,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
}
"""Settings with only one supported value."""
NOT_SAID = {
    "model_type": None,
    "scale_embedding": False,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
"""Defaults of the library that differ from the supported values."""
EQUAL = {
    "decoder_attention_heads": "encoder_attention_heads",
    "decoder_ffn_dim": "encoder_ffn_dim",
    "decoder_vocab_size": "vocab_size",
}
MAX_WHOLE = MAX["vocab_size"]
"""Largest whole number that is accepted."""
SPECIAL = ("pad_token_id", "decoder_start_token_id", "eos_token_id")
"""Names of the special ids, in this package's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarianSettings:
    """Settings of a Marian model."""

    model: ModelConfig
    """Model settings; whether the output has a bias depends on the weights."""
    ids: tuple[int, ...]
    """Marian's ids, by this package's ids."""
    max_positions: int
    """Maximum length of a sentence in tokens."""
    search: SearchConfig | None
    """Search settings; None if the folder has none."""
    languages: LanguagesConfig
    """Languages that the folder names; None where it names none."""

    @property
    def vocab_size(self) -> int:
        """Size of Marian's vocabulary."""
        return len(set(self.ids))

    @property
    def has_double(self) -> bool:
        """Whether one token has two special roles, which need two ids here."""
        return self.vocab_size < len(self.ids)


def read_settings(folder: Path) -> MarianSettings:
    """Read the settings of a folder.

    Raises `RequestError` for unsupported settings, `CheckpointError` if damaged.
    """
    path = folder / SETTINGS
    content = NOT_SAID | read_json(path)
    for name, known in FIXED.items():
        _require_one_of((known,), content, name, path)
    _require_one_of(ACTIVATIONS, content, "activation_function", path)
    for name, other in EQUAL.items():
        if content.get(name) is not None:
            _require_one_of((content.get(other),), content, name, path)
    ids = _ids(content, path)
    try:
        model = _model(content, len(ids), path)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return MarianSettings(
        model=model,
        ids=ids,
        max_positions=_whole(content, "max_position_embeddings", path),
        search=_read_search(folder),
        languages=_read_languages(folder),
    )


def _read_languages(folder: Path) -> LanguagesConfig:
    """Read languages from the tokenizer's settings; several targets count as None.

    Sources of such models begin with a token that names the target, such as `>>fra<<`.
    """
    content = _read_if_sound(folder / TOKENIZER)
    return LanguagesConfig(
        source=_language(content.get("source_lang")),
        target=None
        if _has_many_targets(folder)
        else _language(content.get("target_lang")),
    )


def _language(name: object) -> str | None:
    """Tag of a known language; None for groups of languages (`gem`, `ROMANCE`)."""
    return canonical(name) if isinstance(name, str) and is_known(name) else None


def _has_many_targets(folder: Path) -> bool:
    pieces = _read_if_sound(folder / VOCABULARY)
    return any(TARGET_TOKEN.fullmatch(piece) for piece in pieces)


def _read_if_sound(path: Path) -> Mapping[str, object]:
    """Read a JSON object; a damaged file counts as empty and is refused later."""
    try:
        return read_json(path)
    except CheckpointError:
        return {}


def _read_search(folder: Path) -> SearchConfig | None:
    """Read search settings from their own file or, in older folders, the model's."""
    path = folder / (SEARCH if (folder / SEARCH).is_file() else SETTINGS)
    content = read_json(path)
    if content.get("num_beams") is None:
        return None
    stated = content.get("length_penalty")
    length_penalty = 1.0 if stated is None else stated
    if not isinstance(length_penalty, int | float):
        raise CheckpointError(
            f"{path}: `length_penalty` must be a number, but is {length_penalty!r}."
        )
    try:
        return SearchConfig(
            beam_size=_whole(content, "num_beams", path),
            # With either value of early_stopping, Marian ends at about this point.
            patience=None if content.get("early_stopping") == "never" else 1.0,
            penalty="power",
            length_penalty=float(length_penalty),
        )
    except ConfigError as error:
        reason = str(error).removesuffix(".")
        raise RequestError(
            f"{path}: {reason}; change it there, to import the model."
        ) from None


def _model(content: Mapping[str, object], vocab_size: int, path: Path) -> ModelConfig:
    encoder_layers, decoder_layers, d_model, num_heads, d_ff = (
        _whole(content, name, path)
        for name in (
            "encoder_layers", "decoder_layers", "d_model", "encoder_attention_heads",
            "encoder_ffn_dim",
        )
    )  # fmt: skip
    if d_model % num_heads:
        raise CheckpointError(
            f"{path}: `d_model` must be a multiple of the {num_heads} attention heads, "
            f"but is {d_model}."
        )
    return ModelConfig(
        vocab_size=vocab_size,
        num_layers=encoder_layers,
        decoder_layers=None if decoder_layers == encoder_layers else decoder_layers,
        d_model=d_model,
        d_ff=d_ff,
        num_heads=num_heads,
        d_k=d_model // num_heads,
        d_v=d_model // num_heads,
        dropout=_rate(content, "dropout", path),
        attention_dropout=_rate(content, "attention_dropout", path),
        relu_dropout=_rate(content, "activation_dropout", path),
        activation=ACTIVATIONS[content["activation_function"]],
        norm_epsilon=NORM_EPSILON,
    )


def _rate(content: Mapping[str, object], name: str, path: Path) -> float:
    rate = content[name]
    if not isinstance(rate, int | float) or isinstance(rate, bool):
        raise CheckpointError(
            f"{path}: `{name}` must be a number, but is {shown(rate)}."
        )
    if not 0 <= rate < 1:
        raise CheckpointError(
            f"{path}: `{name}` must be at least 0 and below 1, but is {shown(rate)}."
        )
    return float(rate)


def _ids(content: Mapping[str, object], path: Path) -> tuple[int, ...]:
    """Return Marian's ids by this package's: the three special ones first."""
    special = [_whole(content, name, path, least=0) for name in SPECIAL]
    vocab_size = _whole(content, "vocab_size", path)
    if max(special) >= vocab_size:
        raise CheckpointError(
            f"{path}: special ids must be below the vocabulary's size {vocab_size}, "
            f"but one is {max(special)}."
        )
    return (*special, *(i for i in range(vocab_size) if i not in special))


def _require_one_of(
    known: Collection[object], content: Mapping[str, object], name: str, path: Path
) -> None:
    value = content.get(name, FIXED.get(name))
    if value not in list(known):
        words = " or ".join(map(json.dumps, known))
        raise RequestError(
            f"{path}: `{name}` must be {words}, but is {json.dumps(value)}; such a "
            "model cannot be imported."
        )


def _whole(
    content: Mapping[str, object], name: str, path: Path, *, least: int = 1
) -> int:
    value = content.get(name)
    if type(value) is not int or value < least:
        raise CheckpointError(
            f"{path}: `{name}` must be a whole number of {least} at least, but is "
            f"{shown(value)}."
        )
    if value > MAX_WHOLE:
        raise CheckpointError(
            f"{path}: `{name}` must be at most {MAX_WHOLE:,}, but is {shown(value)}."
        )
    return value
