"""Restrictions of the next token: n-grams, repetitions and bad words.

All searches obey them alike: in C, in Python, and with candidates found by PyTorch. The
results are those of Hugging Face's `generate` with the same settings.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MarianConfig, MarianMTModel

from transduce.decoding import beam_search, native_search
from transduce.decoding.backend import start_search
from transduce.decoding.beam_search import (
    BeamSearch,
    CandidateQuery,
    GreedySearch,
    find_candidates,
    restrictions_after,
)
from transduce.decoding.search import Hypothesis, run_search
from transduce.decoding.torch_candidates import find_by_torch
from transduce.errors import ConfigError
from transduce.interop.marian_import import read_settings, read_weights
from transduce.model.transformer import Transformer
from transduce.native import api
from transduce.search_config import SearchConfig
from transduce.text.vocabulary import BOS, EOS, PAD

VOCAB_SIZE = 12
NUM_SENTENCES = 3
few_examples = settings(max_examples=40, deadline=None, derandomize=True, database=None)
searches = st.builds(
    lambda beam_size, num_best, patience, **others: SearchConfig(
        beam_size=beam_size,
        num_best=min(num_best, beam_size),
        patience=None if beam_size == 1 else patience,
        **others,
    ),
    beam_size=st.integers(1, 4),
    num_best=st.integers(1, 4),
    patience=st.sampled_from([None, 1.0]),
    no_repeat_ngram=st.integers(0, 3),
    repetition_penalty=st.sampled_from([1.0, 1.5, 0.6]),
    bad_words=st.sampled_from([(), ((7,),), ((5,), (8, 9), (6, 6, 6), (2_000,))]),
    min_length=st.sampled_from([0, 3]),
)


class LoopingModel:
    """Model whose next token depends on the last one, so that greedy search loops."""

    def __init__(self, seed: int, as_tensor: bool = False) -> None:
        random = np.random.default_rng(seed)
        self._table = random.normal(size=(VOCAB_SIZE, VOCAB_SIZE)).astype(np.float32)
        self._table = 3 * self._table
        self._table[:, EOS] -= 2
        self._as_tensor = as_tensor

    def step(self, last_ids: np.ndarray) -> np.ndarray | torch.Tensor:
        logits = self._table[last_ids]
        return torch.from_numpy(logits) if self._as_tensor else logits

    def reorder(self, rows: np.ndarray) -> None:
        pass


def found_natively(
    seed: int,
    config: SearchConfig,
    prefixes: Sequence[Sequence[int]],
    as_tensor: bool = False,
) -> list[list[Hypothesis]]:
    limits = [14, 3, 30]
    begun = start_search(limits, config, EOS, (PAD, BOS), prefixes)
    return run_search(LoopingModel(seed, as_tensor), begun, BOS)


def found_in_python(
    seed: int,
    config: SearchConfig,
    prefixes: Sequence[Sequence[int]],
    as_tensor: bool = False,
) -> list[list[Hypothesis]]:
    limits = [14, 3, 30]
    kind = GreedySearch if config.beam_size == 1 else BeamSearch
    begun = kind(limits, config, EOS, (PAD, BOS), prefixes)
    return run_search(LoopingModel(seed, as_tensor), begun, BOS)


def assert_same(
    found: list[list[Hypothesis]], expected: list[list[Hypothesis]]
) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert [each.ids for each in mine] == [each.ids for each in theirs]
        for one, other in zip(mine, theirs, strict=True):
            assert one.score == pytest.approx(other.score, rel=1e-5, abs=1e-5)


@pytest.mark.skipif(api() is None, reason="no native library")
@given(
    seed=st.integers(0, 30),
    config=searches,
    prefix=st.sampled_from([(), (4, 4, 4), (7, 8, 9)]),
)
@few_examples
def test_all_searches_obey_restrictions_alike(
    seed: int, config: SearchConfig, prefix: tuple[int, ...]
) -> None:
    prefixes = [prefix, (), prefix]
    natively = found_natively(seed, config, prefixes)
    assert natively == found_in_python(seed, config, prefixes)
    with (  # so that PyTorch finds the candidates, as on a GPU
        mock.patch.object(beam_search, "native_logits", return_value=None),
        mock.patch.object(native_search, "native_logits", return_value=None),
    ):
        assert_same(found_natively(seed, config, prefixes, as_tensor=True), natively)
        assert_same(found_in_python(seed, config, prefixes, as_tensor=True), natively)


@given(seed=st.integers(0, 30), config=searches)
@few_examples
def test_no_hypothesis_breaks_a_restriction(seed: int, config: SearchConfig) -> None:
    for several in found_natively(seed, config, [(), (), ()]):
        for ids in (each.ids for each in several):
            if n := config.no_repeat_ngram:
                ngrams = [ids[i : i + n] for i in range(len(ids) - n + 1)]
                assert len(set(ngrams)) == len(ngrams)
            for word in config.bad_words:
                starts = range(len(ids) - len(word) + 1)
                assert all(ids[i : i + len(word)] != word for i in starts)


def test_a_penalty_makes_loops_end() -> None:
    config = SearchConfig(beam_size=1)
    free = found_natively(1, config, [(), (), ()])[2][0].ids
    assert any(
        one == other for one, other in pairwise(zip(free, free[2:], strict=False))
    )
    config = SearchConfig(beam_size=1, repetition_penalty=3.0)
    penalized, *_ = found_natively(1, config, [(), (), ()])[2]
    assert len(set(penalized.ids)) > len(set(free))


def test_a_forced_prefix_may_repeat_itself() -> None:
    config = SearchConfig(beam_size=2, no_repeat_ngram=1, bad_words=((4,),))
    best, *_ = found_natively(3, config, [(4, 4, 4), (), ()])[0]
    assert best.ids[:3] == (4, 4, 4)
    rest = best.ids[3:]
    assert len({4, *rest}) == 1 + len(rest)


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("found", [found_natively, found_in_python])
def test_a_hypothesis_that_no_token_may_follow_is_truncated(
    beam_size: int, found: Callable[..., list[list[Hypothesis]]]
) -> None:
    config = SearchConfig(beam_size=beam_size, no_repeat_ngram=1, min_length=20)
    first, _, last = found(1, config, [(), (), ()])
    for best in (first[0], last[0]):
        assert sorted(best.ids) == sorted({*range(VOCAB_SIZE)} - {PAD, BOS, EOS})
        assert not best.is_finished
        assert np.isfinite(best.token_log_probabilities).all()
        assert sum(best.token_log_probabilities) == pytest.approx(best.log_probability)


def test_restrictions_leave_the_log_probabilities_of_other_tokens() -> None:
    logits = np.log(np.array([[[0.1, 0.2, 0.3, 0.4]]], dtype=np.float32))
    query = CandidateQuery(log_probabilities=np.zeros((1, 1)), count=4, excluded=(0,))
    found = find_by_torch(logits, query)
    config = SearchConfig(no_repeat_ngram=1)
    restricted = restrictions_after([[3]], config)
    rest = find_candidates(logits, replace(query, restrictions=restricted))
    assert found.tokens.tolist() == [[3, 2, 1, 0]]
    assert rest.tokens[0, :2].tolist() == [2, 1]
    assert rest.log_probabilities[0, 0] == pytest.approx(np.log(0.3), abs=1e-6)


# ---- Hugging Face ----------------------------------------------------------------


@pytest.fixture(scope="module", params=[0, 1, 2])
def peer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[MarianMTModel, Transformer, tuple[int, ...]]:
    """Random model of Hugging Face, the same here, and its ids by ours."""
    torch.manual_seed(request.param)
    folder: Path = tmp_path_factory.mktemp("peer") / "folder"
    config = MarianConfig(
        vocab_size=30, d_model=16, encoder_layers=1, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, scale_embedding=True, pad_token_id=29, eos_token_id=0,
        decoder_start_token_id=29, forced_eos_token_id=None, init_std=0.4,
        max_position_embeddings=64,
        activation_function="swish",
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    model.final_logits_bias[0, 29] = -1e4  # as here, where padding never comes
    model.save_pretrained(folder)
    ours = read_settings(folder)
    weights = read_weights(folder, ours)
    has_bias = "embedding.bias" in weights
    network = Transformer(replace(ours.model, output_bias=has_bias)).eval()
    network.load_state_dict(weights)
    return model, network, ours.source_ids


PEER_SETTINGS: list[dict[str, Any]] = [
    {},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3, "min_new_tokens": 12},
    {"repetition_penalty": 1.3, "min_new_tokens": 9},
    {"repetition_penalty": 0.8},
    {"bad_words_ids": [[29], *([i, 0] for i in range(1, 20))]},
    {"bad_words_ids": [[29], [5], [7, 3], [3, 4, 5]], "min_new_tokens": 9},
    {
        "no_repeat_ngram_size": 2,
        "repetition_penalty": 1.2,
        "bad_words_ids": [[29], [8]],
        "min_new_tokens": 5,
    },
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("asked", PEER_SETTINGS, ids=str)
def test_beams_equal_those_of_hugging_face(peer, asked: dict[str, Any]) -> None:
    model, network, ids = peer
    ours = {theirs: i for i, theirs in reversed(list(enumerate(ids)))}
    source, beam, most = [3, 9, 14, 0], 4, 20
    asked = {"bad_words_ids": [[29]], **asked}
    with torch.inference_mode():
        theirs = model.generate(
            torch.tensor([source]),
            num_beams=beam,
            num_return_sequences=beam,
            length_penalty=1.0,
            early_stopping=True,
            max_length=None,
            max_new_tokens=most,
            renormalize_logits=False,
            return_dict_in_generate=True,
            output_scores=True,
            **asked,
        )
    config = SearchConfig(
        beam_size=beam,
        num_best=beam,
        patience=1.0,
        penalty="power",
        length_penalty=1.0,
        min_length=asked.get("min_new_tokens", 0),
        no_repeat_ngram=asked.get("no_repeat_ngram_size", 0),
        repetition_penalty=asked.get("repetition_penalty", 1.0),
        bad_words=[[ours[i] for i in word] for word in asked["bad_words_ids"]],
    )
    memory = network.encode(torch.tensor([[ours[i] for i in source]]))

    class Reader:
        """The model as a decoder."""

        def __init__(self) -> None:
            self.state = network.start(memory)

        @torch.no_grad()
        def step(self, last: np.ndarray) -> torch.Tensor:
            return network.step(torch.from_numpy(last), self.state)

        def reorder(self, rows: np.ndarray) -> None:
            self.state.reorder(torch.from_numpy(rows))

    begun = start_search([most], config, EOS, (PAD, BOS))
    with torch.no_grad():
        [found] = run_search(Reader(), begun, BOS)
    expected = [
        [ours[i] for i in row if i not in (0, 29)]
        for row in theirs.sequences[:, 1:].tolist()
    ]
    assert [list(each.ids) for each in found] == expected
    for mine, score in zip(found, theirs.sequences_scores.tolist(), strict=True):
        assert mine.score == pytest.approx(score, abs=2e-3)


# ---- Settings --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"no_repeat_ngram": -1}, "`search.no_repeat_ngram` must be at least 0"),
        ({"repetition_penalty": 0.0}, "`search.repetition_penalty` must be above 0"),
        ({"repetition_penalty": float("nan")}, "must be above 0 and at most 1,000"),
        ({"bad_words": [3]}, "must be a list of lists of token ids"),
        ({"bad_words": [[]]}, "none of them empty"),
        ({"bad_words": [["Wort"]]}, "must be a list of lists of token ids"),
        ({"bad_words": [[-1]]}, "must be a list of lists of token ids"),
        ({"bad_words": "Wort"}, "must be a list of lists of token ids"),
    ],
)
def test_impossible_restrictions_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        SearchConfig(**settings)
