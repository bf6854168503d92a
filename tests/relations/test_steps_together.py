"""Several native steps in one call find what single steps find."""

import ctypes
import math
import platform
from itertools import chain
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from native_reading import after
from transduce.decoding import native_decoder
from transduce.decoding.native_decoder import NativeDecoder, NativeModel
from transduce.decoding.native_search import NativeGreedySearch, NativeSearch
from transduce.decoding.search import (
    Hypothesis,
    RunningSearch,
    SearchTask,
    search_in_batches,
)
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.native import api
from transduce.search_config import SearchConfig
from transduce.text.vocabulary import BOS, EOS, PAD

pytestmark = pytest.mark.skipif(api() is None, reason="no native library")

M_PERTURB = -6
"""Option of glibc's malloc: the complement of a byte fills new memory."""
ALL_BITS = 2**8
"""Value whose lowest byte is zero; zero itself would switch the option off."""
NUM_SENTENCES = 12
SEEN_FIRST = 512
"""Number of logits above which top-k works tile by tile."""
searches = st.builds(
    lambda beam_size, coverage_penalty, **others: SearchConfig(
        beam_size=beam_size,
        coverage_penalty=coverage_penalty if beam_size > 1 else 0.0,
        **others,
    ),
    beam_size=st.sampled_from([1, 2, 3, 4, 5, 8]),
    patience=st.sampled_from([None, 0.6, 1.0, 2.0]),
    length_penalty=st.sampled_from([0.0, 1.0]),
    diversity=st.sampled_from([0.0, 0.4]),
    min_length=st.sampled_from([0, 3, 50]),
    coverage_penalty=st.sampled_from([0.0, 0.0, 0.7]),
    no_repeat_ngram=st.sampled_from([0, 0, 1, 2, 3]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.7]),
    bad_words=st.sampled_from([(), ((7,),), ((5,), (8, 9), (9, 8, 7))]),
)


@pytest.fixture(
    scope="module",
    params=[
        (20, 16, "fp32", 1),
        (512, 64, "int8", 1),
        (513, 64, "int8", 1),
        (2_500, 64, "int8", 1),
        (2_500, 64, "int8", 1_000),
        (2_500, 64, "int8", math.nan),
    ],
    ids=[
        "few tokens",
        "as many as are seen first",
        "one more",
        "more",
        "the last far above the first",
        "the last no numbers",
    ],
)
def ready(request: pytest.FixtureRequest) -> NativeModel:
    torch.manual_seed(3)
    vocab_size, d_model, precision, last_scale = request.param
    config = ModelConfig(
        vocab_size=vocab_size,
        d_model=d_model,
        d_ff=2 * d_model,
        num_heads=2,
        d_k=8,
        d_v=8,
        num_layers=2,
    )
    model = Transformer(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
        if vocab_size > 2_000:
            model.embedding.weight[2_000:] *= last_scale
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    return NativeModel(config, weights, precision)


@pytest.fixture(autouse=True, scope="module")
def memory_without_numbers():
    """Let glibc fill new memory with NaN, so that reads of it are noticed."""
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_PERTURB, ALL_BITS)
    yield
    libc.mallopt(M_PERTURB, 0)


