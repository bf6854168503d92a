"""Shared byte-pair encoding and word-pieces (section 5.1), words and characters.

The Hugging Face `tokenizers` library learns and applies them. In this module no text is
unknown: a character outside the vocabulary is encoded as its UTF-8 bytes, so
`decode(encode(text)) == normalize(text)` for any text, and special tokens typed by a
user are ordinary text. Only a vocabulary of words has unknown words.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain, groupby
from pathlib import Path
from typing import Literal

import tokenizers
from tokenizers import Regex, models, pre_tokenizers, trainers

from transduce.errors import AccessError, CheckpointError, ConfigError
from transduce.files import parse_json, read_bounded, reason
from transduce.search_config import SearchConfig
from transduce.settings import shown
from transduce.text.corpus import require_characters
from transduce.text.languages import (
    SPACED_SCRIPTS,
    UNSPACED_LETTER,
    UNSPACED_LETTERS,
    UNSPACED_RUN,
    UNSPACED_SCRIPTS,
    is_longer_than_a_word,
)
from transduce.text.sentence_pieces import SentencePieceTokenizer, tokenizer_of_model
from transduce.text.vocabulary import (
    BOS,
    BYTE_PIECES,
    EOS,
    FIRST_BYTE,
    LANGUAGE_TAG,
    PAD,
    READABLE_BYTES,
    SPECIAL_PIECES,
    UNKNOWN_IDS,
    UNKNOWN_PIECES,
    TokenizerConfig,
    TokenizerKind,
    corpus_tags,
    is_tag,
    language_tags,
    require_language_tag,
)

TOKENIZER_FILE = "tokenizer.json"
"""Name of the tokenizer's file in model folders and run folders."""

_BYTES = re.compile(f"[{BYTE_PIECES[0]}-{BYTE_PIECES[-1]}]+")
MAX_RUN = 64
"""Maximum length of a run in characters, since word-piece takes quadratic time."""
SHARED_LETTERS = "\u00aa\u00b5\u00ba\u02b0-\u02ff\u0640"
"""Letters without a script of their own, which belong to the word around them."""
DRAWING_MARKS = "\ufe0e\ufe0f\u20e3"
"""Marks that change the look of the sign before them, as in many emoji."""
JOINERS = "\u200c\u200d"
"""Characters that join or separate two letters of a word, as in Persian and Sinhala."""


def word_pattern(kind: TokenizerKind) -> str:
    """Pattern of words, whose borders no piece crosses.

    Words end where the script changes, and between letters, digits and signs, so that
    no learned piece can spell a special token. The space before a word belongs to it.
    In scripts without spaces the space stands alone, so that a word is the same at the
    beginning of a text as within it. Other scripts are cut as by earlier versions. A
    joiner between two letters belongs to their word.
    """
    # Unlike the paper: text is raw, in place of text that another tokenizer has cut
    # into words; pieces stay within letters, digits or signs of one script, and
    # characters outside the vocabulary are bytes. On by default.
    return _word_pattern(kind, rf"|[{JOINERS}](?=[\p{{L}}\p{{M}}])")


def _word_pattern(kind: TokenizerKind, joiner: str) -> str:
    """Pattern of words, with an alternative to the letters after the first one."""
    run = f"{{1,{MAX_RUN}}}"
    # Byte-pair encoding takes time n log n, so it need not bound a run.
    unspaced_run = "+" if kind in ("bpe", "character") else run
    unspaced = [f"[{script.letters}]{unspaced_run}" for script in UNSPACED_SCRIPTS]
    rest = f"{{0,{MAX_RUN - 1}}}"
    spaced = [
        rf" ?(?=\p{{L}})\p{{{script}}}"
        rf"(?:(?=[\p{{L}}\p{{M}}])[\p{{{script}}}\p{{M}}{SHARED_LETTERS}]{joiner})"
        f"{rest}"
        for script in SPACED_SCRIPTS
    ]
    letter = rf"(?![{UNSPACED_LETTERS}{DRAWING_MARKS}])[\p{{L}}\p{{M}}]"
    other = f" ?(?:{letter}){run}"
    if joiner:
        other = f" ?{letter}(?:{letter}{joiner}){rest}"
    digits = rf" ?\p{{N}}{run}"
    signs = rf" ?(?:[^ \p{{L}}\p{{M}}\p{{N}}]|[{DRAWING_MARKS}]){run}"
    return "|".join((*spaced, *unspaced, other, digits, signs, " +"))


