"""Export to Marian itself: model.npz, its vocabularies and decoder.yml.

    marian-decoder --config DIR/decoder.yml < source.txt

Marian's sinusoids have a base of their own, and a target starts with a vector of zeros
there. Only models that have both can be exported, such as those imported from Marian.

If every piece of the tokenizer has an id, the vocabularies are models of SentencePiece,
which Marian applies to plain text. Otherwise they are word lists, as in the original
folders of OPUS-MT, whose text must be cut with source.spm before, and joined after.
"""

import io
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from torch import Tensor

from transduce.checkpoint import Checkpoint, load_model
from transduce.errors import RequestError, counted, warn_caller
from transduce.files import atomic_directory
from transduce.foreign_models import DECODER
from transduce.interop.export import (
    ProofError,
    differences,
    embedding_names,
    marked_texts,
    require,
    require_plain_attention,
    require_text,
    warn_of_lost_shortlist,
    weights_for_scaled_scores,
)
from transduce.interop.marian_conventions import (
    halved,
    power_penalty,
    reordered,
    require_small_epsilon,
)
from transduce.interop.marian_npz_import import (
    CORPUS_TAGS,
    DROPOUTS,
    END,
    OPTIONS,
    SOURCE_LANGUAGE,
    TARGET_LANGUAGE,
    import_marian,
    marian_position_base,
    parts_of_stacks,
)
from transduce.interop.portable_tokenizer import SOURCE, Piece, model_proto, whole_proto
from transduce.interop.portable_tokenizer import TARGET as TARGET_MODEL
from transduce.model.config import ModelConfig
from transduce.search_config import SearchConfig
from transduce.text.sentence_pieces import (
    BYTES,
    UNKNOWN,
    BytePairModel,
    SentencePieceModel,
    SentencePieceTokenizer,
)
from transduce.text.vocabulary import BOS, EOS

TARGET = "Marian"
WEIGHTS = "model.npz"
VOCABULARY, SOURCE_LIST, TARGET_LIST = "vocab.spm", "source.yml", "target.yml"
NAMES = {"silu": "swish", "relu": "relu"}
"""Marian's names of activations."""
FIRST = EOS + 1
"""First id of an ordinary piece."""


def export(
    checkpoint: Checkpoint,
    folder: Path,
    sentences: Sequence[str],
    *,
    overwrite: bool = False,
) -> str:
    """Write the folder once it reads back as the same model.

    Returns a sentence about the comparison. Raises `RequestError` if the format
    cannot hold the model, `ProofError` if it reads back as another.
    """
    tokenizer = _require_expressible(checkpoint)
    with atomic_directory(folder, "export --to marian-npz", overwrite=overwrite) as new:
        names = _write_vocabularies(tokenizer, new)
        options = model_options(checkpoint.transformer_config)
        options |= _own_options(checkpoint)
        (new / WEIGHTS).write_bytes(model_npz(model_arrays(checkpoint), options))
        (new / DECODER).write_text(_decoder_settings(checkpoint, names))
        _require_same(checkpoint, new, sentences)
        warn_of_lost_shortlist(TARGET, checkpoint)
    return (
        f"The folder, read back, has the same weights, and the same pieces on "
        f"{counted(len(sentences), 'sentence')}; Marian's own program was not run"
    )


def _require_expressible(checkpoint: Checkpoint) -> SentencePieceTokenizer:
    """Raise `RequestError` if Marian lacks something that the model has."""
    require_text(TARGET, checkpoint)
    tokenizer = checkpoint.tokenizer
    # Before the weights: if those are refused, another model must be trained, and that
    # would have no such tokenizer either.
    if not isinstance(tokenizer, SentencePieceTokenizer) or tokenizer.added:
        raise RequestError(
            f"A model for {TARGET} must have a tokenizer of SentencePiece without "
            "added tokens, but has another; it cannot be exported there."
        )
    require_weights(checkpoint)
    return tokenizer


