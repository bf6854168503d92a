"""Tokenizer files that other libraries read without this package.

The files include the steps of this package's Python around its vocabulary. A learned
tokenizer becomes a `tokenizer.json` with normalization, byte fallback and joining of
pieces; an imported SentencePiece tokenizer becomes the original files again. Hugging
Face's library reads the files for a proof.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from transduce.errors import CheckpointError, RequestError
from transduce.files import read_bounded_bytes, reason
from transduce.interop.export import OtherTokenizer
from transduce.settings import shown
from transduce.text.sentence_pieces import (
    BYTES,
    SURROGATE,
    UNKNOWN,
    BytePairModel,
    SentencePieceModel,
    SentencePieceTokenizer,
    StoredPiece,
    read_model,
)
from transduce.text.tokenizer import (
    TOKENIZER_FILE,
    SubwordTokenizer,
    Tokenizer,
    byte_pair_tokenizer,
)
from transduce.text.vocabulary import (
    BOS,
    BYTE_PIECES,
    EOS,
    NUM_RESERVED,
    PAD,
    SPECIAL_PIECES,
    language_tags,
)

SOURCE, TARGET, VOCABULARY = "source.spm", "target.spm", "vocab.json"
TARGET_VOCABULARY = "target_vocab.json"
"""Vocabulary of targets, if it is another."""
NAMED_TOKENS = tuple(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
"""Settings with the special tokens of each Hugging Face tokenizer. This package reads
these tokens in a text as text, but cuts all other special tokens out."""
UNUSED_TOKENS = ("sep_token", "cls_token", "mask_token")
"""Names of `NAMED_TOKENS` that the tokenizers of this package do not need."""
Piece = ModelProto.SentencePiece
NAMED = "<U+2581>"
"""Name of the character that stands for spaces, where a piece has it."""


class HuggingFaceTokenizer:
    """Tokenizer of a Hugging Face folder, for proofs.

    The ids of sources and of targets map this package's ids to its own.
    """

    def __init__(
        self, folder: Path, source_ids: Sequence[int], target_ids: Sequence[int]
    ) -> None:
        from transformers import AutoTokenizer  # takes a second

        self._tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        self._source_ids = source_ids
        self._target_ids = target_ids
        known: Mapping[int, AddedToken] = self._tokenizer.added_tokens_decoder
        special: Mapping[str, object] = self._tokenizer.special_tokens_map
        # Others are further special tokens, which a text may have.
        named = [str(special[name]) for name in NAMED_TOKENS if name in special]
        # A token without a row of the embeddings is text here; the library fails on it.
        self._added = [
            token.content
            for i, token in known.items()
            if token.content not in named and i in source_ids
        ]
        vocabulary: Mapping[str, int] = self._tokenizer.get_vocab()
        self._tags = language_tags(vocabulary)
        # Several pieces may have the id of the unknown one, which comes first.
        self._ours_of_source, self._ours_of_target = (
            {theirs: i for i, theirs in reversed([*enumerate(ids)])}
            for ids in (source_ids, target_ids)
        )

    def encode_source(self, text: str) -> list[int]:
        return self._encode(self._ours_of_source, text=text)

    def encode_target(self, text: str) -> list[int]:
        return self._encode(self._ours_of_target, text_target=text)

    def known_to_source(self, ids: list[int]) -> list[int]:
        return [self._ours_of_source[self._source_ids[i]] for i in ids]

    def decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(
            [self._target_ids[i] for i in ids],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        return " ".join(text.split())

    def _encode(self, ours: Mapping[int, int], **text: str) -> list[int]:
        # The library cuts out added tokens and special ones alike, or neither.
        [(name, given)] = text.items()
        if given.startswith(">>") and not given.startswith(self._tags):
            # Whatever >>...<< begins a text is one token there, and unknown. Here only
            # the tags of the vocabulary are; other ones are text.
            text[name] = f" {given}"
        has_added = any(token in given for token in self._added)
        found = self._tokenizer(
            **text, add_special_tokens=False, split_special_tokens=not has_added
        )
        return [ours.get(i, -1) for i in found["input_ids"]]


def write_files(
    tokenizer: SentencePieceTokenizer, folder: Path
) -> HuggingFaceTokenizer:
    """Write the files into an existing folder; return their reader for the proof.

    Added tokens follow the pieces, as in a fine-tuned folder of the library.
    """
    from transformers import MarianTokenizer  # takes a second

    (folder / SOURCE).write_bytes(whole_proto(tokenizer.source).SerializeToString())
    (folder / TARGET).write_bytes(whole_proto(tokenizer.target).SerializeToString())
    num_targets = tokenizer.target_vocab_size or tokenizer.vocab_size
    has_two = tokenizer.target_vocab_size is not None
    added = [piece for piece in tokenizer.vocabulary if piece in tokenizer.added]
    behind = list(takewhile(tokenizer.added.__contains__, tokenizer.vocabulary[::-1]))
    pieces = tokenizer.vocabulary[: tokenizer.vocab_size - len(behind)]
    _write_vocabulary(pieces, folder / VOCABULARY)
    if has_two:
        targets = tokenizer.vocabulary[:num_targets]
        _write_vocabulary(targets, folder / TARGET_VOCABULARY)
    library = MarianTokenizer(
        source_spm=str(folder / SOURCE),
        target_spm=str(folder / TARGET),
        vocab=str(folder / VOCABULARY),
        target_vocab_file=str(folder / TARGET_VOCABULARY) if has_two else None,
        separate_vocabs=has_two,
        unk_token=UNKNOWN,
        # The start of a target, which the library leaves out of a text only if named.
        bos_token=SPECIAL_PIECES[BOS],
        eos_token=SPECIAL_PIECES[EOS],
        pad_token=SPECIAL_PIECES[PAD],
        # A user's "</s>" is text, except beside added tokens, which would be so too.
        split_special_tokens=not added,
    )
    library.add_tokens(added)
    if tokenizer.silent:
        library.add_special_tokens(_special_tokens(tokenizer))
    library.save_pretrained(folder)
    ids = range(tokenizer.vocab_size)
    return HuggingFaceTokenizer(folder, ids, ids[:num_targets])


def _special_tokens(tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    """Return the tokens without a text; those that are not cut have a name."""
    is_cut = {*tokenizer.added}
    not_cut = [piece for piece in tokenizer.silent if piece not in is_cut]
    named = dict(zip(UNUSED_TOKENS, not_cut, strict=False))
    others = [piece for piece in tokenizer.silent if piece not in named.values()]
    return {**named, "additional_special_tokens": others} if others else named


def _write_vocabulary(pieces: Sequence[str], path: Path) -> None:
    ids = {piece: i for i, piece in enumerate(pieces)}
    text = json.dumps(ids, ensure_ascii=False, indent=2) + "\n"
    path.write_text(text, encoding="utf-8")


def read_sentencepiece(
    path: Path,
) -> tuple[SentencePieceModel, tuple[StoredPiece, ...]]:
    """Read a model of SentencePiece as `read_model`, once the library has accepted it.

    The library finds damage that a parser cannot.
    """
    found = read_model(path)
    try:
        sentencepiece.SentencePieceProcessor(model_proto=read_bounded_bytes(path))
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{path}: the model of SentencePiece is missing or damaged "
            f"({reason(error)}); fetch another file."
        ) from None
    return found


def require_whole_characters(pieces: Iterable[str], path: Path) -> None:
    """Raise `CheckpointError` if a piece has half of a surrogate pair, as JSON can."""
    for piece in pieces:
        if SURROGATE.search(piece):
            raise CheckpointError(
                f"{path}: all pieces must be text, but {shown(piece)} has half a "
                "character; fetch the file again."
            )


def model_proto(model: SentencePieceModel) -> ModelProto:
    """Return a model of SentencePiece that lacks its pieces."""
    proto = ModelProto()
    kinds = TrainerSpec.ModelType
    is_bpe = isinstance(model, BytePairModel)
    proto.trainer_spec.model_type = kinds.BPE if is_bpe else kinds.UNIGRAM
    proto.trainer_spec.byte_fallback = model.spells_bytes
    proto.normalizer_spec.precompiled_charsmap = model.character_map
    proto.normalizer_spec.add_dummy_prefix = model.adds_space
    proto.normalizer_spec.remove_extra_whitespaces = model.removes_spaces
    return proto


def whole_proto(model: SentencePieceModel, control: Sequence[str] = ()) -> ModelProto:
    """Return a model of SentencePiece with its pieces, and symbols without a text."""
    proto = model_proto(model)
    proto.pieces.add(piece=UNKNOWN, score=0.0, type=Piece.UNKNOWN)
    for piece in control:
        proto.pieces.add(piece=piece, score=0.0, type=Piece.CONTROL)
    for piece in BYTES if model.spells_bytes else ():
        proto.pieces.add(piece=piece, score=0.0, type=Piece.BYTE)
    for piece in model.symbols:
        proto.pieces.add(piece=piece, score=0.0, type=Piece.USER_DEFINED)
    for piece, score in model.pieces:
        proto.pieces.add(piece=piece, score=score, type=Piece.NORMAL)
    return proto


WHITE_SPACE = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
"""Characters at which `str.split` splits; the last one is U+3000."""


def portable_pieces(tokenizer: Tokenizer, space: str = " ") -> list[str]:
    """Return the vocabulary by id as in the files; bytes are named such as <0xE4>.

    Spaces in learned pieces are written as `space`.
    """
    match tokenizer:
        case SubwordTokenizer():
            pieces = tokenizer.pieces(range(tokenizer.vocab_size))
            return [_with_space(piece, space) for piece in pieces]
        case SentencePieceTokenizer():
            return list(tokenizer.vocabulary)


def _with_space(piece: str, space: str) -> str:
    """Write the spaces of a piece as `space`; one that is in it already is named."""
    return piece if space == " " else piece.replace(space, NAMED).replace(" ", space)


def write_portable(
    tokenizer: Tokenizer, folder: Path, space: str = " "
) -> OtherTokenizer:
    """Write the files into an existing folder; return their reader for the proof.

    Spaces in learned pieces are written as `space`. Raises `RequestError` for
    word-pieces and words, which have no byte fallback elsewhere.
    """
    match tokenizer:
        case SubwordTokenizer():
            portable_tokenizer(tokenizer, space).save(str(folder / TOKENIZER_FILE))
            return _FileTokenizer(folder / TOKENIZER_FILE)
        case SentencePieceTokenizer():
            return write_files(tokenizer, folder)


class _FileTokenizer:
    """Tokenizer of a `tokenizer.json`, read by `tokenizers`."""

    def __init__(self, path: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))

    def encode_source(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_target(self, text: str) -> list[int]:
        return self.encode_source(text)

    def known_to_source(self, ids: list[int]) -> list[int]:
        return ids

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids)


def portable_tokenizer(
    tokenizer: SubwordTokenizer, space: str = " "
) -> tokenizers.Tokenizer:
    """Convert a tokenizer to one that gives the same ids for the same text.

    Spaces in pieces are written as `space`; if that is another character, the tokenizer
    reads it in a text as a space.

    It adds the end token if requested. Runs of more than 64 letters or signs without a
    space may be split differently if some characters are outside the alphabet, unless
    their script has no spaces. Decoded text is not normalized, and the end token must
    be omitted before decoding. Raises `RequestError` for word-pieces, which have no
    byte fallback there.
    """
    settings = json.loads(tokenizer.json())["model"]
    if settings["type"] != "BPE":
        raise RequestError(
            "An exported model must have a tokenizer of the kind bpe, but has one of "
            f"{'words' if settings['type'] == 'WordLevel' else 'word-pieces'}, which "
            "other libraries cannot spell unknown characters with."
        )
    pieces = portable_pieces(tokenizer, space)
    portable = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[
                (_with_space(left, space), _with_space(right, space))
                for left, right in settings["merges"]
            ],
            byte_fallback=True,
        )
    )
    portable.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace(tokenizers.Regex(f"[{WHITE_SPACE}]+"), " "),
            normalizers.Strip(),
            normalizers.Prepend(" "),
        ]
    )
    portable.pre_tokenizer = _pre_tokenizer(tokenizer, space)
    portable.post_processor = processors.TemplateProcessing(
        single=f"$A {SPECIAL_PIECES[EOS]}",
        special_tokens=[(SPECIAL_PIECES[EOS], EOS)],
    )
    # A tag before a text is one token. The library also finds it within a text.
    tags = [AddedToken(tag, normalized=False) for tag in tokenizer.language_tags]
    portable.add_tokens(tags)
    portable.decoder = _decoder(space)
    return portable


def _pre_tokenizer(
    tokenizer: SubwordTokenizer, space: str
) -> pre_tokenizers.PreTokenizer:
    """Return the tokenizer's words, with spaces written as in its pieces."""
    if space == " ":
        return tokenizer.words
    written = pre_tokenizers.Metaspace(
        replacement=space, prepend_scheme="never", split=False
    )
    return pre_tokenizers.Sequence([tokenizer.words, written])


def _decoder(space: str) -> decoders.Decoder:
    """Return the decoder of pieces whose spaces are written as `space`."""
    steps: list[decoders.Decoder] = []
    if space != " ":
        steps = [decoders.Replace(space, " "), decoders.Replace(NAMED, space)]
    steps += [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return decoders.Sequence(steps)


def own_tokenizer(portable: tokenizers.Tokenizer) -> SubwordTokenizer | None:
    """Recover the tokenizer from which `portable_tokenizer` made this one, or None."""
    model = json.loads(portable.to_str())["model"]
    if model["type"] != "BPE":
        return None
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    learned = [*SPECIAL_PIECES, *BYTE_PIECES, *pieces[NUM_RESERVED:]]
    try:
        own = byte_pair_tokenizer(learned, model["merges"], portable.pre_tokenizer)
    except Exception:  # the library raises bare exceptions
        return None
    return own if _parts(portable_tokenizer(own)) == _parts(portable) else None


def _parts(tokenizer: tokenizers.Tokenizer) -> list[object]:
    """Return all parts but the special tokens, which Hugging Face adds."""
    content = json.loads(tokenizer.to_str())
    parts = ("model", "normalizer", "pre_tokenizer", "decoder")
    return [content[part] for part in parts]
