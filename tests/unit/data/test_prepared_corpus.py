import errno
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from transduce.data import prepared_corpus
from transduce.data.corpus_files import CorpusFiles, DevSet
from transduce.data.corpus_mixture import CorpusConfig
from transduce.data.dataset import Dataset, EncodedPair, open_dataset
from transduce.data.prepared_corpus import (
    PairCounts,
    interleaved,
    learning_texts,
    prepare,
    prepare_dev_set,
)
from transduce.errors import AccessError, DataError
from transduce.experiments.presets import PRESETS
from transduce.files import access_errors
from transduce.text.corpus import SentencePair
from transduce.text.tokenizer import Tokenizer, learn_tokenizer, load_tokenizer
from transduce.text.vocabulary import TokenizerConfig

TOKENIZER, MAX_LENGTH = PRESETS["tiny"].tokenizer, 12
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


def test_pairs_are_counted_by_outcome(files: CorpusFiles, folder: Path) -> None:
    counts = prepare(files, TOKENIZER, MAX_LENGTH, folder).training
    assert counts == PairCounts(kept=2, empty=2, overlong=1)
    assert str(counts) == "2 of 5 pairs kept (2 empty and 1 overlong left out)"


def test_the_ids_of_the_kept_pairs_are_on_disk(
    files: CorpusFiles, folder: Path
) -> None:
    prepare(files, TOKENIZER, MAX_LENGTH, folder)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    pairs = pairs_of(open_dataset(folder / "corpus" / "training"))
    texts = [(tokenizer.decode(p.source), tokenizer.decode(p.target)) for p in pairs]
    assert texts == [("one two", "eins zwei"), ("five", "fünf")]


def test_all_dev_text_is_kept_but_only_fitting_pairs_are_encoded(
    files: CorpusFiles, folder: Path
) -> None:
    files = with_dev(files, ["one", "", "two " * 30], ["eins", "zwei", "drei"])
    assert prepare(files, TOKENIZER, MAX_LENGTH, folder).dev == PairCounts(
        kept=1, empty=1, overlong=1
    )
    assert len(open_dataset(folder / "corpus" / "dev")) == 1
    source = (folder / "corpus" / "dev" / "source.txt").read_text()
    assert source == f"one\n\n{'two ' * 30}\n"


def test_the_counts_are_on_disk(files: CorpusFiles, folder: Path) -> None:
    prepared = prepare(files, TOKENIZER, MAX_LENGTH, folder)
    written = json.loads((folder / "corpus" / "preparation.json").read_text())
    assert written == {
        "key": prepared.key,
        "training": {"kept": 2, "empty": 2, "overlong": 1},
        "dev": None,
        "vocab_size": prepared.vocab_size,
        "target_vocab_size": None,
    }


def test_an_empty_corpus_is_refused(folder: Path, tmp_path: Path) -> None:
    files = CorpusFiles(
        source=write(tmp_path / "s", []), target=write(tmp_path / "t", [])
    )
    with pytest.raises(DataError, match=r"/s: a corpus must have at least one line"):
        prepare(files, TOKENIZER, MAX_LENGTH, folder)


def test_a_corpus_without_a_pair_to_train_on_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    files = CorpusFiles(
        source=write(tmp_path / "s", ["", "a"]), target=write(tmp_path / "t", ["b", ""])
    )
    message = r"/s: at least one pair must be left to train on, but 0 of 2 pairs kept"
    with pytest.raises(DataError, match=message):
        prepare(files, TOKENIZER, MAX_LENGTH, folder)


def test_a_dev_corpus_without_a_pair_to_validate_on_is_refused(
    files: CorpusFiles, folder: Path
) -> None:
    files = with_dev(files, ["", ""], ["a", "b"])
    message = r"dev\.s: at least one pair must be left to validate on, but 0 of 2"
    with pytest.raises(DataError, match=message):
        prepare(files, TOKENIZER, MAX_LENGTH, folder)


