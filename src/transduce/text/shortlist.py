"""Shortlist of a model: target pieces among which the translation of a sentence chooses
(L'Hostis et al., 2016).

The output layer then computes the logits of some hundred pieces instead of the whole
vocabulary. The pieces of a sentence depend on that sentence alone: the most frequent
target pieces, the likeliest targets of each source piece by IBM model 1 in both
directions, and the source pieces themselves, for names and numbers.
"""

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, islice, zip_longest
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int32, Int64
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from transduce.errors import CheckpointError, DataError, VersionError
from transduce.files import access_errors, parse_json, reason, require_file
from transduce.native import library
from transduce.settings import require_between, shown
from transduce.text.alignment import (
    EncodedPairs,
    TranslationTable,
    likeliest_targets,
    ranked,
    sampling_interval,
    symmetrized,
)
from transduce.text.corpus import full_windows
from transduce.text.tokenizer import Tokenizer, WordTokenizer, own_target_size
from transduce.text.vocabulary import BOS, EOS, PAD, UNKNOWN_IDS

SHORTLIST_FILE = "shortlist.safetensors"
"""Name of the shortlist's file in model folders."""
SHORTLIST_FORMAT = 1
MAKE_AGAIN = "make the shortlist again by `transduce shortlist`"
"""Remedy for a file that cannot be used."""
FREQUENT, PER_PIECE = 100, 100
"""Usual number of most frequent target pieces, and of targets of each source piece."""
MAX_FREQUENT, MAX_PER_PIECE = 1_000_000, 1_000
SURPLUS = 4
"""Number of likeliest targets learned in each direction, as a multiple of the number
that is kept, since the other direction may reorder them. At least `PER_PIECE` count as
kept, so that a smaller shortlist is the beginning of a larger one."""
MAX_PIECES = 200
"""Maximum number of pieces of a side. A longer sentence pair takes long, and tells
little about which piece translates which."""
MAX_LINKS = 2**25
"""Maximum number of pairs of pieces in the same sentence pair to learn from without the
native library. A larger corpus is sampled evenly."""
CHUNK_PAIRS = 4_096
"""Sentence pairs encoded at once."""
CHUNK_LINKS = 2**22
"""Links of pieces by given alignments that are counted at once."""
ALIGNED_WORD = re.compile(r"\S+", re.ASCII)
"""Word of an aligner, which may contain non-ASCII spaces, as in French."""
LINK = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)
"""Link of a line in Pharaoh format."""

