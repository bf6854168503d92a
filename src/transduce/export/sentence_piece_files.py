"""Tokenizers of SentencePiece as Hugging Face's Marian has them.

That is source.spm and target.spm, a model of SentencePiece each, and vocab.json with
the id of each piece of either.
"""

import json
from pathlib import Path

from google.protobuf.message import DecodeError
from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec
from transformers import MarianTokenizer

from transduce.errors import CheckpointError, RequestError
from transduce.export.hugging_face import HuggingFaceTokenizer
from transduce.special_ids import EOS, PAD
from transduce.text.sentence_pieces import (
    UNKNOWN,
    SentencePieceTokenizer,
    UnigramModel,
)
from transduce.text.tokenizer import SPECIAL_PIECES

SOURCE, TARGET, VOCABULARY = "source.spm", "target.spm", "vocab.json"
Piece = ModelProto.SentencePiece


def write_files(
    tokenizer: SentencePieceTokenizer, folder: Path
) -> HuggingFaceTokenizer:
    """Write them into a folder that is there; what reads them, for the proof."""
    (folder / SOURCE).write_bytes(_proto(tokenizer.source).SerializeToString())
    (folder / TARGET).write_bytes(_proto(tokenizer.target).SerializeToString())
    ids = {piece: i for i, piece in enumerate(tokenizer.vocabulary)}
    (folder / VOCABULARY).write_text(
        json.dumps(ids, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
    )
    MarianTokenizer(
        source_spm=str(folder / SOURCE),
        target_spm=str(folder / TARGET),
        vocab=str(folder / VOCABULARY),
        unk_token=UNKNOWN,
        eos_token=SPECIAL_PIECES[EOS],
        pad_token=SPECIAL_PIECES[PAD],
        split_special_tokens=True,  # a user's "</s>" is text
    ).save_pretrained(folder)
    return HuggingFaceTokenizer(folder, range(tokenizer.vocab_size))


def read_proto(path: Path) -> ModelProto:
    """A model of SentencePiece; `CheckpointError` if it is damaged."""
    proto = ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except (OSError, DecodeError) as error:
        raise CheckpointError(
            f"{path}: the model of SentencePiece is missing or damaged ({error}); "
            "fetch it again."
        ) from None
    return proto


def unigram_model(proto: ModelProto, path: Path) -> UnigramModel:
    """The same as ours; `RequestError` with its path if it does not map."""
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    kinds = {piece.type for piece in proto.pieces}
    obstacles = {
        "cuts by other means than unigrams": trainer.model_type != TrainerSpec.UNIGRAM,
        "spells by bytes": trainer.byte_fallback,
        "writes spaces after words": trainer.treat_whitespace_as_suffix,
        "leaves spaces as they are": not normalizer.escape_whitespaces,
        "has symbols of its user's": Piece.USER_DEFINED in kinds,
        "changes what it decodes": proto.denormalizer_spec.precompiled_charsmap != b"",
    }
    for obstacle, is_met in obstacles.items():
        if is_met:
            raise RequestError(
                f"{path}: the model of SentencePiece must be one of plain unigrams, "
                f"but {obstacle}; it cannot be imported."
            )
    return UnigramModel(
        pieces=tuple(
            (piece.piece, piece.score)
            for piece in proto.pieces
            if piece.type == Piece.NORMAL
        ),
        character_map=normalizer.precompiled_charsmap,
        adds_space=normalizer.add_dummy_prefix,
        removes_spaces=normalizer.remove_extra_whitespaces,
    )


def _proto(model: UnigramModel) -> ModelProto:
    proto = ModelProto()
    proto.trainer_spec.model_type = TrainerSpec.UNIGRAM
    proto.normalizer_spec.precompiled_charsmap = model.character_map
    proto.normalizer_spec.add_dummy_prefix = model.adds_space
    proto.normalizer_spec.remove_extra_whitespaces = model.removes_spaces
    proto.pieces.add(piece=UNKNOWN, score=0.0, type=Piece.UNKNOWN)
    for piece, score in model.pieces:
        proto.pieces.add(piece=piece, score=score, type=Piece.NORMAL)
    return proto