def test_blank_sources_of_a_further_dev_set_stay_blank_under_a_tag(
    tmp_path: Path,
) -> None:
    tokenizer = learn_tokenizer(["one eins"], TOKENIZER, [">>de<<"])
    [source] = write(tmp_path / "news.en", ["one", " ", ">>de<< one"])
    [target] = write(tmp_path / "news.de", ["eins", "zwei", "drei"])
    dev = DevSet(name="news", source=source, target=target)
    counts = prepare_dev_set(dev, tokenizer, "de", MAX_LENGTH, tmp_path / "news")
    assert counts == PairCounts(kept=2, empty=1, overlong=0)
    written = (tmp_path / "news" / "source.txt").read_text(encoding="utf-8")
    assert written == ">>de<< one\n \n>>de<< one\n"


@pytest.mark.parametrize("other", ["de", "fr"])
def test_a_vocabulary_of_words_has_a_dictionary_of_one_target_language(
    tmp_path: Path, folder: Path, other: str
) -> None:
    corpora = []
    for number, language in enumerate(("de", other)):
        source = write(tmp_path / f"{number}.s", [f"rare{number} man"] * 3)
        target = write(tmp_path / f"{number}.t", [f"Selten{number} Wort"] * 3)
        corpora.append(
            CorpusConfig(
                name=language + str(number),
                source=str(source[0]),
                target=str(target[0]),
                target_language=language,
            )
        )
    config = TokenizerConfig(kind="word", vocab_size=10)
    prepare(CorpusFiles.of(corpora), config, MAX_LENGTH, folder)
    assert (folder / "dictionary.json").exists() == (other == "de")


def test_a_fault_in_the_last_file_is_found_before_anything_is_written(
    files: CorpusFiles, folder: Path
) -> None:
    files = with_dev(files, ["one"], ["eins"])
    files.dev_target[0].write_bytes(b"\xff\n")
    with pytest.raises(DataError, match=r"dev\.t:1: a line must be valid UTF-8"):
        prepare(files, TOKENIZER, MAX_LENGTH, folder)
    assert not list(folder.iterdir())


