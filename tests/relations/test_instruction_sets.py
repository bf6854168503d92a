"""With each instruction set, translations equal those of the PyTorch model."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from beam_kinds import start_beam_search
from instruction_sets import packed_weights
from native_reading import after
from transduce.data.tensors import pad_rows
from transduce.decoding.beam_search import CandidateQuery, find_candidates
from transduce.decoding.native_decoder import NativeModel
from transduce.decoding.search import (
    Hypothesis,
    JoinableDecoder,
    RunningSearch,
    SearchTask,
    search_in_batches,
)
from transduce.decoding.torch_candidates import find_by_torch
from transduce.decoding.torch_decoder import TorchDecoder
from transduce.decoding.torch_model import PackedLinear
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.native import api, library, string
from transduce.search_config import SearchConfig
from transduce.text.vocabulary import BOS, EOS, PAD

pytestmark = pytest.mark.skipif(api() is None, reason="no native library")

LENGTHS = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33)
"""Lengths of sources just below, at and above the widths of vectors."""
TARGET = 12


def names() -> list[str]:
    """Return the instruction sets in the library."""
    loaded = library()
    return [] if loaded is None else string(loaded.td_isa_names()).split()


@pytest.fixture(params=names())
def isa(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    loaded = library()
    assert loaded is not None
    if not loaded.td_load_isa(request.param.encode()):
        pytest.skip("this processor cannot run it")
    monkeypatch.setenv("TRANSDUCE_ISA", request.param)
    api.cache_clear()
    yield request.param
    monkeypatch.undo()
    api.cache_clear()


@pytest.fixture
def model(tiny: ModelConfig) -> Transformer:
    """Model with more tokens than one pass of top-k, and narrow heads."""
    torch.manual_seed(5)
    config = replace(tiny, vocab_size=1_100, d_model=64, d_ff=72, d_k=20, d_v=56)
    made = Transformer(config).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return made


def found(sources: list[list[int]], model: JoinableDecoder) -> list[Hypothesis]:
    """Best hypothesis of each source."""
    search = start_beam_search([TARGET] * len(sources), SearchConfig(), EOS, (PAD, BOS))
    task = SearchTask(
        sentences=sources,
        lengths=[1] * len(sources),
        capacity=len(sources),
        start=lambda _, __: RunningSearch(model, search, BOS),
    )
    each = dict(pair for done in search_in_batches(task, None) for pair in done)
    return [each[i][0] for i in range(len(sources))]


@torch.no_grad()
def test_translations_equal_those_of_the_pytorch_model(
    isa: str, model: Transformer
) -> None:
    used = api()
    assert used is not None
    assert string(used.isa) == isa
    rng = torch.Generator().manual_seed(2)
    sources = [
        [*torch.randint(3, 1_100, (n - 1,), generator=rng).tolist(), EOS]
        for n in LENGTHS
    ]
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    native = NativeModel(model.config, weights, "fp32")
    memory = model.encode(pad_rows(sources))
    by_modules = found(sources, TorchDecoder(model, memory))
    natively = found(sources, after(native, sources))
    for ours, theirs in zip(natively, by_modules, strict=True):
        assert ours.ids == theirs.ids
        assert ours.log_probability == pytest.approx(theirs.log_probability, rel=1e-4)


@pytest.mark.parametrize("count", [1, 9, 40])
def test_the_best_tokens_equal_pytorchs(isa: str, count: int) -> None:
    rng = torch.Generator().manual_seed(3)
    logits = 30 * torch.randn(6, 2, 1_100, generator=rng)
    logits[1, :, ::3] = -torch.inf
    logits[2, :, 5:] -= 200  # their exponentials are zero, or nearly
    logits[3, 1, 700] = torch.nan
    logits[4, 0] = -torch.inf
    logits[5, 1, 1_000:] += 100
    totals = -torch.rand(6, 2, generator=rng, dtype=torch.float64).numpy()
    never = [0, 4, 700]
    query = CandidateQuery(log_probabilities=totals, count=count, excluded=never)
    ours = find_candidates(logits.numpy(), query)
    theirs = find_by_torch(logits, query)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
    is_there = np.isfinite(theirs[0])
    for one, other in zip(ours[1:], theirs[1:], strict=True):
        assert (one == other)[is_there].all()


def test_linear_maps_equal_pytorchs(isa: str) -> None:
    rng = np.random.default_rng(4)
    weight, x = rng.normal(size=(70, 33)), rng.normal(size=(13, 33)).astype(np.float32)
    bias = rng.normal(size=70)
    found = PackedLinear(weight, bias, "fp32")(x)
    np.testing.assert_allclose(found, x @ weight.T + bias, rtol=1e-6, atol=1e-5)
    x[:, :2] = 0.0, 255.0  # so that quantization is exact
    x[:, 2:] = (30 * x[:, 2:]).round().clip(0, 255)
    packed = PackedLinear(weight, bias, "int8")
    rounded = packed_weights(weight.astype(np.float32), packed.scales())
    np.testing.assert_allclose(packed(x), x @ rounded.T + bias, rtol=1e-5, atol=1e-3)