EARLIER_WORD_PATTERNS = (
    r" ?[\p{L}\p{M}]{1,64}| ?\p{N}{1,64}| ?[^ \p{L}\p{M}\p{N}]{1,64}| +",
    _word_pattern("bpe", joiner=""),
    _word_pattern("word-piece", joiner=""),
)
"""Patterns that earlier versions wrote; add the present one here before changing it.

A change of the scripts changes those made by `_word_pattern`, too: write these out.
"""

ALPHABET_CHARACTERS = 10_000_000
"""Maximum number of characters that determine the alphabet."""
UNSPACED_SHARE = 0.01
"""Share of letters of unspaced scripts above which a corpus counts as unspaced."""
SPELT_IN_BYTES = 0.0005
"""Share of characters encoded as bytes below which the alphabet stops growing."""
KNOWN_WORDS = 100_000
"""Maximum number of cached words with their ids: about 30 MB at three pieces a word."""
KNOWN_LENGTH = 24
"""Maximum length of a cached word; longer ones, as in unspaced text, hardly recur."""
LEARNING_CHARACTERS = 200_000_000
"""Maximum number of characters to learn from; it bounds the memory for words."""
LEARNING_UNSPACED_CHARACTERS = 20_000_000
"""Maximum number of unspaced characters to learn from; their runs hardly recur."""


FOREIGN_PARTS = (
    "added_tokens", "normalizer", "post_processor", "truncation", "padding",
)  # fmt: skip
"""Parts of the library's tokenizers that this package never writes."""
FOREIGN_OPTIONS = (
    "dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback",
    "fuse_unk", "ignore_merges",
)  # fmt: skip
"""Options of the library's models that this package never sets."""
SAMPLES = ("", "a", "Ein Satz, 1 é \u4e2d \U0001f600")
"""Texts that every valid tokenizer can encode."""
MAX_TOKENIZER_BYTES = 2**28
"""Maximum size of a tokenizer's file in bytes."""


LONG_LINE = 1_000
"""Minimum number of characters of a text that is searched for long runs of marks."""
LONG_RUN = re.compile(r"[^\w\x00-\x7f]{100,}")
"""Pattern of a long run of characters that may be combining marks."""


def normalize(text: str) -> str:
    """Normalize text: Unicode NFC, and one space for each run of white space."""
    if len(text) > LONG_LINE:
        text = LONG_RUN.sub(_sort_marks, text)
    return " ".join(unicodedata.normalize("NFC", text).split())


def _sort_marks(run: re.Match[str]) -> str:
    """Write the marks of a run in their canonical order, which NFC keeps.

    Python sorts them by insertion, in time that grows with the square of their number.
    """
    parts = (unicodedata.normalize("NFD", each) for each in run[0])
    kinds = groupby("".join(parts), key=lambda each: unicodedata.combining(each) > 0)
    return "".join(
        "".join(sorted(group, key=unicodedata.combining) if are_marks else group)
        for are_marks, group in kinds
    )


