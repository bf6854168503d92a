import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from transduce.data.dataset import Dataset, EncodedPair, open_dataset
from transduce.errors import DataError
from transduce.experiments import preparation
from transduce.experiments.preparation import (
    CorpusFiles,
    PairCounts,
    Preparation,
    fate_of,
    learning_texts,
    prepare,
)
from transduce.experiments.presets import PRESETS
from transduce.text.corpus import SentencePair
from transduce.text.tokenizer import Tokenizer

CONFIG = replace(
    PRESETS["tiny"], batching=replace(PRESETS["tiny"].batching, max_length=12)
)
SOURCE = ["one two", "", "three", "four " * 40, "five"]
TARGET = ["eins zwei", "drei", "  ", "vier", "fünf"]


def pairs_of(dataset: Dataset) -> list[EncodedPair]:
    sides = (dataset.source, dataset.target)
    rows = ([side[i].tolist() for side in sides] for i in range(len(dataset)))
    return [EncodedPair(source=source, target=target) for source, target in rows]


def write(path: Path, lines: list[str]) -> tuple[Path, ...]:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return (path,)


@pytest.fixture
def files(tmp_path: Path) -> CorpusFiles:
    return CorpusFiles(
        source=write(tmp_path / "s", SOURCE), target=write(tmp_path / "t", TARGET)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "new").mkdir()
    return tmp_path / "new"


def with_dev(files: CorpusFiles, source: list[str], target: list[str]) -> CorpusFiles:
    folder = files.source[0].parent
    return replace(
        files,
        dev_source=write(folder / "dev.s", source),
        dev_target=write(folder / "dev.t", target),
    )


def test_pairs_are_counted_by_what_became_of_them(
    files: CorpusFiles, folder: Path
) -> None:
    counts = prepare(files, CONFIG, folder).training
    assert counts == PairCounts(kept=2, empty=2, overlong=1)
    assert str(counts) == "2 of 5 pairs kept (2 empty and 1 overlong left out)"


def test_the_ids_of_the_kept_pairs_are_on_disk(
    files: CorpusFiles, folder: Path
) -> None:
    prepare(files, CONFIG, folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    pairs = pairs_of(open_dataset(folder / "corpus" / "training"))
    texts = [(tokenizer.decode(p.source), tokenizer.decode(p.target)) for p in pairs]
    assert texts == [("one two", "eins zwei"), ("five", "fünf")]


def test_all_dev_text_is_kept_but_only_what_fits_is_encoded(
    files: CorpusFiles, folder: Path
) -> None:
    files = with_dev(files, ["one", "", "two " * 30], ["eins", "zwei", "drei"])
    assert prepare(files, CONFIG, folder).dev == PairCounts(kept=1, empty=1, overlong=1)
    assert len(open_dataset(folder / "corpus" / "dev")) == 1
    source = (folder / "corpus" / "dev" / "source.txt").read_text()
    assert source == f"one\n\n{'two ' * 30}\n"


def test_the_counts_are_on_disk(files: CorpusFiles, folder: Path) -> None:
    preparation = prepare(files, CONFIG, folder)
    written = json.loads((folder / "corpus" / "counts.json").read_text())
    assert written == {
        "training": {"kept": 2, "empty": 2, "overlong": 1},
        "dev": None,
        "vocab_size": preparation.vocab_size,
    }
    assert isinstance(preparation, Preparation)


@pytest.mark.parametrize(
    ("length", "fate"), [(0, "empty"), (1, "kept"), (11, "kept"), (12, "overlong")]
)
@pytest.mark.parametrize("side", ["source", "target"])
def test_the_end_token_counts_towards_the_maximum_length(
    side: str, length: int, fate: str
) -> None:
    pair = replace(EncodedPair(source=[5], target=[5]), **{side: [5] * length})
    assert fate_of(pair, max_length=12) == fate


def test_an_empty_corpus_is_refused(folder: Path, tmp_path: Path) -> None:
    files = CorpusFiles(
        source=write(tmp_path / "s", []), target=write(tmp_path / "t", [])
    )
    with pytest.raises(DataError, match=r"/s: a corpus must have at least one line"):
        prepare(files, CONFIG, folder)


def test_a_corpus_without_a_pair_to_train_on_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    files = CorpusFiles(
        source=write(tmp_path / "s", ["", "a"]), target=write(tmp_path / "t", ["b", ""])
    )
    message = r"/s: at least one pair must be left to train on, but 0 of 2 pairs kept"
    with pytest.raises(DataError, match=message):
        prepare(files, CONFIG, folder)


def test_a_dev_corpus_without_a_pair_to_validate_on_is_refused(
    files: CorpusFiles, folder: Path
) -> None:
    files = with_dev(files, ["", ""], ["a", "b"])
    message = r"dev\.s: at least one pair must be left to validate on, but 0 of 2"
    with pytest.raises(DataError, match=message):
        prepare(files, CONFIG, folder)


def test_a_fault_in_the_last_file_is_found_before_anything_is_written(
    files: CorpusFiles, folder: Path
) -> None:
    files = with_dev(files, ["one"], ["eins"])
    files.dev_target[0].write_bytes(b"\xff\n")
    with pytest.raises(DataError, match=r"dev\.t:1: a line must be valid UTF-8"):
        prepare(files, CONFIG, folder)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("num_characters", "numbers"),
    [(0, range(7)), (100, range(7)), (101, [0, 2, 4, 6]), (300, [0, 3, 6])],
)
def test_a_vocabulary_is_learned_from_all_of_a_corpus_too_large_for_it(
    monkeypatch: pytest.MonkeyPatch, num_characters: int, numbers: Iterable[int]
) -> None:
    monkeypatch.setattr(preparation, "LEARNING_CHARACTERS", 100)
    pairs = [SentencePair(source=f"s{i}", target=f"t{i}") for i in range(7)]
    texts = list(learning_texts(pairs, num_characters))
    assert texts == [f"{side}{i}" for i in numbers for side in "st"]