def content(folder: Path) -> dict[str, bytes]:
    """Contents of all files by name."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_the_prepared_corpus_of_a_sibling_run_is_shared(
    files: CorpusFiles, folder: Path, tmp_path: Path
) -> None:
    files = with_dev(files, ["one"], ["eins"])
    first = prepare(files, TOKENIZER, MAX_LENGTH, folder)
    (tmp_path / "unrelated").mkdir()
    (second := tmp_path / "second").mkdir()
    sibling_runs = [
        tmp_path / "missing",
        tmp_path / "s",
        tmp_path / "unrelated",
        folder,
    ]
    shared = prepare(files, TOKENIZER, MAX_LENGTH, second, sibling_runs)
    assert shared == replace(first, shared_with=folder)
    assert content(second) == content(folder)
    ids = "corpus/training/source.ids"
    assert (second / ids).samefile(folder / ids)


def test_a_sibling_run_that_may_not_be_read_is_left_alone(
    files: CorpusFiles, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(files, TOKENIZER, MAX_LENGTH, folder)
    (second := tmp_path / "second").mkdir()
    opened = Path.open

    def refuse(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.is_relative_to(folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    prepared = prepare(files, TOKENIZER, MAX_LENGTH, second, [folder])
    assert prepared.shared_with is None


@pytest.mark.parametrize("record", ["", "{", "[]", '{"key": 1}', "[" * 100_000])
def test_a_sibling_run_with_a_damaged_record_is_left_alone(
    files: CorpusFiles, folder: Path, tmp_path: Path, record: str
) -> None:
    prepare(files, TOKENIZER, MAX_LENGTH, folder)
    (folder / prepared_corpus.PREPARATION).write_text(record)
    (second := tmp_path / "second").mkdir()
    prepared = prepare(files, TOKENIZER, MAX_LENGTH, second, [folder])
    assert prepared.shared_with is None


@pytest.mark.parametrize(
    "change",
    [
        {"corpora": []},
        {"corpora": {"a": None}},
        {"training": {"kept": "1", "empty": 0, "overlong": 0}},
        {"training": {"kept": 1, "empty": -1, "overlong": 0}},
        {"training": [1, 0, 0]},
        {"dev": 1},
    ],
    ids=str,
)
def test_a_sibling_run_with_damaged_counts_is_left_alone(
    files: CorpusFiles, folder: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    prepare(files, TOKENIZER, MAX_LENGTH, folder)
    path = folder / prepared_corpus.PREPARATION
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    (second := tmp_path / "second").mkdir()
    prepared = prepare(files, TOKENIZER, MAX_LENGTH, second, [folder])
    assert prepared.shared_with is None


def test_a_shared_corpus_that_cannot_be_opened_is_not_prepared_anew(
    files: CorpusFiles, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(files, TOKENIZER, MAX_LENGTH, folder)
    (second := tmp_path / "second").mkdir()

    def refuse(path: Path) -> None:
        with access_errors(path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("transduce.data.prepared_corpus.open_dataset", refuse)
    with pytest.raises(AccessError, match="cannot be read"):
        prepare(files, TOKENIZER, MAX_LENGTH, second, [folder])


def test_files_are_copied_if_links_are_not_supported(
    files: CorpusFiles, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", no_link)
    prepare(files, TOKENIZER, MAX_LENGTH, folder)
    (second := tmp_path / "second").mkdir()
    assert prepare(files, TOKENIZER, MAX_LENGTH, second, [folder]).shared_with == folder
    assert content(second) == content(folder)


def test_sharing_depends_on_the_lines_not_on_the_files(
    files: CorpusFiles, folder: Path, tmp_path: Path
) -> None:
    cut = CorpusFiles(
        source=write(tmp_path / "s1", SOURCE[:2]) + write(tmp_path / "s2", SOURCE[2:]),
        target=write(tmp_path / "t1", TARGET[:2]) + write(tmp_path / "t2", TARGET[2:]),
    )
    crlf = tmp_path / "crlf"
    crlf.write_bytes("".join(f"{line}\r\n" for line in SOURCE).encode())
    whole = prepare(files, TOKENIZER, MAX_LENGTH, folder)
    for other in (cut, replace(files, source=(crlf,))):
        (new := tmp_path / f"with {other.source[0].name}").mkdir()
        assert prepare(other, TOKENIZER, MAX_LENGTH, new, [folder]).key == whole.key


@pytest.mark.parametrize(
    "change",
    ["a line", "a dev corpus", "swapped sides", "the vocabulary", "the filter"],
)
def test_a_corpus_with_any_difference_is_not_shared(
    files: CorpusFiles, folder: Path, tmp_path: Path, change: str
) -> None:
    prepare(files, TOKENIZER, MAX_LENGTH, folder)
    tokenizer, max_length = TOKENIZER, MAX_LENGTH
    if change == "a line":
        files = replace(files, source=write(tmp_path / "s", [*SOURCE[:-1], "fife"]))
    elif change == "a dev corpus":
        files = with_dev(files, ["one"], ["eins"])
    elif change == "swapped sides":
        files = replace(files, source=files.target, target=files.source)
    elif change == "the vocabulary":
        tokenizer = replace(TOKENIZER, vocab_size=TOKENIZER.vocab_size + 1)
    else:
        max_length += 1
    (second := tmp_path / "second").mkdir()
    assert prepare(files, tokenizer, max_length, second, [folder]).shared_with is None
    assert (second / "corpus" / "preparation.json").is_file()


@pytest.mark.parametrize(
    "damaged",
    [
        "corpus/training/target.ids",
        "corpus/training/source.offsets",
        "corpus/dev/target.offsets",
        "corpus/dev/source.txt",
        "corpus/dev/target.txt",
        "corpus/preparation.json",
        "tokenizer.json",
    ],
)
@pytest.mark.parametrize("how", ["cut short", "missing", "of another"])
def test_a_damaged_corpus_is_not_shared(
    files: CorpusFiles, folder: Path, tmp_path: Path, damaged: str, how: str
) -> None:
    files = with_dev(files, ["one", "two"], ["eins", "zwei"])
    whole = prepare(files, TOKENIZER, MAX_LENGTH, folder)
    before = content(folder)
    if how == "cut short":
        (folder / damaged).write_bytes((folder / damaged).read_bytes()[:-3])
    elif how == "missing":
        (folder / damaged).unlink()
    else:
        other = with_dev(files, ["one hundred"] * 3, ["einhundert", "z", "drei"])
        (another := tmp_path / "another").mkdir()
        prepare(other, replace(TOKENIZER, vocab_size=280), 40, another)
        shutil.copy(another / damaged, folder / damaged)
        files = with_dev(files, ["one", "two"], ["eins", "zwei"])
    (second := tmp_path / "second").mkdir()
    assert prepare(files, TOKENIZER, MAX_LENGTH, second, [folder]) == whole
    assert content(second) == before


def test_a_corpus_on_another_disk_is_shared(
    files: CorpusFiles, folder: Path, tmp_path: Path
) -> None:
    prepare(files, TOKENIZER, MAX_LENGTH, folder)
    before = content(folder)
    training = folder / "corpus" / "training"
    training.rename(tmp_path / "elsewhere")
    training.symlink_to(tmp_path / "elsewhere")
    ids = tmp_path / "elsewhere" / "source.ids"
    ids.rename(tmp_path / "ids")
    ids.symlink_to(tmp_path / "ids")
    (second := tmp_path / "second").mkdir()
    assert prepare(files, TOKENIZER, MAX_LENGTH, second, [folder]).shared_with == folder
    shutil.rmtree(folder)
    shutil.rmtree(tmp_path / "elsewhere")
    (tmp_path / "ids").unlink()
    assert content(second) == before


def test_a_corpus_of_another_word_pattern_is_not_shared(
    files: CorpusFiles, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(files, TOKENIZER, MAX_LENGTH, folder)
    second = tmp_path / "second"
    second.mkdir()
    monkeypatch.setattr(prepared_corpus, "word_pattern", lambda _: r" ?\S+")
    prepared = prepare(files, TOKENIZER, MAX_LENGTH, second, [folder])
    assert prepared.shared_with is None


@pytest.mark.parametrize("side", ["source", "dev_source"])
def test_a_file_that_changes_during_preparation_is_reported(
    files: CorpusFiles, folder: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    files = with_dev(files, ["one"], ["eins"])
    learn = prepared_corpus.learn_tokenizer

    def learn_while_it_changes(*arguments: Any) -> Tokenizer:
        tokenizer = learn(*arguments)
        path = getattr(files, side)[0]
        path.write_text(path.read_text().replace("one", "won"))
        return tokenizer

    monkeypatch.setattr(prepared_corpus, "learn_tokenizer", learn_while_it_changes)
    message = f"{getattr(files, side)[0]}: a corpus must stay as it is while it is"
    with pytest.raises(DataError, match=message):
        prepare(files, TOKENIZER, MAX_LENGTH, folder)


def test_the_pairs_of_each_corpus_are_spread_evenly_among_the_others() -> None:
    sizes = {"a": 8, "b": 2, "c": 1}
    corpora = [
        [SentencePair(source=name, target=name)] * size for name, size in sizes.items()
    ]
    found = interleaved(corpora, list(sizes.values()))
    assert "".join(pair.source for pair in found) == "aabaacaabaa"


@pytest.mark.parametrize(
    ("num_characters", "numbers"),
    [(0, range(7)), (100, range(7)), (101, [0, 2, 4, 6]), (300, [0, 3, 6])],
)
def test_a_vocabulary_is_learned_from_all_of_a_corpus_too_large_for_it(
    monkeypatch: pytest.MonkeyPatch, num_characters: int, numbers: Iterable[int]
) -> None:
    monkeypatch.setattr(prepared_corpus, "LEARNING_CHARACTERS", 100)
    pairs = [SentencePair(source=f"s{i}", target=f"t{i}") for i in range(7)]
    texts = list(learning_texts(pairs, num_characters))
    assert texts == [f"{side}{i}" for i in numbers for side in "st"]