class SubwordTokenizer:
    """Tokenizer learned by this package; `decode(encode(text))` is
    `normalize(text)`."""

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        """Wrap a tokenizer of the library.

        Raises `ValueError` if it does not cut text into words as this package does.
        """
        _require_known_words(library.pre_tokenizer)
        vocabulary = library.get_vocab(with_added_tokens=False)
        self._library = library
        self._known: dict[str, list[int]] = {}
        """Cache of words and their ids."""
        self._piece_of = sorted(vocabulary, key=vocabulary.__getitem__)
        self._tags = {
            piece: i
            for i, piece in enumerate(self._piece_of)
            if i > EOS and is_tag(piece)
        }
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

    @cached_property
    def is_of_characters(self) -> bool:
        """Whether each piece is one character, beside special ones and tags."""
        return all(
            len(piece) == 1 or is_tag(piece) for piece in self._piece_of[EOS + 1 :]
        )

    @property
    def words(self) -> pre_tokenizers.PreTokenizer:
        """Splitter of text into words, whose borders no piece crosses."""
        return self._library.pre_tokenizer

    @cached_property
    def language_tags(self) -> tuple[str, ...]:
        """Tags of target languages in the vocabulary, such as >>de<<."""
        return language_tags(self._tags)

    @cached_property
    def corpus_tags(self) -> tuple[str, ...]:
        """Tags of corpora in the vocabulary, such as <bt>."""
        return corpus_tags(self._tags)

    def tag_id(self, tag: str) -> int | None:
        """Return the id of a tag; None if the vocabulary has no such tag."""
        return self._tags.get(tag)

    def language(self, text: str) -> str:
        """Return the tag of a target language, such as >>fr<<, before a text; empty if
        there is none, or if the vocabulary lacks it."""
        if not self._tags or (match := LANGUAGE_TAG.match(text)) is None:
            return ""
        return match[0] if match[0] in self._tags else ""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's pieces, without special tokens.

        A language tag before the text is one piece.
        """
        return self.encode_sources([text])[0]

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many sources at once; new words are split on all cores."""
        if not self._tags:
            return self._encode(texts)
        tags = [self.language(text) for text in texts]
        rest = [text[len(tag) :] for text, tag in zip(texts, tags, strict=True)]
        return [
            [self._tags[tag], *ids] if tag else ids
            for tag, ids in zip(tags, self._encode(rest), strict=True)
        ]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        words = [self.spell(text).split() for text in texts]
        ids_of = self._ids_of_words(set(chain.from_iterable(words)))
        return [
            list(chain.from_iterable(ids_of[word] for word in words_of_text))
            for words_of_text in words
        ]

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many targets at once, in the same way as sources."""
        return self.encode_sources(texts)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without special tokens."""
        pieces = "".join(self._piece_of[i] for i in ids if i > EOS)
        return normalize(_BYTES.sub(_text_of, pieces))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return readable pieces; the first piece of a word starts with a space."""
        return [self._readable[i] for i in ids]

    def save(self, path: Path) -> None:
        """Write the vocabulary as `tokenizers` JSON."""
        path.write_text(self.json(), encoding="utf-8")

    def json(self) -> str:
        """The vocabulary as `tokenizers` JSON."""
        return self._library.to_str()

    def _ids_of_words(self, words: set[str]) -> dict[str, list[int]]:
        """Return the ids of each word; no piece crosses the border of a word."""
        known = self._known
        ids_of = {word: known[word] for word in words if word in known}
        new = [word for word in words if word not in ids_of]
        if new:
            new_ids = dict(zip(new, self._cut(new), strict=True))
            self._remember(new_ids)
            ids_of |= new_ids
        return ids_of

    def _cut(self, words: Sequence[str]) -> list[list[int]]:
        """Return the ids of each word, with the space before it."""
        cut = self._library.encode_batch_fast([" " + word for word in words])
        return [each.ids for each in cut]

    def _remember(self, ids_of: dict[str, list[int]]) -> None:
        short = [word for word in ids_of if len(word) <= KNOWN_LENGTH][:KNOWN_WORDS]
        if len(self._known) + len(short) > KNOWN_WORDS:
            self._known = {}  # not clear(): another thread may be reading it
        self._known.update((word, ids_of[word]) for word in short)

    def spell(self, text: str) -> str:
        """Normalize a text, and write characters outside the alphabet as bytes."""
        require_characters(text)
        return self._outside_alphabet.sub(
            lambda match: _bytes_of(match[0]), normalize(text)
        )


class WordTokenizer(SubwordTokenizer):
    """Tokenizer whose pieces are words, learned by this package.

    Words are cut at spaces, and between letters, digits and signs; a space before a
    word belongs to it, so that text is restored except for unknown words. An unknown
    word has one of two ids, `UNKNOWN_IDS`, which tell whether a space comes before.
    """

    def split(self, text: str) -> list[str]:
        """Return the words that `encode` gives an id each, with the spaces before."""
        cut = self._library.pre_tokenizer.pre_tokenize_str
        tag = self.language(text)
        words = [tag] if tag else []
        for chunk in self.spell(text[len(tag) :]).split():
            words += [word for word, _ in cut(" " + chunk)]
        return words

    def join(self, words: Iterable[str]) -> str:
        """Return the text of words, which have the spaces before them."""
        return normalize("".join(words))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, with <unk> for each unknown word."""
        return self.join(self._piece_of[i] for i in ids if i > EOS)

    def _cut(self, words: Sequence[str]) -> list[list[int]]:
        # The library gives all unknown words one id, that of a word after a space. Only
        # the first word of a chunk is one.
        spaced, joined = UNKNOWN_IDS
        found: list[list[int]] = []
        for chunk in self._library.encode_batch([" " + word for word in words]):
            placed = zip(chunk.ids, chunk.offsets, strict=True)
            found.append(
                [joined if i == spaced and start > 0 else i for i, (start, _) in placed]
            )
        return found

    def spell(self, text: str) -> str:
        """Normalize a text."""
        require_characters(text)
        return normalize(text)