TextPair = tuple[str, str]
"""Source and target of a sentence pair."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shortlist:
    """Candidates of every source piece, and those of all sentences."""

    frequent: Int32[np.ndarray, " frequent"]
    """Target pieces of all sentences, most frequent first, without those that
    `always` has."""
    always: Int32[np.ndarray, " always"]
    """Pieces that search needs: the end token and, in a vocabulary of words, unknown
    words."""
    ends: Int64[np.ndarray, " vocab"]
    """Number of entries of `targets` up to the last of each source piece."""
    target_vocab_size: int
    """Number of pieces that translations may have: the first ones of the vocabulary, or
    all if source and target share it."""
    targets: Int32[np.ndarray, " entries"]
    """Targets of each source piece, likeliest first."""
    tokenizer: str
    """Checksum of the tokenizer whose pieces these are."""

    @property
    def vocab_size(self) -> int:
        """Number of pieces of the tokenizer."""
        return len(self.ends)

    @property
    def per_piece(self) -> int:
        """Largest number of targets of a source piece."""
        return int(np.diff(self.ends, prepend=0).max(initial=0))

    def base(self) -> Bool[np.ndarray, " vocab"]:
        """Mark the candidates of an empty sentence."""
        is_candidate = np.zeros(self.vocab_size, dtype=bool)
        is_candidate[self.frequent] = True
        is_candidate[self.always] = True
        return is_candidate

    def candidates(
        self, source: Sequence[int], base: Bool[np.ndarray, " vocab"] | None = None
    ) -> Int32[np.ndarray, " candidates"]:
        """Return the candidates of a sentence, by rising id.

        Callers with many sentences pass the result of `base()`.
        """
        is_candidate = (self.base() if base is None else base).copy()
        is_candidate[list(source)] = True
        for piece in set(source):
            start = self.ends[piece - 1] if piece else 0
            is_candidate[self.targets[start : self.ends[piece]]] = True
        is_candidate[[PAD, BOS]] = False
        possible = is_candidate[: self.target_vocab_size]
        return np.flatnonzero(possible).astype(np.int32)

    def limited(self, frequent: int, per_piece: int) -> "Shortlist":
        """Return a copy with fewer pieces for all sentences and for each piece."""
        sizes = np.diff(self.ends, prepend=0)
        ranks = np.arange(len(self.targets)) - np.repeat(self.ends - sizes, sizes)
        return replace(
            self,
            frequent=self.frequent[:frequent],
            ends=np.cumsum(np.minimum(sizes, per_piece)),
            targets=self.targets[ranks < per_piece],
        )

    def digest(self) -> str:
        """Return a checksum of the content."""
        digest = blake2b(digest_size=8)
        for each in (self.frequent, self.always, self.ends, self.targets):
            digest.update(np.ascontiguousarray(each).tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the shortlist; raise `OSError` if that fails."""
        about = {"format": SHORTLIST_FORMAT, "tokenizer": self.tokenizer}
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in ARRAYS}
        path.write_bytes(save(arrays, {"shortlist": json.dumps(about)}))

    @classmethod
    def load(cls, path: Path, tokenizer: Tokenizer) -> "Shortlist":
        """Map a saved shortlist of a tokenizer.

        Raises `CheckpointError` if it is damaged or of another tokenizer, and
        `VersionError` if its format is unknown.
        """
        try:
            require_file(path)
            with access_errors(path), safe_open(path, framework="np") as file:
                about = parse_json((file.metadata() or {}).get("shortlist", "{}"))
                if (number := about.get("format")) != SHORTLIST_FORMAT:
                    raise VersionError(
                        f"{path}: the format must be {SHORTLIST_FORMAT}, but is "
                        f"{shown(number)}; {MAKE_AGAIN}."
                    )
                arrays = {name: file.get_tensor(name) for name in ARRAYS}
            if about.get("tokenizer") != tokenizer_sum(tokenizer):
                raise CheckpointError(
                    f"{path}: the shortlist must be of this model's tokenizer, but is "
                    f"of another; {MAKE_AGAIN}, or remove the file."
                )
            shortlist = cls(
                **arrays,
                target_vocab_size=_num_targets(tokenizer),
                tokenizer=tokenizer_sum(tokenizer),
            )
            shortlist._require_sound(tokenizer.vocab_size)
        except (SafetensorError, OSError, TypeError, ValueError, AttributeError) as e:
            raise CheckpointError(
                f"{path}: the shortlist is damaged ({reason(e)}); {MAKE_AGAIN}, or "
                "remove the file."
            ) from None
        return shortlist

    def _require_sound(self, vocab_size: int) -> None:
        """Raise `ValueError` if arrays do not fit each other or the vocabulary."""
        for name, kind in ARRAYS.items():
            values = getattr(self, name)
            if values.dtype != kind or values.ndim != 1:
                raise ValueError(f"`{name}` must have one axis of {kind.__name__}")
        if self.vocab_size != vocab_size:
            raise ValueError(
                f"`ends` must have the vocabulary's size {vocab_size:,}, but has "
                f"{self.vocab_size:,}"
            )
        before = np.concatenate([[0], self.ends[:-1]])  # differences may overflow
        if (self.ends < before).any() or self.ends[-1] != len(self.targets):
            raise ValueError("`ends` must rise to the number of targets")
        for ids in (self.frequent, self.always, self.targets):
            if len(ids) and not 0 <= ids.min() <= ids.max() < self.target_vocab_size:
                raise ValueError("an id is outside the vocabulary of targets")
        if EOS not in self.always:
            raise ValueError("`always` must have the end token")


ARRAYS: dict[str, type[np.generic]] = {
    "frequent": np.int32,
    "always": np.int32,
    "ends": np.int64,
    "targets": np.int32,
}
"""Arrays of a shortlist's file."""


