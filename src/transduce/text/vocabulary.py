"""Layout of a learned vocabulary: special ids, bytes, and the settings of the rest.

Ids 0 to 2 are special, the next 256 are bytes, and the learned pieces follow.
"""

from dataclasses import dataclass
from typing import Literal

from transduce.errors import ConfigError
from transduce.settings import require_between

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
MAX_PIECES = 2**24
"""Maximum size of a vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """Settings of learning a vocabulary (section 5.1)."""

    kind: Literal["bpe", "word-piece"] = "bpe"
    """Byte-pair encoding (the paper's en-de) or word-pieces (its en-fr)."""
    vocab_size: int = 37_000
    """Maximum size of the vocabulary, including special tokens and bytes; small corpora
    give fewer."""

    def __post_init__(self) -> None:
        if self.kind not in ("bpe", "word-piece"):
            raise ConfigError(
                f'`tokenizer.kind` must be "bpe" or "word-piece", but is "{self.kind}".'
            )
        require_between("tokenizer.vocab_size", self.vocab_size, 0, MAX_PIECES)
        if self.vocab_size <= NUM_RESERVED:
            raise ConfigError(
                f"`tokenizer.vocab_size` must be above {NUM_RESERVED} (special tokens "
                f"and bytes), but is {self.vocab_size}."
            )