Tokenizer = SubwordTokenizer | SentencePieceTokenizer
"""Tokenizer with one vocabulary for source and target."""


def tagged(source: str, tag: str, tokenizer: Tokenizer) -> str:
    """Return a source with the tag of a target language before it.

    A source that is blank or begins with such a tag of the vocabulary stays as it is.
    So does any other without a tag to put there; `RequestError` if it begins with a tag
    that a model of several target languages lacks.
    """
    if not source.strip() or tokenizer.language(source):
        return source
    if not tag and (match := LANGUAGE_TAG.match(source)):
        require_language_tag(match[0], tokenizer.language_tags)
    return f"{tag} {source}" if tag else source


def encode_with_tag(
    sources: Sequence[str], tag: str, tokenizer: Tokenizer
) -> list[list[int]]:
    """Encode sources, with the tag of a corpus before each one that is not empty.

    The tag comes before the tag of a target language, as in training. Its characters in
    a text are no tag. An empty tag is none.
    """
    encoded = tokenizer.encode_sources(sources)
    if not tag:
        return encoded
    tag_id = tokenizer.tag_id(tag)
    assert tag_id is not None
    return [[tag_id, *ids] if ids else ids for ids in encoded]


def without_tags(tokenizer: Tokenizer, kept: Collection[str] = ()) -> Tokenizer:
    """Return the tokenizer without the tags of languages and corpora but these.

    Ids of the pieces behind a removed tag change.
    """
    removed = {*tokenizer.language_tags, *tokenizer.corpus_tags} - set(kept)
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer.without(removed)
    if not removed:
        return tokenizer
    content = json.loads(tokenizer.json())
    ids = content["model"]["vocab"]
    pieces = (piece for piece in sorted(ids, key=ids.get) if piece not in removed)
    content["model"]["vocab"] = {piece: i for i, piece in enumerate(pieces)}
    return type(tokenizer)(tokenizers.Tokenizer.from_str(json.dumps(content)))


def unknown_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that stand for any text outside the vocabulary.

    A learned vocabulary of sub-words or characters has none, as it has all bytes.
    """
    if isinstance(tokenizer, WordTokenizer):
        return list(UNKNOWN_IDS)
    if isinstance(tokenizer, SentencePieceTokenizer):
        return [tokenizer.unknown]
    return []


def tag_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the tags of target languages and corpora."""
    tags = (*tokenizer.language_tags, *tokenizer.corpus_tags)
    return [i for i in map(tokenizer.tag_id, tags) if i is not None]


