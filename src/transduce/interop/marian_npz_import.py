"""Import from Marian itself: a folder with weights and SentencePiece vocabularies.

The weights are model.npz, or in Marian's binary format, which `marian_binary` reads.

Marian (Junczys-Dowmunt et al., 2018) stores the options of a model beside its weights,
as `special:model.yml`. Its Transformers differ from the paper's in what `ModelConfig`
records: activation, place of the norms, recurrent units in the decoder, biases of the
logits, matrices that are not tied, and the base of the sinusoids, which have all sines
before all cosines. The start of a target has an embedding of zeros. All this is
permuted or recorded, so that the imported model computes what Marian computes.

Two vocabularies become their union: pieces of the target first, which have ids below
`target_vocab_size`, and then those of the source only.
"""

import json
import math
import re
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from os.path import lexists
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import sentencepiece
import torch
from jaxtyping import Int64
from torch import Tensor

from transduce.checkpoint import Checkpoint, load_model, write_model
from transduce.errors import CheckpointError, ConfigError, RequestError, counted
from transduce.files import atomic_directory, read_json, reason, require_file
from transduce.foreign_models import DECODER, MARIAN_SETTINGS, is_marian_binary
from transduce.interop.export import ProofError
from transduce.interop.marian_binary import read_binary
from transduce.interop.marian_conventions import (
    ACTIVATION_SCALE,
    NEVER,
    halved,
    layer_weights,
    reordered,
    require_even_heads,
    require_finite,
    require_known_target,
    with_corpus_tags,
)
from transduce.interop.marian_shortlist import Limits, Rows, read_shortlist
from transduce.interop.portable_tokenizer import (
    read_sentencepiece,
    require_whole_characters,
)
from transduce.model.config import (
    MAX_VOCAB_SIZE,
    Activation,
    ModelConfig,
    Norm,
    parameter_shapes,
)
from transduce.search_config import SearchConfig
from transduce.settings import LONGEST_SHOWN, shown, shown_json
from transduce.text.languages import LanguagesConfig, canonical
from transduce.text.sentence_pieces import (
    SPACE,
    UNKNOWN,
    PieceKind,
    SentencePieceModel,
    SentencePieceTokenizer,
)
from transduce.text.shortlist import Shortlist
from transduce.text.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES

OPTIONS = "special:model.yml"
"""Name of the array with the options."""
SOURCE_LANGUAGE, TARGET_LANGUAGE, CORPUS_TAGS = (
    "transduce-source-language", "transduce-target-language", "transduce-corpus-tags",
)  # fmt: skip
"""Options of this package, which Marian does not read: languages of a model, and the
tags of corpora with which it was trained."""
DROPOUTS = {
    "dropout": "transduce-dropout",
    "attention_dropout": "transduce-attention-dropout",
    "relu_dropout": "transduce-relu-dropout",
}
"""Options of this package with the dropouts of further training. Marian's own would
overrule those that its user gives."""
SETTINGS = (
    DECODER, "config.yml", "config*.yml", "*.npz.decoder.yml", "*.bin.decoder.yml",
    "*.npz.yml",
)  # fmt: skip
"""Patterns of the names of settings, the most certain first: those of decoding, such as
config.intgemm8bitalpha.yml, and those of training."""
SHORTLISTS = "lex*.s2t*"
"""Pattern of the names of shortlists."""
END = SPECIAL_PIECES[EOS]
ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "swish": "silu"}
ARRANGEMENTS: dict[tuple[str, str, str], Norm] = {
    ("", "an", ""): "post",
    ("n", "a", "n"): "pre",
}
"""Places of the norms, by the operations before a sub-layer, after it, and after the
last layer; n is a norm and a the residual sum. Dropout is left out."""
PLACES = (
    "transformer-preprocess", "transformer-postprocess", "transformer-postprocess-top",
)  # fmt: skip
FIXED = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention", "rnn"),
    "transformer-ffn-depth": ("2",),
    "transformer-decoder-ffn-depth": ("0", "2"),
    "transformer-train-position-embeddings": ("false",),
    "transformer-disable-position-embeddings": ("false",),
    "transformer-alibi-shift": ("false",),
    "transformer-attention-mask": ("default",),
    "transformer-no-projection": ("false",),
    "transformer-no-bias": ("false",),
    "transformer-no-affine": ("false",),
    "transformer-pool": ("false",),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-tied-layers": ([],),
    "factors-dim-emb": ("0",),
    "lemma-dim-emb": ("0",),
    "lemma-dependency": ("",),
    "input-types": ([], ["sequence"], ["sequence", "sequence"]),
    "right-left": ("false",),
    "ulr": ("false",),
}
"""Options of Marian with the values that can be imported."""
RECURRENT = {
    "dec-cell": ("ssru",),
    "transformer-rnn-projection": ("false",),
    "layer-normalization": ("false",),
}
"""The same for models with a recurrent decoder."""
TIED_ALL, TIED_SOURCE, TIED_TARGET = (
    "tied-embeddings-all", "tied-embeddings-src", "tied-embeddings",
)  # fmt: skip
"""Options about one matrix for all embeddings and the output, for both embeddings, and
for the target's embedding and the output."""
DEFAULT_CELL = "gru"
"""Marian's default for `dec-cell`."""
NEUTRAL: dict[str, tuple[tuple[str | list[str], ...], str]] = {
    "word-penalty": (("0", "0.0"), "`search.length_penalty` favours long ones"),
    "max-length-factor": (("3", "3.0"), "`search.extra_length` limits the length"),
    "output-sampling": (([], "false"), "`transduce sample` draws translations"),
    "n-best": (("false",), "`transduce translate --nbest` gives several"),
    "force-decode": (("false",), "`transduce translate --prefixes` is similar"),
}
"""Options of decoding that are not applied as in Marian: for each the values that leave
translations unchanged, and what to use instead."""
DEFAULTS = {"beam-size": "12", "normalize": "0"}
"""Marian's defaults for the options of search."""
PARTS = {
    "self_attention.project_query": ("self_Wq",),
    "self_attention.project_key_value": ("self_Wk", "self_Wv"),
    "self_attention.project_output": ("self_Wo",),
    "after_self_attention.norm": ("self_Wo_ln",),
    "recurrence.forget_gate": ("rnn_Wf",),
    "recurrence.candidate": ("rnn_W",),
    "cross_attention.project_query": ("context_Wq",),
    "cross_attention.project_key_value": ("context_Wk", "context_Wv"),
    "cross_attention.project_output": ("context_Wo",),
    "after_cross_attention.norm": ("context_Wo_ln",),
    "feed_forward.inner": ("ffn_W1",),
    "feed_forward.outer": ("ffn_W2",),
    "after_feed_forward.norm": ("ffn_ffn_ln",),
}
"""Modules of a layer here, each with Marian's names, without the layer's prefix, of the
matrices that it concatenates, or of its norm."""
WITH_IDS = (".yml", ".yaml", ".json")
"""Endings of word lists that give the id of each piece."""
PREPROCESSING = "preprocess.sh"
"""Program of OPUS-MT that prepares texts for a model."""
LARGEST_RATIO = 20
"""Largest ratio of the arrays' size to the file's: weights hardly compress."""
MAX_OPTIONS_BYTES = 1_000_000
QUOTED_OR_COMMENT = re.compile(
    r"""(?<![^\s\[,])(?:"(?:[^"\\]|\\.)*+"|'(?:[^']|'')*+'|#.*)"""
)
"""Pattern of a quoted scalar, which may hold a number sign, or of a comment in YAML."""
OPTION = re.compile(r"[\w.-]+", re.ASCII)
"""Pattern of an option's name."""
BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on"), "true"),
    **dict.fromkeys(("false", "no", "off"), "false"),
}
"""Names of truth values in YAML, in any case, and how Marian writes them. One letter is
a text here, such as the n of `transformer-preprocess`."""
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|U([0-9a-fA-F]{8})|.)")
"""Pattern of an escape in a quoted text; JSON lacks those with a number here."""
EPSILON = 1e-6
"""Constant of Marian's layer norms."""

