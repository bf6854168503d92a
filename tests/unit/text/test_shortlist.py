"""Shortlists: candidates of sentences, the file, and links from alignments."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from transduce.errors import CheckpointError, ConfigError, DataError, VersionError
from transduce.text import shortlist as shortlists
from transduce.text.alignment import EncodedPairs
from transduce.text.sentence_pieces import SentencePieceTokenizer, UnigramModel
from transduce.text.shortlist import (
    ARRAYS,
    Shortlist,
    encode_pairs,
    learn_shortlist,
    sample_pairs,
    shortlist_of_alignments,
)
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES, TokenizerConfig

Corpus = tuple[list[str], list[str]]


@pytest.fixture(scope="module")
def learned(corpus: Corpus, tokenizer: Tokenizer) -> Shortlist:
    pairs = encode_pairs(zip(*corpus, strict=True), tokenizer)
    return learn_shortlist(pairs, tokenizer, frequent=2, per_piece=3)


def by_hand(
    tokenizer: Tokenizer, entries: dict[int, list[int]], frequent: list[int]
) -> Shortlist:
    sizes = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for piece, targets in entries.items():
        sizes[piece] = len(targets)
    targets = [target for piece in sorted(entries) for target in entries[piece]]
    return Shortlist(
        frequent=np.array(frequent, dtype=np.int32),
        always=np.array([EOS], dtype=np.int32),
        ends=np.cumsum(sizes),
        target_vocab_size=tokenizer.vocab_size,
        targets=np.array(targets, dtype=np.int32),
        tokenizer=shortlists.tokenizer_sum(tokenizer),
    )


def test_the_candidates_are_frequent_ones_targets_and_the_source_itself(
    tokenizer: Tokenizer,
) -> None:
    entries = {0: [8], 300: [311, 305], 301: [305], 331: [PAD, BOS]}
    shortlist = by_hand(tokenizer, entries, [320, 330])
    assert shortlist.candidates([]).tolist() == [EOS, 320, 330]
    found = shortlist.candidates([301, 300, 301])
    assert found.tolist() == [EOS, 300, 301, 305, 311, 320, 330]
    assert found.dtype == np.int32
    # Padding and the start of a sentence are never generated.
    assert shortlist.candidates([331]).tolist() == [EOS, 320, 330, 331]
    assert shortlist.candidates([0]).tolist() == [EOS, 8, 320, 330]


def test_a_limited_shortlist_keeps_the_first_of_each_list(tokenizer: Tokenizer) -> None:
    entries = {300: [311, 305, 306], 301: [305], 310: [325, 324]}
    limited = by_hand(tokenizer, entries, [320, 330]).limited(1, 2)
    expected = {300: [311, 305], 301: [305], 310: [325, 324]}
    assert limited.digest() == by_hand(tokenizer, expected, [320]).digest()
    assert limited.per_piece == 2


def test_translations_are_among_the_candidates(
    corpus: Corpus, tokenizer: Tokenizer, learned: Shortlist
) -> None:
    misses = total = 0
    for source, target in zip(*corpus, strict=True):
        found = set(learned.candidates(tokenizer.encode(source)).tolist())
        pieces = tokenizer.encode(target)
        misses += sum(piece not in found for piece in pieces)
        total += len(pieces)
        assert len(found) < 60
    assert misses < 0.01 * total


def test_the_sizes_are_upper_bounds(learned: Shortlist) -> None:
    assert len(learned.frequent) == 2
    assert learned.per_piece == 3
    assert not {PAD, BOS, EOS} & set(learned.frequent.tolist())


@pytest.mark.usefixtures("without_native_library")
def test_both_ways_to_align_agree(
    corpus: Corpus, tokenizer: Tokenizer, learned: Shortlist
) -> None:
    pairs = encode_pairs(zip(*corpus, strict=True), tokenizer)
    again = learn_shortlist(pairs, tokenizer, frequent=2, per_piece=3)
    source = tokenizer.encode(corpus[0][0])
    for piece in source:
        one, other = learned.candidates([piece]), again.candidates([piece])
        assert one.tolist() == other.tolist()


def test_long_and_empty_pairs_are_left_out(tokenizer: Tokenizer) -> None:
    long = " ".join(["one"] * (shortlists.MAX_PIECES + 1))
    pairs = encode_pairs(
        [("", "eins"), ("one", " "), (long, "eins"), ("one two", "eins")], tokenizer
    )
    assert list(pairs) == [(tokenizer.encode("one two"), tokenizer.encode("eins"))]


def test_a_sample_of_a_large_corpus_has_fewer_links() -> None:
    pairs = EncodedPairs.of([([1, 2], [3, 4, 5])] * 10)
    assert len(sample_pairs(pairs, max_links=25)) == 4
    assert len(sample_pairs(pairs, max_links=60)) == 10


def test_a_saved_shortlist_is_the_same(
    learned: Shortlist, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    learned.save(tmp_path / "shortlist")
    loaded = Shortlist.load(tmp_path / "shortlist", tokenizer)
    assert loaded.digest() == learned.digest()
    assert loaded.digest() != learned.limited(2, 1).digest()


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.999])
def test_a_cut_file_is_damaged(
    share: float, learned: Shortlist, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "shortlist"
    learned.save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(
        CheckpointError, match="is damaged .*; make the shortlist again"
    ) as caught:
        Shortlist.load(path, tokenizer)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("targets", np.full(3, 360, np.int32)),
        ("targets", np.full(3, -1, np.int32)),
        ("targets", np.zeros(4, np.int32)),
        ("targets", np.zeros(3, np.int64)),
        ("frequent", np.full(1, 360, np.int32)),
        ("always", np.zeros((1, 1), np.int32)),
        ("ends", np.array([3, 2, 3])),
        ("ends", np.array([2**63 - 1, -(2**63), -1])),
        ("ends", np.array([-1, 0])),
        ("always", np.zeros(0, np.int32)),
    ],
)
def test_numbers_that_make_no_sense_are_damage(
    name: str, values: np.ndarray, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path, sound = tmp_path / "shortlist", by_hand(tokenizer, {1: [9, 10, 11]}, [9])
    sound.save(path)
    Shortlist.load(path, tokenizer)
    if name == "ends":
        values = np.pad(values, (0, tokenizer.vocab_size - len(values)), mode="edge")
        values[-1] = 3
    replace(sound, **{name: values}).save(path)
    with pytest.raises(CheckpointError, match="the shortlist is damaged") as caught:
        Shortlist.load(path, tokenizer)
    assert ("must rise" in str(caught.value)) == (name == "ends" or len(values) == 4)


@pytest.mark.parametrize("missing", [1, -1, 10_000])
def test_another_number_of_pieces_is_damage(
    missing: int, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path, size = tmp_path / "shortlist", max(tokenizer.vocab_size - missing, 0)
    none = {"targets": np.zeros(0, np.int32), "ends": np.zeros(size, np.int64)}
    replace(by_hand(tokenizer, {}, []), **none).save(path)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="the shortlist is damaged"):
        Shortlist.load(path, tokenizer)


@pytest.mark.parametrize(
    "about", ["{", "[]", "3", "null", "[" * 10**5, '{"format": ' + "9" * 5000 + "}"],
    ids=lambda about: about[:12],
)  # fmt: skip
def test_a_file_of_something_else_is_damaged(
    about: str, learned: Shortlist, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "shortlist"
    arrays = {name: getattr(learned, name) for name in ARRAYS}
    save_file(arrays, path, {"shortlist": about})
    with pytest.raises(CheckpointError, match="the shortlist is damaged"):
        Shortlist.load(path, tokenizer)


def test_a_newer_format_is_reported(
    learned: Shortlist, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "shortlist"
    learned.save(path)
    save_file(load_file(path), path, {"shortlist": json.dumps({"format": 2})})
    with pytest.raises(VersionError, match="the format must be 1, but is 2"):
        Shortlist.load(path, tokenizer)


def test_a_shortlist_of_another_tokenizer_is_refused(
    learned: Shortlist, tmp_path: Path
) -> None:
    from transduce.text.tokenizer import learn_tokenizer

    learned.save(tmp_path / "shortlist")
    other = learn_tokenizer(["uno due tre"] * 9, TokenizerConfig(vocab_size=270))
    with pytest.raises(CheckpointError, match="tokenizer, but is of another"):
        Shortlist.load(tmp_path / "shortlist", other)


def test_the_pieces_of_linked_words_are_candidates(tokenizer: Tokenizer) -> None:
    pairs = [("one two", "zwei eins"), ("two xx", "zwei yy"), ("two", "zwei")]
    lines = ["0-1 1-0", "0-0 1-1", ""]
    shortlist = shortlist_of_alignments(
        pairs, lines, tokenizer, origin="links", frequent=0
    )
    own = tokenizer.encode
    assert set(shortlist.candidates(own("one"))) >= {*own("eins"), *own("one"), EOS}
    assert not {*own("zwei")} & set(shortlist.candidates(own("one")).tolist())
    assert set(shortlist.candidates(own("xx"))) >= {*own("yy")}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0-0"], "^links: .* the alignments end before line 2"),
        (["0-0"] * 3, "^links: .* the sentence pairs end before line 3"),
        (["0-0", "0:0"], "^links: line 2 must have links such as 0-0 1-2"),
        (["0-0", "0-x"], "^links: line 2 must have links"),
        (["0-0", "0-" + "9" * 5000], "^links: line 2 must have links"),
        (["0-0", "٠-0"], "^links: line 2 must have links"),
        (["0-0", "1-0"], "^links: line 2 has the link 1-0, but the pair"),
        (["0-2", "0-0"], "^links: line 1 has the link 0-2"),
    ],
)
def test_wrong_alignments_are_refused(
    lines: list[str], message: str, tokenizer: Tokenizer
) -> None:
    pairs = [("one two", "eins zwei"), ("one", "eins")]
    with pytest.raises(DataError, match=message):
        shortlist_of_alignments(pairs, lines, tokenizer, origin="links")


def test_links_of_many_lines_are_counted_in_parts(
    corpus: Corpus, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["0-0", "0-0 1-1 1-0", "1-0 2-2"] * 13 + ["0-0"]
    pairs = [
        (f"{source} one two", f"{target} eins zwei")
        for source, target in zip(*corpus, strict=True)
    ]
    of_alignments = partial(
        shortlist_of_alignments,
        tokenizer=tokenizer, origin="links", frequent=9, per_piece=2,
    )  # fmt: skip
    whole = of_alignments(pairs, lines)
    monkeypatch.setattr(shortlists, "CHUNK_LINKS", 5)
    parts = of_alignments(pairs, lines)
    assert parts.digest() == whole.digest()


def test_a_smaller_shortlist_is_the_beginning_of_a_larger_one(
    tokenizer: Tokenizer,
) -> None:
    # Of many candidates, the other direction prefers some with a low rank.
    random = np.random.default_rng(1)
    pairs = EncodedPairs.of(
        [random.integers(EOS + 1, 120, (2, 12)).tolist() for _ in range(300)]
    )
    large = learn_shortlist(pairs, tokenizer)
    small = learn_shortlist(pairs, tokenizer, frequent=3, per_piece=1)
    assert small.digest() == large.limited(3, 1).digest()


S = "▁"


def separate_vocabularies() -> SentencePieceTokenizer:
    """Tokenizer of a model whose source and target have pieces of their own."""
    targets = [S + word for word in ("eins", "zwei", "drei")]
    sources = [S + word for word in ("one", "two", "three")]
    models = [
        UnigramModel(
            pieces=tuple((piece, -1.0) for piece in pieces),
            character_map=b"",
            adds_space=True,
            removes_spaces=True,
        )
        for pieces in (sources, targets)
    ]
    return SentencePieceTokenizer(
        vocabulary=(*SPECIAL_PIECES, "<unk>", *targets, *sources),
        source=models[0],
        target=models[1],
        target_vocab_size=7,
    )


def test_pieces_of_the_source_alone_are_no_candidates(tmp_path: Path) -> None:
    tokenizer = separate_vocabularies()
    texts = [("one two", "eins zwei"), ("two three", "zwei drei"), ("one", "eins")]
    shortlist = learn_shortlist(
        encode_pairs(texts, tokenizer), tokenizer, frequent=0, per_piece=1
    )
    source = tokenizer.encode("one three")
    assert min(source) >= 7
    targets = tokenizer.encode_targets(["eins drei"])[0]
    assert shortlist.candidates(source).tolist() == [EOS, *targets]
    shortlist.save(tmp_path / "shortlist")
    Shortlist.load(tmp_path / "shortlist", tokenizer)
    # A piece of the source alone is damage.
    outside = np.full_like(shortlist.targets, 8)
    replace(shortlist, targets=outside).save(tmp_path / "shortlist")
    with pytest.raises(CheckpointError, match="outside the vocabulary of targets"):
        Shortlist.load(tmp_path / "shortlist", tokenizer)


def test_a_no_break_space_is_part_of_an_aligned_word(tokenizer: Tokenizer) -> None:
    """Aligners split at ASCII white space only."""
    made = [
        shortlist_of_alignments(
            [(f"one{space}: two", "eins: zwei")], ["1-1"], tokenizer, origin="links"
        )
        for space in ("\u00a0", "")
    ]
    assert made[0].digest() == made[1].digest()
    [piece] = tokenizer.encode("two")
    [target] = tokenizer.encode("zwei")
    assert target in made[0].limited(0, 9).candidates([piece])


def test_the_source_of_alignments_is_cut_like_sources() -> None:
    tokenizer = separate_vocabularies()
    shortlist = shortlist_of_alignments(
        [("one two", "eins zwei")], ["0-1 1-0"], tokenizer, origin="links", frequent=0
    )
    [target] = tokenizer.encode_targets(["zwei"])
    assert shortlist.candidates(tokenizer.encode("one")).tolist() == [EOS, *target]


@pytest.mark.parametrize(("frequent", "per_piece"), [(-1, 1), (1, 0), (1, 10**6)])
def test_sizes_out_of_range_are_refused(
    frequent: int, per_piece: int, tokenizer: Tokenizer
) -> None:
    with pytest.raises(ConfigError, match="must be at"):
        learn_shortlist(
            EncodedPairs.of([]), tokenizer, frequent=frequent, per_piece=per_piece
        )
