"""Behaviour at exact limits of prefixes, lines and equal hypotheses."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from beam_kinds import (
    beam_search,
    greedy_search,
    kind_of_beam,  # noqa: F401
)
from transduce.checkpoint import Checkpoint
from transduce.decoding.translations import MAX_SOURCE_TOKENS, encode_lines
from transduce.decoding.translator import Translator
from transduce.search_config import SamplingConfig, SearchConfig
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import BOS, EOS, PAD

VOCAB_SIZE = 7


@pytest.fixture(scope="module")
def translator(trained_checkpoint: Checkpoint) -> Translator:
    return Translator(trained_checkpoint, torch.device("cpu"))


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("beyond", [-1, 0, 1, 5])
def test_a_prefix_of_the_maximum_length_or_longer_is_kept_and_ends(
    translator: Translator, tokenizer: Tokenizer, beam_size: int, beyond: int
):
    prefix = tokenizer.encode("zwei drei vier eins eins zwei")
    max_length = len(prefix) - beyond
    [found] = translator.translate(
        ["one"],
        beam_size=beam_size,
        max_length=max_length,
        prefixes=["zwei drei vier eins eins zwei"],
    )
    best = found.hypotheses[0]
    pieces = tokenizer.pieces(prefix)
    assert list(best.tokens[: len(pieces)]) == pieces
    # The limit counts the end token; there is room for it and no other token.
    room = max(max_length - 1, len(prefix))
    assert len(best.tokens) <= room
    assert len(best.token_log_probabilities) <= room + 1


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("extra_length", [0, 1, 3])
def test_the_limit_beyond_a_source_does_not_depend_on_a_prefix(
    translator: Translator, tokenizer: Tokenizer, beam_size: int, extra_length: int
):
    source = "one two three"
    [free] = translator.translate(
        [source], beam_size=beam_size, extra_length=extra_length
    )
    [begun] = translator.translate(
        [source],
        beam_size=beam_size,
        extra_length=extra_length,
        prefixes=["eins"],
    )
    limit = len(tokenizer.encode(source)) + 1 + extra_length
    for each in (free, begun):
        assert len(each.hypotheses[0].token_log_probabilities) <= limit


def line_of(count: int, tokenizer: Tokenizer) -> str:
    """Line with exactly this number of tokens."""
    text = "one" + " one" * (count - 1)
    assert len(tokenizer.encode(text)) == count
    return text


@pytest.mark.parametrize(
    ("count", "parts"), [(MAX_SOURCE_TOKENS, 1), (MAX_SOURCE_TOKENS + 1, 2)]
)
def test_a_line_is_cut_only_above_the_maximum_length(
    tokenizer: Tokenizer, count: int, parts: int
):
    text = line_of(count, tokenizer)
    [found] = encode_lines([(0, (text, ""))], tokenizer)
    assert len(found) == parts
    assert sum(len(part.source) for part in found) == count


def test_equal_parts_of_a_long_line_have_different_samples(
    translator: Translator,
):
    drawing = SamplingConfig(number=1, temperature=3.0, seed=5)
    # Three parts of the same tokens.
    sentence = f"{'one two ' * 45}three."
    [found] = translator.sample([" ".join([sentence] * 3)], drawing)
    [alone] = translator.sample([sentence], drawing)
    draws = found.text.split()
    first = alone.text.split()
    assert (
        draws[: len(first)] == first
    )  # the first part of a line is drawn like a whole line
    assert draws != first * 3


class Indifferent:
    """Model that never ends and gives every word the same probability."""

    def step(self, last_ids: np.ndarray) -> Tensor:
        logits = torch.zeros(*last_ids.shape, VOCAB_SIZE)
        logits[..., EOS] = -math.inf
        return logits

    def reorder(self, rows: np.ndarray) -> None:
        pass


@pytest.mark.parametrize("beam_size", [1, 2, 4])
def test_the_first_of_equal_hypotheses_and_words_is_chosen(beam_size: int):
    config = SearchConfig(beam_size=beam_size, num_best=beam_size)
    search = greedy_search if beam_size == 1 else beam_search
    [found] = search(Indifferent(), [3], config, bos=BOS, eos=EOS, excluded=(PAD, BOS))
    first = EOS + 1
    expected = [(first, first, first + place) for place in range(beam_size)]
    assert [tuple(each.ids) for each in found] == expected
    assert len({each.score for each in found}) == 1