def tokenizer_sum(tokenizer: Tokenizer) -> str:
    """Return a checksum of a tokenizer."""
    return blake2b(tokenizer.json().encode(), digest_size=8).hexdigest()


def _num_targets(tokenizer: Tokenizer) -> int:
    """Return the number of pieces that a translation may have, the first ones."""
    return own_target_size(tokenizer) or tokenizer.vocab_size


def learn_shortlist(
    pairs: EncodedPairs,
    tokenizer: Tokenizer,
    *,
    frequent: int = FREQUENT,
    per_piece: int = PER_PIECE,
    num_threads: int = 1,
) -> Shortlist:
    """Learn a shortlist from sentence pairs by IBM model 1 in both directions.

    Targets are ranked by t(target | source) t(source | target), as `symmetrized`
    computes it. Raises `ConfigError` if a size is out of its range.
    """
    require_sizes(frequent, per_piece)
    if library() is None:
        pairs = sample_pairs(pairs)
    best = SURPLUS * max(per_piece, PER_PIECE)
    forward = likeliest_targets(pairs, best, num_threads=num_threads)
    backward = likeliest_targets(pairs.swapped(), best, num_threads=num_threads)
    table = symmetrized(forward, backward)
    counts = np.bincount(pairs.targets, minlength=tokenizer.vocab_size)
    return _shortlist(table, counts, tokenizer, frequent, per_piece)


def shortlist_of_alignments(
    pairs: Iterable[TextPair],
    alignments: Iterable[str],
    tokenizer: Tokenizer,
    *,
    origin: str,
    frequent: int = FREQUENT,
    per_piece: int = PER_PIECE,
) -> Shortlist:
    """Count a shortlist from word alignments in Pharaoh format, one line a pair.

    A link `2-3` joins the third word of the source with the fourth of the target. Words
    are separated by ASCII white space, so a no-break space is part of one. Each piece
    of a word is linked with each piece of the other. Targets are ranked by the number
    of links, in relation to all links of either piece.

    `origin` names the alignments in messages. Raises `DataError` where an alignment is
    missing or of another pair, and `ConfigError` if a size is out of its range.
    """
    require_sizes(frequent, per_piece)
    counter = _PieceCounter(tokenizer.vocab_size)
    for number, (pair, line) in enumerate(zip_longest(pairs, alignments), start=1):
        if pair is None or line is None:
            raise DataError(
                f"{origin}: alignments and sentence pairs must be equally many, but "
                f"the {'sentence pairs' if pair is None else 'alignments'} end before "
                f"line {number:,}; give the alignments of the same text."
            )
        words = [ALIGNED_WORD.findall(text) for text in pair]
        source_words = tokenizer.encode_sources(words[0])
        target_words = tokenizer.encode_targets(words[1])
        place = f"{origin}: line {number:,}"
        links = _links(line, place, source_words, target_words)
        counter.add(chain.from_iterable(target_words), links)
    counter.count_added()
    table = _table(counter, tokenizer.vocab_size)
    return _shortlist(table, counter.targets, tokenizer, frequent, per_piece)


def require_sizes(frequent: int, per_piece: int) -> None:
    """Raise `ConfigError` if a size of a shortlist is out of its range."""
    require_between("frequent", frequent, 0, MAX_FREQUENT)
    require_between("per_piece", per_piece, 1, MAX_PER_PIECE)


def encode_pairs(
    pairs: Iterable[TextPair], tokenizer: Tokenizer, max_pieces: float = MAX_PIECES
) -> EncodedPairs:
    """Encode pairs, without those that are too long or have an empty side."""
    return EncodedPairs.of(_encoded(pairs, tokenizer, max_pieces))


def _encoded(
    pairs: Iterable[TextPair], tokenizer: Tokenizer, max_pieces: float
) -> Iterator[tuple[list[int], list[int]]]:
    for chunk in full_windows(pairs, CHUNK_PAIRS):
        sources = tokenizer.encode_sources([source for source, _ in chunk])
        targets = tokenizer.encode_targets([target for _, target in chunk])
        for source, target in zip(sources, targets, strict=True):
            if source and target and max(len(source), len(target)) <= max_pieces:
                yield source, target


