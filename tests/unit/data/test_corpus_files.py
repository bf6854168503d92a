"""Held-out pairs are reproducible, and no copy of them is in training."""

import gzip
import os
import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import sacrebleu.metrics.bleu as sacrebleu_module

from transduce.data.corpus_files import (
    CorpusFiles,
    EvaluationConfig,
    choose,
    default_held_out,
    digest_of,
    hold_out_pairs,
    read_through,
    require_choice,
    write_split,
)
from transduce.data.corpus_mixture import CorpusConfig
from transduce.errors import ConfigError, DataError

LINES = [f"sentence {i}" for i in range(500)]


@pytest.mark.parametrize(
    ("num_pairs", "number"),
    [
        (0, None),
        (399, None),
        (400, 200),
        (3_000, 200),
        (20_000, 200),
        (20_100, 201),
        (150_000, 1_500),
        (4_500_000, 2_000),
    ],
)
def test_one_pair_in_a_hundred_is_held_out_within_bounds(
    num_pairs: int, number: int | None
) -> None:
    assert default_held_out(num_pairs) == number


def test_the_same_seed_holds_out_the_same_pairs_in_any_order() -> None:
    one, again = choose(LINES, None, 1), choose(reversed(LINES), None, 1)
    other = choose(LINES, None, 2)
    assert one is not None
    assert again is not None
    assert other is not None
    assert one.parts == again.parts != other.parts
    assert [len(part) for part in one.parts] == [200]


def test_parts_have_no_source_in_common() -> None:
    choice = choose([*LINES, *LINES], (30, 20), 1)
    assert choice is not None
    found = Counter(choice.part_of(line) for line in LINES)
    assert found == {None: 450, 0: 30, 1: 20}


def test_nothing_is_held_out_of_a_corpus_with_few_sources() -> None:
    assert choose(LINES[:100] * 50, None, 1) is None
    assert choose(LINES[:399], None, 1) is None


def test_pairs_with_held_out_sources_do_not_count_as_left_to_train_on() -> None:
    several = [*LINES[:210], *LINES[:210]]  # holding out 200 would leave 20 pairs
    assert choose(several, None, 1) is None
    assert choose(several, (141,), 1) is None
    assert choose(several, (140,), 1) is not None
    assert choose([*several, *LINES[210:390]], None, 1) is not None


@pytest.fixture
def files(tmp_path: Path) -> CorpusFiles:
    """Corpus with copies, white space, empty sides, CRLF, a BOM and gzip."""
    source = [*LINES, "  sentence   7 ", "sentence 7", *LINES[:50], "", "lonely"]
    target = [f"Satz {i}" for i in range(len(source) - 1)] + [""]
    one, other = tmp_path / "one.en", tmp_path / "other.de.gz"
    one.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(source).encode() + b"\r\n")
    other.write_bytes(gzip.compress(("\n".join(target) + "\n").encode()))
    return CorpusFiles(source=(one,), target=(other,))


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_no_copy_of_a_held_out_pair_is_in_training(
    files: CorpusFiles, tmp_path: Path
) -> None:
    parts = hold_out_pairs(files, tmp_path / "text", seed=1)
    assert parts is not None
    training = [" ".join(line.split()) for line in lines(parts.source[0])]
    dev = lines(parts.dev_source[0])
    assert len(dev) == 200
    assert "lonely" not in dev  # it has no translation
    assert len(set(dev)) == len(dev)
    assert not set(dev) & set(training)
    assert {*dev, *training} - {"", "lonely"} == set(LINES)
    # Still translations of each other.
    pairs = dict(zip(dev, lines(parts.dev_target[0]), strict=True))
    for source, target in pairs.items():
        assert target == f"Satz {source.split()[1]}"


def test_a_source_written_in_another_normal_form_is_a_copy(tmp_path: Path) -> None:
    composed = [f"Satz für {i}" for i in range(500)]
    source = [*composed, *(unicodedata.normalize("NFD", line) for line in composed)]
    paths = tmp_path / "my.de", tmp_path / "my.en"
    for path in paths:
        path.write_text("\n".join(source), encoding="utf-8")
    files = CorpusFiles(source=paths[:1], target=paths[1:])
    parts = hold_out_pairs(files, tmp_path / "text", seed=1)
    assert parts is not None
    assert len(lines(parts.dev_source[0])) == 200
    assert len(lines(parts.source[0])) == 600


