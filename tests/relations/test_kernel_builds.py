"""By the kernels of each build, translations are those by the modules."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from compiled_reading import after
from transduce.decoding.beam_search import begin_beam_search
from transduce.decoding.candidates import find_candidates
from transduce.decoding.candidates_by_torch import find_by_torch
from transduce.decoding.compiled.compiled_model import CompiledModel, padded_sources
from transduce.decoding.hypotheses import Hypothesis
from transduce.decoding.kernels.library import kernels, loaded_kernels
from transduce.decoding.next_token_models.incremental import IncrementalDecoder
from transduce.decoding.next_token_models.ready_model import PACKS
from transduce.decoding.search import Decoding, JoinableModel
from transduce.decoding.streaming.refilled_batch import search_in_steps
from transduce.kernels import loading
from transduce.kernels.loading import BUILDS
from transduce.machine import processor_flags
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search_config import SearchConfig
from transduce.special_ids import BOS, EOS, PAD

pytestmark = pytest.mark.skipif(kernels() is None, reason="there are no kernels")

LENGTHS = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33)
"""Of sources: on both sides of what kernels take at once."""
TARGET = 12


@pytest.fixture(params=BUILDS)
def build(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    if not BUILDS[request.param] <= processor_flags():
        pytest.skip("this processor cannot run it")
    monkeypatch.setattr(loading, "processor_flags", lambda: BUILDS[request.param])
    kernels.cache_clear()
    yield request.param
    kernels.cache_clear()


@pytest.fixture
def model(tiny: ModelConfig) -> Transformer:
    """Its tokens are more than are seen at once, its heads no whole registers."""
    torch.manual_seed(5)
    config = replace(tiny, vocab_size=1_100, d_model=64, d_ff=72, d_k=20, d_v=56)
    made = Transformer(config).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return made


def found(sources: list[list[int]], model: JoinableModel) -> list[Hypothesis]:
    """The best of each source."""
    search = begin_beam_search([TARGET] * len(sources), SearchConfig(), EOS, (PAD, BOS))
    steps = search_in_steps(
        [1] * len(sources), len(sources), lambda _: Decoding(model, search, BOS)
    )
    each = dict(pair for done in steps for pair in done)
    return [each[i][0] for i in range(len(sources))]


@torch.no_grad()
def test_they_are_those_by_the_modules(build: str, model: Transformer) -> None:
    assert Path(loaded_kernels()._name).name.startswith(f"{build}.")
    rng = torch.Generator().manual_seed(2)
    sources = [
        [*torch.randint(3, 1_100, (n - 1,), generator=rng).tolist(), EOS]
        for n in LENGTHS
    ]
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    compiled = CompiledModel(model.config, weights, PACKS["fp32"])
    memory = model.encode(torch.from_numpy(padded_sources(sources)))
    by_modules = found(sources, IncrementalDecoder(model, memory, model.step))
    by_kernels = found(sources, after(compiled, sources))
    for ours, theirs in zip(by_kernels, by_modules, strict=True):
        assert ours.ids == theirs.ids
        assert ours.log_probability == pytest.approx(theirs.log_probability, rel=1e-4)


@pytest.mark.parametrize("count", [1, 9, 40])
def test_the_best_tokens_are_those_by_pytorch(build: str, count: int) -> None:
    rng = torch.Generator().manual_seed(3)
    logits = 30 * torch.randn(6, 2, 1_100, generator=rng)
    logits[1, :, ::3] = -torch.inf
    logits[2, :, 5:] -= 200  # whose exponentials are zero, or nearly
    logits[3, 1, 700] = torch.nan
    logits[4, 0] = -torch.inf
    logits[5, 1, 1_000:] += 100
    totals = -torch.rand(6, 2, generator=rng, dtype=torch.float64).numpy()
    never = [0, 4, 700]
    ours = find_candidates(logits.numpy(), totals, count, never)
    theirs = find_by_torch(logits, totals, count, never, None, 0.0)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
    is_there = np.isfinite(theirs[0])
    for one, other in zip(ours[1:], theirs[1:], strict=True):
        assert (one == other)[is_there].all()
