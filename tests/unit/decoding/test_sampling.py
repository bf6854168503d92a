"""Samples follow the model's distribution and depend on the seed alone."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from transduce.decoding.sampling import draw as draw_tokens
from transduce.decoding.sampling import sample
from transduce.decoding.search import Hypothesis
from transduce.decoding.torch_candidates import draw_by_torch
from transduce.errors import ConfigError
from transduce.search_config import SamplingConfig

BOS, EOS, A, B, C = range(5)
AFTER = torch.tensor(
    [
        [0.0, 0.1, 0.5, 0.3, 0.1],
        [0.0, 1.0, 0.0, 0.0, 0.0],
        [0.0, 0.7, 0.0, 0.3, 0.0],
        [0.0, 0.5, 0.5, 0.0, 0.0],
        [0.0, 0.2, 0.0, 0.0, 0.8],
    ]
).log()


class Chain:
    """Model whose next token depends only on the one before it."""

    def step(self, last_ids: np.ndarray) -> Tensor:
        return AFTER[torch.from_numpy(last_ids)]

    def reorder(self, rows: np.ndarray) -> None: ...


class NumpyChain(Chain):
    """The same, with logits in NumPy, as native decoders have them."""

    def step(self, last_ids: np.ndarray) -> np.ndarray:
        return super().step(last_ids).numpy()


CHAINS = {"torch": Chain, "numpy": NumpyChain}


def draw(
    numbers: Sequence[int] = (0,),
    max_lengths: Sequence[int] | None = None,
    chain: type[Chain] = Chain,
    **settings: Any,
) -> list[list[Hypothesis]]:
    return sample(
        chain(),
        max_lengths or [20] * len(numbers),
        [(number,) for number in numbers],
        SamplingConfig(**settings),
        bos=BOS,
        eos=EOS,
        excluded=(BOS,),
    )


def first_shares(**settings: Any) -> dict[int, float]:
    """Relative frequency of each token at the first place, over many samples."""
    count = 4_000
    [found] = draw(number=count, max_lengths=[1], **settings)
    firsts = Counter(h.ids[0] if h.ids else EOS for h in found)
    return {token: number / count for token, number in firsts.items()}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {EOS: 0.1, A: 0.5, B: 0.3, C: 0.1}),
        ({"top_k": 1}, {A: 1.0}),
        ({"top_k": 2}, {A: 5 / 8, B: 3 / 8}),
        ({"top_k": 99}, {EOS: 0.1, A: 0.5, B: 0.3, C: 0.1}),
        ({"top_p": 0.4}, {A: 1.0}),
        ({"top_p": 0.6}, {A: 5 / 8, B: 3 / 8}),
        ({"temperature": 0.01}, {A: 1.0}),
        ({"temperature": 0.5}, {EOS: 1 / 36, A: 25 / 36, B: 9 / 36, C: 1 / 36}),
        ({"temperature": 0.5, "top_p": 0.8}, {A: 25 / 34, B: 9 / 34}),
    ],
    ids=str,
)
def test_tokens_occur_with_their_probability(
    chain: type[Chain], settings: dict[str, Any], expected: dict[int, float]
) -> None:
    shares = first_shares(chain=chain, **settings)
    assert set(shares) == set(expected)
    for token, share in expected.items():
        # Four standard deviations.
        assert shares[token] == pytest.approx(
            share, abs=4 * math.sqrt(share * (1 - share) / 4_000) + 1e-9
        )


@pytest.mark.parametrize("top_k", [1, 3, 40])
def test_of_equal_tokens_the_first_are_among_the_likeliest(top_k: int) -> None:
    logits = torch.zeros(1, 1, 5_000)
    logits[..., 100:300] = 1.0
    chances = np.linspace(0.001, 0.999, 200)[None]
    config = SamplingConfig(top_k=top_k)
    by_torch, _ = draw_by_torch(logits, chances, config, ())
    by_numpy = draw_tokens(logits[0, 0].numpy(), chances[0], config)
    assert set(by_torch[0]) == set(by_numpy) == set(range(100, 100 + top_k))
    assert by_torch[0].tolist() == by_numpy.tolist()


@pytest.mark.parametrize("settings", [{}, {"top_k": 2}, {"top_p": 0.9}], ids=str)
def test_an_impossible_token_is_never_drawn(settings: dict[str, Any]) -> None:
    logits = torch.tensor([[[-math.inf, 1.0, 2.0, -math.inf]]])
    ends = np.array([[0.0, np.nextafter(1.0, 0.0)]])
    config = SamplingConfig(**settings)
    by_torch, _ = draw_by_torch(logits, ends, config, ())
    by_numpy = draw_tokens(logits[0, 0].numpy(), ends[0], config)
    # The likeliest come first if only they are drawn from.
    expected = [2, 1] if settings else [1, 2]
    assert by_numpy.tolist() == by_torch[0].tolist() == expected


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_log_probabilities_are_the_models_own(chain: type[Chain]) -> None:
    for found in draw(chain=chain, number=50, temperature=3.0, top_k=3)[0]:
        ids = [BOS, *found.ids, *([EOS] if found.is_finished else [])]
        gains = [float(AFTER[i, j]) for i, j in zip(ids, ids[1:], strict=False)]
        assert found.token_log_probabilities == pytest.approx(gains)
        assert found.score == found.log_probability == pytest.approx(sum(gains))


def test_samples_are_ranked_and_end_at_the_end_or_the_limit() -> None:
    [found] = draw(number=200, max_lengths=[3])
    scores = [h.score for h in found]
    assert scores == sorted(scores, reverse=True)
    assert {len(h.ids) for h in found if not h.is_finished} == {3}
    assert max(len(h.ids) for h in found if h.is_finished) <= 2


def test_a_sentences_samples_do_not_depend_on_the_batch() -> None:
    together = draw([7, 3, 9, 3], number=3)
    assert together[1] == together[3] == draw([3], number=3)[0]
    assert together[0] == draw([7], number=3)[0]


def test_the_seed_decides_the_samples() -> None:
    assert draw(number=20, seed=5) == draw(number=20, seed=5)
    assert draw(number=20, seed=5) != draw(number=20, seed=6)


@pytest.mark.parametrize(
    ("setting", "value", "bound"),
    [
        ("number", 0, "at least 1, but is 0"),
        ("number", None, "a whole number, but is None"),
        ("top_k", 0, "at least 1, but is 0"),
        ("top_k", 1.5, "a whole number or none, but is 1.5"),
        ("temperature", 0.0, "at least 0.001, but is 0.0"),
        ("temperature", math.nan, "at least 0.001, but is nan"),
        ("top_p", 0.0, "above 0 and at most 1, but is 0.0"),
        ("top_p", 1.1, "above 0 and at most 1, but is 1.1"),
        ("extra_length", -1, "at least 0, but is -1"),
        ("seed", -1, "at least 0, but is -1"),
        (
            "seed",
            2**70,
            "at most 9,223,372,036,854,775,807, but is 1180591620717411303424",
        ),
        ("number", 10**9, "at most 100,000, but is 1000000000"),
        ("top_k", 10**12, "at most 10,000,000, but is 1000000000000"),
        ("extra_length", 10**12, "at most 100,000, but is 1000000000000"),
        ("temperature", 1e-300, "at least 0.001, but is 1e-300"),
        ("temperature", 1e300, "at most 1,000, but is 1e[+]300"),
    ],
)
def test_an_impossible_setting_is_refused(
    setting: str, value: float, bound: str
) -> None:
    with pytest.raises(ConfigError, match=f"`{setting}` must be {bound}"):
        SamplingConfig(**{setting: value})


def test_sampling_does_not_modify_the_logits() -> None:
    before = AFTER.clone()

    class Keeper(Chain):
        def step(self, last_ids: np.ndarray) -> Tensor:
            assert last_ids.shape == (1, 1)
            return AFTER[None, :1]

    sample(Keeper(), [1], [(0,)], SamplingConfig(), bos=BOS, eos=EOS, excluded=(BOS, A))
    assert torch.equal(AFTER, before)
