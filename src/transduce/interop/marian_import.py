"""Import from Hugging Face: a folder of `MarianMTModel`, such as those of OPUS-MT.

Marian's model differs from the paper's in the order of its dimensions, since its
sinusoids have all sines before all cosines, and in settings that `ModelConfig` records:
activation, biases and the layer norm's epsilon. The import permutes dimensions and ids
into this package's order. A token that is both padding and start of the target becomes
two, and neither is ever generated.

The tokenizer is either SentencePiece's, in source.spm, target.spm and vocab.json, or
one that `transduce export --to marian` wrote, in tokenizer.json. Two vocabularies,
vocab.json of sources and target_vocab.json, become their union: pieces of the target
first, and then those of the source only.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import lexists
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import torch
from torch import Tensor
from transformers import MarianMTModel

from transduce.checkpoint import Checkpoint, load_model, load_tensors, write_model
from transduce.errors import AccessError, CheckpointError, ConfigError, RequestError
from transduce.files import atomic_directory, read_json, reason, require_file
from transduce.foreign_models import INDEX, WEIGHTS, require_hugging_face_files
from transduce.interop.export import Proof, prove, require_short
from transduce.interop.generation_settings import (
    SETTINGS,
    SPECIAL,
    TOKENIZER,
    read_if_there,
    read_search,
    whole,
)
from transduce.interop.marian_conventions import (
    LEARNED_START,
    NEVER,
    NORM_EPSILON,
    halved,
    reordered,
    require_even_heads,
    require_finite,
    require_known_target,
    with_corpus_tags,
)
from transduce.interop.marian_export import (
    CORPUS_TAGS,
    DEFAULT_TARGET,
    HuggingFaceModel,
    marian_config,
    parts_of_layers,
)
from transduce.interop.portable_tokenizer import (
    NAMED_TOKENS,
    SOURCE,
    TARGET,
    TARGET_VOCABULARY,
    VOCABULARY,
    HuggingFaceTokenizer,
    own_tokenizer,
    read_sentencepiece,
    require_whole_characters,
)
from transduce.model.config import Activation, ModelConfig
from transduce.model.embedding import sinusoids
from transduce.search_config import SearchConfig
from transduce.settings import shown, shown_json
from transduce.text.languages import LanguagesConfig, canonical, is_known
from transduce.text.sentence_pieces import (
    UNKNOWN,
    PieceKind,
    SentencePieceTokenizer,
)
from transduce.text.tokenizer import TOKENIZER_FILE, SubwordTokenizer, Tokenizer
from transduce.text.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES

ADDED = "added_tokens.json"
SEPARATE = "separate_vocabs"
"""Setting of a tokenizer with two vocabularies."""
END = SPECIAL_PIECES[EOS]
MAX_PADDING = 255
"""Most rows of the embeddings that follow those of the pieces."""
MAX_SINUSOIDS = 2**23
"""Most numbers of sinusoids: the library computes them in Python, one by one."""
TARGET_TOKEN = re.compile(r">>[^<>]+<<")
"""Pattern of a token that names the target's language."""
ACTIVATIONS: dict[object, Activation] = {
    "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip
FIXED = {
    "model_type": "marian",
    "is_encoder_decoder": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
    "scale_embedding": True,
}
"""Settings with only one supported value."""
SHARED, TIED = "share_encoder_decoder_embeddings", "tie_word_embeddings"
"""Whether source and target share one embedding, and whether the output has it too."""
DEFAULTS = {
    "model_type": None,
    "is_encoder_decoder": True,
    "scale_embedding": False,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    SHARED: True,
    TIED: True,
    LEARNED_START: True,
}
"""Values of settings that `config.json` leaves out, as the library has them."""
EQUAL = {
    "decoder_attention_heads": "encoder_attention_heads",
    "decoder_ffn_dim": "encoder_ffn_dim",
}
"""Settings of the decoder, and those of the encoder that they must equal."""


EXTRA_TOKENS = ("extra_special_tokens", "additional_special_tokens")
"""Settings with further special tokens, which the library cuts out of a text and leaves
out of a translation. It reads the second, an older name, only without the first."""
DECODER_OF_ADDED, SPECIAL_TOKENS = "added_tokens_decoder", "special_tokens_map.json"
"""Setting of a tokenizer with its added tokens, and the place of older folders."""


class AddedTokens(NamedTuple):
    """Tokens that were added to the pieces of vocab.json."""

    ids: Mapping[str, int]
    """Tokens that are no pieces, with their ids."""
    cut: tuple[str, ...]
    """Tokens that are cut out of a text first; some may be pieces."""
    silent: tuple[str, ...]
    """Tokens of `cut` that decode to nothing."""
    named: tuple[str, ...]
    """Tokens that are not cut, and decode to nothing; some may be pieces."""
    path: Path
    """File that gives the tokens."""


class _Vocabularies(NamedTuple):
    """Marian's vocabularies of source and target, by this package's ids."""

    union: tuple[str, ...]
    """Pieces of both vocabularies; empty if there is one."""
    source_ids: tuple[int, ...]
    """Marian's ids of sources."""
    target_ids: tuple[int, ...]
    """Marian's ids of targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarianSettings:
    """Settings of a Marian model."""

    model: ModelConfig
    """Model settings; some about embeddings and output depend on the weights."""
    source_ids: tuple[int, ...]
    """Marian's ids of sources, by this package's ids."""
    target_ids: tuple[int, ...]
    """Marian's ids of targets, by this package's ids."""
    union: tuple[str, ...]
    """Pieces of both vocabularies by this package's ids; empty if there is one."""
    max_positions: int
    """Maximum length of a sentence in tokens."""
    search: SearchConfig
    """Search settings of the folder; greedy if it gives no number of beams."""
    languages: LanguagesConfig
    """Languages that the folder names."""
    vocab_size: int
    """Rows of Marian's embedding of sources; those after its pieces are left out."""
    target_vocab_size: int
    """Rows of Marian's embedding of targets."""
    is_shared: bool
    """Whether source and target have one embedding in Marian."""
    is_tied: bool
    """Whether the output has the embedding of the target."""
    added: AddedTokens
    """Tokens that were added to the pieces."""

    @property
    def has_double(self) -> bool:
        """Whether one token has two special roles, which need two ids here."""
        return len(set(self.target_ids)) < len(self.target_ids)


def read_settings(folder: Path) -> MarianSettings:
    """Read the settings of a folder.

    Raises `RequestError` for unsupported settings, `CheckpointError` if damaged.
    """
    path = folder / SETTINGS
    content = DEFAULTS | read_json(path)
    for name, known in FIXED.items():
        _require_one_of((known,), content, name, path)
    _require_one_of(ACTIVATIONS, content, "activation_function", path)
    for name, other in EQUAL.items():
        if content.get(name) is not None:
            _require_one_of((content.get(other),), content, name, path)
    is_shared, is_tied = (_flag(content, name, path) for name in (SHARED, TIED))
    added = read_added_tokens(folder)
    has_two = _has_two_vocabularies(folder)
    if has_two and is_shared:
        raise RequestError(
            f"{path}: a model of two vocabularies must have `{SHARED}` = false, but "
            "has true; such a model cannot be imported."
        )
    if has_two and (tokens := [*added.cut, *added.ids]):
        raise RequestError(
            f"{added.path}: a model of two vocabularies must have no added tokens, but "
            f"has {shown(tokens[0])}; such a model cannot be imported."
        )
    vocab_size = whole(content, "vocab_size", path)
    target_vocab_size = _target_vocab_size(content, path, has_two=has_two)
    vocabularies = (
        _two_vocabularies(content, folder)
        if has_two
        else _one_vocabulary(content, added.ids, folder)
    )
    try:
        model = _model(content, len(vocabularies.source_ids), path)
        is_learned = _flag(content, LEARNED_START, path)
        model = replace(model, tied_output=is_tied, learned_start=is_learned)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return MarianSettings(
        model=model,
        source_ids=vocabularies.source_ids,
        target_ids=vocabularies.target_ids,
        union=vocabularies.union,
        max_positions=_max_positions(content, path),
        search=read_search(folder, vocabularies.target_ids),
        languages=_read_languages(folder),
        vocab_size=vocab_size,
        target_vocab_size=target_vocab_size,
        is_shared=is_shared,
        is_tied=is_tied,
        added=added,
    )


def _max_positions(content: Mapping[str, object], path: Path) -> int:
    number = whole(content, "max_position_embeddings", path)
    maximum = MAX_SINUSOIDS // whole(content, "d_model", path)
    if number > maximum:
        raise RequestError(
            f"{path}: `max_position_embeddings` must be at most {maximum:,} at this "
            f"width, as `transformers` computes each slowly, but is {number:,}; lower "
            "it there, since an imported model has no limit of positions."
        )
    return number


def _flag(content: Mapping[str, object], name: str, path: Path) -> bool:
    value = content[name]
    if not isinstance(value, bool):
        raise CheckpointError(
            f"{path}: `{name}` must be true or false, but is {shown(value)}."
        )
    return value


def _target_vocab_size(
    content: Mapping[str, object], path: Path, *, has_two: bool
) -> int:
    """Return the number of rows of the target's embedding."""
    if not has_two and content.get("decoder_vocab_size") is not None:
        known = (content.get("vocab_size"),)
        _require_one_of(known, content, "decoder_vocab_size", path)
    return whole(content, "decoder_vocab_size" if has_two else "vocab_size", path)


def _has_two_vocabularies(folder: Path) -> bool:
    is_separate = _tokenizer_settings(folder).get(SEPARATE) is True
    if is_separate == lexists(folder / TARGET_VOCABULARY):
        return is_separate
    raise RequestError(
        f"{folder}: a model of two vocabularies must have {TARGET_VOCABULARY}, and "
        f"`{SEPARATE}` = true in {TOKENIZER}, but has only one of them; such a model "
        "cannot be imported."
    )


def _one_vocabulary(
    content: Mapping[str, object], added: Mapping[str, int], folder: Path
) -> _Vocabularies:
    """Return Marian's ids by this package's: the three special ones first.

    Embeddings may have more rows than there are pieces, such as a multiple of 64.
    """
    path = folder / SETTINGS
    special = [whole(content, name, path, minimum=0) for name in SPECIAL]
    vocab_size = whole(content, "vocab_size", path)
    if max(special) >= vocab_size:
        raise CheckpointError(
            f"{path}: special ids must be below the vocabulary's size {vocab_size}, "
            f"but one is {max(special)}."
        )
    num_pieces = vocab_size
    if lexists(folder / VOCABULARY):
        num_pieces = len({**_read_if_sound(folder / VOCABULARY), **added})
    is_padded = 0 <= vocab_size - num_pieces <= MAX_PADDING
    known = range(max(num_pieces, max(special) + 1) if is_padded else vocab_size)
    ids = (*special, *(i for i in known if i not in special))
    return _Vocabularies((), ids, ids)


def _two_vocabularies(content: Mapping[str, object], folder: Path) -> _Vocabularies:
    """Return the union of both vocabularies, and the ids of sources and of targets.

    Pieces of the target only are unknown to the source.
    """
    path = folder / SETTINGS
    source = _read_pieces(folder / VOCABULARY, whole(content, "vocab_size", path))
    vocab_size = whole(content, "decoder_vocab_size", path)
    target = _read_pieces(folder / TARGET_VOCABULARY, vocab_size)
    special = [whole(content, name, path, minimum=0) for name in SPECIAL]
    if max(special) >= len(target):
        raise CheckpointError(
            f"{path}: special ids must be below the number of pieces {len(target)} of "
            f"{TARGET_VOCABULARY}, but one is {max(special)}."
        )
    source_ids = {piece: i for i, piece in enumerate(source)}
    if not {END, UNKNOWN} <= source_ids.keys():
        raise RequestError(
            f"{folder / VOCABULARY}: must hold {END} and {UNKNOWN}, but does not; such "
            "a model cannot be imported."
        )
    if UNKNOWN not in target:
        raise RequestError(
            f"{folder / TARGET_VOCABULARY}: must hold {UNKNOWN}, but does not; such a "
            "model cannot be imported."
        )
    ordinary_targets = [i for i in range(len(target)) if i not in special]
    in_target = {END, SPECIAL_PIECES[PAD], *target}
    ordinary = [
        *(target[i] for i in ordinary_targets),
        *(piece for piece in source if piece not in in_target),
    ]
    unknown, end = source_ids[UNKNOWN], source_ids[END]
    # Padding is masked, and a source has no start token: any row serves both.
    padding = source_ids.get(SPECIAL_PIECES[PAD], end)
    return _Vocabularies(
        union=(*(target[i] for i in special), *ordinary),
        source_ids=(
            *(padding, padding, end),
            *(source_ids.get(piece, unknown) for piece in ordinary),
        ),
        target_ids=(*special, *ordinary_targets),
    )


def _read_pieces(path: Path, vocab_size: int) -> list[str]:
    """Read pieces by Marian's ids, at most as many as there are rows of embeddings."""
    ids = read_json(path)
    is_sound = sorted(map(repr, ids.values())) == sorted(map(repr, range(len(ids))))
    if not is_sound or not 0 <= vocab_size - len(ids) <= MAX_PADDING:
        raise CheckpointError(
            f"{path}: must give the ids from 0 on to one piece each, {vocab_size} at "
            "most, but does not; the file is of another model."
        )
    require_whole_characters(ids, path)
    return sorted(ids, key=ids.__getitem__)


def _read_languages(folder: Path) -> LanguagesConfig:
    """Read languages from the tokenizer's settings.

    Sources of a model with several targets begin with a token that names the target,
    such as `>>fra<<`. Its target is None, unless this package's export has named it.
    """
    content = _tokenizer_settings(folder)
    target = DEFAULT_TARGET if _has_many_targets(folder) else "target_lang"
    return LanguagesConfig(
        source=_language(content.get("source_lang")),
        target=_language(content.get(target)),
    )


def _tokenizer_settings(folder: Path) -> Mapping[str, object]:
    """Read the settings of the tokenizer; empty if the file does not exist."""
    return read_if_there(folder / TOKENIZER)


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


def _model(content: Mapping[str, object], vocab_size: int, path: Path) -> ModelConfig:
    encoder_layers, decoder_layers, d_model, num_heads, d_ff = (
        whole(content, name, path)
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
    require_even_heads("d_model", d_model, num_heads, path)
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


def read_added_tokens(folder: Path) -> AddedTokens:
    """Read tokens that were added to the pieces of vocab.json.

    Raises `CheckpointError` if they are damaged, `RequestError` if the library cuts
    them in a way that this package lacks.
    """
    settings = _tokenizer_settings(folder)
    path = folder / TOKENIZER
    if is_older := DECODER_OF_ADDED not in settings:
        # The library reads these files only there.
        settings = {**settings, **read_if_there(folder / SPECIAL_TOKENS)}
        older = [folder / name for name in (ADDED, SPECIAL_TOKENS)]
        path = next(filter(lexists, older), path)
    known = _read_if_sound(folder / VOCABULARY)
    named = {_content(settings.get(name)) for name in NAMED_TOKENS} - {""}
    named |= {*SPECIAL_PIECES, UNKNOWN}
    extra = _extra_tokens(settings)
    added: dict[str, Any] = {piece: known[piece] for piece in extra if piece in known}
    if is_older:
        added |= read_if_there(folder / ADDED)
    elif known:
        added |= _decoder_of_added(settings[DECODER_OF_ADDED], path)
    # A named token that is no piece and has no row of the embeddings never occurs.
    num_rows = _read_if_sound(folder / SETTINGS).get("vocab_size")
    rows = range(len(known), num_rows if isinstance(num_rows, int) else 0)
    added = {
        piece: i
        for piece, i in added.items()
        if piece not in named or (isinstance(i, int) and i in rows)
    }
    new = {piece: i for piece, i in added.items() if known.get(piece) != i}
    first = len(known)
    expected = list(range(first, first + len(new)))
    if sorted(map(repr, new.values())) != sorted(map(repr, expected)):
        raise CheckpointError(
            f"{path}: must give the ids from {first} on to one token each, but does "
            f"not; the file and {VOCABULARY} are of different models."
        )
    cut = tuple(piece for piece in added if piece not in named)
    return AddedTokens(
        ids=new,
        cut=cut,
        silent=tuple(piece for piece in cut if piece in extra),
        named=tuple(piece for piece in {**known, **new} if piece in named),
        path=path,
    )


def _decoder_of_added(content: object, path: Path) -> dict[str, int]:
    """Return the ids of the added tokens of a tokenizer's settings."""
    found: dict[str, int] = {}
    for number, token in content.items() if isinstance(content, dict) else [("", 0)]:
        name = _content(token)
        if not name or not re.fullmatch("[0-9]{1,9}", number):
            raise CheckpointError(
                f"{path}: `{DECODER_OF_ADDED}` must give a token for each id, but does "
                "not; fetch the file again."
            )
        if isinstance(token, dict) and token.get("single_word"):
            raise RequestError(
                f"{path}: `{DECODER_OF_ADDED}` must have no `single_word`, but has for "
                f"{shown(name)}; set it to false there, to cut the token in words, too."
            )
        found[name] = int(number)
    return found


def _extra_tokens(settings: Mapping[str, object]) -> list[str]:
    """Return a tokenizer's special tokens beyond those that all tokenizers have."""
    lists = (settings[name] for name in EXTRA_TOKENS if settings.get(name))
    others = (
        value
        for name, value in settings.items()
        if name.endswith("_token") and name not in NAMED_TOKENS
    )
    tokens = map(_content, (*_listed(next(lists, [])), *others))
    return [token for token in tokens if token]


def _listed(tokens: object) -> list[object]:
    """Return the tokens of a list, or of an object by their names."""
    if isinstance(tokens, dict):
        return list(tokens.values())
    return tokens if isinstance(tokens, list) else []


def _content(token: object) -> str:
    """Return the text of a token, which may have attributes; empty if it has none."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _require_one_of(
    known: Collection[object], content: Mapping[str, object], name: str, path: Path
) -> None:
    value = content.get(name, FIXED.get(name))
    if value not in list(known):
        words = " or ".join(map(json.dumps, known))
        raise RequestError(
            f"{path}: `{name}` must be {words}, but is {shown_json(value)}; such a "
            "model cannot be imported."
        )


def read_tokenizer(folder: Path, settings: MarianSettings) -> Tokenizer:
    """Read the tokenizer, with this package's ids.

    Raises `RequestError` if it cannot be imported, `CheckpointError` if a file is
    damaged.
    """
    missing = [n for n in (SOURCE, TARGET, VOCABULARY) if not lexists(folder / n)]
    if not missing:
        return _sentence_pieces(folder, settings)
    if lexists(folder / TOKENIZER_FILE):
        return _own(folder / TOKENIZER_FILE)
    raise RequestError(
        f"{folder}: must hold {SOURCE}, {TARGET} and {VOCABULARY}, but has no "
        f"{missing[0]}; fetch all files of the model."
    )


def _sentence_pieces(folder: Path, settings: MarianSettings) -> SentencePieceTokenizer:
    source, sources = read_sentencepiece(folder / SOURCE)
    target, targets = read_sentencepiece(folder / TARGET)
    kinds = {each.text: each.kind for each in (*targets, *sources)}
    # Only tokens with the names of this package's own need another name.
    own = {*settings.added.ids} & {*SPECIAL_PIECES}
    kinds |= dict.fromkeys(own, PieceKind.CONTROL)
    vocabulary = _vocabulary(folder / VOCABULARY, settings, kinds)
    known = {*vocabulary}
    textless = {*settings.added.silent, *settings.added.named} - {UNKNOWN}
    tokenizer = SentencePieceTokenizer(
        vocabulary=vocabulary,
        source=source,
        target=target,
        added=tuple(piece for piece in settings.added.cut if piece in known),
        silent=tuple(piece for piece in vocabulary[EOS + 1 :] if piece in textless),
    )
    tags = _tokenizer_settings(folder).get(CORPUS_TAGS, [])
    return with_corpus_tags(tokenizer, tags, f"{folder / TOKENIZER}: `{CORPUS_TAGS}`")


def _vocabulary(
    path: Path, settings: MarianSettings, kinds: Mapping[str, int]
) -> tuple[str, ...]:
    """Return the pieces by this package's ids."""
    if not (names := settings.union):
        pieces = _pieces(path, settings)
        names = tuple(pieces[i] for i in settings.source_ids)
    _, start, _, *others = names
    # Symbols such as "<s>" decode to nothing.
    named = ("" if kinds.get(piece) == PieceKind.CONTROL else piece for piece in others)
    vocabulary = (*SPECIAL_PIECES, *named)
    is_clear = UNKNOWN in vocabulary and len(set(vocabulary)) == len(vocabulary)
    if not is_clear or kinds.get(start) == PieceKind.NORMAL:
        raise RequestError(
            f"{path}: must hold {UNKNOWN}, and no more special tokens than {SETTINGS} "
            "names, none of them text, but does not; such a model cannot be imported."
        )
    return vocabulary


def _pieces(path: Path, settings: MarianSettings) -> list[str]:
    """Return the pieces by Marian's ids."""
    ids = {**read_json(path), **settings.added.ids}
    num_pieces = len(set(settings.source_ids))
    if sorted(map(repr, ids.values())) != sorted(map(repr, range(num_pieces))):
        raise CheckpointError(
            f"{path}: must give the ids 0 to {num_pieces - 1} to one piece each, but "
            "does not; the file is of another model."
        )
    require_whole_characters(ids, path)
    return sorted(ids, key=ids.__getitem__)


def _own(path: Path) -> SubwordTokenizer:
    try:
        require_file(path)
        portable = tokenizers.Tokenizer.from_file(str(path))
    except AccessError:
        raise
    except Exception as error:  # the library raises bare exceptions
        raise CheckpointError(
            f"{path}: the tokenizer is missing or damaged ({reason(error)}); fetch it "
            "again."
        ) from None
    if (own := own_tokenizer(portable)) is None:
        raise RequestError(
            f"{path}: the tokenizer must be one that `transduce export` wrote, but is "
            f"another; a model from elsewhere must have {SOURCE}, {TARGET} and "
            f"{VOCABULARY}."
        )
    return own


BOTH, OUTPUT = "model.shared.weight", "lm_head.weight"
READ = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
"""Names of the embeddings of source and target."""
EMBEDDINGS = (BOTH, *READ, OUTPUT)
"""Names of the matrices of embeddings; of those that are one, some may be absent."""
POSITIONS = (
    "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight",
)  # fmt: skip
BIAS = "final_logits_bias"
WRITTEN = ("embedding", "target_embedding", "output")
"""Names of matrices here that the output may have."""
OPTIONAL = {*EMBEDDINGS, *POSITIONS, BIAS}
NUMBERS = {torch.float32, torch.float16, torch.bfloat16, torch.float64}
"""Types of weights that can be imported."""
TOLERANCE = 1e-3
"""Tolerance for stored sinusoids, which may have 16 bits."""


def read_weights(folder: Path, settings: MarianSettings) -> dict[str, Tensor]:
    """Read the weights in this package's order.

    Raises `RequestError` if they cannot be imported, `CheckpointError` if damaged.
    """
    path = folder / WEIGHTS
    theirs = _read_shards(folder)
    _require_names_and_shapes(theirs, settings, path)
    _require_sinusoids(theirs, settings.model, path)
    order = halved(settings.model.d_model).argsort()
    ours = {
        f"{name}.weight": matrix[:, order]
        for name, matrix in _embeddings(theirs, settings, path).items()
    }
    if (bias := _bias(theirs, settings)) is not None:
        ours[f"{list(ours)[-1].removesuffix('.weight')}.bias"] = bias
    for name, parts in parts_of_layers(settings.model):
        ours[name] = reordered(name, torch.cat([theirs[p] for p in parts]), order)
    return {name: weight.contiguous() for name, weight in ours.items()}


def _read_shards(folder: Path) -> dict[str, Tensor]:
    """Read the weights of one file, or of the several files that an index names."""
    if lexists(folder / WEIGHTS) or not lexists(folder / INDEX):
        return _read_numbers(folder / WEIGHTS)
    places: Any = read_json(folder / INDEX).get("weight_map")
    places = list(places.values()) if isinstance(places, dict) else [None]
    if not all(isinstance(each, str) and Path(each).name == each for each in places):
        raise CheckpointError(
            f"{folder / INDEX}: `weight_map` must name files of this folder, but does "
            "not; fetch the file again."
        )
    found: dict[str, Tensor] = {}
    for name in sorted(set(places)):
        found |= _read_numbers(folder / name)
    return found


def _read_numbers(path: Path) -> dict[str, Tensor]:
    """Read the weights of a file in fp32.

    Raises `RequestError` if some are no floating-point numbers, as quantized ones, and
    `CheckpointError` if some are not finite.
    """
    weights = load_tensors(path)
    for name, weight in weights.items():
        if weight.dtype not in NUMBERS:
            # Quantized weights have types of integers, or of floats with 8 bits.
            is_quantized = not weight.is_complex() and weight.dtype != torch.bool
            remedy = (
                "import the model before it was quantized"
                if is_quantized
                else "such a model cannot be imported"
            )
            raise RequestError(
                f"{path}: `{name}` must be numbers in fp64, fp32, fp16 or bf16, but is "
                f"{str(weight.dtype).removeprefix('torch.')}; {remedy}."
            )
        weights[name] = weight.float()
        require_finite(weights[name], name, path)
    return weights


def _require_names_and_shapes(
    theirs: Mapping[str, Tensor], settings: MarianSettings, path: Path
) -> None:
    """Raise `CheckpointError` unless names and shapes are those of the library's
    model."""
    _require_last_layers(theirs, settings.model, path)
    config = marian_config(settings.model, settings.max_positions)
    config.vocab_size = settings.vocab_size
    config.decoder_vocab_size = settings.target_vocab_size
    config.share_encoder_decoder_embeddings = settings.is_shared
    with torch.device("meta"):
        expected = MarianMTModel(config).state_dict()
    for name in sorted({*expected, *theirs} - (OPTIONAL - theirs.keys())):
        shapes = [
            tuple(weights[name].shape) if name in weights else "nothing"
            for weights in (expected, theirs)
        ]
        if shapes[0] != shapes[1]:
            raise _misfit(path, name, *shapes)


def _require_last_layers(
    theirs: Mapping[str, Tensor], config: ModelConfig, path: Path
) -> None:
    """Raise `CheckpointError` if there are fewer layers than by the settings.

    The library would take minutes to build layers by the thousand.
    """
    depths = {"encoder": config.num_layers, "decoder": config.num_decoder_layers}
    for stack, depth in depths.items():
        name = f"model.{stack}.layers.{depth - 1}.fc1.weight"
        if name not in theirs:
            raise _misfit(path, name, (config.d_ff, config.d_model), "nothing")


def _misfit(path: Path, name: str, expected: object, found: object) -> CheckpointError:
    """Return the error for a weight that does not fit the settings."""
    return CheckpointError(
        f"{path}: `{name}` must be {expected} by the settings beside it, but is "
        f"{found}; the files are of different models, or of one that cannot be "
        "imported."
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


def _embeddings(
    theirs: Mapping[str, Tensor], settings: MarianSettings, path: Path
) -> dict[str, Tensor]:
    """Return the matrices of source, target and output by this package's names.

    A matrix equal to an earlier one is left out. The output's is the last one.
    """
    source_name, target_name = READ
    tied = (OUTPUT,) if settings.is_tied else ()
    source_names: tuple[str, ...] = (source_name,)
    target_names: tuple[str, ...] = (target_name, *tied)
    if settings.is_shared and settings.is_tied:
        source_names = target_names = (BOTH, *READ, OUTPUT)
    elif settings.is_shared:
        # Without a tied output the library ties no other matrix either, and does not
        # use the shared one. Versions before 5 did, and may have stored it alone.
        source_names, target_names = (
            (own if own in theirs or BOTH not in theirs else BOTH,) for own in READ
        )
    source = _one_matrix(theirs, source_names, path)[torch.tensor(settings.source_ids)]
    rows = torch.tensor(settings.target_ids)
    target = _one_matrix(theirs, target_names, path)[rows]
    found = {"embedding": source}
    if settings.union or not torch.equal(source, target):
        found["target_embedding"] = target
    if not settings.is_tied:
        found["output"] = _one_matrix(theirs, (OUTPUT,), path)[rows]
    return found


def _one_matrix(
    theirs: Mapping[str, Tensor], names: Sequence[str], path: Path
) -> Tensor:
    """Return the matrix that has these names, some of which may be absent."""
    found = {name: theirs[name] for name in names if name in theirs}
    if not found:
        raise CheckpointError(
            f"{path}: must hold `{names[0]}`, but does not; the file is damaged."
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
    bias = theirs.get(BIAS, torch.zeros(1, settings.target_vocab_size))[0]
    bias = bias[torch.tensor(settings.target_ids)]
    if settings.has_double:
        # A split token would count twice; tokens never generated have no probability.
        bias[[PAD, BOS]] = NEVER
    return bias if bias.any() else None


def import_model(
    origin: Path,
    out: Path,
    sentences: Sequence[str],
    languages: LanguagesConfig | None = None,
    *,
    overwrite: bool = False,
) -> Proof:
    """Write a model folder once the proof on the sentences succeeds.

    Its languages are those given, or else those that the folder names. Raises
    `RequestError` if the model cannot be imported, `CheckpointError` if it is damaged,
    `ProofError` if the proof fails.
    """
    require_hugging_face_files(origin)
    settings = read_settings(origin)
    checkpoint = _checkpoint(origin, settings, languages or LanguagesConfig())
    require_short(sentences, checkpoint.tokenizer, settings.max_positions)
    model, tokenizer = _theirs(origin, settings)

    with atomic_directory(out, "import", overwrite=overwrite) as new:
        write_model(checkpoint, new)
        return prove(model, tokenizer, load_model(new), sentences)


def _checkpoint(
    origin: Path, settings: MarianSettings, given: LanguagesConfig
) -> Checkpoint:
    weights, tokenizer = (
        read_weights(origin, settings),
        read_tokenizer(origin, settings),
    )
    target_vocab_size = None
    if "target_embedding.weight" in weights:
        target_vocab_size = len(settings.target_ids)
        if not isinstance(tokenizer, SentencePieceTokenizer):
            raise RequestError(
                f"{origin}: a model with two embeddings must have {SOURCE} and "
                f"{TARGET}, but has not; such a model cannot be imported."
            )
        tokenizer = replace(tokenizer, target_vocab_size=target_vocab_size)
    target = weights.get("target_embedding.weight", weights["embedding.weight"])
    target_language = given.target or settings.languages.target
    require_known_target(target_language, tokenizer, origin)
    return Checkpoint(
        config=replace(
            settings.model,
            target_vocab_size=target_vocab_size,
            # Another library may have trained the start token since.
            learned_start=settings.model.learned_start or bool(target[BOS].any()),
            output_bias=any(f"{name}.bias" in weights for name in WRITTEN),
        ),
        weights=weights,
        tokenizer=tokenizer,
        step=0,
        search=settings.search,
        source_language=given.source or settings.languages.source,
        target_language=target_language,
    )


def _theirs(
    origin: Path, settings: MarianSettings
) -> tuple[HuggingFaceModel, HuggingFaceTokenizer]:
    try:
        model = HuggingFaceModel(origin, settings.source_ids, settings.target_ids)
        tokenizer = HuggingFaceTokenizer(
            origin, settings.source_ids, settings.target_ids
        )
        # Some settings are used only now.
        tokenizer.encode_source("")
        model.greedy([], max_length=1)
        return model, tokenizer
    except Exception as error:  # the library raises bare exceptions
        raise RequestError(
            f"{origin}: must be what the package `transformers` runs, or there is no "
            f"proof, but it says: {reason(error)}"
        ) from None