DAMAGE = (
    OSError, ValueError, EOFError, KeyError, TypeError, TokenError, SyntaxError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Errors of NumPy and of zipfile for damaged files."""

Options = Mapping[str, str | list[str]]
Arrays = Mapping[str, Tensor]


def import_marian(
    origin: Path,
    out: Path,
    sentences: Sequence[str],
    languages: LanguagesConfig | None = None,
    *,
    overwrite: bool = False,
) -> str:
    """Write a model folder, and return a sentence about the comparison.

    The tokenizer is compared with SentencePiece on the sentences. Raises `RequestError`
    if the model cannot be imported, `CheckpointError` if it is damaged, `ProofError` if
    the tokenizers differ.
    """
    files = find_files(origin)
    path = files.weights
    options, arrays = _read_arrays(path)
    config = _config(options, path)
    sides = _read_sides(files)
    vocabulary = _Vocabulary(*sides)
    tokenizer = SentencePieceTokenizer(
        vocabulary=vocabulary.pieces,
        source=sides[0].model,
        target=sides[1].model,
    )
    config, weights = _weights(arrays, options, config, vocabulary, path)
    if config.target_vocab_size is not None:
        tokenizer = replace(tokenizer, target_vocab_size=config.target_vocab_size)
    tags = options.get(CORPUS_TAGS, [])
    tokenizer = with_corpus_tags(tokenizer, tags, f"{path}: `{CORPUS_TAGS}`")
    given = languages or LanguagesConfig()
    target_language = given.target or _language(options, TARGET_LANGUAGE, path)
    require_known_target(target_language, tokenizer, origin)
    shortlist = _shortlist(files, vocabulary, tokenizer)
    checkpoint = Checkpoint(
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        step=0,
        search=_search(files, tokenizer.unknown),
        shortlist=shortlist,
        source_language=given.source or _language(options, SOURCE_LANGUAGE, path),
        target_language=target_language,
    )
    _compare_pieces(sides, sentences)
    with atomic_directory(out, "import", overwrite=overwrite) as new:
        write_model(checkpoint, new)
        load_model(new)
    return (
        "The tokenizer gives the pieces of SentencePiece on "
        f"{counted(len(sentences), 'sentence')}; the weights are not compared, as "
        "Marian's own program is not part of this package"
    )


# ---- Files -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Files of a model of Marian."""

    folder: Path
    weights: Path
    """File of the weights, model.npz or in the binary format."""
    settings_path: Path
    """File of settings of decoding; decoder.yml if there is none."""
    settings: Options
    """Settings of decoding or, if there are none, of training."""


def find_files(origin: Path) -> Files:
    """Find the files of a model by its folder, its settings, or its weights.

    Raises `RequestError` if the weights are missing or several, and `CheckpointError`
    if the settings are damaged.
    """
    if origin.is_dir():
        return _chosen(origin, _weights_in(origin), _settings_in(origin))
    folder = origin.parent
    if origin.suffix in MARIAN_SETTINGS:
        return _chosen(folder, _weights_in(folder), [origin])
    return _chosen(folder, [origin], _settings_in(folder))


def _weights_in(folder: Path) -> list[Path]:
    """List the files of weights; copies of the optimizer are none."""
    return sorted(
        path
        for path in (*folder.glob("*.npz"), *folder.glob("*.bin"))
        if not path.stem.endswith(".optimizer")
        and (path.suffix == ".npz" or is_marian_binary(path))
    )


def _settings_in(folder: Path) -> list[Path]:
    """List the files of settings, the most certain first."""
    # A pattern without a star would leave out a link that leads nowhere.
    names = sorted(path.name for path in folder.glob("*"))
    found = (
        folder / name
        for pattern in SETTINGS
        for name in names
        if fnmatchcase(name, pattern)
    )
    return [*dict.fromkeys(found)]


def _chosen(folder: Path, weights: Sequence[Path], settings: Sequence[Path]) -> Files:
    """Return the first settings that name weights that are there, with these.

    If no settings name any, the first ones count, and the weights must be the only
    ones, or the only model.npz beside files that were made of it.
    """
    read: list[tuple[Path, Options]] = []
    for path in settings:  # those behind the chosen ones may be anything
        options = read_options(_text(path), path)
        read.append((path, options))
        names = {Path(name).name for name in _listed(options, "models")}
        named = [each for each in weights if each.name in names]
        if len(named) == 1:
            return Files(
                folder=folder, weights=named[0], settings_path=path, settings=options
            )
    path, options = read[0] if read else (folder / DECODER, {})
    originals = [each for each in weights if each.suffix == ".npz"] or weights
    if len(originals) == 1:
        return Files(
            folder=folder, weights=originals[0], settings_path=path, settings=options
        )
    if originals:
        raise RequestError(
            f"{folder}: must hold one model, but has "
            f"{', '.join(each.name for each in originals)}; name one of these files, "
            f"or name it in {DECODER} (`models`)."
        )
    others = ", ".join(sorted(each.name for each in folder.glob("*.bin*")))
    raise RequestError(
        f"{folder}: must hold the weights as model.npz or in Marian's binary format, "
        f"but has only {others or 'other files'}; fetch the file again, and unpack it "
        "if it is compressed."
    )


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > 100 * MAX_OPTIONS_BYTES:
            raise CheckpointError(
                f"{path}: must be a file of settings or words, but is too large; fetch "
                "it again."
            )
        require_file(path)
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: the file is missing or damaged ({reason(error)}); fetch it again."
        ) from None