def require_weights(checkpoint: Checkpoint) -> None:
    """Raise `RequestError` unless Marian can compute with the weights of a model that
    translates into text.
    """
    config = checkpoint.transformer_config
    require(TARGET, config, positions="sinusoidal")
    require_plain_attention(TARGET, config)
    expected = marian_position_base(config.d_model)
    if abs(config.position_base - expected) > 1e-6 * expected:
        raise RequestError(
            f"A model for {TARGET} must be trained with Marian's sinusoids, whose "
            f"base is {expected:.10g} at this width, but has the base "
            f"{config.position_base:g}; train a model with the settings "
            f"`model.position_base={expected:.10g}` and `model.learned_start=false`."
        )
    require_small_epsilon(TARGET, config)
    start = checkpoint.weights[f"{embedding_names(checkpoint)[1]}.weight"][BOS]
    if bool(start.any()):
        raise RequestError(
            f"A model for {TARGET} must have zeros as the embedding of its start "
            "token, but has others; start a run from it by `transduce "
            "train --from MODEL --set model.learned_start=false`."
        )


def _require_same(
    checkpoint: Checkpoint, folder: Path, sentences: Sequence[str]
) -> None:
    """Raise `ProofError` unless the folder reads back as the same model."""
    with tempfile.TemporaryDirectory() as elsewhere:
        import_marian(folder, Path(elsewhere) / "model", sentences)
        again = load_model(Path(elsewhere) / "model")
    both = (checkpoint.tokenizer, again.tokenizer)
    texts = [*sentences, *marked_texts(checkpoint.tokenizer)]
    pieces = [t.encode_sources(texts) + t.encode_targets(texts) for t in both]
    if pieces[0] != pieces[1]:
        raise ProofError(
            "The exported tokenizer must give the same pieces, but does not; nothing "
            "was written."
        )
    # Marian divides scores by sqrt(d_k).
    expected = weights_for_scaled_scores(checkpoint)
    matrices = set(embedding_names(checkpoint))
    for name, weight in again.weights.items():
        matrix, _, kind = name.rpartition(".")
        own = expected.get(name, torch.zeros(len(weight)))
        # Padding and start are never chosen; Marian does not have them.
        first = EOS if matrix in matrices else 0
        if not torch.equal(own[first:], weight[first:]):
            raise ProofError(
                f"The exported weights must be the same, but the {kind} of {matrix} "
                "is another; nothing was written."
            )


# ---- Weights ---------------------------------------------------------------------


