"""Implementations agree on models, searches and sentences that are drawn at random.

Hypothesis draws the same ones in each run, and finds the smallest that fail.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from small_rivals import RIVALS
from transduce.architectures.config import ArchitectureConfig
from transduce.architectures.interface import TransductionModel
from transduce.checkpoint import build
from transduce.data.tensors import Batch, pad_rows
from transduce.decoding.beam_search import BeamSearch, GreedySearch
from transduce.decoding.native_decoder import NativeModel
from transduce.decoding.native_search import NativeGreedySearch, NativeSearch
from transduce.decoding.search import (
    Decoder,
    Hypothesis,
    JoinableDecoder,
    Search,
    coverage_of,
    run_search,
)
from transduce.decoding.torch_model import TorchModel, prepare_model, score_targets
from transduce.device import Hardware
from transduce.model.config import ModelConfig
from transduce.native import api
from transduce.nn.fuse import fuse
from transduce.search_config import SearchConfig
from transduce.text.vocabulary import BOS, EOS, PAD
from transduce.training.loss import BatchLoss

CPU = torch.device("cpu")
FEWEST_TOKENS = 8
"""Size of the smallest vocabulary; all sentences have ids below."""
examples = settings(max_examples=20, deadline=None, derandomize=True, database=None)
tokens = st.integers(EOS + 1, FEWEST_TOKENS - 1)
seeds = st.integers(0, 1_000)
sentences = st.lists(st.lists(tokens, max_size=12), min_size=1, max_size=4)


@st.composite
def transformers(draw: st.DrawFn) -> ModelConfig:
    """Draw settings of small Transformers of all kinds, also of odd sizes."""
    one_of = st.sampled_from
    positions = draw(one_of(["sinusoidal", "learned"]))
    # Half of the widths are those of the native functions for training.
    wide = {"d_model": one_of([16, 32]), "d_ff": one_of([16, 48])}
    wide |= {"d_k": st.just(16), "d_v": one_of([16, 32])}
    odd = {"d_model": st.integers(2, 35), "d_ff": st.integers(1, 70)}
    odd |= {"d_k": st.integers(1, 20), "d_v": st.integers(1, 20)}
    sizes = {n: draw(each) for n, each in draw(one_of([wide, odd])).items()}
    if positions == "sinusoidal":
        sizes["d_model"] += sizes["d_model"] % 2
    return draw(
        st.builds(
            ModelConfig,
            vocab_size=st.integers(FEWEST_TOKENS, 70),
            target_vocab_size=st.none() | st.integers(FEWEST_TOKENS, 70),
            num_layers=st.integers(1, 2),
            decoder_layers=one_of([None, 1, 3]),
            num_heads=st.integers(1, 3),
            dropout=st.just(0.0),
            positions=st.just(positions),
            max_positions=one_of([1, 5, 100]),
            position_base=one_of([2.5, 10_000.0]),
            norm=one_of(["post", "pre"]),
            scores=one_of(["scaled", "unscaled", "additive"]),
            activation=one_of(["relu", "silu"]),
            neighbourhood=one_of([None, 1, 3]),
            decoder_self_attention=one_of(["attention", "ssru"]),
            output_bias=st.booleans(),
            tied_output=st.booleans(),
            learned_start=st.booleans(),
            **{n: st.just(each) for n, each in sizes.items()},
        )
    )


@st.composite
def searches(draw: st.DrawFn) -> SearchConfig:
    """Draw searches, also with beams wider than the smallest vocabularies."""
    beam_size = draw(st.sampled_from([1, 2, 4, 9]))
    several: dict[str, st.SearchStrategy] = {}
    if beam_size > 1:
        several = {
            "num_best": st.integers(1, beam_size),
            "patience": st.sampled_from([None, 0.3, 1.0, 2.0]),
            "coverage_penalty": st.sampled_from([0.0, 0.0, 0.4]),
            "diversity": st.sampled_from([0.0, 0.0, 0.5]),
        }
    words = st.lists(tokens, min_size=1, max_size=3)
    return draw(
        st.builds(
            SearchConfig,
            beam_size=st.just(beam_size),
            length_penalty=st.sampled_from([0.0, 0.6, 2.0]),
            penalty=st.sampled_from(["gnmt", "power"]),
            min_length=st.sampled_from([0, 0, 3]),
            extra_length=st.sampled_from([0, 6]),
            max_length=st.sampled_from([None, 4, 9]),
            no_repeat_ngram=st.sampled_from([0, 0, 1, 2]),
            repetition_penalty=st.sampled_from([1.0, 1.0, 0.5, 1.5]),
            bad_words=st.just(()) | st.lists(words, max_size=3).map(tuple),
            **several,
        )
    )


def drawn_model(config: ArchitectureConfig, seed: int, std: float) -> TransductionModel:
    """Return a model whose biases are random too, and whose choices are clear."""
    torch.manual_seed(seed)
    model = build(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(std * torch.randn_like(weight))
    return model


def ended(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    return [[*row, EOS] for row in rows]


def found_by(
    model: NativeModel | TorchModel,
    sources: Sequence[Sequence[int]],
    config: SearchConfig,
    prefix: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Search by the library alone, or by PyTorch and numpy."""
    least = len(prefix) + 1
    limits = [config.limit(len(source) + 1, least) for source in sources]
    decoder: JoinableDecoder = model.start(
        model.encode(ended(sources)), sum_attention=config.coverage_penalty > 0
    )
    is_native = isinstance(model, NativeModel)
    search = new_search(decoder, limits, config, [prefix] * len(sources), is_native)
    return run_search(decoder, search, BOS)