def read_options(text: str, path: Path) -> Options:
    """Read YAML of one level, as Marian writes it: texts, and lists of texts."""
    options: dict[str, str | list[str]] = {}
    name = ""
    for line in text.split("\n"):
        content = _without_comment(line).strip()
        if not content:
            continue
        if line[0] in " \t-":
            # Anything else is a nested table, and no option that is read here has one.
            if content == "[]" or content.startswith("- "):
                listed = options.get(name)
                if not isinstance(listed, list):
                    options[name] = listed = []
                if content != "[]":
                    listed.append(_unquoted(content[2:]))
            continue
        name, colon, value = content.partition(":")
        name, value = _unquoted(name), value.strip()
        is_cut = value.startswith("[") and not value.endswith("]")
        if not colon or not OPTION.fullmatch(name) or is_cut:
            raise CheckpointError(
                f"{path}: must hold each option on one line as `name: value`, such as "
                f"`beam-size: 6`, but has the line {shown(content)}; write it in this "
                "form, or fetch the file again if it is damaged."
            )
        options[name] = _option_value(value)
    return options


def _without_comment(line: str) -> str:
    """Return a line without its comment."""
    for match in QUOTED_OR_COMMENT.finditer(line):
        if match[0].startswith("#"):
            return line[: match.start()]
    return line


def _option_value(text: str) -> str | list[str]:
    """Return the scalar or the list that an option has on its own line."""
    if not text.startswith("["):
        return BOOLEANS.get(text.lower()) or _unquoted(text)
    items = text.strip("[]").split(",")
    return [_unquoted(each) for each in items if each.strip()]