def own_target_size(tokenizer: Tokenizer) -> int | None:
    """Return the number of pieces of targets, if these have a vocabulary of their own.

    Only imported models have one; they are the first pieces of the tokenizer.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer.target_vocab_size
    return None


def require_possible_bad_words(config: SearchConfig, tokenizer: Tokenizer) -> None:
    """Raise `ConfigError` if bad words leave no token with which a target can begin.

    It is also raised if one of their ids is outside the vocabulary.
    """
    largest = max(chain.from_iterable(config.bad_words), default=0)
    if largest >= tokenizer.vocab_size:
        raise ConfigError(
            "`search.bad_words` must hold token ids below the vocabulary's size "
            f"{tokenizer.vocab_size:,}, but one is {largest:,}."
        )
    number = own_target_size(tokenizer) or tokenizer.vocab_size
    excluded = {word[0] for word in config.bad_words if len(word) == 1}
    excluded |= {PAD, BOS, *([EOS] if config.min_length else [])}
    if sum(token < number for token in excluded) == number:
        raise ConfigError(
            "`search.bad_words` must leave some tokens to choose from, but exclude all "
            f"{number:,} of the vocabulary; name fewer."
        )


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a saved tokenizer; `CheckpointError` if it is missing or damaged.

    Raises `AccessError` if the file cannot be opened.
    """
    try:
        text = read_bounded(path, MAX_TOKENIZER_BYTES)
        tokenizer = _from_text(text)
        tokenizer.encode_sources(SAMPLES)
        tokenizer.pieces(range(len(SPECIAL_PIECES)))
    except (KeyboardInterrupt, SystemExit, MemoryError, AccessError):
        raise
    except BaseException as error:  # the library raises bare exceptions, or panics
        raise CheckpointError(
            f"{path}: the tokenizer is missing or damaged ({reason(error)}); restore "
            "the file or train again."
        ) from None
    if tokenizer.pieces(range(len(SPECIAL_PIECES))) != [*SPECIAL_PIECES]:
        raise CheckpointError(
            f"{path}: the tokenizer must begin with {', '.join(SPECIAL_PIECES)}, "
            "but does not; it was not made by transduce."
        )
    return tokenizer


def _from_text(text: str) -> Tokenizer:
    """Return the tokenizer in a text; `ValueError` if it is damaged or foreign."""
    content = parse_json(text)
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    if content.get("type") == "SentencePiece":
        return SentencePieceTokenizer.from_content(content)
    _require_own_parts(content)
    library = tokenizers.Tokenizer.from_str(text)
    ids = sorted(library.get_vocab(with_added_tokens=False).values())
    if ids != list(range(len(ids))):
        raise ValueError("its ids must be 0, 1, 2 and so on, but some are missing")
    if content["model"]["type"] == "WordLevel":
        if [library.id_to_token(i) for i in UNKNOWN_IDS] != [*UNKNOWN_PIECES]:
            raise ValueError("its pieces of unknown words are missing")
        if content["model"].get("unk_token") != UNKNOWN_PIECES[0]:
            raise ValueError("`model.unk_token` must be its piece of unknown words")
        return WordTokenizer(library)
    if not all(library.token_to_id(piece) is not None for piece in BYTE_PIECES):
        raise ValueError("it must have a piece for each byte, but some are missing")
    return SubwordTokenizer(library)


def _require_own_parts(content: dict[str, object]) -> None:
    """Raise `ValueError` if the tokenizer has parts that this package's do not have."""
    model = content.get("model")
    if not isinstance(model, dict):
        raise ValueError("it has no `model`")
    if model.get("type") not in ("BPE", "WordPiece", "WordLevel"):
        kind = shown(model.get("type"))
        raise ValueError(
            f"its model must be BPE, WordPiece or WordLevel, but is {kind}"
        )
    given = [part for part in FOREIGN_PARTS if content.get(part)]
    given += [f"model.{option}" for option in FOREIGN_OPTIONS if model.get(option)]
    if given:
        raise ValueError(f"it must have no `{given[0]}`, which changes the text")


def learn_tokenizer(
    lines: Iterable[str],
    config: TokenizerConfig,
    tags: Sequence[str] = (),
    max_characters: int = LEARNING_CHARACTERS,
) -> Tokenizer:
    """Learn a vocabulary from a stream of lines of both languages (section 5.1).

    It has the given tags of corpora and languages as its last pieces. If the settings
    name a model of SentencePiece, nothing is learned, and no line is read.

    Memory is bounded: the stream is read up to `max_characters` characters, so
    interleave the languages. In scripts without spaces, a piece is at most
    about as long as a word (`Script.longest_piece`). Raises `ConfigError` for words if
    the text has scripts without spaces, and the errors of `tokenizer_of_model`.
    """
    # Unlike the paper: a vocabulary that SentencePiece has learned before. Off by
    # default: `tokenizer.model`.
    if config.model is not None:
        return tokenizer_of_model(Path(config.model), tags)
    learned_size = config.vocab_size - config.num_reserved - len(tags)
    if learned_size < 1:
        raise ConfigError(
            "`tokenizer.vocab_size` must be larger than the number of special tokens "
            f"and of the {len(tags)} tags, but is {config.vocab_size}."
        )
    text = _learning_text(lines, max_characters)
    # Unlike the paper: vocabularies of words and of characters, for the systems of
    # Table 2. Off by default: `tokenizer.kind=word`, `tokenizer.kind=character`.
    if config.kind == "word":
        return _learn_words(text, learned_size, tags)
    if config.kind == "character":
        return _learn_characters(text, learned_size, tags)
    return _learn_subwords(text, config.kind, learned_size, tags)


