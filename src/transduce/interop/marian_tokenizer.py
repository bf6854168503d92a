"""Tokenizer of a Marian folder.

It is either SentencePiece's, in source.spm, target.spm and vocab.json, or one that
`transduce export --to marian` wrote, in tokenizer.json.
"""

from collections.abc import Mapping
from pathlib import Path

import tokenizers

from transduce.errors import CheckpointError, RequestError
from transduce.files import read_json
from transduce.interop.marian_settings import SETTINGS, MarianSettings
from transduce.interop.portable_tokenizer import (
    SOURCE,
    TARGET,
    VOCABULARY,
    Piece,
    own_tokenizer,
    read_proto,
    unigram_model,
)
from transduce.text.sentence_pieces import UNKNOWN, SentencePieceTokenizer
from transduce.text.tokenizer import TOKENIZER_FILE, SubwordTokenizer, Tokenizer
from transduce.text.vocabulary import SPECIAL_PIECES

TARGET_VOCABULARY = "target_vocab.json"


def read_tokenizer(folder: Path, settings: MarianSettings) -> Tokenizer:
    """Read the tokenizer, with this package's ids.

    Raises `RequestError` if it cannot be imported, `CheckpointError` if a file is
    damaged.
    """
    if (folder / TARGET_VOCABULARY).exists():
        raise RequestError(
            f"{folder}: source and target must have one vocabulary, but there is a "
            f"{TARGET_VOCABULARY}; such a model cannot be imported."
        )
    missing = [n for n in (SOURCE, TARGET, VOCABULARY) if not (folder / n).is_file()]
    if not missing:
        return _sentence_pieces(folder, settings)
    if (folder / TOKENIZER_FILE).is_file():
        return _own(folder / TOKENIZER_FILE)
    raise RequestError(
        f"{folder}: must hold {SOURCE}, {TARGET} and {VOCABULARY}, but has no "
        f"{missing[0]}; fetch all files of the model."
    )


def _sentence_pieces(folder: Path, settings: MarianSettings) -> SentencePieceTokenizer:
    source, target = (read_proto(folder / name) for name in (SOURCE, TARGET))
    kinds = {each.piece: each.type for each in (*target.pieces, *source.pieces)}
    return SentencePieceTokenizer(
        vocabulary=_vocabulary(folder / VOCABULARY, settings, kinds),
        source=unigram_model(source, folder / SOURCE),
        target=unigram_model(target, folder / TARGET),
    )


def _vocabulary(
    path: Path, settings: MarianSettings, kinds: Mapping[str, int]
) -> tuple[str, ...]:
    """Return the pieces by this package's ids."""
    pieces = _pieces(path, settings.vocab_size)
    _, start, _, *others = (pieces[i] for i in settings.ids)
    # Symbols such as "<s>" decode to nothing.
    named = ("" if kinds.get(piece) == Piece.CONTROL else piece for piece in others)
    vocabulary = (*SPECIAL_PIECES, *named)
    is_clear = UNKNOWN in vocabulary and len(set(vocabulary)) == len(vocabulary)
    if not is_clear or kinds.get(start) == Piece.NORMAL:
        raise RequestError(
            f"{path}: must hold {UNKNOWN}, and no more special tokens than {SETTINGS} "
            "names, none of them text, but does not; such a model cannot be imported."
        )
    return vocabulary


def _pieces(path: Path, vocab_size: int) -> list[str]:
    """Return the pieces by Marian's ids."""
    ids = read_json(path)
    if sorted(map(repr, ids.values())) != sorted(map(repr, range(vocab_size))):
        raise CheckpointError(
            f"{path}: must give the ids 0 to {vocab_size - 1} to one piece each, but "
            "does not; the file is of another model."
        )
    return sorted(ids, key=ids.__getitem__)


def _own(path: Path) -> SubwordTokenizer:
    try:
        portable = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare exceptions
        raise CheckpointError(
            f"{path}: the tokenizer is missing or damaged ({error}); fetch it again."
        ) from None
    if (own := own_tokenizer(portable)) is None:
        raise RequestError(
            f"{path}: the tokenizer must be one that `transduce export` wrote, but is "
            f"another; a model from elsewhere must have {SOURCE}, {TARGET} and "
            f"{VOCABULARY}."
        )
    return own