def _unquoted(text: str) -> str:
    """Return a scalar of YAML without its quotes."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(ESCAPE.sub(_json_escape, text)))
        except ValueError:
            return text[1:-1]
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return text


def _json_escape(match: re.Match[str]) -> str:
    """Return an escape of a quoted scalar as JSON has it."""
    if not (match[1] or match[2]):
        return match[0]
    if (code := int(match[1] or match[2], 16)) > sys.maxunicode:
        raise ValueError(f"{match[0]} is not a character")
    return json.dumps(chr(code))[1:-1]


def _listed(options: Options, name: str) -> list[str]:
    value = options.get(name, [])
    return [value] if isinstance(value, str) else value


# ---- Weights ---------------------------------------------------------------------


def _read_arrays(path: Path) -> tuple[Options, Arrays]:
    """Read options and weights; nothing is unpickled.

    Scales of activations are left out: products in 8 bits measure them here.
    """
    stored = _read_npz(path) if path.suffix == ".npz" else read_binary(path)
    if OPTIONS not in stored:
        raise CheckpointError(
            f"{path}: must hold the model's options (`{OPTIONS}`), but does not; it is "
            "another file, or of a Marian before 1.0."
        )
    options = _stored_options(stored.pop(OPTIONS), path)
    return options, {
        name: _numbers(stored[name], name, path)
        for name in sorted(stored)
        if not name.endswith(ACTIVATION_SCALE)
    }


def _read_npz(path: Path) -> dict[str, Any]:
    """Read all arrays of model.npz."""
    try:
        require_file(path)
        names = _array_names(path)
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in names}
    except DAMAGE as error:
        why = reason(error) or type(error).__name__
        raise CheckpointError(
            f"{path}: the weights are missing or damaged ({why}); fetch the file again."
        ) from None
    except (MemoryError, RuntimeError) as error:
        # zipfile raises RuntimeError for encrypted entries and unknown compression.
        raise CheckpointError(
            f"{path}: the weights cannot be read ({reason(error)}); fetch the file "
            "again."
        ) from None


def _array_names(path: Path) -> set[str]:
    """List the arrays of a file; `CheckpointError` if they would be far too large."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    total = sum(entry.file_size for entry in entries)
    if total > LARGEST_RATIO * path.stat().st_size + MAX_OPTIONS_BYTES:
        raise CheckpointError(
            f"{path}: the arrays must be about as large as the file, but have "
            f"{total:,} bytes; the file is damaged."
        )
    return {entry.filename.removesuffix(".npy") for entry in entries}


def _stored_options(content: Any, path: Path) -> Options:
    is_text = isinstance(content, np.ndarray) and content.dtype.itemsize == 1
    if not is_text or content.nbytes > MAX_OPTIONS_BYTES:
        raise CheckpointError(
            f"{path}: the options must be text, but are not; the file is damaged."
        )
    try:
        text = content.tobytes().rstrip(b"\0").decode("utf-8")
    except UnicodeDecodeError:
        raise CheckpointError(
            f"{path}: the options must be text in UTF-8, but are not; the file is "
            "damaged."
        ) from None
    return read_options(text, path)


def _numbers(content: Any, name: str, path: Path) -> Tensor:
    is_array = isinstance(content, np.ndarray)
    if not is_array or content.dtype not in (np.float32, np.float16):
        kind = content.dtype if is_array else "no array"
        raise RequestError(
            f"{path}: `{name}` must be numbers in fp32 or fp16, but is {kind}; import "
            "the model before it was quantized."
        )
    numbers = torch.from_numpy(np.ascontiguousarray(content, dtype=np.float32))
    require_finite(numbers, name, path)
    return numbers


def _config(options: Options, path: Path) -> ModelConfig:
    """Return the settings of the model, without those of its vocabularies."""
    is_recurrent = options.get("transformer-decoder-autoreg") == "rnn"
    options = {"dec-cell": DEFAULT_CELL, **options}
    _require_fixed(options, {**FIXED, **(RECURRENT if is_recurrent else {})}, path)
    activation = _activation(options, path)
    d_model = _whole(options, "dim-emb", path)
    d_ff = _whole(options, "transformer-dim-ffn", path)
    heads = _whole(options, "transformer-heads", path)
    encoder_layers = _whole(options, "enc-depth", path)
    decoder_layers = _whole(options, "dec-depth", path)
    decoder_d_ff = _whole(options, "transformer-decoder-dim-ffn", path, 0)
    if decoder_d_ff not in (0, d_ff):
        raise RequestError(
            f"{path}: `transformer-decoder-dim-ffn` must be 0 or {d_ff}, but is "
            f"{decoder_d_ff}; such a model cannot be imported."
        )
    if d_model % heads or d_model % 2 or d_model < 4:
        raise CheckpointError(
            f"{path}: `dim-emb` must be even and a multiple of the {heads} attention "
            f"heads, but is {d_model}."
        )
    require_even_heads("dim-emb", d_model, heads, path)
    try:
        return ModelConfig(
            num_layers=encoder_layers,
            decoder_layers=None if decoder_layers == encoder_layers else decoder_layers,
            d_model=d_model,
            d_ff=d_ff,
            num_heads=heads,
            d_k=d_model // heads,
            d_v=d_model // heads,
            norm=_arrangement(options, path),
            activation=activation,
            decoder_self_attention="ssru" if is_recurrent else "attention",
            norm_epsilon=EPSILON,
            position_base=marian_position_base(d_model),
            learned_start=False,
            **_dropouts(options, path),
        )
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _dropouts(options: Options, path: Path) -> dict[str, Any]:
    """Return the dropouts that an export of this package has kept."""
    return {
        name: _number(options, option, path)
        for name, option in DROPOUTS.items()
        if option in options
    }