def _learn_subwords(
    text: Iterator[str],
    kind: Literal["bpe", "word-piece"],
    size: int,
    tags: Sequence[str],
) -> SubwordTokenizer:
    """Learn `size` pieces by merging the most frequent pairs of pieces."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = _words(kind)
    # Unlike the paper: the library learns word-pieces too by merging the most frequent
    # pair; Wu et al. (2016) choose by the likelihood of the text. Off by default:
    # `tokenizer.kind=word-piece`.
    head = list(_first(text, ALPHABET_CHARACTERS))
    counts = Counter(chain.from_iterable(head))
    is_unspaced = counts_as_unspaced(counts)
    alphabet = _alphabet(counts, size, is_unspaced)
    trainer = trainers.BpeTrainer(
        # Pieces that are too long are dropped after learning, so learn more.
        vocab_size=size * (2 if is_unspaced else 1),
        # Without spaces, a run that occurs only once is hardly a word.
        min_frequency=2 if is_unspaced else 0,
        # Encode rare characters as bytes, or Chinese would fill the vocabulary.
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    learner.train_from_iterator(chain(head, text), trainer)
    return _assemble(learner, kind, size, tags)


def _learn_words(text: Iterable[str], size: int, tags: Sequence[str]) -> WordTokenizer:
    """Learn the most frequent words; ties go by code point."""
    chunks: Counter[str] = Counter()
    for line in text:
        chunks.update(line.split())
    letters: Counter[str] = Counter()
    for chunk, number in chunks.items():
        for character in chunk:
            letters[character] += number
    if counts_as_unspaced(letters):
        raise ConfigError(
            '`tokenizer.kind` "word" must have text with spaces between words, but '
            "the corpus has a script without; set it to bpe or word-piece."
        )
    splitter = _words("word")
    words: Counter[str] = Counter()
    for chunk, number in chunks.items():
        for word, _ in splitter.pre_tokenize_str(" " + chunk):
            words[word] += number
    by_frequency = sorted(words, key=lambda word: (-words[word], word))
    pieces = [*SPECIAL_PIECES, *UNKNOWN_PIECES, *by_frequency[:size], *tags]
    library = tokenizers.Tokenizer(
        models.WordLevel(
            vocab={piece: i for i, piece in enumerate(pieces)},
            unk_token=UNKNOWN_PIECES[0],
        )
    )
    library.pre_tokenizer = splitter
    return WordTokenizer(library)


def _learn_characters(
    text: Iterable[str], size: int, tags: Sequence[str]
) -> SubwordTokenizer:
    """Learn the most frequent characters, among them the space before each word."""
    counts: Counter[str] = Counter()
    for line in text:
        counts.update(line)
    characters = _by_frequency(counts)[:size]
    # Without merges, byte-pair encoding cuts words into characters.
    pieces = [*SPECIAL_PIECES, *BYTE_PIECES, *characters, *tags]
    return byte_pair_tokenizer(pieces, merges=[])


def _by_frequency(counts: Counter[str]) -> list[str]:
    """Return the space, then the other characters by frequency and code point."""
    return [" ", *sorted(counts.keys() - {" "}, key=lambda c: (-counts[c], c))]


def _first(lines: Iterator[str], num_characters: int) -> Iterator[str]:
    while num_characters > 0 and (line := next(lines, None)) is not None:
        yield line
        num_characters -= len(line)


def counts_as_unspaced(counts: Counter[str]) -> bool:
    """Return whether letters of unspaced scripts exceed `UNSPACED_SHARE`."""
    unspaced = sum(n for c, n in counts.items() if UNSPACED_LETTER.match(c))
    return unspaced > UNSPACED_SHARE * counts.total()


def _alphabet(counts: Counter[str], learned_size: int, is_unspaced: bool) -> list[str]:
    """The space and the most frequent characters; ties go by code point.

    The library would break ties in the order of its hash table, differently each time.
    The alphabet is at most a quarter of the learned pieces. Unspaced text has many
    characters; there it grows up to a half, until hardly any is encoded as bytes.
    """
    by_frequency = _by_frequency(counts)
    size = max(learned_size // 4, 1)
    if is_unspaced:
        known = sum(counts[character] for character in by_frequency[:size])
        enough = (1 - SPELT_IN_BYTES) * counts.total()
        for character in by_frequency[size : learned_size // 2]:
            if known >= enough:
                break
            known += counts[character]
            size += 1
    return by_frequency[:size]


def _learning_text(lines: Iterable[str], max_characters: int) -> Iterator[str]:
    characters = unspaced = 0
    for line in lines:
        require_characters(line)
        text = normalize(_BYTES.sub(" ", normalize(line)))
        yield " " + text
        characters += len(text)
        if not text.isascii():
            unspaced += sum(map(len, UNSPACED_RUN.findall(text)))
        if characters > max_characters or unspaced > LEARNING_UNSPACED_CHARACTERS:
            return


def _assemble(
    learner: tokenizers.Tokenizer,
    kind: Literal["bpe", "word-piece"],
    size: int,
    tags: Sequence[str],
) -> SubwordTokenizer:
    """Put special tokens and bytes before the learned pieces, and tags behind them.

    None is registered as special, so that text cannot contain one.
    """
    learned = learner.get_vocab()
    short = [
        piece
        for piece in sorted(learned, key=learned.__getitem__)
        if not is_longer_than_a_word(piece)
    ]
    pieces = [*SPECIAL_PIECES, *BYTE_PIECES, *short[:size], *tags]
    if kind == "bpe":
        known = set(pieces)
        merges = [
            merge
            for merge in json.loads(learner.to_str())["model"]["merges"]
            if known.issuperset((*merge, "".join(merge)))
        ]
        return byte_pair_tokenizer(pieces, merges)
    return _with_words(
        models.WordPiece(
            vocab={piece: i for i, piece in enumerate(pieces)},
            unk_token=SPECIAL_PIECES[PAD],  # required by the library; never used
            continuing_subword_prefix="",
        ),
        _words(kind),
    )


def byte_pair_tokenizer(
    pieces: Sequence[str],
    merges: Iterable[Sequence[str]],
    words: pre_tokenizers.PreTokenizer | None = None,
) -> SubwordTokenizer:
    """Make a tokenizer from pieces by id (specials and bytes first) and ordered merges.

    Text is cut into `words` first; by default as new tokenizers do.
    """
    return _with_words(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[(left, right) for left, right in merges],
        ),
        words or _words("bpe"),
    )


def _words(kind: TokenizerKind) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(word_pattern(kind)), behavior="isolated")


def _require_known_words(words: pre_tokenizers.PreTokenizer | None) -> None:
    """Raise `ValueError` unless words are cut by a pattern known to take linear time.

    Another pattern may take exponential time, and nothing can interrupt its matching.
    Words that are cut in another way by a known pattern, or not at all, have other
    pieces than those that the model has learned.
    """
    if words is None:
        raise ValueError("it has no `pre_tokenizer`, which cuts text into words")
    patterns = (word_pattern("bpe"), word_pattern("word-piece"), *EARLIER_WORD_PATTERNS)
    known = [{"Regex": pattern} for pattern in patterns]
    state = json.loads(words.__getstate__())
    if state.get("type") != "Split" or state.get("pattern") not in known:
        raise ValueError(
            "its `pre_tokenizer` is not one that transduce writes, and might not end"
        )
    if state.get("behavior") != "Isolated" or state.get("invert"):
        raise ValueError(
            "its `pre_tokenizer` cuts text in another way than transduce does"
        )


def _with_words(
    model: models.Model, words: pre_tokenizers.PreTokenizer
) -> SubwordTokenizer:
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = words
    return SubwordTokenizer(library)


@lru_cache(maxsize=10_000)
def _bytes_of(character: str) -> str:
    return "".join(BYTE_PIECES[b] for b in character.encode())


def _text_of(match: re.Match[str]) -> str:
    return bytes(ord(c) - FIRST_BYTE for c in match[0]).decode("utf-8", "replace")
