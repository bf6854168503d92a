"""A treebank becomes a corpus of sentences and symbols, normalized."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from transduce.data.augmentation import AugmentationConfig
from transduce.data.dataset import open_dataset
from transduce.data.prepared_corpus import TRAINING, PreparedCorpus
from transduce.data.treebank import (
    DEV_TREES,
    TreebankConfig,
    TreebankFiles,
    prepare_treebank,
    read_treebank,
)
from transduce.errors import ConfigError, DataError
from transduce.text.tokenizer import TOKENIZER_FILE, load_tokenizer
from transduce.text.vocabulary import TokenizerConfig
from transduce.trees.trees import read_parses
from transduce.trees.vocabulary import SYMBOLS_FILE, SymbolVocabulary

TREES = """\
( (S (NP-SBJ (DT the) (NN dog)) (VP (VBZ barks) (NP (-NONE- *))) (. .)) )
(ROOT (NP (NNS cats)))
"""
DEV = "(TOP (S (NP (PRP I))\n  (VP (VBP run)) (ADVP (RB away))))\n"
TOKENIZER = TokenizerConfig(vocab_size=300)


@pytest.fixture
def files(tmp_path: Path) -> TreebankFiles:
    (tmp_path / "trees").write_text(TREES, encoding="utf-8")
    (tmp_path / "dev").write_text(DEV, encoding="utf-8")
    return TreebankFiles(trees=(tmp_path / "trees",), dev_trees=(tmp_path / "dev",))


def prepared(
    files: TreebankFiles,
    folder: Path,
    config: TreebankConfig | None = None,
    sibling_runs: tuple[Path, ...] = (),
) -> PreparedCorpus:
    folder.mkdir()
    config = config or TreebankConfig()
    return prepare_treebank(files, config, TOKENIZER, 100, folder, sibling_runs)


def test_sources_are_words_and_targets_symbols(
    files: TreebankFiles, tmp_path: Path
) -> None:
    corpus = prepared(files, tmp_path / "run")
    tokenizer = load_tokenizer(tmp_path / "run" / TOKENIZER_FILE)
    symbols = SymbolVocabulary.load(tmp_path / "run" / SYMBOLS_FILE)
    dataset = open_dataset(tmp_path / "run" / TRAINING)
    spelt = [
        " ".join(symbols.style.spelling(symbols.symbols[i]) for i in target.tolist())
        for target in (dataset.target[0], dataset.target[1])
    ]
    assert spelt == ["(S (NP XX XX )NP (VP XX )VP . )S", "(NP XX )NP"]
    assert tokenizer.decode(dataset.source[0].tolist()) == "the dog barks ."
    assert corpus.training.kept == 2
    assert corpus.target_vocab_size == symbols.vocab_size
    assert corpus.vocab_size == tokenizer.vocab_size


def test_the_tokenizer_is_learned_from_words_only(
    files: TreebankFiles, tmp_path: Path
) -> None:
    prepared(files, tmp_path / "run")
    tokenizer = load_tokenizer(tmp_path / "run" / TOKENIZER_FILE)
    learned = tokenizer.pieces(range(3 + 256, tokenizer.vocab_size))
    assert "S" not in "".join(learned)


def test_dev_trees_are_kept_whole(files: TreebankFiles, tmp_path: Path) -> None:
    corpus = prepared(files, tmp_path / "run")
    text = (tmp_path / "run" / DEV_TREES).read_text(encoding="utf-8")
    assert list(read_parses(text.splitlines(), "dev")) == read_treebank(files.dev_trees)
    # A label outside the training trees is unknown, but its sentence is kept.
    assert corpus.dev is not None
    assert corpus.dev.kept == 1


def test_only_files_that_a_run_needs_are_left(
    files: TreebankFiles, tmp_path: Path
) -> None:
    prepared(replace(files, dev_trees=()), tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"corpus", TOKENIZER_FILE, SYMBOLS_FILE}
    assert not (tmp_path / "run" / DEV_TREES).exists()


def test_variants_are_part_of_the_training_data(
    files: TreebankFiles, tmp_path: Path
) -> None:
    config = TreebankConfig(augmentation=AugmentationConfig(copies=3))
    corpus = prepared(files, tmp_path / "run", config)
    assert corpus.training.total == 2 * (1 + 3)
    assert corpus.dev is not None
    assert corpus.dev.total == 1


def test_a_file_given_twice_counts_twice(files: TreebankFiles, tmp_path: Path) -> None:
    corpus = prepared(replace(files, trees=files.trees * 2), tmp_path / "run")
    assert corpus.training.total == 4


def test_a_corpus_is_shared_if_its_style_is_the_same(
    files: TreebankFiles, tmp_path: Path
) -> None:
    prepared(files, tmp_path / "one")
    beside = (tmp_path / "one",)
    same = prepared(files, tmp_path / "same", sibling_runs=beside)
    other = prepared(files, tmp_path / "other", TreebankConfig(style="pos"), beside)
    assert same.shared_with == tmp_path / "one"
    assert other.shared_with is None
    assert SymbolVocabulary.load(tmp_path / "same" / SYMBOLS_FILE).style_name == "xx"


@pytest.mark.parametrize("content", ["", "\n\n", "( (-NONE- *) )\n"])
def test_a_treebank_without_a_tree_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "empty").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match="empty: a treebank must have a tree, but has"):
        read_treebank([tmp_path / "empty"])


@pytest.mark.usefixtures("unchecked_types")
def test_an_unknown_style_is_refused() -> None:
    message = '`treebank.style` must be one of "xx", "pos", .*, but is "yy"'
    with pytest.raises(ConfigError, match=message):
        TreebankConfig(style="yy")  # type: ignore[arg-type] # that is the test


@pytest.mark.parametrize("weight", [-0.1, math.inf, math.nan])
def test_a_guidance_weight_out_of_range_is_refused(weight: float) -> None:
    bound = "at most 1,000" if weight > 0 else "at least 0"
    message = f"`treebank.guidance` must be {bound}, but is {weight}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        TreebankConfig(guidance=weight)