def new_search(
    decoder: Decoder,
    limits: Sequence[int],
    config: SearchConfig,
    prefixes: Sequence[Sequence[int]],
    is_native: bool,
) -> Search:
    arguments = limits, config, EOS, (PAD, BOS), prefixes
    if config.beam_size == 1:
        return (NativeGreedySearch if is_native else GreedySearch)(*arguments)
    kind = NativeSearch if is_native else BeamSearch
    return kind(*arguments, coverage_of(decoder, config))


def assert_same(
    found: Sequence[Sequence[Hypothesis]], expected: Sequence[Sequence[Hypothesis]]
) -> None:
    """Compare hypotheses, up to rounding of their log-probabilities."""
    for beam, other in zip(found, expected, strict=True):
        assert [each.ids for each in beam] == [each.ids for each in other]
        for ours, theirs in zip(beam, other, strict=True):
            assert ours.is_finished == theirs.is_finished
            assert ours.score == pytest.approx(theirs.score, rel=1e-3, abs=1e-3)
            assert ours.token_log_probabilities == pytest.approx(
                theirs.token_log_probabilities, rel=1e-3, abs=1e-3
            )


def native(model: TransductionModel) -> NativeModel:
    assert isinstance(model.config, ModelConfig)
    weights = {n: each.numpy().copy() for n, each in model.state_dict().items()}
    return NativeModel(model.config, weights, "fp32")


@pytest.mark.skipif(api() is None, reason="there is no native library")
@given(
    config=transformers(),
    seed=seeds,
    sources=sentences,
    search=searches(),
    prefix=st.just([]) | st.lists(tokens, max_size=3),
)
@examples
def test_the_library_and_pytorch_find_the_same_alone_and_in_a_batch(
    config: ModelConfig,
    seed: int,
    sources: list[list[int]],
    search: SearchConfig,
    prefix: list[int],
) -> None:
    model = drawn_model(config, seed, std=0.3)
    library, torch_model = native(model), prepare_model(deepcopy(model), "fp32", CPU)
    found = found_by(library, sources, search, prefix)
    assert_same(found, found_by(torch_model, sources, search, prefix))
    for source, beam in zip(sources, found, strict=True):
        assert found_by(library, [source], search, prefix) == [beam]
        scores = [each.score for each in beam]
        assert scores == sorted(scores, reverse=True)
        assert len({(each.ids, each.is_finished) for each in beam}) == len(beam) > 0


@given(
    config=transformers() | st.sampled_from(list(RIVALS.values())),
    seed=seeds,
    sources=sentences,
    search=searches(),
)
@examples
def test_a_whole_target_has_the_log_probabilities_of_its_search(
    config: ArchitectureConfig,
    seed: int,
    sources: list[list[int]],
    search: SearchConfig,
) -> None:
    model = drawn_model(config, seed, std=0.2)
    penalty = search.coverage_penalty if config.has_cross_attention else 0.0
    search = replace(search, repetition_penalty=1.0, coverage_penalty=penalty)
    found = found_by(prepare_model(deepcopy(model), "fp32", CPU), sources, search)
    for source, beam in zip(ended(sources), found, strict=True):
        for hypothesis in beam:
            ids = [list(hypothesis.ids)]
            [score] = score_targets(model, pad_rows([source]), ids)
            length = len(hypothesis.token_log_probabilities)
            assert hypothesis.token_log_probabilities == pytest.approx(
                score.token_log_probabilities[:length], rel=1e-3, abs=1e-3
            )
            assert length == len(hypothesis.ids) + hypothesis.is_finished


def gradients(model: TransductionModel, loss: Tensor) -> dict[str, Tensor]:
    """Return the gradients by name; those that do not exist are zeros."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(
        loss, parameters, allow_unused=True, materialize_grads=True
    )
    return dict(zip(names, found, strict=True))


@given(
    config=transformers() | st.sampled_from(list(RIVALS.values())),
    seed=seeds,
    pairs=st.lists(
        st.tuples(st.lists(tokens, max_size=12), st.lists(tokens, max_size=12)),
        min_size=1,
        max_size=4,
    ),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
)
@examples
@torch.enable_grad()
def test_a_fused_model_has_the_loss_and_gradients_of_the_formula_in_fp64(
    config: ArchitectureConfig,
    seed: int,
    pairs: list[tuple[list[int], list[int]]],
    smoothing: float,
) -> None:
    model = drawn_model(config, seed, std=0.1)
    batch = Batch(
        source=pad_rows(ended([source for source, _ in pairs])),
        target_in=pad_rows([[BOS, *target] for _, target in pairs]),
        target_out=pad_rows(ended([target for _, target in pairs])),
    )
    exact = deepcopy(model).double()
    states = exact.decode(batch.target_in, exact.encode(batch.source))
    is_token = batch.target_out != PAD
    expected = torch.nn.functional.cross_entropy(
        exact.logits(states)[is_token],
        batch.target_out[is_token],
        label_smoothing=smoothing,
        reduction="sum",
    )
    fused = fuse(model)
    hardware = Hardware(device=CPU, dtype=torch.float32)
    loss = BatchLoss(fused, smoothing, hardware)(batch).smoothed
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    found, formula = gradients(fused, loss), gradients(exact, expected)
    largest = max(float(each.abs().max()) for each in formula.values())
    for name, each in formula.items():
        # Rounding is relative to a weight's own gradient, or to what cancels out in it.
        tolerance = 1e-3 * float(each.abs().max()) + 1e-6 * largest
        assert float((found[name] - each).abs().max()) <= tolerance, name
