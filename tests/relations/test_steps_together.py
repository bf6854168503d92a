"""Steps that a kernel takes together with a search are those taken one by one."""

from itertools import chain
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.decoding.beam_search import BeamSearch
from transduce.decoding.greedy_search import GreedySearch
from transduce.decoding.hypotheses import Hypothesis
from transduce.decoding.kernels.compiled_beams import CompiledBeams
from transduce.decoding.kernels.library import kernels
from transduce.decoding.next_token_models import compiled_stacks
from transduce.decoding.next_token_models.compiled_stacks import (
    CompiledDecoder,
    CompiledStack,
)
from transduce.decoding.next_token_models.prepared_model import PreparedModel, prepared
from transduce.decoding.search import Decoding
from transduce.decoding.streaming.refilled_batch import search_in_steps
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search_config import SearchConfig
from transduce.special_ids import BOS, EOS, PAD

pytestmark = pytest.mark.skipif(kernels() is None, reason="there are no kernels")

NUM_SENTENCES = 12
searches = st.builds(
    SearchConfig,
    beam_size=st.sampled_from([1, 2, 4]),
    patience=st.sampled_from([None, 0.6, 1.0, 2.0]),
    length_penalty=st.sampled_from([0.0, 1.0]),
    diversity=st.sampled_from([0.0, 0.4]),
    min_length=st.sampled_from([0, 3, 50]),
)


@pytest.fixture(scope="module")
def ready() -> PreparedModel:
    torch.manual_seed(3)
    config = ModelConfig(
        vocab_size=20,
        d_model=16,
        d_ff=32,
        num_heads=2,
        d_k=8,
        d_v=8,
        num_layers=2,
    )
    model = Transformer(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return prepared(model, "fp32", torch.device("cpu"))


@pytest.fixture(autouse=True, scope="module")
def stores_without_numbers():
    """What nobody has written shows if it is read."""
    new_caches = CompiledStack._new_caches

    def without_numbers(*args):
        layers = new_caches(*args)
        for layer in layers:
            layer.key.fill_(torch.nan)
            layer.value.fill_(torch.nan)
        return layers

    with mock.patch.object(CompiledStack, "_new_caches", without_numbers):
        yield


def found(
    ready: PreparedModel, config: SearchConfig, seed: int, longest: int, prefix: int
) -> list[list[Hypothesis]]:
    """Of some sentences, in a batch that others join as soon as there is room."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 7, (NUM_SENTENCES,), generator=rng).tolist()
    sources = torch.randint(3, 20, (NUM_SENTENCES, 7), generator=rng)
    limits = torch.randint(1, longest, (NUM_SENTENCES,), generator=rng).tolist()
    kind = GreedySearch if config.beam_size == 1 else BeamSearch

    def begin(numbers: list[int]) -> Decoding:
        width = max(lengths[i] for i in numbers)
        rows = sources[numbers, :width].clone()
        for row, i in enumerate(numbers):
            rows[row, lengths[i] :] = PAD
        prefixes = [
            [3 + i, *range(4, 4 + i)] if i % 3 == prefix else [] for i in numbers
        ]
        search = kind([limits[i] for i in numbers], config, EOS, (PAD, BOS), prefixes)
        return Decoding(ready.read(rows), search, BOS)

    each = dict(chain.from_iterable(search_in_steps(lengths, 24, begin)))
    return [each[i] for i in range(NUM_SENTENCES)]


@given(
    config=searches,
    seed=st.integers(0, 99),
    longest=st.sampled_from([6, 30, 90]),
    prefix=st.sampled_from([0, 2, 3]),
    most_rows=st.sampled_from([1, 60, 1024]),
)
@settings(max_examples=60, deadline=None)
def test_they_find_what_single_steps_find(
    ready, config, seed, longest, prefix, most_rows
):
    asked = (ready, config, seed, longest, prefix)
    taken = []
    grown = CompiledBeams.grown

    def noted(beams, steps):
        taken.append(steps.taken)
        return grown(beams, steps)

    with (
        mock.patch.object(CompiledBeams, "grown", noted),
        mock.patch.object(compiled_stacks, "MOST_ROWS", most_rows),
    ):
        together = found(*asked)
    with mock.patch.object(CompiledDecoder, "take_steps", return_value=None):
        one_by_one = found(*asked)
    assert together == one_by_one
    if most_rows == 1:
        assert max(taken, default=1) == 1
    if most_rows == 1024 and longest == 90:
        assert max(taken) > 1


@torch.no_grad()
def test_who_looks_on_in_between_changes_nothing(ready):
    config, sources = SearchConfig(beam_size=3), torch.randint(3, 20, (4, 5))

    def decoding() -> Decoding:
        search = BeamSearch([70] * 4, config, EOS, (PAD, BOS, EOS))
        return Decoding(ready.read(sources), search, BOS)

    alone, watched = decoding(), decoding()
    kept = list(alone.search.live), list(watched.search.live)
    alone.finish()
    tap = ready.model.decoder_layers[0].memory_attention.weights_tap
    with mock.patch.object(compiled_stacks, "MOST_ROWS", 4 * 3 * 4):
        for step in range(60):
            if not watched.search.live:
                break
            hook = tap.register_forward_hook(lambda *_: None) if step % 3 else None
            model = watched._model
            last_ids = model.take_steps(watched._last_ids, watched.search)
            assert (last_ids is None) == (hook is not None or step == 0)
            if last_ids is None:
                watched.advance()
            else:
                watched._last_ids = last_ids
            if hook is not None:
                hook.remove()
    for one, other in zip(*kept, strict=True):
        [ours, theirs] = one.hypotheses()[0], other.hypotheses()[0]
        assert ours.ids == theirs.ids
        assert ours.log_probability == pytest.approx(theirs.log_probability, rel=1e-4)
