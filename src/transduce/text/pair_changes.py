"""Changes of pairs during training: case, typos, full stops, sampled segmentations.

A model translates text as it has seen it in training. Changed copies of its pairs, new
in each epoch, make it robust against text in capitals, with typos, without a full stop,
or of two sentences on a line. Tags such as >>de<< or <bt> are never changed.

A model that reads a word in several segmentations (BPE-dropout, or sampling from a
unigram model) learns what its pieces have in common, and copes better with rare and
misspelt words. Samplers replace the usual pieces of encoded sentences, word by word.
What they draw depends on the random generators alone: their caches only save time.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from random import Random
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import numpy as np
from jaxtyping import Bool, Float, Integer

from transduce.errors import ConfigError
from transduce.settings import require_between, require_one_of
from transduce.text.corpus import SentencePair
from transduce.text.languages import UNSPACED_LETTERS, base
from transduce.text.sentence_pieces import (
    SPACE,
    SentencePieceTokenizer,
    UnigramModel,
)
from transduce.text.splitting import SPACED_STOPS, UNSPACED_STOPS, space_between
from transduce.text.tokenizer import SubwordTokenizer
from transduce.text.vocabulary import EOS, TAG_IN_TEXT

Sides = Literal["both", "source", "target"]
Case = Literal["upper", "title", "lower"]
CASES: tuple[Case, ...] = get_args(Case)
SHARES = (*CASES, "typos", "no_end", "joined")
"""Settings that are shares of the pairs."""
MAX_ALPHA = 10
"""Largest `subword_alpha`: the likeliest segmentation is nearly always drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAugmentationConfig:
    """Settings of the changes of training pairs, new in each epoch.

    By default there are none.
    """

    # Unlike the paper: training pairs can be changed anew in each epoch. Off by
    # default: the table `augmentation`.
    upper: float = 0.0
    """Share of pairs in ALL CAPS, both sides."""
    title: float = 0.0
    """Share of pairs in Title Case, both sides."""
    lower: float = 0.0
    """Share of pairs in lower case, both sides."""
    typos: float = 0.0
    """Share of pairs with typos in the source: in about one of ten words, at least
    one."""
    no_end: float = 0.0
    """Share of pairs that lose the full stop, or another mark, at the end of both
    sides."""
    joined: float = 0.0
    """Share of pairs that are joined with another one to a line of two sentences."""
    subword_dropout: float = 0.0
    """Probability with which a merge of byte-pair encoding is dropped, so that words
    are cut differently in each epoch (Provilkov et al., 2020, have 0.1)."""
    subword_alpha: float = 0.0
    """Exponent of the probabilities by which segmentations of a SentencePiece tokenizer
    are sampled (Kudo, 2018, has 0.1 to 0.5); the smaller, the more varied they are. 0
    for no sampling."""
    subword_sides: Sides = "both"
    """Sides with dropout or sampling of sub-words: "both", "source" or "target"."""

    def __post_init__(self) -> None:
        for name in (*SHARES, "subword_dropout"):
            if not 0 <= (share := getattr(self, name)) <= 1:
                raise ConfigError(
                    f"`augmentation.{name}` must be from 0 to 1, but is {share:g}."
                )
        if (total := sum(getattr(self, case) for case in CASES)) > 1 + 1e-9:
            raise ConfigError(
                "`augmentation.upper`, `augmentation.title` and `augmentation.lower` "
                f"are shares of the same pairs and must sum up to at most 1, but do to "
                f"{total:g}."
            )
        require_between("augmentation.subword_alpha", self.subword_alpha, 0, MAX_ALPHA)
        require_one_of("augmentation.subword_sides", self.subword_sides, Sides)

    @property
    def used(self) -> dict[str, float]:
        """Shares and rates that are not 0, by name."""
        names = (*SHARES, "subword_dropout", "subword_alpha")
        return {name: value for name in names if (value := getattr(self, name))}

    @property
    def changes_text(self) -> bool:
        """Whether text changes, not only its segmentation into sub-words."""
        return any(getattr(self, name) for name in SHARES)


DOTTED = ("az", "crh", "tr")
"""Languages that write i with and without a dot, also as capitals."""
WORD_START = re.compile(r"(?<!\S)[^\W\d_]|(?<!\S)[^\w\s]+[^\W\d_]")


