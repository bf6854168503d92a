"""Tokenizers; of them shared byte-pair encoding and word-pieces (section 5.1).

Those are learned and applied by the Hugging Face `tokenizers` library. What this module
adds is that nothing is ever unknown: a character that is not in the vocabulary is spelt
by the bytes of its UTF-8 form, so `decode(encode(text)) == normalize(text)` for any
text, and special tokens typed by a user are ordinary text.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import tokenizers
from tokenizers import Regex, models, pre_tokenizers, trainers

from transduce.errors import CheckpointError, ConfigError
from transduce.special_ids import EOS, PAD
from transduce.text.sentence_pieces import SentencePieceTokenizer

TOKENIZER_FILE = "tokenizer.json"
"""Of a model and of a run."""

SPECIAL_PIECES = ("<pad>", "<s>", "</s>")

FIRST_BYTE = 0xF700
"""Byte b is written as the character U+F700 + b, from Unicode's private use area. A
user's own character of that range is itself spelt in bytes, so nothing is ambiguous."""
BYTE_PIECES = tuple(chr(FIRST_BYTE + byte) for byte in range(256))
READABLE_BYTES = {piece: f"<0x{byte:02X}>" for byte, piece in enumerate(BYTE_PIECES)}
"""How a byte is told to people."""
_BYTES = re.compile(f"[{BYTE_PIECES[0]}-{BYTE_PIECES[-1]}]+")

NUM_RESERVED = len(SPECIAL_PIECES) + len(BYTE_PIECES)

# A piece never crosses the border between letters, digits and other characters, so no
# learned piece can spell a special token. The space before a word belongs to it. Runs
# are bounded since word-piece takes time quadratic in their length.
WORD = Regex(r" ?[\p{L}\p{M}]{1,64}| ?\p{N}{1,64}| ?[^ \p{L}\p{M}\p{N}]{1,64}| +")