def found(
    ready: NativeModel, config: SearchConfig, seed: int, longest: int, prefix: int
) -> list[list[Hypothesis]]:
    """Hypotheses of random sentences in a batch that others join at free capacity."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 20, (NUM_SENTENCES,), generator=rng).tolist()
    sources = torch.randint(3, 20, (NUM_SENTENCES, 20), generator=rng).tolist()
    limits = torch.randint(1, longest, (NUM_SENTENCES,), generator=rng).tolist()
    is_covered = config.coverage_penalty > 0

    def start(_: None, numbers: list[int]) -> RunningSearch:
        rows = [sources[i][: lengths[i]] for i in numbers]
        last = ready.config.vocab_size - 1
        prefixes = [
            [last - i, *range(4, 4 + i)] if i % 3 == prefix else [] for i in numbers
        ]
        decoder = after(ready, rows, sum_attention=is_covered)
        asked = [limits[i] for i in numbers], config, EOS, (PAD, BOS), prefixes
        if config.beam_size == 1:
            return RunningSearch(decoder, NativeGreedySearch(*asked), BOS)
        coverage = decoder.coverage if is_covered else None
        return RunningSearch(decoder, NativeSearch(*asked, coverage), BOS)

    task = SearchTask(
        sentences=range(NUM_SENTENCES), lengths=lengths, capacity=80, start=start
    )
    each = dict(chain.from_iterable(search_in_batches(task, None)))
    return [each[i] for i in range(NUM_SENTENCES)]


def assert_alike(
    found: list[list[Hypothesis]], expected: list[list[Hypothesis]]
) -> None:
    """Compare up to last digits: AMX sums exponentials in another order."""
    for mine, theirs in zip(found, expected, strict=True):
        assert [each.ids for each in mine] == [each.ids for each in theirs]
        for one, other in zip(mine, theirs, strict=True):
            assert one.is_finished == other.is_finished
            assert one.score == pytest.approx(
                other.score, rel=1e-5, abs=1e-5, nan_ok=True
            )
            np.testing.assert_allclose(
                one.token_log_probabilities,
                other.token_log_probabilities,
                rtol=1e-5,
                atol=1e-5,
            )


@given(
    config=searches,
    seed=st.integers(0, 99),
    longest=st.sampled_from([6, 30, 90]),
    prefix=st.sampled_from([0, 2, 3]),
    most_rows=st.sampled_from([1, 60, 1024]),
)
@settings(max_examples=60)
def test_several_steps_in_one_call_find_what_single_steps_find(
    ready, config, seed, longest, prefix, most_rows
):
    asked = (ready, config, seed, longest, prefix)
    taken = []
    run = NativeSearch.run

    def noted(search, decoder, last_ids, max_steps, few):
        taken.append(max_steps)
        return run(search, decoder, last_ids, max_steps, few)

    with (
        mock.patch.object(NativeSearch, "run", noted),
        mock.patch.object(native_decoder, "MAX_ROWS", most_rows),
    ):
        together = found(*asked)
    with mock.patch.object(NativeDecoder, "take_steps", return_value=None):
        one_by_one = found(*asked)
    if ready.config.vocab_size > SEEN_FIRST:
        assert_alike(together, one_by_one)
    else:
        assert together == one_by_one
    if most_rows == 1:
        assert max(taken, default=1) == 1
    if most_rows == 1024 and longest == 90:
        assert max(taken) > 1


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_mask_that_changes_holds_at_each_step(ready, beam_size):
    steps = []

    def even_or_odd() -> np.ndarray:
        """Excludes all but even ids after even steps and odd ids after odd ones."""
        group = beam_size if steps else 1
        mask = np.zeros((4, group, ready.config.vocab_size), dtype=np.uint8)
        mask[..., 1 - len(steps) % 2 :: 2] = 1
        mask[..., [PAD, BOS, EOS]] = 1
        steps.append(group)
        return mask

    config = SearchConfig(beam_size=beam_size)
    kind = NativeGreedySearch if beam_size == 1 else NativeSearch
    search = kind([6] * 4, config, EOS, even_or_odd)
    sentences = search.live
    running = RunningSearch(after(ready, [[5, 6], [7, 8], [5], [9]]), search, BOS)
    while search.live:
        running.step_until_some_are_done()
    for sentence in sentences:
        for each in sentence.hypotheses:
            assert [token % 2 for token in each.ids] == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("few", [0, 1, 2, 3])
@pytest.mark.parametrize("beam_size", [1, 2])
def test_one_call_takes_steps_until_few_sentences_are_left(ready, few, beam_size):
    config = SearchConfig(beam_size=beam_size, min_length=50)
    kind = NativeGreedySearch if beam_size == 1 else NativeSearch
    search = kind([2, 3, 4, 4], config, EOS, (PAD, BOS))
    running = RunningSearch(after(ready, [[5, 6]] * 4), search, BOS)
    running.step()
    running.step_until_some_are_done(few)
    # The last two sentences leave together.
    assert len(search.live) == (few if few > 1 else 0)
    if search.live:
        running.step()  # a single step after several in one call
        while search.live:
            running.step_until_some_are_done()
    assert not search.live