def in_case(text: str, case: Case, language: str | None = None) -> str:
    """Return a text in another case by Unicode's rules; tags stay.

    German ß becomes SS. `language` is a BCP 47 tag: the capital of the Turkish i has a
    dot. Scripts without case do not change.
    """
    has_dots = language is not None and base(language) in DOTTED
    if case == "title":
        return _outside_tags(text, lambda part: _titled(part, has_dots))
    if case == "upper":
        return _outside_tags(text, lambda part: _upper(part, has_dots))
    return _outside_tags(text, lambda part: _lower(part, has_dots))


def _upper(text: str, has_dots: bool) -> str:
    return (text.replace("i", "İ") if has_dots else text).upper()


def _lower(text: str, has_dots: bool) -> str:
    if has_dots:
        text = text.replace("İ", "i").replace("I", "ı")
    return text.lower()


def _titled(text: str, has_dots: bool) -> str:
    """Capitalize the first letter of each word; the others stay, as in "McDonald's"."""

    def capitalized(match: re.Match[str]) -> str:
        signs, letter = match[0][:-1], match[0][-1]
        return signs + ("İ" if has_dots and letter == "i" else letter.title())

    return WORD_START.sub(capitalized, text)


def _outside_tags(text: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for tag in TAG_IN_TEXT.finditer(text):
        parts += [change(text[end : tag.start()]), tag[0]]
        end = tag.end()
    return "".join([*parts, change(text[end:])])


KEYBOARDS = (
    ("qwertyuiop", "asdfghjkl", "zxcvbnm"),
    ("йцукенгшщзхъ", "фывапролджэ", "ячсмитьбю"),
)
"""Rows of the keys of letters, each half a key to the right of the one above."""
TYPO_SHARE = 0.1
"""Share of the words of a text with typos that have one."""
TYPED_WORD = re.compile(rf"(?:(?![{UNSPACED_LETTERS}])[^\W\d_]){{3,}}")
"""Pattern of words that may have a typo: three letters of a script with spaces."""


def with_typos(text: str, random: Random) -> str:
    """Return a text with a typo in about every tenth word, and in at least one.

    Two letters are swapped, one is left out, doubled, or that of a neighbouring key.
    Tags, digits and scripts without spaces between words stay.
    """
    tags = [tag.span() for tag in TAG_IN_TEXT.finditer(text)]
    words = [
        word.span()
        for word in TYPED_WORD.finditer(text)
        if not any(start <= word.start() < end for start, end in tags)
    ]
    if not words:
        return text
    number = max(sum(random.random() < TYPO_SHARE for _ in words), 1)
    for start, end in sorted(random.sample(words, number), reverse=True):
        text = text[:start] + _mistyped(text[start:end], random) + text[end:]
    return text


def _mistyped(word: str, random: Random) -> str:
    place = random.randrange(len(word) - 1)
    first, second, rest = word[place], word[place + 1], word[place + 2 :]
    match random.choice(("swap", "drop", "double", "neighbour")):
        case "swap" if first != second:
            typed = second + first
        case "drop":
            typed = second
        case "neighbour" if keys := NEIGHBOURS.get(first.lower()):
            key = random.choice(keys)
            typed = (key.upper() if first.isupper() else key) + second
        case _:
            typed = first + first + second
    return word[:place] + typed + rest


def _neighbours() -> dict[str, str]:
    """Return the letters of the keys around each letter's."""
    found: dict[str, str] = {}
    for rows in KEYBOARDS:
        at = {
            (row, column): letter
            for row, letters in enumerate(rows)
            for column, letter in enumerate(letters)
        }
        for (row, column), letter in at.items():
            around = [(row, column - 1), (row, column + 1)]
            around += [(row - 1, column), (row - 1, column + 1)]
            around += [(row + 1, column - 1), (row + 1, column)]
            found[letter] = "".join(at[place] for place in around if place in at)
    return found


NEIGHBOURS = _neighbours()
"""Letters of neighbouring keys, by lower-case letter."""

END_MARKS = f".!?…‼⁇⁈⁉‽{UNSPACED_STOPS}{SPACED_STOPS}"
"""Marks that may end a text."""


def without_end(pair: SentencePair) -> SentencePair:
    """Return a pair without the marks at its end, if both sides end with one."""
    source, target = _without_marks(pair.source), _without_marks(pair.target)
    is_possible = source and target
    if not is_possible or source == pair.source or target == pair.target:
        return pair
    return SentencePair(source=source, target=target)


def _without_marks(text: str) -> str:
    rest = text.rstrip(END_MARKS)
    return text if rest == text else rest.rstrip()


LEADING_TAGS = re.compile(rf"(?:(?:{TAG_IN_TEXT.pattern})\s*)*")


def joined(first: SentencePair, second: SentencePair) -> SentencePair | None:
    """Return two pairs as one; None if their sources have different tags.

    A space separates the sentences, except between scripts without spaces. The tags at
    the beginning of the second source are left out.
    """
    tags, others = (_leading_tags(pair.source) for pair in (first, second))
    if tags.split() != others.split():
        return None
    return SentencePair(
        source=_beside(first.source, second.source[len(others) :]),
        target=_beside(first.target, second.target),
    )


def _leading_tags(text: str) -> str:
    match = LEADING_TAGS.match(text)
    return match[0] if match else ""


def _beside(first: str, second: str) -> str:
    return first + space_between(first, second) + second


MAX_CACHED = 200_000
"""Maximum number of entries of a cache: some 100 MB."""
CACHED_LENGTH = 24
"""Maximum length in characters of a cached word; longer ones hardly recur."""
MAX_SYMBOLS = 1_000
"""Maximum length in characters of a word that is sampled, as the time grows with its
square; longer ones keep their usual pieces."""

Ids = tuple[int, ...]
Word = TypeVar("Word")


class Sampler(Protocol):
    """Sampler of segmentations of one side of a corpus."""

    def sample(
        self,
        ids: Integer[np.ndarray, " ids"],
        offsets: Integer[np.ndarray, " sentences_and_one"],
        random: np.random.Generator,
    ) -> tuple[
        Integer[np.ndarray, " new_ids"], Integer[np.ndarray, " sentences_and_one"]
    ]:
        """Return the ids and offsets of the sentences with sampled pieces.

        `ids` are the usual pieces of all sentences, one after the other, and `offsets`
        the bounds between the sentences.
        """
        ...


class _Cache(dict[object, Word], Generic[Word]):
    """Cache that is emptied when it is full."""

    def add(self, key: object, value: Word) -> Word:
        if len(self) >= MAX_CACHED:
            self.clear()
        self[key] = value
        return value


class _Step(NamedTuple):
    """Possible last piece of the beginning of a word."""

    cumulative: float
    """Probability of this piece and of those before it in the list."""
    start: int
    piece: int


Path = tuple[Ids, ...]
"""Pieces of a part of a word, first its characters, then after each usual merge."""


def can_drop_merges(tokenizer: SubwordTokenizer) -> bool:
    """Return whether a tokenizer is one of byte-pair encoding."""
    model = json.loads(tokenizer.json())["model"]
    return model["type"] == "BPE" and bool(model["merges"])


class BytePairSampler:
    """BPE-dropout (Provilkov et al., 2020, algorithm 1).

    Before each merge, every possible merge of the word is dropped with the probability
    `rate`, and the first of the others in the learned order is made. A word is finished
    when all are dropped. The rate 0 gives the usual pieces, 1 gives characters.
    """

    def __init__(self, tokenizer: SubwordTokenizer, rate: float) -> None:
        """The tokenizer is one of byte-pair encoding."""
        model = json.loads(tokenizer.json())["model"]
        ids: dict[str, int] = model["vocab"]
        self._decode = tokenizer.decode
        self._rate = rate
        self._ids = ids
        self._pieces = sorted(ids, key=ids.__getitem__)
        self._lengths = np.array([len(piece) for piece in self._pieces])
        self._begins = np.array([piece.startswith(" ") for piece in self._pieces])
        self._merges = {
            (ids[left], ids[right]): (rank, ids[left + right])
            for rank, (left, right) in enumerate(model["merges"])
        }
        self._cut = tokenizer.words.pre_tokenize_str
        self._words: _Cache[list[Path]] = _Cache()
        self._possible: _Cache[list[tuple[int, int]]] = _Cache()

    def sample(
        self,
        ids: Integer[np.ndarray, " ids"],
        offsets: Integer[np.ndarray, " sentences_and_one"],
        random: np.random.Generator,
    ) -> tuple[
        Integer[np.ndarray, " new_ids"], Integer[np.ndarray, " sentences_and_one"]
    ]:
        if self._rate == 0 or not len(ids):
            return ids, offsets
        bounds = _word_bounds(self._begins[ids], offsets)
        characters = np.concatenate([[0], np.cumsum(self._lengths[ids])])[bounds]
        num_merges = np.diff(characters) - np.diff(bounds)
        # The usual pieces result if none of their merges is dropped. How many are made
        # before the first is dropped follows a geometric distribution.
        made = self._merges_before_drop(random.random(len(num_merges)))
        changed = np.flatnonzero(made < num_merges)
        draw = Random(int(random.integers(2**63)))
        sampled = [
            self._with_drop(ids[start:end], int(number), draw)
            for start, end, number in zip(
                bounds[changed], bounds[changed + 1], made[changed], strict=True
            )
        ]
        return _with_words(ids, offsets, bounds, changed, sampled)

    def _merges_before_drop(
        self, uniform: Float[np.ndarray, " words"]
    ) -> Float[np.ndarray, " words"]:
        if self._rate == 1:
            return np.zeros(len(uniform))
        return np.floor(np.log1p(-uniform) / math.log1p(-self._rate))

    def _with_drop(
        self, ids: Integer[np.ndarray, " pieces"], made: int, draw: Random
    ) -> Ids:
        """Sample a word whose first `made` usual merges are made, the next dropped."""
        sampled: list[int] = []
        is_dropped = False
        for path in self._paths(ids):
            if is_dropped:
                sampled += self._segment(path[0], draw, num_dropped=0)
            elif made >= len(path) - 1:
                sampled += path[-1]
                made -= len(path) - 1
            else:
                sampled += self._segment(path[made], draw, num_dropped=1)
                is_dropped = True
        return tuple(sampled)

    def _segment(self, symbols: Ids, draw: Random, num_dropped: int) -> Ids:
        """Merge symbols with dropout, of which `num_dropped` are dropped already."""
        while possible := self._possible_merges(symbols):
            choice, num_dropped = num_dropped, 0
            while choice < len(possible) and draw.random() < self._rate:
                choice += 1
            if choice == len(possible):
                break
            symbols = _merged(symbols, *possible[choice])
        return symbols

    def _paths(self, ids: Integer[np.ndarray, " pieces"]) -> list[Path]:
        """Return the path of each part of a word, whose borders no piece crosses."""
        key = ids.tobytes()
        if (paths := self._words.get(key)) is not None:
            return paths
        text = "".join(self._pieces[i] for i in ids)
        if len(text) > MAX_SYMBOLS or TAG_IN_TEXT.search(self._decode(ids)):
            return [(tuple(ids.tolist()),)]
        paths = [self._path(part) for part, _ in self._cut(text)]
        return self._words.add(key, paths) if len(text) <= CACHED_LENGTH else paths

    def _path(self, part: str) -> Path:
        path = [tuple(self._ids[character] for character in part)]
        while possible := self._possible_merges(path[-1]):
            path.append(_merged(path[-1], *possible[0]))
        return tuple(path)

    def _possible_merges(self, symbols: Ids) -> list[tuple[int, int]]:
        """Return the places of possible merges with their pieces, in learned order."""
        if (possible := self._possible.get(symbols)) is not None:
            return possible
        found = []
        for place, pair in enumerate(pairwise(symbols)):
            if (merge := self._merges.get(pair)) is not None:
                rank, piece = merge
                found.append((rank, place, piece))
        possible = [(place, piece) for _, place, piece in sorted(found)]
        if len(symbols) <= CACHED_LENGTH:
            self._possible.add(symbols, possible)
        return possible


def _merged(symbols: Ids, place: int, piece: int) -> Ids:
    return (*symbols[:place], piece, *symbols[place + 2 :])


class UnigramSampler:
    """Sampling from a unigram model (Kudo, 2018, section 3.2).

    A segmentation is drawn by its probability to the power `alpha`, of all
    segmentations: forwards the probability of each beginning of a word is summed up,
    backwards one piece after the other is drawn. Unknown pieces stay.
    """

    def __init__(
        self,
        tokenizer: SentencePieceTokenizer,
        model: UnigramModel,
        alpha: float,
        vocab_size: int | None = None,
    ) -> None:
        """`model` is the tokenizer's model of the side that is sampled.

        `vocab_size` is the number of pieces that the side may have, the first ones; by
        default all.
        """
        own = tokenizer.vocabulary[:vocab_size]
        ids = {piece: i for i, piece in enumerate(own) if i > EOS}
        self._vocabulary = tokenizer.vocabulary
        self._scores = {
            piece: (alpha * score, ids[piece])
            for piece, score in model.pieces
            if piece in ids
        }
        self._longest = max(map(len, self._scores), default=0)
        self._begins = self._beginnings()
        self._is_known = np.array(
            [
                piece in self._scores and TAG_IN_TEXT.search(piece) is None
                for piece in tokenizer.vocabulary
            ]
        )
        self._words: _Cache[list[list[_Step]]] = _Cache()

    def sample(
        self,
        ids: Integer[np.ndarray, " ids"],
        offsets: Integer[np.ndarray, " sentences_and_one"],
        random: np.random.Generator,
    ) -> tuple[
        Integer[np.ndarray, " new_ids"], Integer[np.ndarray, " sentences_and_one"]
    ]:
        if not len(ids):
            return ids, offsets
        begins = self._begins[ids].copy()
        # A tag and an unknown piece stand alone.
        alone = ~self._is_known[ids]
        begins |= alone
        begins[1:] |= alone[:-1]
        bounds = _word_bounds(begins, offsets)
        draw = Random(int(random.integers(2**63)))
        changed, sampled = [], []
        for word, (start, end) in enumerate(pairwise(bounds.tolist())):
            if lattice := self._lattice(ids[start:end]):
                changed.append(word)
                sampled.append(_drawn(lattice, draw))
        return _with_words(
            ids, offsets, bounds, np.array(changed, dtype=np.int64), sampled
        )

    def _beginnings(self) -> Bool[np.ndarray, " vocabulary"]:
        """Return which pieces begin a word: none if some pieces span several words."""
        if any(SPACE in piece[1:] for piece in self._scores):
            return np.zeros(len(self._vocabulary), dtype=bool)
        return np.array([piece.startswith(SPACE) for piece in self._vocabulary])

    def _lattice(self, ids: Integer[np.ndarray, " pieces"]) -> list[list[_Step]]:
        """Return the possible last pieces of each beginning of a word, by its length.

        The list is empty if the word keeps its usual pieces.
        """
        key = ids.tobytes()
        if (lattice := self._words.get(key)) is not None:
            return lattice
        text = "".join(self._vocabulary[i] for i in ids)
        is_fixed = not self._is_known[ids].all() or len(text) > MAX_SYMBOLS
        lattice = [] if is_fixed else self._steps(text)
        return self._words.add(key, lattice) if len(text) <= CACHED_LENGTH else lattice

    def _steps(self, text: str) -> list[list[_Step]]:
        """Return the possible last pieces of each beginning of a text, by its length.

        The probability of a last piece is its share in the sum over all ways to cut the
        beginning; `totals` has the logarithms of these sums.
        """
        totals = [0.0]
        lattice: list[list[_Step]] = [[]]
        for end in range(1, len(text) + 1):
            found = [
                (totals[start] + score, start, piece)
                for start in range(max(end - self._longest, 0), end)
                if (known := self._scores.get(text[start:end])) is not None
                for score, piece in [known]
                if totals[start] > -math.inf
            ]
            most = max((weight for weight, *_ in found), default=0.0)
            weights = [math.exp(weight - most) for weight, *_ in found]
            total = sum(weights)
            totals.append(most + math.log(total) if total else -math.inf)
            sums = accumulate(weight / total for weight in weights)
            lattice.append(
                [
                    _Step(cumulative, start, piece)
                    for cumulative, (_, start, piece) in zip(sums, found, strict=True)
                ]
            )
        return lattice


def _drawn(lattice: list[list[_Step]], draw: Random) -> list[int]:
    """Draw the pieces of a word, from the last to the first."""
    pieces, end = [], len(lattice) - 1
    while end > 0:
        chance = draw.random()
        steps = lattice[end]
        step = next((s for s in steps if chance < s.cumulative), steps[-1])
        pieces.append(step.piece)
        end = step.start
    return pieces[::-1]


def _word_bounds(
    begins: Bool[np.ndarray, " ids"],
    offsets: Integer[np.ndarray, " sentences_and_one"],
) -> Integer[np.ndarray, " words_and_one"]:
    """Return the bounds of words; each sentence begins with one."""
    is_bound = np.append(begins, True)
    is_bound[offsets] = True
    return np.flatnonzero(is_bound)


def _with_words(
    ids: Integer[np.ndarray, " ids"],
    offsets: Integer[np.ndarray, " sentences_and_one"],
    bounds: Integer[np.ndarray, " words_and_one"],
    changed: Integer[np.ndarray, " changed"],
    sampled: Sequence[Sequence[int]],
) -> tuple[Integer[np.ndarray, " new_ids"], Integer[np.ndarray, " sentences_and_one"]]:
    """Return the ids and offsets of sentences of which some words have changed."""
    lengths = np.diff(bounds)
    lengths[changed] = [len(word) for word in sampled]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    is_new = np.zeros(len(lengths), dtype=bool)
    is_new[changed] = True
    joined = np.empty(ends[-1], dtype=ids.dtype)
    is_new_id = np.repeat(is_new, lengths)
    joined[is_new_id] = list(chain.from_iterable(sampled))
    joined[~is_new_id] = ids[~np.repeat(is_new, np.diff(bounds))]
    return joined, ends[np.searchsorted(bounds, offsets)].astype(offsets.dtype)
