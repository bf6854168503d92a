"""Words of a sentence pair are aligned by the model's cross-attention."""

from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from transduce.architectures.config import ByteNetConfig
from transduce.checkpoint import Checkpoint, build
from transduce.decoding.alignment import (
    CHOOSING_PAIRS,
    MAX_ALIGNED_TOKENS,
    WordAlignment,
    align_pairs,
    symmetrized,
)
from transduce.decoding.translator import Translator
from transduce.errors import CheckpointError, RequestError
from transduce.model.config import ModelConfig
from transduce.text.sentence_pieces import tokenizer_of_model
from transduce.text.tokenizer import Tokenizer


@pytest.fixture
def translator(trained_checkpoint: Checkpoint) -> Translator:
    return Translator(trained_checkpoint, "cpu")


def towards(
    translator: Translator,
    places: list[list[int | None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let the target words of each pair attend to source words, or to the end token.

    Each word must be a token by itself. The step that reads a word attends to nothing.
    """

    def attention(
        _: Translator, sources: list[list[int]], targets: list[list[int]]
    ) -> list[np.ndarray]:
        found = []
        for source, target in zip(sources, targets, strict=True):
            [words] = [each for each in places if len(each) == len(target) - 1]
            weights = np.zeros((1, len(target), len(source)), np.float32)
            for step, place in enumerate(words):
                weights[0, step, -1 if place is None else place] = 1
            found.append(weights)
        return found

    monkeypatch.setattr(Translator, "cross_attention", attention)


def one_token_words(tokenizer: Tokenizer, words: list[str]) -> list[str]:
    return [word for word in words if len(tokenizer.encode(word)) == 1]


def test_links_of_both_directions_grow_by_their_neighbours() -> None:
    # The second target word chooses the first source word, which chooses the first.
    attention = np.array(
        [[0.9, 0.1, 0.0], [0.8, 0.1, 0.1], [0.0, 0.9, 0.1]], np.float32
    )
    assert symmetrized(attention) == {(0, 0), (0, 1), (1, 2)}


def test_a_target_word_that_attends_to_the_end_token_chooses_no_word() -> None:
    attention = np.array([[0.9, 0.0, 0.1], [0.3, 0.2, 0.5]], np.float32)
    # The second source word chooses the second target word, and both have no link.
    assert symmetrized(attention) == {(0, 0), (1, 1)}
    attention = np.array([[0.9, 0.1], [0.3, 0.7]], np.float32)
    assert symmetrized(attention) == {(0, 0)}


@given(
    st.tuples(st.integers(1, 5), st.integers(2, 5)).flatmap(
        lambda shape: arrays(np.float32, shape, elements=st.floats(0, 1, width=32))
    )
)
def test_symmetrized_links_lie_between_those_of_both_and_of_either_direction(
    attention: np.ndarray,
) -> None:
    num_targets, num_sources = attention.shape[0], attention.shape[1] - 1
    by_target, by_source = set(), set()
    for i, j in product(range(num_sources), range(num_targets)):
        if attention[j].argmax() == i:
            by_target.add((i, j))
        if attention[:, i].argmax() == j:
            by_source.add((i, j))
    links = symmetrized(attention)
    assert by_target & by_source <= links <= by_target | by_source
    # No link of either direction is left whose words both have no link.
    for i, j in by_target | by_source:
        assert any(i == source or j == target for source, target in links)


def test_links_are_numbers_of_words_between_white_space(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert one_token_words(translator.tokenizer, ["one", "two", "eins", "zwei"]) == [
        "one", "two", "eins", "zwei",
    ]  # fmt: skip
    towards(translator, [[1, 0]], monkeypatch)
    found = translator.align("one \t two", "eins zwei")
    expected = WordAlignment(
        source=("one", "two"), target=("eins", "zwei"), links=((0, 1), (1, 0))
    )
    assert found == expected
    assert str(found) == "0-1 1-0"


def test_marks_and_no_break_spaces_belong_to_the_words_beside_them(
    translator: Translator,
) -> None:
    found = translator.align("one, two\u00a0three!", "\u201eeins\u201c zwei")
    assert found.source == ("one,", "two\u00a0three!")
    assert found.target == ("\u201eeins\u201c", "zwei")
    assert found.links


def test_invisible_and_decomposed_characters_change_no_links(
    translator: Translator,
) -> None:
    plain = translator.align("one two five", "f\u00fcnf eins zwei")
    other = translator.align("o\u00adne t\u200bwo five", "fu\u0308nf eins zwei")
    assert plain.links
    assert other.links == plain.links


def test_a_word_of_invisible_characters_alone_has_no_links(
    translator: Translator,
) -> None:
    plain = translator.align("one two", "eins zwei")
    other = translator.align("one \u00ad two", "eins zwei")
    assert len(other.source) == 3
    moved = {0: 0, 1: 2}
    assert other.links == tuple((moved[i], j) for i, j in plain.links)


def test_words_that_the_tokenizer_rewrites_are_aligned(
    corpus: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    """SentencePiece writes three points for an ellipsis, and knows few characters."""
    with (tmp_path / "my.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*corpus[0], *corpus[1], "one..."]),
            model_writer=file,
            vocab_size=60,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    tokenizer = tokenizer_of_model(tmp_path / "my.model")
    torch.manual_seed(1)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=1, d_model=8, d_ff=8, num_heads=1,
        d_k=8, d_v=8,
    )  # fmt: skip
    weights = build(config).state_dict()
    checkpoint = Checkpoint(config=config, weights=weights, tokenizer=tokenizer, step=1)
    found = Translator(checkpoint, "cpu").align(
        "one\u2026 \u4e2d two", "eins\u2026 zwei"
    )
    assert found.source == ("one\u2026", "\u4e2d", "two")
    assert found.links
    assert {j for _, j in found.links} <= {0, 1}


def test_a_trained_model_aligns_words(
    translator: Translator, corpus: tuple[list[str], list[str]]
) -> None:
    found = translator.align(*corpus)
    links = [link for each in found for link in each.links]
    # The corpus translates word by word, and the tiny model has learned some of it.
    right = [source == target for source, target in links]
    assert sum(right) / len(right) > 0.5


def test_a_pair_without_links_is_blank(translator: Translator) -> None:
    long = " ".join(["one"] * MAX_ALIGNED_TOKENS)
    pairs = [("", "eins"), ("one", ""), (long, "eins"), ("one", "eins")]
    found = list(align_pairs(translator, pairs))
    assert [str(each) for each in found[:3]] == ["", "", ""]
    assert found[3].links == ((0, 0),)


def test_pairs_that_cannot_be_aligned_choose_no_layer(translator: Translator) -> None:
    long = " ".join(["one"] * MAX_ALIGNED_TOKENS)
    pairs = [(long, "eins")] * CHOOSING_PAIRS + [("one", "eins")]
    *others, last = align_pairs(translator, pairs)
    assert not any(each.links for each in others)
    assert last.links == ((0, 0),)


def test_the_first_pairs_choose_the_layer_for_all(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One layer aligns the first pairs, and another one the pairs after them."""
    straight, crossed = (
        np.eye(3, dtype=np.float32),
        np.eye(3, dtype=np.float32)[[1, 0, 2]],
    )
    calls = 0

    def attention(
        _: Translator, sources: list[list[int]], targets: list[list[int]]
    ) -> list[np.ndarray]:
        nonlocal calls
        calls += 1
        uniform = np.full((3, 3), 0.3, np.float32)
        return [np.stack([uniform, straight if calls == 1 else crossed])] * len(sources)

    monkeypatch.setattr(Translator, "cross_attention", attention)
    pairs = [("one two", "eins zwei")] * (CHOOSING_PAIRS + 1)
    *_, last = align_pairs(translator, pairs)
    assert last.links == ((0, 1), (1, 0))


def test_links_do_not_depend_on_other_pairs(
    translator: Translator, corpus: tuple[list[str], list[str]]
) -> None:
    # The model has one layer, and the step that writes a word aligns best.
    together = translator.align(*corpus)
    pairs = islice(zip(*corpus, together, strict=True), 10)
    for source, target, expected in pairs:
        found = list(align_pairs(translator, [(source, target)] * 2))
        assert {each.source for each in found} == {expected.source}
        assert found[0] == found[1]


def test_tags_are_no_words(tagged_checkpoint: Checkpoint) -> None:
    translator = Translator(tagged_checkpoint, "cpu").into("fr").with_tag("law")
    found = translator.align("one two three", "eins zwei")
    assert found.source == ("one", "two", "three")
    assert found.links
    assert all(source < 3 and target < 2 for source, target in found.links)


def test_a_model_without_cross_attention_is_refused(tokenizer: Tokenizer) -> None:
    torch.manual_seed(1)
    config = ByteNetConfig(vocab_size=tokenizer.vocab_size, num_blocks=1, d_hidden=4)
    checkpoint = Checkpoint(
        config=config, weights=build(config).state_dict(), tokenizer=tokenizer, step=1
    )
    with pytest.raises(RequestError, match="must have cross-attention"):
        Translator(checkpoint, "cpu").align("one", "eins")


def test_a_model_that_outputs_nan_is_refused(trained_checkpoint: Checkpoint) -> None:
    weights = {
        name: torch.full_like(each, torch.nan)
        for name, each in trained_checkpoint.weights.items()
    }
    broken = replace(trained_checkpoint, weights=weights)
    with pytest.raises(CheckpointError, match="NaN"):
        Translator(broken, "cpu").align("one", "eins")


def test_a_parser_is_refused(parsing_checkpoint: Checkpoint) -> None:
    with pytest.raises(RequestError, match="this one parses"):
        Translator(parsing_checkpoint, "cpu").align("one", "eins")


def test_unequally_many_sources_and_targets_are_refused(
    translator: Translator,
) -> None:
    with pytest.raises(RequestError, match="equally many, but are 2 and 1"):
        translator.align(["one", "two"], ["eins"])