ALPHABET_CHARACTERS = 10_000_000
"""What the alphabet is chosen by at most."""
KNOWN_WORDS = 100_000
"""Kept with their ids at most, in some 30 MB where words have three pieces."""
KNOWN_LENGTH = 24
"""Characters of such a word at most: where no spaces are written, none comes again."""
LEARNING_CHARACTERS = 200_000_000
"""What the vocabulary is learned from at most: bounds the memory for distinct words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """How the vocabulary is learned (section 5.1)."""

    kind: Literal["bpe", "word-piece"] = "bpe"
    """Byte-pair encoding (the paper's en-de) or word-pieces (its en-fr)."""
    vocab_size: int = 37_000
    """Pieces at most, specials and bytes included; small corpora give fewer."""

    def __post_init__(self) -> None:
        if self.kind not in ("bpe", "word-piece"):
            raise ConfigError(
                f'`tokenizer.kind` must be "bpe" or "word-piece", but is "{self.kind}".'
            )
        if self.vocab_size <= NUM_RESERVED:
            raise ConfigError(
                f"`tokenizer.vocab_size` must be above {NUM_RESERVED} (special tokens "
                f"and bytes), but is {self.vocab_size}."
            )


def normalize(text: str) -> str:
    """The one normalisation: Unicode NFC, and each run of white space one space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


class SubwordTokenizer:
    """What was learned here; `decode(encode(text))` is the text, normalised."""

    def __init__(self, pieces: tokenizers.Tokenizer) -> None:
        vocabulary = pieces.get_vocab(with_added_tokens=False)
        self._pieces = pieces
        self._known: dict[str, list[int]] = {}
        """Words and their ids, as most come again."""
        self._piece_of = sorted(vocabulary, key=vocabulary.__getitem__)
        self._readable = [READABLE_BYTES.get(each, each) for each in self._piece_of]
        alphabet = {p for p in vocabulary if len(p) == 1} - set(BYTE_PIECES)
        self._outside_alphabet = re.compile(
            "[^ " + "".join(map(re.escape, sorted(alphabet))) + "]"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SubwordTokenizer) and self.json() == other.json()

    def __hash__(self) -> int:
        return hash(self.json())

    @property
    def vocab_size(self) -> int:
        return len(self._piece_of)

    def language(self, text: str) -> str:
        """Of no text: what it is to be translated into is not told before it."""
        return ""

    def encode(self, text: str) -> list[int]:
        """Ids of the pieces; no special token among them."""
        return self.encode_sources([text])[0]

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts at once; words that are new are cut on all cores."""
        words = [self._spell(text).split() for text in texts]
        ids_of = self._ids_of_words(set(chain.from_iterable(words)))
        return [list(chain.from_iterable(map(ids_of.__getitem__, of))) for of in words]

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """The same: both languages are cut alike."""
        return self.encode_sources(texts)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; special tokens are left out."""
        pieces = "".join(self._piece_of[i] for i in ids if i > EOS)
        return normalize(_unspell(pieces))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces themselves, for people to read; a word's first has a space."""
        return [self._readable[i] for i in ids]

    def save(self, path: Path) -> None:
        """Write the vocabulary as `tokenizers` JSON."""
        path.write_text(self.json(), encoding="utf-8")

    def json(self) -> str:
        """The vocabulary as `tokenizers` JSON."""
        return self._pieces.to_str()

    def _ids_of_words(self, words: set[str]) -> dict[str, list[int]]:
        """Of each alone: no piece goes from one word into the next."""
        known = self._known
        ids_of = {word: known[word] for word in words if word in known}
        new = [word for word in words if word not in ids_of]
        if new:
            cut = self._pieces.encode_batch_fast([" " + word for word in new])
            of_new = dict(zip(new, (each.ids for each in cut), strict=True))
            self._remember(of_new)
            ids_of |= of_new
        return ids_of

    def _remember(self, ids_of: dict[str, list[int]]) -> None:
        short = [word for word in ids_of if len(word) <= KNOWN_LENGTH][:KNOWN_WORDS]
        if len(self._known) + len(short) > KNOWN_WORDS:
            self._known = {}  # another one, as a thread may be reading the one before
        self._known.update((word, ids_of[word]) for word in short)

    def _spell(self, text: str) -> str:
        """Normalize, and write what is not in the alphabet as bytes."""
        return self._outside_alphabet.sub(_bytes_of, normalize(text))


Tokenizer = SubwordTokenizer | SentencePieceTokenizer
"""Text to ids and back, with one vocabulary for source and target."""


def load_tokenizer(path: Path) -> Tokenizer:
    """Read what a tokenizer saved; `CheckpointError` if it is missing or damaged."""
    tokenizer: Tokenizer
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        if content.get("type") == "SentencePiece":
            tokenizer = SentencePieceTokenizer.from_content(content)
        else:
            tokenizer = SubwordTokenizer(tokenizers.Tokenizer.from_str(text))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(
            f"{path}: the tokenizer is missing or damaged ({error}); restore the "
            "file or train again."
        ) from None
    first = range(min(len(SPECIAL_PIECES), tokenizer.vocab_size))
    if tokenizer.pieces(first) != list(SPECIAL_PIECES):
        raise CheckpointError(
            f"{path}: the tokenizer must begin with {', '.join(SPECIAL_PIECES)}, "
            "but does not; it was not made by transduce."
        )
    return tokenizer


def learn_tokenizer(lines: Iterable[str], config: TokenizerConfig) -> SubwordTokenizer:
    """Learn a vocabulary from a stream of lines of both languages (section 5.1).

    Memory is bounded: beyond `LEARNING_CHARACTERS` characters the stream is left
    unread, so interleave the languages.
    """
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Split(WORD, behavior="isolated")
    learned_size = config.vocab_size - NUM_RESERVED
    # Unlike the paper: word-pieces too are learned by merging the most frequent pair,
    # as the library does; Wu et al. (2016) choose by the likelihood of the text.
    text = _learning_text(lines)
    head = list(_first(text, ALPHABET_CHARACTERS))
    alphabet = _alphabet(head, max(learned_size // 4, 1))
    trainer = trainers.BpeTrainer(
        vocab_size=learned_size,
        # Rare characters are spelt in bytes, or Chinese would fill the vocabulary.
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    learner.train_from_iterator(chain(head, text), trainer)
    return _assemble(learner, config.kind)


def _first(lines: Iterator[str], num_characters: int) -> Iterator[str]:
    while num_characters > 0 and (line := next(lines, None)) is not None:
        yield line
        num_characters -= len(line)


def _alphabet(lines: Sequence[str], size: int) -> list[str]:
    """The space and the most frequent characters; ties go by code point.

    The library would break them as its hash table falls, differently each time.
    """
    counts = Counter(chain.from_iterable(lines))
    del counts[" "]
    return [" ", *sorted(counts, key=lambda c: (-counts[c], c))][:size]


def _learning_text(lines: Iterable[str]) -> Iterator[str]:
    characters = 0
    for line in lines:
        text = _BYTES.sub(" ", normalize(line))
        yield " " + normalize(text)
        characters += len(text)
        if characters > LEARNING_CHARACTERS:
            return


def _assemble(
    learner: tokenizers.Tokenizer, kind: Literal["bpe", "word-piece"]
) -> SubwordTokenizer:
    """Put specials and bytes before what was learned; add no special token to find."""
    learned = learner.get_vocab()
    pieces = [*SPECIAL_PIECES, *BYTE_PIECES, *sorted(learned, key=learned.__getitem__)]
    if kind == "bpe":
        merges = json.loads(learner.to_str())["model"]["merges"]
        return byte_pair_tokenizer(pieces, merges)
    return _cutting_words(
        models.WordPiece(
            vocab={piece: i for i, piece in enumerate(pieces)},
            unk_token=SPECIAL_PIECES[PAD],  # named as it must be; never met
            continuing_subword_prefix="",
        )
    )


def byte_pair_tokenizer(
    pieces: Sequence[str], merges: Iterable[Sequence[str]]
) -> SubwordTokenizer:
    """From pieces by id, specials and bytes first, and merges in their order."""
    return _cutting_words(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[(left, right) for left, right in merges],
        )
    )


def _cutting_words(model: models.Model) -> SubwordTokenizer:
    pieces = tokenizers.Tokenizer(model)
    pieces.pre_tokenizer = pre_tokenizers.Split(WORD, behavior="isolated")
    return SubwordTokenizer(pieces)


def _bytes_of(match: re.Match[str]) -> str:
    return "".join(BYTE_PIECES[b] for b in match[0].encode("utf-8", "replace"))


def _unspell(pieces: str) -> str:
    return _BYTES.sub(_text_of, pieces)


def _text_of(match: re.Match[str]) -> str:
    return bytes(ord(c) - FIRST_BYTE for c in match[0]).decode("utf-8", "replace")
