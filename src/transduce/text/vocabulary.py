"""Layout of a learned vocabulary: special ids, bytes, and the settings of the rest.

Ids 0 to 2 are special, the next 256 are bytes, and the learned pieces follow. In a
vocabulary of words, two ids of unknown words take the place of the bytes.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from transduce.errors import ConfigError
from transduce.settings import require_between

TokenizerKind = Literal["bpe", "word-piece", "word", "character"]
PAD, BOS, EOS = 0, 1, 2
"""Padding; start of the decoder's input; end of source and target."""
SPECIAL_PIECES = ("<pad>", "<s>", "</s>")
FIRST_BYTE = 0xF700
"""Byte b is written as the character U+F700 + b, from Unicode's private use area. A
user's own character of that range is itself encoded as bytes, so nothing is
ambiguous."""
BYTE_PIECES = tuple(chr(FIRST_BYTE + byte) for byte in range(256))
READABLE_BYTES = {piece: f"<0x{byte:02X}>" for byte, piece in enumerate(BYTE_PIECES)}
"""Readable form of bytes."""
NUM_RESERVED = len(SPECIAL_PIECES) + len(BYTE_PIECES)
UNKNOWN_PIECES = (" <unk>", "<unk>")
"""Pieces of a vocabulary of words that stand for all other words: with a space before
the word, and without."""
UNKNOWN_IDS = range(len(SPECIAL_PIECES), len(SPECIAL_PIECES) + len(UNKNOWN_PIECES))
"""Ids of unknown words in a vocabulary of words."""
MAX_PIECES = 2**24
"""Maximum size of a vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """Settings of learning a vocabulary (section 5.1)."""

    kind: TokenizerKind = "bpe"
    """Byte-pair encoding (the paper's en-de), word-pieces (its en-fr), words, of which
    the rare ones are unknown, or single characters."""
    vocab_size: int = 37_000
    """Maximum size of the vocabulary, including special tokens and bytes; small corpora
    give fewer."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(TokenizerKind):
            raise ConfigError(
                '`tokenizer.kind` must be "bpe", "word-piece", "word" or "character", '
                f'but is "{self.kind}".'
            )
        require_between("tokenizer.vocab_size", self.vocab_size, 0, MAX_PIECES)
        if self.vocab_size <= self.num_reserved:
            others = "bytes" if self.has_bytes else "unknown words"
            raise ConfigError(
                f"`tokenizer.vocab_size` must be above {self.num_reserved} (special "
                f"tokens and {others}), but is {self.vocab_size}."
            )

    @property
    def has_bytes(self) -> bool:
        """Whether characters outside the vocabulary are encoded as bytes."""
        return self.kind != "word"

    @property
    def num_reserved(self) -> int:
        """Number of ids before the learned pieces."""
        return NUM_RESERVED if self.has_bytes else UNKNOWN_IDS.stop