def model_arrays(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return Marian's arrays of the weights by name."""
    return {
        name: np.ascontiguousarray(array.numpy(), dtype=np.float32)
        for name, array in _arrays(checkpoint)
    }


def model_npz(arrays: Mapping[str, np.ndarray], options: Mapping[str, object]) -> bytes:
    """Return the content of model.npz."""
    lines = [f"{name}: {json.dumps(value)}\n" for name, value in options.items()]
    text = "".join(lines).encode() + b"\0"
    # The options come first: `marian-conv` does not find them behind NumPy's arrays.
    stored = {OPTIONS: np.frombuffer(text, dtype=np.int8), **arrays}
    file = io.BytesIO()
    np.savez(file, **stored)  # type: ignore[arg-type] # no name is `allow_pickle`
    return file.getvalue()


def _arrays(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """Yield Marian's arrays; a row is a vector there."""
    config = checkpoint.transformer_config
    order = halved(config.d_model)
    source, target, output = embedding_names(checkpoint)
    if target == source:
        yield "Wemb", _rows(checkpoint.weights[f"{source}.weight"][:, order])
    else:
        yield "encoder_Wemb", _rows(checkpoint.weights[f"{source}.weight"][:, order])
        yield "decoder_Wemb", _rows(checkpoint.weights[f"{target}.weight"][:, order])
    matrix = checkpoint.weights[f"{output}.weight"]
    if not config.tied_output:
        yield "decoder_ff_logit_out_Wt", _rows(matrix[:, order])
    bias = checkpoint.weights.get(f"{output}.bias", torch.zeros(len(matrix)))
    yield "decoder_ff_logit_out_b", _rows(bias)[None]
    weights = weights_for_scaled_scores(checkpoint)
    for name, arrays in parts_of_stacks(config):
        parts = reordered(name, weights[name], order).chunk(len(arrays))
        for array, part in zip(arrays, parts, strict=True):
            yield array, part.T if part.dim() > 1 else part[None]


def _rows(weight: Tensor) -> Tensor:
    """Return the rows that Marian has: the end token, then ordinary pieces."""
    return weight[EOS:]


def model_options(config: ModelConfig) -> dict[str, object]:
    """Return Marian's options of the model."""
    is_pre = config.norm == "pre"
    is_recurrent = config.decoder_self_attention == "ssru"
    is_shared = config.target_vocab_size is None
    sizes = (config.vocab_size, config.target_vocab_size or config.vocab_size)
    return {
        "type": "transformer",
        "dim-emb": config.d_model,
        "dim-vocabs": [size - EOS for size in sizes],
        "enc-depth": config.num_layers,
        "dec-depth": config.num_decoder_layers,
        "transformer-heads": config.num_heads,
        "transformer-dim-ffn": config.d_ff,
        "transformer-ffn-depth": 2,
        "transformer-ffn-activation": NAMES[config.activation],
        "transformer-decoder-dim-ffn": 0,
        "transformer-decoder-ffn-depth": 0,
        "transformer-decoder-autoreg": "rnn" if is_recurrent else "self-attention",
        "transformer-preprocess": "n" if is_pre else "",
        "transformer-postprocess": "da" if is_pre else "dan",
        "transformer-postprocess-top": "n" if is_pre else "",
        "transformer-postprocess-emb": "d",
        "transformer-tied-layers": [],
        "transformer-no-projection": False,
        "transformer-no-bias": False,
        "transformer-no-affine": False,
        "transformer-pool": False,
        "transformer-rnn-projection": False,
        "transformer-attention-mask": "default",
        "transformer-alibi-shift": False,
        "transformer-alibi-trainable": False,
        "transformer-train-position-embeddings": False,
        "transformer-disable-position-embeddings": False,
        "transformer-guided-alignment-layer": "last",
        "transformer-dim-aan": 2048,
        "transformer-aan-depth": 2,
        "transformer-aan-activation": "swish",
        "transformer-aan-nogate": False,
        "tied-embeddings-all": is_shared and config.tied_output,
        "tied-embeddings-src": is_shared and not config.tied_output,
        "tied-embeddings": not is_shared and config.tied_output,
        "output-omit-bias": False,
        "input-types": [],
        "right-left": False,
        "skip": False,
        "layer-normalization": False,
        "lemma-dim-emb": 0,
        "lemma-dependency": "",
        "factors-dim-emb": 0,
        "factors-combine": "sum",
        "separator-symbol": "[eos]",
        "bert-train-type-embeddings": True,
        "bert-type-vocab-size": 2,
        "ulr": False,
        "ulr-dim-emb": 0,
        "ulr-trainable-transformation": False,
        # Options of recurrent models, which Marian reads for all.
        "dim-rnn": 1024,
        "enc-type": "bidirectional",
        "enc-cell": "gru",
        "enc-cell-depth": 1,
        "dec-cell": "ssru" if is_recurrent else "gru",
        "dec-cell-base-depth": 2,
        "dec-cell-high-depth": 1,
        "version": "v1.12.0 by transduce",
    }


def _own_options(checkpoint: Checkpoint) -> dict[str, object]:
    """Return the settings that Marian has no options for, so that an import restores
    them."""
    config = checkpoint.transformer_config
    languages = {
        SOURCE_LANGUAGE: checkpoint.source_language,
        TARGET_LANGUAGE: checkpoint.target_language,
    }
    tags = list(checkpoint.tokenizer.corpus_tags)
    return {
        **{name: tag for name, tag in languages.items() if tag is not None},
        **({CORPUS_TAGS: tags} if tags else {}),
        **{option: getattr(config, name) for name, option in DROPOUTS.items()},
    }


# ---- Vocabularies and search -----------------------------------------------------


def _write_vocabularies(tokenizer: SentencePieceTokenizer, folder: Path) -> list[str]:
    """Write the vocabularies of source and target, and return their names."""
    pieces = _pieces(tokenizer)
    lists = [pieces, pieces[: _num_targets(tokenizer)]]
    models = (tokenizer.source, tokenizer.target)
    are_models = all(map(_is_a_model, models, lists))
    if tokenizer.language_tags or not are_models:
        return _write_lists(tokenizer, lists, folder)
    protos = [
        _proto(model, own).SerializeToString()
        for model, own in zip(models, lists, strict=True)
    ]
    names = [VOCABULARY, VOCABULARY]
    if protos[0] != protos[1]:
        names = [SOURCE, TARGET_MODEL]
    for name, proto in zip(names, protos, strict=True):
        (folder / name).write_bytes(proto)
    return names


def _is_a_model(model: SentencePieceModel, own: Sequence[str]) -> bool:
    """Whether a model of SentencePiece can have exactly these pieces.

    They must include all of its own. Others would be unused ones, which a model of byte
    pairs cannot have: SentencePiece merges them all the same.
    """
    needed = {*(p for p, _ in model.pieces), *model.symbols}
    if model.spells_bytes:
        needed |= {*BYTES}
    others = [p for p in own[1:] if p not in needed and not _is_special(p)]
    return needed <= {*own} and not (others and isinstance(model, BytePairModel))


def _is_special(piece: str) -> bool:
    return piece == UNKNOWN or piece.startswith("<control-")


def _pieces(tokenizer: SentencePieceTokenizer) -> list[str]:
    """Return the pieces by Marian's ids; symbols without a text have a new name."""
    textless = {"", *tokenizer.silent}
    named = (
        f"<control-{i}>" if piece in textless else piece
        for i, piece in enumerate(tokenizer.vocabulary[FIRST:])
    )
    return [END, *named]


def _num_targets(tokenizer: SentencePieceTokenizer) -> int:
    return (tokenizer.target_vocab_size or tokenizer.vocab_size) - EOS


def _proto(model: SentencePieceModel, pieces: Sequence[str]) -> ModelProto:
    """Return a model of SentencePiece whose ids are those of the pieces."""
    scores, symbols = dict(model.pieces), {*model.symbols}
    proto = model_proto(model)
    for i, piece in enumerate(pieces):
        kind, score = Piece.UNUSED, 0.0
        if piece == UNKNOWN:
            kind = Piece.UNKNOWN
        elif i == 0 or piece.startswith("<control-"):
            kind = Piece.CONTROL
        elif model.spells_bytes and piece in BYTES:
            kind = Piece.BYTE
        elif piece in symbols:
            kind = Piece.USER_DEFINED
        elif piece in scores:
            kind, score = Piece.NORMAL, scores[piece]
        proto.pieces.add(piece=piece, score=score, type=kind)
    return proto


def _write_lists(
    tokenizer: SentencePieceTokenizer, lists: Sequence[Sequence[str]], folder: Path
) -> list[str]:
    """Write word lists, and models of SentencePiece that cut text for them."""
    controls = [piece for piece in lists[0] if piece.startswith("<control-")]
    for model, name in (
        (tokenizer.source, SOURCE),
        (tokenizer.target, TARGET_MODEL),
    ):
        proto = whole_proto(model, controls)
        (folder / name).write_bytes(proto.SerializeToString())
    names = [SOURCE_LIST, TARGET_LIST]
    for name, pieces in zip(names, lists, strict=True):
        lines = (
            f"{json.dumps(piece, ensure_ascii=False)}: {i}\n"
            for i, piece in enumerate(pieces)
        )
        (folder / name).write_text("".join(lines), encoding="utf-8")
    return names


def _decoder_settings(checkpoint: Checkpoint, vocabularies: Sequence[str]) -> str:
    """Return the settings of Marian's decoder, in YAML."""
    search = checkpoint.search or SearchConfig()
    tokenizer = checkpoint.tokenizer
    assert isinstance(tokenizer, SentencePieceTokenizer)
    written = _marian_search(search, tokenizer.unknown)
    if others := differences(search, written):
        names = ", ".join(f"`search.{name}`" for name in others)
        warn_caller(
            f"{TARGET} has only a beam size, a length penalty of the kind power, and "
            "an option for unknown pieces, so it searches differently from these "
            f"settings of the model: {names}."
        )
    settings: dict[str, object] = {
        "relative-paths": True,
        "models": [WEIGHTS],
        "vocabs": [*vocabularies],
        "beam-size": written.beam_size,
        "normalize": written.length_penalty,
        "word-penalty": 0,
        "allow-unk": not written.bad_words,
        "mini-batch": 32,
        "maxi-batch": 100,
        "maxi-batch-sort": "src",
    }
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())


def _marian_search(search: SearchConfig, unknown: int) -> SearchConfig:
    """Return the search of Marian's decoder that comes closest to a search."""
    return SearchConfig(
        beam_size=search.beam_size,
        # Marian ends a search when beam-size hypotheses have finished.
        patience=1.0 if search.beam_size > 1 else None,
        penalty="power",
        length_penalty=power_penalty(search),
        bad_words=((unknown,),) if (unknown,) in search.bad_words else (),
    )