def _language(options: Options, name: str, path: Path) -> str | None:
    """Return a language that an export of this package has kept."""
    value = options.get(name)
    try:
        return None if value is None else canonical(str(value))
    except ConfigError as error:
        raise CheckpointError(f"{path}: `{name}`: {error}") from None


def _require_fixed(
    options: Options, fixed: Mapping[str, Sequence[str | list[str]]], path: Path
) -> None:
    """Raise `RequestError` unless each option has one of its values."""
    for name, known in fixed.items():
        value = options.get(name, known[0])
        if value not in known:
            words = " or ".join(map(_shown, known))
            raise RequestError(
                f"{path}: `{name}` must be {words}, but is {_shown(value)}; such a "
                "model cannot be imported."
            )


def _activation(options: Options, path: Path) -> Activation:
    """Return the activation; `RequestError` for an unsupported one."""
    activation = str(options.get("transformer-ffn-activation", "swish"))
    if activation not in ACTIVATIONS:
        raise RequestError(
            f"{path}: `transformer-ffn-activation` must be relu or swish, but is "
            f"{_shown(activation)}; such a model cannot be imported."
        )
    return ACTIVATIONS[activation]


def marian_position_base(d_model: int) -> float:
    """Return the base of Marian's sinusoids by this package's formula.

    Its wavelengths are 10,000^(i / (d / 2 - 1)), as in tensor2tensor.
    """
    return 10_000.0 ** (d_model / (d_model - 2))


def _shown(value: str | list[str]) -> str:
    if isinstance(value, str) and 0 < len(value) <= LONGEST_SHOWN:
        return value
    return shown_json(value)


def _whole(options: Options, name: str, path: Path, default: int | None = None) -> int:
    value = options.get(name, None if default is None else str(default))
    if not isinstance(value, str) or not (value.isascii() and value.isdigit()):
        raise CheckpointError(
            f"{path}: the option `{name}` must be a whole number, but is "
            f"{shown(value)}."
        )
    minimum, maximum = int(default is None), MAX_VOCAB_SIZE
    if len(value) > 12 or not minimum <= int(value) <= maximum:
        raise CheckpointError(
            f"{path}: the option `{name}` must be from {minimum} to {maximum:,}, but "
            f"is {shown(value)}."
        )
    return int(value)


def _arrangement(options: Options, path: Path) -> Norm:
    """Return the place of the norms; `RequestError` for an unsupported one."""
    defaults = ("", "dan", "")
    given = [str(options.get(n, d)) for n, d in zip(PLACES, defaults, strict=True)]
    before, after, top = (each.replace("d", "") for each in given)
    if (norm := ARRANGEMENTS.get((before, after, top))) is None:
        words = ", ".join(
            f"`{name}: {_shown(value)}`"
            for name, value in zip(PLACES, given, strict=True)
        )
        raise RequestError(
            f"{path}: the norms must be after each sub-layer (`{PLACES[1]}: dan`) or "
            f"before it (`{PLACES[0]}: n`, `{PLACES[1]}: da`, `{PLACES[2]}: n`), but "
            f"are elsewhere ({words}); such a model cannot be imported."
        )
    return norm


class _UnreadArrays:
    """Arrays that are taken out one by one, each with the shape that it must have."""

    def __init__(self, arrays: Arrays, path: Path) -> None:
        self._arrays = dict(arrays)
        self._path = path

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def take(self, name: str, *shape: int) -> Tensor:
        """Remove and return an array; `CheckpointError` unless it has the shape."""
        found = self._arrays.pop(name, None)
        if found is None or tuple(found.shape) != shape:
            actual = "missing" if found is None else str(tuple(found.shape))
            raise CheckpointError(
                f"{self._path}: `{name}` must be {shape} by the options and the "
                f"vocabulary, but is {actual}; the files are of different models."
            )
        return found

    def require_empty(self) -> None:
        """Raise `RequestError` if the model has weights without a meaning here."""
        if self._arrays:
            names = ", ".join(sorted(self._arrays)[:3])
            raise RequestError(
                f"{self._path}: the weights must be those of a Transformer by its "
                f"options, but there are others ({names}); such a model cannot be "
                "imported."
            )