def test_too_few_pairs_are_not_split(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("\n".join(LINES[:399]))
    files = CorpusFiles(source=(tmp_path / "a",), target=(tmp_path / "b",))
    assert hold_out_pairs(files, tmp_path / "text", seed=1) is None
    assert not (tmp_path / "text").exists()


@pytest.mark.parametrize("sizes", [(0,), (-1, 5)])
def test_a_part_without_pairs_is_refused(
    files: CorpusFiles, sizes: tuple[int, ...]
) -> None:
    with pytest.raises(ConfigError, match="A part must have at least 1 pair"):
        require_choice(files.source, files.target, sizes, 1)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(files: CorpusFiles, seed: int) -> None:
    with pytest.raises(ConfigError, match="`seed` must be from 0"):
        require_choice(files.source, files.target, (1,), seed)


def test_at_most_half_is_held_out(files: CorpusFiles) -> None:
    with pytest.raises(DataError, match="holding out 400 pairs needs as many"):
        require_choice(files.source, files.target, (300, 100), 1)


def test_the_reported_counts_equal_those_of_the_files(
    files: CorpusFiles, tmp_path: Path
) -> None:
    choice = require_choice(files.source, files.target, (20, 10), 3)
    outputs = [(tmp_path / f"{i}.s", tmp_path / f"{i}.t") for i in range(3)]
    counts = write_split(files.source, files.target, choice, outputs)
    assert counts == [len(lines(side)) for side, _ in outputs]
    assert counts == [len(lines(side)) for _, side in outputs]


def test_pairs_held_out_of_a_mixture_are_written_once(
    files: CorpusFiles, tmp_path: Path
) -> None:
    names = {"source": str(files.source[0]), "target": str(files.target[0])}
    corpora = [CorpusConfig(name=name, **names) for name in ("one", "other")]
    held = hold_out_pairs(CorpusFiles.of(corpora), tmp_path / "text", seed=1)
    assert held is not None
    dev = lines(held.dev_source[0])
    assert dev
    assert not set(dev) & set(lines(held.source[1]))
    written = {path.stem for path in (tmp_path / "text").iterdir()}
    assert written == {"dev", "training", "training-1"}


def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    files = CorpusFiles(source=(pipe,), target=(pipe,), dev_source=(), dev_target=())
    with pytest.raises(DataError, match="must be a file, .* is a folder or a pipe"):
        hold_out_pairs(files, tmp_path / "held", seed=1)


def test_standard_input_is_no_corpus_as_it_can_be_read_once_only() -> None:
    sides = (Path("-"),), (Path("my.de"),)
    for read in (read_through, digest_of):
        with pytest.raises(ConfigError, match="^A corpus must be in files, .* write "):
            read(*sides)


def test_every_tokenizer_of_sacrebleu_can_be_chosen() -> None:
    for name in sacrebleu_module.BLEU.TOKENIZERS:
        assert EvaluationConfig(tokenize=name).tokenize == name


def test_an_unknown_tokenizer_is_refused() -> None:
    with pytest.raises(
        ConfigError, match='`evaluation.tokenize` must be "auto", "13a"'
    ):
        EvaluationConfig(tokenize="moses")  # type: ignore[arg-type]


def test_the_tags_of_several_corpora_are_those_of_corpora_then_of_languages() -> None:
    made = [("<bt>", "de"), (None, "fr"), ("<bt>", None), ("<old>", "de")]
    corpora = [
        CorpusConfig(name=f"c{i}", source="s", target="t", tag=tag, target_language=to)
        for i, (tag, to) in enumerate(made)
    ]
    tags = ["<bt>", "<old>", ">>de<<", ">>fr<<"]
    assert CorpusFiles.of(corpora).tags == tags


def test_digests_are_of_the_lines_however_they_are_stored(
    files: CorpusFiles, tmp_path: Path
) -> None:
    whole = files.digests()
    statistics = read_through(files.source, files.target)
    assert whole == {"training": statistics.digest}
    content = files.source[0].read_bytes()
    (tmp_path / "source.gz").write_bytes(gzip.compress(content))
    assert digest_of([tmp_path / "source.gz"], files.target) == whole["training"]
    with_dev = replace(files, dev_source=files.target, dev_target=files.source)
    assert with_dev.digests()["dev"] != whole["training"]
    files.source[0].write_bytes(b"another line\n" + content.split(b"\n", 1)[1])
    assert files.digests() != whole


def test_text_without_a_digest_is_refused(files: CorpusFiles, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    empty = [tmp_path / "empty"]
    with pytest.raises(DataError, match="empty: a corpus must have at least one line"):
        digest_of(empty, empty)
    files.target[0].write_bytes(b"\xff\n" * len(lines(files.source[0])))
    with pytest.raises(DataError, match="UTF-8"):
        files.digests()
