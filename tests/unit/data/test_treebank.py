"""A treebank becomes a corpus of sentences and symbols, normalized and augmented."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from transduce.data import treebank
from transduce.data.dataset import open_dataset
from transduce.data.prepared_corpus import TRAINING, PairEncoder, PreparedCorpus
from transduce.data.treebank import (
    DEV_TREES,
    TreeAugmentationConfig,
    TreebankConfig,
    TreebankFiles,
    augmented,
    choose_dev_trees,
    prepare_treebank,
    read_gold,
    read_treebank,
)
from transduce.errors import ConfigError, DataError
from transduce.grammar.corpus import training_trees
from transduce.text.tokenizer import TOKENIZER_FILE, load_tokenizer
from transduce.text.vocabulary import TokenizerConfig
from transduce.trees.linearization import SYMBOLS_FILE, SymbolVocabulary
from transduce.trees.trees import Tree, parse_tree, read_parses

TREES = list(islice(training_trees(seed=2), 40))
NOTHING = TreeAugmentationConfig(
    copies=1, cut=0.0, replaced_constituents=0.0, replaced_words=0.0
)


def variants(trees: list[Tree], config: TreeAugmentationConfig) -> list[Tree]:
    made = list(augmented(trees, config))
    assert made[: len(trees)] == trees
    return made[len(trees) :]


def test_trees_that_are_all_too_long_are_a_fault_of_their_file(tmp_path: Path) -> None:
    path = tmp_path / "some.trees"
    path.write_text("".join(f"{tree}\n" for tree in TREES))
    (folder := tmp_path / "run").mkdir()
    with pytest.raises(DataError, match=r"some\.trees: at least one pair must be left"):
        prepare_treebank(
            TreebankFiles(trees=(path,)), TreebankConfig(), TokenizerConfig(), 2, folder
        )


def test_there_are_no_variants_by_default() -> None:
    assert variants(TREES, TreeAugmentationConfig()) == []


def test_copies_without_changes_equal_the_trees() -> None:
    assert variants(TREES, replace(NOTHING, copies=2)) == TREES * 2


@pytest.mark.parametrize("seed", range(5))
def test_a_variant_is_a_valid_tree(seed: int) -> None:
    config = TreeAugmentationConfig(copies=3, replaced_words=0.3, seed=seed)
    for tree in variants(TREES, config):
        assert parse_tree(str(tree)) == tree
        assert tree.constituents[0].label == "TOP"


def test_the_same_seed_makes_the_same_variants() -> None:
    one, again, other = (
        variants(TREES, TreeAugmentationConfig(copies=2, seed=seed))
        for seed in (1, 1, 2)
    )
    assert one == again != other


def test_words_are_replaced_by_words_with_the_same_tag() -> None:
    config = replace(NOTHING, replaced_words=1.0)
    leaves = {leaf for tree in TREES for leaf in tree.leaves}
    changed = variants(TREES, config)
    assert changed != TREES
    for before, after in zip(TREES, changed, strict=True):
        assert after.constituents == before.constituents
        assert [leaf.tag for leaf in after.leaves] == [
            leaf.tag for leaf in before.leaves
        ]
        assert leaves.issuperset(after.leaves)


def test_a_cut_is_a_constituent_of_its_tree() -> None:
    for before, after in zip(
        TREES, variants(TREES, replace(NOTHING, cut=1.0)), strict=True
    ):
        inner = str(after).removeprefix("(TOP ").removesuffix(")")
        assert inner in str(before)


def test_a_variant_with_the_sentence_of_a_dev_tree_is_its_tree() -> None:
    config = replace(NOTHING, copies=3, cut=1.0)
    usual = variants(TREES, config)
    dev_trees = usual[::2]
    held_out = {tree.words for tree in dev_trees}
    made = list(augmented(TREES, config, dev_trees))[len(TREES) :]
    assert made == [
        tree if variant.words in held_out else variant
        for tree, variant in zip(3 * TREES, usual, strict=True)
    ]
    assert held_out & {tree.words for tree in made} <= {tree.words for tree in TREES}


def test_a_constituent_is_replaced_by_one_with_the_same_label() -> None:
    one = parse_tree("(TOP (S (NP (N a)) (VP (V b) (X (N c))) (P .)))")
    other = parse_tree("(TOP (S (NP (D d) (NP (N e))) (Y (V f) (V g))))")
    made = [
        str(
            variants([one, other], replace(NOTHING, replaced_constituents=1.0, seed=s))[
                0
            ]
        )
        for s in range(60)
    ]
    assert set(made) == {
        str(one),
        str(other),
        "(TOP (S (NP (D d) (NP (N e))) (VP (V b) (X (N c))) (P .)))",
        "(TOP (S (NP (N e)) (VP (V b) (X (N c))) (P .)))",
    }


def test_a_tree_of_one_word_is_unchanged() -> None:
    tree = parse_tree("(TOP (UH Yes))")
    config = TreeAugmentationConfig(copies=1, cut=1.0, replaced_constituents=1.0)
    assert variants([tree], config) == [tree]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("copies", -1, "`treebank.augmentation.copies` must be at least 0, but is -1"),
        ("cut", 1.1, "`treebank.augmentation.cut` must be at most 1, but is 1.1"),
        ("replaced_words", -0.1, "replaced_words` must be at least 0, but is -0.1"),
        ("replaced_constituents", 2.0, "replaced_constituents` must be at most 1"),
    ],
)
def test_an_impossible_setting_is_refused(
    name: str, value: float, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        TreeAugmentationConfig(**{name: value})


WRITTEN_TREES = """\
( (S (NP-SBJ (DT the) (NN dog)) (VP (VBZ barks) (NP (-NONE- *))) (. .)) )
(ROOT (NP (NNS cats)))
"""
DEV = "(TOP (S (NP (PRP I))\n  (VP (VBP run)) (ADVP (RB away))))\n"
TOKENIZER = TokenizerConfig(vocab_size=300)


@pytest.fixture
def files(tmp_path: Path) -> TreebankFiles:
    (tmp_path / "trees").write_text(WRITTEN_TREES, encoding="utf-8")
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
    config = TreebankConfig(augmentation=TreeAugmentationConfig(copies=3))
    corpus = prepared(files, tmp_path / "run", config)
    assert corpus.training.total == 2 * (1 + 3)
    assert corpus.dev is not None
    assert corpus.dev.total == 1


def test_a_file_given_twice_counts_twice(files: TreebankFiles, tmp_path: Path) -> None:
    corpus = prepared(replace(files, trees=files.trees * 2), tmp_path / "run")
    assert corpus.training.total == 4


@pytest.mark.parametrize("copies", [0, 1])
def test_trees_are_held_out_with_all_trees_of_their_sentences(
    tmp_path: Path, copies: int
) -> None:
    words = [f"w{number}" for number in range(500)]
    lines = [f"(S (A {word}) (A b))" for word in words]
    lines += [f"(NP (A {word}) (A b))" for word in words[:250]]
    path = tmp_path / "trees"
    path.write_text("\n".join(lines), encoding="utf-8")
    (folder := tmp_path / "run").mkdir()
    files = TreebankFiles(trees=(path,))
    config = TreebankConfig(augmentation=replace(NOTHING, copies=copies))
    corpus = prepare_treebank(
        files, config, TokenizerConfig(), 99, folder, held_out_by=1
    )
    dev = [parse_tree(line) for line in (folder / DEV_TREES).read_text().splitlines()]
    held_out = {tree.words[0] for tree in dev}
    assert corpus.is_held_out
    assert len(dev) == len(held_out) == 200
    num_further = len(held_out.intersection(words[:250]))
    assert 0 < num_further < 200
    assert corpus.training.total == (750 - 200 - num_further) * (1 + copies)
    assert choose_dev_trees([path] * 2, 1) is not None
    path.write_text("\n".join(lines[:399]), encoding="utf-8")
    assert choose_dev_trees([path], 1) is None


def test_trees_are_written_as_they_are_read(
    files: TreebankFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Millions of trees would not fit into memory."""
    events: list[str] = []

    def noted(event: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            events.append(event)
            return function(*arguments)

        return call

    for event, name in (("read", "normalized"), ("written", "linearize")):
        function = getattr(treebank, name)
        monkeypatch.setattr(treebank, name, noted(event, function))
    prepared(replace(files, dev_trees=()), tmp_path / "run")
    assert events == ["read", "written"] * 2


@pytest.mark.parametrize("is_older", [False, True])
def test_words_are_trained_as_raw_text_has_them(tmp_path: Path, is_older: bool) -> None:
    path = tmp_path / "trees"
    path.write_text("(S (CD 1\\/2) (SYM \\*) (NN a))\n", encoding="utf-8")
    files = TreebankFiles(trees=(path,), dev_trees=(path,))
    vocabulary: TokenizerConfig | PairEncoder = TokenizerConfig()
    (learned := tmp_path / "learned").mkdir()
    prepare_treebank(files, TreebankConfig(), vocabulary, 99, learned)
    tokenizer = load_tokenizer(learned / TOKENIZER_FILE)
    symbols = SymbolVocabulary.load(learned / SYMBOLS_FILE)
    encoder = PairEncoder(
        tokenizer=tokenizer, symbols=replace(symbols, unescapes=not is_older)
    )
    (folder := tmp_path / "run").mkdir()
    prepare_treebank(files, TreebankConfig(), encoder, 99, folder)
    dataset = open_dataset(folder / TRAINING)
    expected = "1\\/2 \\* a" if is_older else "1/2 * a"
    assert tokenizer.decode(dataset.source[0].tolist()) == expected
    # The gold words stay.
    assert "(CD 1\\/2)" in (folder / DEV_TREES).read_text(encoding="utf-8")


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
    with pytest.raises(DataError, match="empty: a treebank must have a tree, but has"):
        read_gold(tmp_path / "empty")


def test_a_gold_tree_of_traces_alone_keeps_its_place(tmp_path: Path) -> None:
    path = tmp_path / "gold"
    path.write_text("(S (A a))\n( (-NONE- *) )\n(S (B b))\n", encoding="utf-8")
    one, other = read_treebank([path])
    first, empty, last = read_gold(path)
    assert (first, last) == (one, other)
    assert empty.leaves == ()


@pytest.mark.usefixtures("unchecked_types")
def test_several_treebanks_are_not_all_standard_input() -> None:
    with pytest.raises(DataError, match="must stand for one file"):
        read_treebank([Path("-"), Path("-")])


def test_an_unknown_style_is_refused() -> None:
    message = '`treebank.style` must be "xx", "pos", .*, but is "yy"'
    with pytest.raises(ConfigError, match=message):
        TreebankConfig(style="yy")  # type: ignore[arg-type] # that is the test


@pytest.mark.parametrize("weight", [-0.1, math.inf, math.nan])
def test_a_guidance_weight_out_of_range_is_refused(weight: float) -> None:
    bound = "at most 1,000" if weight > 0 else "at least 0"
    message = f"`treebank.guidance` must be {bound}, but is {weight}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        TreebankConfig(guidance=weight)