def _weights(
    arrays: Arrays,
    options: Options,
    config: ModelConfig,
    vocabulary: "_Vocabulary",
    path: Path,
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the settings of the model and its weights, in this package's order."""
    unread, order = _UnreadArrays(arrays, path), halved(config.d_model).argsort()
    is_shared = _is_any(options, TIED_ALL, TIED_SOURCE)
    if is_shared and not vocabulary.is_one:
        raise CheckpointError(
            f"{path}: source and target share their embedding, and must have one "
            "vocabulary, but have two; the files are of different models."
        )
    source, target = _embeddings(unread, vocabulary, config.d_model, is_shared)
    output, bias = _output(unread, options, len(vocabulary.target), config.d_model)
    config = replace(
        config,
        vocab_size=len(vocabulary.pieces),
        target_vocab_size=None if is_shared else vocabulary.num_target_pieces,
        output_bias=True,
        tied_output=output is None,
    )
    target_name = "embedding" if is_shared else "target_embedding"
    ours = {
        "embedding.weight": vocabulary.source_rows(source)[:, order],
        f"{target_name}.weight": vocabulary.target_rows(target)[:, order],
    }
    output_name = target_name
    if output is not None:
        output_name = "output"
        ours["output.weight"] = vocabulary.target_rows(output)[:, order]
    ours[f"{output_name}.bias"] = vocabulary.target_rows(bias.T)[:, 0]
    ours[f"{output_name}.bias"][[PAD, BOS]] = NEVER
    ours |= _stacks(unread, config, order)
    unread.require_empty()
    return config, {name: weight.contiguous() for name, weight in ours.items()}


def _is_any(options: Options, *names: str) -> bool:
    """Whether any of these options is true; by Marian's defaults, they are false."""
    return any(options.get(name) == "true" for name in names)


def _embeddings(
    unread: _UnreadArrays, vocabulary: "_Vocabulary", width: int, is_shared: bool
) -> tuple[Tensor, Tensor]:
    """Take the embeddings of source and target, which may be one."""
    num_targets = len(vocabulary.target)
    if is_shared:
        both = unread.take("Wemb", num_targets, width)
        return both, both
    return (
        unread.take("encoder_Wemb", len(vocabulary.source), width),
        unread.take("decoder_Wemb", num_targets, width),
    )


def _output(
    unread: _UnreadArrays, options: Options, num_targets: int, width: int
) -> tuple[Tensor | None, Tensor]:
    """Take the matrix of the logits, None if it is the embedding, and their bias."""
    matrix, bias = None, torch.zeros(1, num_targets)
    if not _is_any(options, TIED_ALL, TIED_TARGET):
        if "decoder_ff_logit_out_W" in unread:
            matrix = unread.take("decoder_ff_logit_out_W", width, num_targets).T
        else:
            matrix = unread.take("decoder_ff_logit_out_Wt", num_targets, width)
    if not _is_any(options, "output-omit-bias") and "decoder_ff_logit_out_b" in unread:
        bias = unread.take("decoder_ff_logit_out_b", 1, num_targets)
    return matrix, bias


def _stacks(
    unread: _UnreadArrays, config: ModelConfig, order: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of all layers, and of the norms after the last ones."""
    shapes = parameter_shapes(config)
    for name, parts in parts_of_stacks(config):
        outputs, *inputs = shapes[name]
        shape = (*(inputs or [1]), outputs // len(parts))
        weight = torch.cat([unread.take(part, *shape).T for part in parts])
        yield name, reordered(name, weight.reshape(shapes[name]), order)


def parts_of_stacks(config: ModelConfig) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each weight of the stacks, and of the arrays of its parts."""
    is_pre = config.norm == "pre"
    # Marian names the norm of a unit by the place where it computes it.
    parts = {**PARTS, "after_recurrence.norm": ("rnn_ln" if is_pre else "rnn_ffn_ln",)}
    ending = "_pre" if is_pre else ""
    for each in layer_weights(config):
        prefix = f"{each.stack}_l{each.layer + 1}"
        arrays = (f"{prefix}_{part}" for part in parts[each.module])
        yield each.name, [_array(array, each.kind, ending) for array in arrays]
    for stack in ("encoder", "decoder") if is_pre else ():
        for kind in ("weight", "bias"):
            yield f"{stack}_norm.{kind}", [_array(f"{stack}_top_ln", kind)]


def _array(name: str, kind: str, ending: str = "") -> str:
    """Return the name of a part's array.

    For example, the bias of ffn_W1 is ffn_b1. A norm has a scale and a bias.
    """
    if name.endswith("_ln"):
        return f"{name}_{'scale' if kind == 'weight' else 'bias'}{ending}"
    return name if kind == "weight" else name.replace("_W", "_b")


# ---- Vocabularies ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """Vocabulary of source or target."""

    model: SentencePieceModel
    """Model that cuts its text."""
    model_path: Path
    """File of the model."""
    pieces: tuple[str, ...]
    """Pieces by Marian's ids; control symbols such as <s> included."""
    control: frozenset[str]
    """Pieces that are no text."""
    path: Path
    """File that gives the ids."""


class _Vocabulary:
    """Union of both sides' pieces by this package's ids."""

    def __init__(self, source: _Side, target: _Side) -> None:
        for side in (source, target):
            if not {END, UNKNOWN} <= set(side.pieces):
                raise RequestError(
                    f"{side.path}: the vocabulary must hold {END} and {UNKNOWN}, but "
                    "does not; such a model cannot be imported."
                )
        self.source, self.target = source.pieces, target.pieces
        self.is_one = source.pieces == target.pieces
        own = set(target.pieces)
        named = [
            *(piece for piece in target.pieces if piece != END),
            *(piece for piece in source.pieces if piece not in own),
        ]
        control = source.control | target.control
        self._names = named
        self.pieces = (
            *SPECIAL_PIECES,
            *("" if piece in control else piece for piece in named),
        )
        """Pieces by this package's ids; control symbols decode to nothing."""

    @cached_property
    def source_ids(self) -> Int64[np.ndarray, " source"]:
        """This package's ids of the source's pieces, by Marian's."""
        return self._ids_of(self.source)

    @cached_property
    def target_ids(self) -> Int64[np.ndarray, " target"]:
        """The same of the target's pieces."""
        return self._ids_of(self.target)

    def _ids_of(self, pieces: Sequence[str]) -> Int64[np.ndarray, " pieces"]:
        ids = {piece: i for i, piece in enumerate(self._names, len(SPECIAL_PIECES))}
        return np.array([{**ids, END: EOS}[piece] for piece in pieces])

    @property
    def num_target_pieces(self) -> int:
        """Number of this package's ids that targets have."""
        return len(SPECIAL_PIECES) + len(self.target) - 1

    def source_rows(self, rows: Tensor) -> Tensor:
        """Order rows of the source's ids by this package's.

        Pieces of the target only are unknown to the source.
        """
        ids = {piece: i for i, piece in enumerate(self.source)}
        order = [ids.get(piece, ids[UNKNOWN]) for piece in self._names]
        return self._rows(rows, ids[END], order)

    def target_rows(self, rows: Tensor) -> Tensor:
        """Order rows of the target's ids by this package's."""
        ids = {piece: i for i, piece in enumerate(self.target)}
        order = [ids[piece] for piece in self._names[: len(self.target) - 1]]
        return self._rows(rows, ids[END], order)

    def _rows(self, rows: Tensor, end: int, order: Sequence[int]) -> Tensor:
        # Padding and the start of the target, which has an embedding of zeros.
        zeros = rows.new_zeros(EOS, rows.size(1))
        return torch.cat([zeros, rows[end][None], rows[torch.tensor(order)]])


def _read_sides(files: Files) -> tuple[_Side, _Side]:
    """Read the vocabularies of source and target."""
    folder, named = files.folder, _listed(files.settings, "vocabs")
    found = [folder / Path(name).name for name in named]
    if len(found) == 1:
        found *= 2
    if len(found) != 2 or not all(map(lexists, found)):
        found = _guess_vocabularies(folder)
    source, target = found
    if any(path.suffix == ".spm" for path in found):
        return _spm_side(source), _spm_side(target)
    return (
        _listed_side(source, _model_beside(folder, "source")),
        _listed_side(target, _model_beside(folder, "target")),
    )


def _guess_vocabularies(folder: Path) -> list[Path]:
    """Find the vocabularies by their names."""
    spm, lists = sorted(folder.glob("*.spm")), sorted(folder.glob("*vocab*.yml"))
    names = {path.stem: path for path in spm}
    if len(lists) == 1:
        return lists * 2
    if len(spm) == 1:
        return spm * 2
    for pair in (("source", "target"), ("src", "trg"), ("vocab.src", "vocab.trg")):
        if set(pair) <= names.keys():
            return [names[each] for each in pair]
    # Such as srcvocab.enja.spm and trgvocab.enja.spm, of models for the browser.
    sides = [[*folder.glob(f"{side}vocab.*.spm")] for side in ("src", "trg")]
    if [len(side) for side in sides] == [1, 1]:
        return [path for side in sides for path in side]
    raise RequestError(
        f"{folder}: must hold its vocabularies, vocab.spm, or source.spm and "
        f"target.spm, but has {', '.join(p.name for p in (*spm, *lists)) or 'none'}; "
        f"name them in {DECODER} (`vocabs`), the source first."
    )


def _model_beside(folder: Path, side: str) -> Path:
    """Find the model of SentencePiece that cuts texts of one side."""
    if (path := folder / f"{side}.spm").is_file():
        return path
    raise RequestError(
        f"{folder}: must hold {side}.spm beside its word list, but does not; models "
        "of words or of subword-nmt cannot be imported."
    )


def _spm_side(path: Path) -> _Side:
    model, stored = read_sentencepiece(path)
    return _Side(
        model=model,
        model_path=path,
        pieces=tuple(each.text for each in stored),
        control=frozenset(p.text for p in stored if p.kind == PieceKind.CONTROL),
        path=path,
    )


def _listed_side(path: Path, model_path: Path) -> _Side:
    """Read one side's pieces from a word list, and its control symbols from a model."""
    ids = _listed_ids(path)
    pieces = {i: piece for piece, i in ids.items() if type(i) is int}
    if any(i not in pieces for i in range(len(ids))) or not ids:
        raise CheckpointError(
            f"{path}: must give the ids from 0 on to one piece each, but does not; the "
            "file is damaged."
        )
    require_whole_characters(ids, path)
    model, stored = read_sentencepiece(model_path)
    control = {each.text for each in stored if each.kind == PieceKind.CONTROL}
    return _Side(
        model=model,
        model_path=model_path,
        pieces=tuple(pieces[i] for i in range(len(ids))),
        control=frozenset(control - {END}),
        path=path,
    )


def _listed_ids(path: Path) -> dict[str, Any]:
    """Read a word list: lines `piece: id`, or JSON; a faulty id becomes None.

    A file of another ending has a piece on each line, by their ids.
    """
    text = _text(path)
    if path.suffix not in WITH_IDS:
        return {piece: i for i, piece in enumerate(text.rstrip("\n").split("\n"))}
    if text.lstrip().startswith("{"):
        return dict(read_json(path))
    ids: dict[str, Any] = {}
    for line in filter(str.strip, text.split("\n")):
        name, _, number = line.rpartition(":")
        is_id = re.fullmatch(r"\s*[0-9]{1,9}\s*", number)
        ids[_unquoted(name)] = int(number) if is_id else None
    return ids


def _compare_pieces(sides: tuple[_Side, _Side], sentences: Sequence[str]) -> None:
    """Raise `ProofError` if a sentence is cut otherwise than by SentencePiece."""
    for side in sides:
        path = str(side.model_path)
        processor = sentencepiece.SentencePieceProcessor(model_file=path)
        for sentence, cut in zip(sentences, side.model.cut(sentences), strict=True):
            if processor.encode(sentence, out_type=str) != cut:
                raise ProofError(
                    f"{path}: the tokenizer must cut text as SentencePiece does, but "
                    f"does not cut the sentence {sentence!r} so ({SPACE} is a space); "
                    "nothing was written."
                )


# ---- Search ----------------------------------------------------------------------


def _search(files: Files, unknown: int) -> SearchConfig:
    """Return the settings of search that the folder has for Marian's decoder.

    Without a file of settings the search is this package's own.
    """
    options, path = files.settings, files.settings_path
    without_unknown = () if options.get("allow-unk") == "true" else ((unknown,),)
    if not options:
        return SearchConfig(bad_words=without_unknown)
    options = {**DEFAULTS, **options}
    beam_size = _whole(options, "beam-size", path)
    try:
        return SearchConfig(
            beam_size=beam_size,
            # Marian ends a search when beam-size hypotheses have finished.
            patience=1.0 if beam_size > 1 else None,
            penalty="power",
            length_penalty=_number(options, "normalize", path),
            bad_words=without_unknown,
            shortlist=_named_shortlist(files) is not None,
        )
    except ConfigError as error:
        why = str(error).removesuffix(".")
        raise RequestError(
            f"{path}: {why}; change it there, to import the model."
        ) from None


def _number(options: Options, name: str, path: Path) -> float:
    value = options[name]
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise CheckpointError(
            f"{path}: the option `{name}` must be a number, but is {shown(value)}."
        )
    return number


def _named_shortlist(files: Files) -> Path | None:
    """Return the shortlist that the settings name, if it is there."""
    for name in _listed(files.settings, "shortlist")[:1]:
        if lexists(path := files.folder / Path(name).name):
            return path
    return None


def _find_shortlist(files: Files) -> Path | None:
    """Return the shortlist that the settings name or, without settings, the only one.

    A binary one counts before the text that it was made of.
    """
    if files.settings:
        return _named_shortlist(files)
    found = sorted(files.folder.glob(SHORTLISTS))
    chosen = [path for path in found if ".bin" in path.suffixes] or found
    return chosen[0] if len(chosen) == 1 else None


def _shortlist(
    files: Files, vocabulary: "_Vocabulary", tokenizer: SentencePieceTokenizer
) -> Shortlist | None:
    """Read the shortlist of the folder, if there is one."""
    if (path := _find_shortlist(files)) is None:
        return None
    source, target = (
        Rows(pieces=pieces, unknown=pieces.index(UNKNOWN), ids=ids)
        for pieces, ids in (
            (vocabulary.source, vocabulary.source_ids),
            (vocabulary.target, vocabulary.target_ids),
        )
    )
    return read_shortlist(path, source, target, _limits(files), tokenizer)


def _limits(files: Files) -> Limits:
    """Return the numbers behind the name of a shortlist; behind that of a binary one is
    a truth value."""
    given = _listed(files.settings, "shortlist")[1:4]
    try:
        numbers = [float(each) for each in given if each.lower() not in BOOLEANS]
    except ValueError:
        numbers = [math.nan]
    if not all(0 <= each <= MAX_VOCAB_SIZE for each in numbers):
        raise CheckpointError(
            f"{files.settings_path}: the option `shortlist` must be a file and up to "
            f"three numbers, but is {_shown(files.settings['shortlist'])}."
        )
    usual = Limits()
    rest = [usual.first, usual.best, usual.threshold][len(numbers) :]
    first, best, threshold = numbers + rest
    return Limits(first=int(first), best=int(best), threshold=threshold)


def differing_options(origin: Path) -> list[str]:
    """Return a sentence for each decoding option that is not applied as in Marian, for
    a shortlist that is left out, and for the program that prepares texts."""
    files = find_files(origin)
    options, folder = files.settings, files.folder
    found = [
        f"{files.settings_path}: the option `{name}` = {_shown(options[name])} is not "
        f"applied as in Marian; {instead}."
        for name, (neutral, instead) in NEUTRAL.items()
        if options.get(name, neutral[0]) not in neutral
    ]
    if named := _listed(options, "shortlist")[:1]:
        if _named_shortlist(files) is None:
            found.append(
                f"{files.settings_path}: the shortlist {Path(named[0]).name} is not in "
                "the folder, and the model is imported without it."
            )
    elif (lists := sorted(folder.glob(SHORTLISTS))) and not _find_shortlist(files):
        found.append(
            f"{folder}: the model is imported without a shortlist, since the settings "
            f"name none of {', '.join(path.name for path in lists)}; name one in "
            f"{DECODER} (`shortlist`) to keep it."
        )
    if lexists(path := folder / PREPROCESSING):
        found.append(
            f"{path}: this program is not run; if it changes texts before "
            "SentencePiece, such as “ to a straight quotation mark, change your texts "
            "in the same way before you translate them."
        )
    return found