def sample_pairs(pairs: EncodedPairs, max_links: int = MAX_LINKS) -> EncodedPairs:
    """Take pairs evenly, so that they have at most about `max_links` links."""
    lengths = [
        np.diff(each, prepend=0) for each in (pairs.source_ends, pairs.target_ends)
    ]
    links = int((lengths[0] * lengths[1]).sum())
    every = sampling_interval(links, max_links)
    return EncodedPairs.of(islice(pairs, 0, None, every)) if every > 1 else pairs


def _shortlist(
    table: TranslationTable,
    counts: Int64[np.ndarray, " vocab"],
    tokenizer: Tokenizer,
    frequent: int,
    per_piece: int,
) -> Shortlist:
    """Keep the most frequent targets, and the best of each source piece."""
    vocab = tokenizer.vocab_size
    always = [EOS, *(UNKNOWN_IDS if isinstance(tokenizer, WordTokenizer) else ())]
    counts = counts.copy()
    counts[[PAD, BOS, *always]] = 0
    by_count = np.argsort(-counts, kind="stable")[: min(frequent, (counts > 0).sum())]
    chosen = ranked(table, per_piece)
    sizes = np.bincount(table.source[chosen], minlength=vocab)
    return Shortlist(
        frequent=by_count.astype(np.int32),
        always=np.array(always, dtype=np.int32),
        ends=np.cumsum(sizes, dtype=np.int64),
        target_vocab_size=_num_targets(tokenizer),
        targets=table.target[chosen].astype(np.int32),
        tokenizer=tokenizer_sum(tokenizer),
    )


class _PieceCounter:
    """Counts of target pieces and of links between pieces, taken chunk by chunk."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._added_targets, self._added_links = array("i"), array("q")
        self.targets = np.zeros(vocab_size, dtype=np.int64)
        """Number of times that each target piece occurs."""
        self.keys = np.zeros(0, dtype=np.int64)
        """Rising keys of the pairs of linked pieces: the source id times the
        vocabulary's size, plus the target id."""
        self.numbers = np.zeros(0, dtype=np.int64)
        """Number of links of each pair."""

    def add(
        self,
        targets: Iterable[int],
        links: Iterable[tuple[Sequence[int], Sequence[int]]],
    ) -> None:
        """Add the target pieces of a pair, and those of both words of each link."""
        self._added_targets.extend(targets)
        for source, target in links:
            self._added_links.extend(
                one * self._vocab_size + other for one in source for other in target
            )
        if max(len(self._added_links), len(self._added_targets)) >= CHUNK_LINKS:
            self.count_added()

    def count_added(self) -> None:
        """Count the targets and links added since the last call."""
        self.targets += np.bincount(self._added_targets, minlength=self._vocab_size)
        new = np.array(self._added_links, dtype=np.int64)
        keys, places = np.unique(np.concatenate([self.keys, new]), return_inverse=True)
        numbers = np.bincount(places[len(self.keys) :], minlength=len(keys))
        numbers[places[: len(self.keys)]] += self.numbers
        self.keys, self.numbers = keys, numbers
        self._added_targets, self._added_links = array("i"), array("q")


def _table(counter: _PieceCounter, vocab_size: int) -> TranslationTable:
    """Return the product of both directions' shares of links for each linked pair."""
    source, target = np.divmod(counter.keys, vocab_size)
    source_totals = np.bincount(source, counter.numbers, minlength=1)[source]
    target_totals = np.bincount(target, counter.numbers, minlength=1)[target]
    shares = counter.numbers / source_totals * (counter.numbers / target_totals)
    return TranslationTable(source=source, target=target, probability=shares)


def _links(
    line: str,
    place: str,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield the pieces of both words of each link of a line."""
    for link in line.split():
        if (found := LINK.fullmatch(link)) is None:
            raise DataError(
                f"{place} must have links such as 0-0 1-2, but has {shown(link)}; give "
                "alignments in Pharaoh format."
            )
        source, target = map(int, found.groups())
        if source >= len(sources) or target >= len(targets):
            raise DataError(
                f"{place} has the link {link}, but the pair has {len(sources)} and "
                f"{len(targets)} words; align the same files, with words separated by "
                "spaces."
            )
        yield sources[source], targets[target]
