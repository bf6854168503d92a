"""The tokenizer as one file that `tokenizers` reads without this package.

What this package does in Python around its vocabulary stands in the file:
normalization, bytes for what is not in the alphabet, and how pieces are joined.
"""

import json

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from transduce.errors import RequestError
from transduce.special_ids import EOS
from transduce.text.tokenizer import BYTE_PIECES, SPECIAL_PIECES, WORD, Tokenizer

WHITE_SPACE = "".join(map(chr, filter(lambda code: chr(code).isspace(), range(0x3001))))
"""What `str.split` splits at."""


def portable_pieces(tokenizer: Tokenizer) -> list[str]:
    """The vocabulary by id, with bytes under their usual names, such as <0xE4>."""
    names = {piece: f"<0x{byte:02X}>" for byte, piece in enumerate(BYTE_PIECES)}
    return [names.get(piece, piece) for piece in tokenizer.vocabulary]


def portable_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """The same ids for the same text, the end token after them if it is asked for.

    But for runs of more than 64 letters or signs without a space, some of them not in
    the alphabet: those it may cut elsewhere. Its text is not normalized, and the end
    token must be left out of what it decodes. `RequestError` if it is one of
    word-pieces, which know no bytes there.
    """
    settings = json.loads(tokenizer.json())["model"]
    if settings["type"] != "BPE":
        raise RequestError(
            "An exported model must have a tokenizer of the kind bpe, but has one of "
            "word-pieces, which other libraries cannot spell unknown characters with."
        )
    pieces = portable_pieces(tokenizer)
    portable = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[tuple(merge) for merge in settings["merges"]],
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
    portable.pre_tokenizer = pre_tokenizers.Split(WORD, behavior="isolated")
    portable.post_processor = processors.TemplateProcessing(
        single=f"$A {SPECIAL_PIECES[EOS]}",
        special_tokens=[(SPECIAL_PIECES[EOS], EOS)],
    )
    portable.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return portable
