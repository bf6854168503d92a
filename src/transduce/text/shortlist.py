"""Shortlist of a model: target pieces among which the translation of a sentence chooses
(L'Hostis et al., 2016).

The output layer then computes the logits of some hundred pieces instead of the whole
vocabulary. The pieces of a sentence depend on that sentence alone: the most frequent
target pieces, the likeliest targets of each source piece by IBM model 1 in both
directions, and the source pieces themselves, for names and numbers.
"""

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int32, Int64
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from transduce.errors import CheckpointError, DataError, VersionError
from transduce.files import reason, require_file
from transduce.native import library
from transduce.settings import require_between
from transduce.text.alignment import (
    EncodedPairs,
    TranslationTable,
    likeliest_targets,
    ranked,
    symmetrized,
)
from transduce.text.tokenizer import Tokenizer, WordTokenizer
from transduce.text.vocabulary import BOS, EOS, PAD, UNKNOWN_IDS

SHORTLIST_FILE = "shortlist.safetensors"
"""Name of the shortlist's file in model folders and run folders."""
SHORTLIST_FORMAT = 1
FREQUENT, PER_PIECE = 100, 100
"""Usual number of most frequent target pieces, and of targets of each source piece."""
MAX_FREQUENT, MAX_PER_PIECE = 1_000_000, 10_000
SURPLUS = 4
"""Likeliest targets learned in each direction, in multiples of those that are kept: the
other direction may reorder them."""
MAX_PIECES = 200
"""Pieces of a side above which a sentence pair is left out: it takes long, and says
little about which piece translates which."""
MAX_LINKS = 2**25
"""Maximum number of pairs of pieces in the same sentence pair that are learned from
without the native library. Of a larger corpus, sentence pairs are taken evenly."""
CHUNK_PAIRS = 4_096
"""Sentence pairs encoded at once."""

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

        `base` is the result of `base()`, if it is there already.
        """
        is_candidate = (self.base() if base is None else base).copy()
        is_candidate[list(source)] = True
        for piece in set(source):
            start = self.ends[piece - 1] if piece else 0
            is_candidate[self.targets[start : self.ends[piece]]] = True
        is_candidate[[PAD, BOS]] = False
        return np.flatnonzero(is_candidate).astype(np.int32)

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
            with safe_open(path, framework="np") as file:
                about = json.loads((file.metadata() or {}).get("shortlist", "{}"))
                if about.get("format") != SHORTLIST_FORMAT:
                    raise VersionError(
                        f"{path}: the format must be {SHORTLIST_FORMAT}, but is "
                        f"{about.get('format')}; make the shortlist anew with "
                        "`transduce shortlist`."
                    )
                arrays = {name: file.get_tensor(name) for name in ARRAYS}
            shortlist = cls(**arrays, tokenizer=str(about.get("tokenizer")))
            shortlist._require_sound()
        except (SafetensorError, OSError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"{path}: the shortlist is damaged ({reason(error)}); make it anew "
                "with `transduce shortlist`, or remove the file."
            ) from None
        if shortlist.tokenizer != tokenizer_sum(tokenizer):
            raise CheckpointError(
                f"{path}: the shortlist must be of this model's tokenizer, but is of "
                "another; make it anew with `transduce shortlist`, or remove the file."
            )
        return shortlist

    def _require_sound(self) -> None:
        """Raise `ValueError` if arrays do not fit each other."""
        for name, kind in ARRAYS.items():
            values = getattr(self, name)
            if values.dtype != kind or values.ndim != 1:
                raise ValueError(f"`{name}` must have one axis of {kind.__name__}")
        sizes = np.diff(self.ends, prepend=0)
        if sizes.min(initial=0) < 0 or sizes.sum() != len(self.targets):
            raise ValueError("`ends` must rise to the number of targets")
        for ids in (self.frequent, self.always, self.targets):
            if len(ids) and not 0 <= ids.min() <= ids.max() < self.vocab_size:
                raise ValueError("an id is outside the vocabulary")


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
        pairs = _sampled(pairs)
    best = SURPLUS * per_piece
    forward = likeliest_targets(pairs, best, num_threads=num_threads)
    backward = likeliest_targets(pairs.swapped(), best, num_threads=num_threads)
    table = symmetrized(forward, backward)
    return _shortlist(table, pairs.targets, tokenizer, frequent, per_piece)


def shortlist_of_alignments(
    pairs: Iterable[TextPair],
    alignments: Iterable[str],
    tokenizer: Tokenizer,
    *,
    frequent: int = FREQUENT,
    per_piece: int = PER_PIECE,
) -> Shortlist:
    """Count a shortlist from word alignments in Pharaoh format, one line a pair.

    A link `2-3` joins the third word of the source with the fourth of the target; words
    are separated by spaces. Each piece of a word is linked with each piece of the
    other. Targets are ranked by the number of links, in relation to all links of either
    piece.

    Raises `DataError` where an alignment is missing or of another pair, and
    `ConfigError` if a size is out of its range.
    """
    require_sizes(frequent, per_piece)
    sources, targets, all_targets = array("i"), array("i"), array("i")
    for number, (pair, line) in enumerate(zip_longest(pairs, alignments), start=1):
        if pair is None or line is None:
            raise DataError(
                "Sentence pairs and alignments must be equally many, but the "
                f"{'sentence pairs' if pair is None else 'alignments'} end before line "
                f"{number:,}."
            )
        source_words, target_words = (_pieces_of_words(t, tokenizer) for t in pair)
        all_targets.extend(piece for word in target_words for piece in word)
        for source, target in _links(line, number, source_words, target_words):
            sources.extend(piece for piece in source for _ in target)
            targets.extend([*target] * len(source))
    table = _counted(np.array(sources, np.int64), np.array(targets, np.int64))
    ids = np.array(all_targets, dtype=np.int32)
    return _shortlist(table, ids, tokenizer, frequent, per_piece)


def require_sizes(frequent: int, per_piece: int) -> None:
    """Raise `ConfigError` if a size of a shortlist is out of its range."""
    require_between("frequent", frequent, 0, MAX_FREQUENT)
    require_between("per_piece", per_piece, 1, MAX_PER_PIECE)


def encode_pairs(pairs: Iterable[TextPair], tokenizer: Tokenizer) -> EncodedPairs:
    """Encode pairs, without those that are too long or have an empty side."""
    return EncodedPairs.of(_encoded(pairs, tokenizer))


def _encoded(
    pairs: Iterable[TextPair], tokenizer: Tokenizer
) -> Iterator[tuple[list[int], list[int]]]:
    stream = iter(pairs)
    while chunk := list(islice(stream, CHUNK_PAIRS)):
        sources = tokenizer.encode_sources([source for source, _ in chunk])
        targets = tokenizer.encode_targets([target for _, target in chunk])
        for source, target in zip(sources, targets, strict=True):
            if source and target and max(len(source), len(target)) <= MAX_PIECES:
                yield source, target


def _sampled(pairs: EncodedPairs) -> EncodedPairs:
    """Take pairs evenly, so that they have at most `MAX_LINKS` links."""
    lengths = [
        np.diff(each, prepend=0) for each in (pairs.source_ends, pairs.target_ends)
    ]
    every = -(-int((lengths[0] * lengths[1]).sum()) // MAX_LINKS) or 1
    return EncodedPairs.of(islice(pairs, 0, None, every)) if every > 1 else pairs


def _shortlist(
    table: TranslationTable,
    targets: Int32[np.ndarray, " target_words"],
    tokenizer: Tokenizer,
    frequent: int,
    per_piece: int,
) -> Shortlist:
    """Keep the most frequent targets, and the best of each source piece."""
    vocab = tokenizer.vocab_size
    always = [EOS, *(UNKNOWN_IDS if isinstance(tokenizer, WordTokenizer) else ())]
    counts = np.bincount(targets, minlength=vocab)
    counts[[PAD, BOS, *always]] = 0
    by_count = np.argsort(-counts, kind="stable")[: min(frequent, (counts > 0).sum())]
    chosen = ranked(table, per_piece)
    sizes = np.bincount(table.source[chosen], minlength=vocab)
    return Shortlist(
        frequent=by_count.astype(np.int32),
        always=np.array(always, dtype=np.int32),
        ends=np.cumsum(sizes, dtype=np.int64),
        targets=table.target[chosen].astype(np.int32),
        tokenizer=tokenizer_sum(tokenizer),
    )


def _counted(
    sources: Int64[np.ndarray, " links"], targets: Int64[np.ndarray, " links"]
) -> TranslationTable:
    """Return the product of both directions' shares of links for each linked pair."""
    width = int(targets.max(initial=0)) + 1
    keys, links = np.unique(sources * width + targets, return_counts=True)
    source, target = np.divmod(keys, width)
    of_source = np.bincount(sources, minlength=1)[source]
    of_target = np.bincount(targets, minlength=1)[target]
    return TranslationTable(
        source=source,
        target=target,
        probability=links / of_source * (links / of_target),
    )


def _pieces_of_words(text: str, tokenizer: Tokenizer) -> list[list[int]]:
    """Return the pieces of each word; words are separated by spaces."""
    return tokenizer.encode_targets(text.split())


def _links(
    line: str,
    number: int,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield the pieces of both words of each link of a line."""
    for link in line.split():
        source, dash, target = link.partition("-")
        if not (dash and source.isdecimal() and target.isdecimal()):
            raise DataError(
                f"Line {number:,} of the alignments must have links such as 0-0 1-2, "
                f"but has {link!r}; give alignments in Pharaoh format."
            )
        if int(source) >= len(sources) or int(target) >= len(targets):
            raise DataError(
                f"Line {number:,} of the alignments has the link {link}, but the pair "
                f"has {len(sources)} and {len(targets)} words; align the same files, "
                "with words separated by spaces."
            )
        yield sources[int(source)], targets[int(target)]
