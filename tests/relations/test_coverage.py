"""Coverage by step equals the attention of a pass over the whole target."""

import math
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest
import torch
from torch import Tensor

from instruction_sets import chosen_isa
from transduce.decoding.beam_search import beam_search
from transduce.decoding.native_decoder import NativeModel
from transduce.decoding.torch_decoder import (
    FusedStep,
    TorchCoverageDecoder,
    TorchDecoder,
)
from transduce.decoding.translator import Translator
from transduce.errors import RequestError
from transduce.model.transformer import Transformer
from transduce.native import api
from transduce.search_config import SearchConfig
from transduce.text.vocabulary import BOS, EOS, PAD

CPU = torch.device("cpu")
SOURCES = ["one two three", "four", "eight seven six five four three two one"]
with_kernels = pytest.mark.skipif(api() is None, reason="no native library")


def coverage_of(model: Transformer, source: list[int], target: list[int]) -> float:
    """Coverage by all steps that chose a token, the end included."""
    seen: list[Tensor] = []
    tap = model.decoder_layers[-1].cross_attention.weights_tap
    handle = tap.register_forward_hook(lambda *call: seen.append(call[-1]))
    with torch.no_grad():
        model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target]]))
    handle.remove()
    [weights] = seen
    attention = weights[0].mean(dim=0).sum(dim=0)
    return float(attention.clamp(max=1).log().sum())


def ids_of(translator: Translator) -> dict[str, int]:
    """Ids by the pieces that a translation shows."""
    pieces = translator.tokenizer.pieces(range(translator.tokenizer.vocab_size))
    return {piece: i for i, piece in enumerate(pieces)}


@pytest.mark.parametrize("beta", [0.2, 3.0])
def test_every_hypothesis_is_scored_by_its_own_attention(trained_checkpoint, beta):
    config = SearchConfig(beam_size=3, num_best=3, coverage_penalty=beta)
    translator = Translator(trained_checkpoint, CPU)
    translator.batch_positions = 40
    ids = ids_of(translator)
    model = trained_checkpoint.build()
    found = list(translator.translate_stream(SOURCES * 3, config))
    coverages = []
    for text, translation in zip(SOURCES * 3, found, strict=True):
        source = translator.tokenizer.encode(text)
        assert translation.hypotheses
        for each in translation.hypotheses:
            target = [ids[piece] for piece in each.tokens]
            coverage = coverage_of(model, source, target)
            coverages.append(coverage)
            ranked = each.log_probability / config.divisor(len(target) + 1)
            assert each.score == pytest.approx(ranked + beta * coverage, abs=1e-4)
    assert min(coverages) < -0.1


def test_a_tiny_penalty_does_not_change_the_translations(trained_checkpoint):
    translator = Translator(trained_checkpoint, CPU)
    without = translator.translate_stream(SOURCES, SearchConfig(num_best=4))
    config = SearchConfig(num_best=4, coverage_penalty=1e-9)
    for found, expected in zip(
        translator.translate_stream(SOURCES, config), without, strict=True
    ):
        assert [h.text for h in found.hypotheses] == [
            h.text for h in expected.hypotheses
        ]


def test_a_cut_hypothesis_has_the_coverage_of_its_tokens(trained_checkpoint):
    """An untrained model does not end in time."""
    weights = Transformer(trained_checkpoint.config).state_dict()
    checkpoint = replace(trained_checkpoint, weights=weights)
    config = SearchConfig(beam_size=2, extra_length=0, coverage_penalty=1.0)
    translator = Translator(checkpoint, CPU)
    ids, model = ids_of(translator), checkpoint.build()
    [found] = translator.translate_stream(["one two"], config)
    source = translator.tokenizer.encode("one two")
    for each in found.hypotheses:
        assert len(each.token_log_probabilities) == len(each.tokens)
        target = [ids[piece] for piece in each.tokens]
        ranked = each.log_probability / config.divisor(len(target))
        # Attention of the steps that chose the tokens, without an end.
        coverage = coverage_of(model, source, target[:-1])
        assert each.score == pytest.approx(ranked + coverage, abs=1e-4)


def test_a_search_with_its_decoder_is_that_of_a_translator(trained_checkpoint):
    translator = Translator(trained_checkpoint, CPU)
    config = SearchConfig(num_best=4, coverage_penalty=1.0)
    [model], ids = translator.models, translator.tokenizer.encode(SOURCES[0])
    decoder = model.start(model.encode([[*ids, EOS]]), sum_attention=True)
    limit = config.limit(len(ids) + 1)
    [found] = beam_search(
        decoder, [limit], config, bos=BOS, eos=EOS, excluded=(PAD, BOS)
    )
    [expected] = translator.translate_stream(SOURCES[:1], config)
    assert found[0].score == pytest.approx(expected.score, abs=1e-6)
    assert found[0].score < config.score(
        found[0].log_probability, len(found[0].token_log_probabilities)
    )


def test_a_coverage_penalty_needs_a_decoder_with_coverage(trained_checkpoint):
    model = trained_checkpoint.build()
    with torch.no_grad():
        memory = model.encode(torch.tensor([[5, EOS]]))
    decoder, config = TorchDecoder(model, memory), SearchConfig(coverage_penalty=1.0)
    with pytest.raises(RequestError, match="must have a decoder that sums its"):
        beam_search(decoder, [3], config, bos=BOS, eos=EOS)


def test_attention_that_underflows_still_gives_finite_distinct_scores(
    trained_checkpoint,
):
    """Attention is so sharp that most source tokens have a weight of zero."""
    last = trained_checkpoint.config.num_layers - 1
    name = f"decoder_layers.{last}.cross_attention.project_query.weight"
    weights = dict(trained_checkpoint.weights)
    weights[name] = 1_000 * weights[name]
    sharp = Translator(replace(trained_checkpoint, weights=weights), CPU)
    config = SearchConfig(num_best=4, coverage_penalty=0.2)
    for found in sharp.translate_stream(SOURCES, config):
        scores = [h.score for h in found.hypotheses]
        assert min(scores) > -math.inf
        assert len(set(scores)) == len(scores)


def test_no_hook_is_left_between_the_steps(trained_checkpoint):
    model = trained_checkpoint.build()
    memory = model.encode(torch.tensor([[5, 6, EOS]]))
    tap = model.cross_attention_taps[-1]
    decoder = TorchCoverageDecoder(FusedStep(model), memory, tap)
    decoder.step(np.array([[BOS]]))
    assert not model.decoder_layers[-1].cross_attention.weights_tap._forward_hooks
    assert decoder.coverage().shape == (1, 1)


def test_a_decoder_ignores_the_attention_of_other_threads(trained_checkpoint):
    """Both pass through the model's one tap."""
    model = trained_checkpoint.build()
    tap = model.cross_attention_taps[-1]
    memory = model.encode(torch.tensor([[5, 6, EOS]]))
    others = model.encode(torch.tensor([[5, EOS, PAD], [6, 7, EOS]]))
    other = TorchCoverageDecoder(FusedStep(model), others, tap)

    class InterruptedStep(FusedStep):
        def step(self, *given) -> Tensor:
            thread = Thread(target=other.step, args=(np.array([[BOS], [BOS]]),))
            thread.start()
            thread.join()
            return super().step(*given)

    decoder = TorchCoverageDecoder(InterruptedStep(model), memory, tap)
    decoder.step(np.array([[BOS]]))
    alone = TorchCoverageDecoder(FusedStep(model), memory, tap)
    alone.step(np.array([[BOS]]))
    assert np.array_equal(decoder.coverage(), alone.coverage())


def sharpened(checkpoint, factor=4.0):
    """Model with varied attention, so that coverage has an effect."""
    name = "decoder_layers.0.cross_attention.project_query.weight"
    weights = {**checkpoint.weights, name: factor * checkpoint.weights[name]}
    return replace(checkpoint, weights=weights)


@with_kernels
@pytest.mark.parametrize(
    "settings",
    [
        {"beam_size": 2},
        {"beam_size": 4, "num_best": 4},
        {"beam_size": 7, "num_best": 3, "patience": 1.0, "penalty": "power"},
        {"beam_size": 5, "num_best": 5, "max_length": 3, "patience": 1.0},
        {"beam_size": 3, "num_best": 3, "extra_length": 0, "diversity": 0.3},
        {"beam_size": 3, "num_best": 3, "min_length": 40, "length_penalty": 1.2},
    ],
)
def test_native_coverage_equals_that_of_pytorch(trained_checkpoint, settings):
    """Translate in a small batch that other sentences join."""

    def translations(sources):
        translator = Translator(checkpoint, CPU)
        translator.batch_positions = 90
        return translator, list(translator.translate_stream(sources, config))

    checkpoint = sharpened(trained_checkpoint)
    config = SearchConfig(coverage_penalty=0.4, **settings)
    sources = [" ".join(SOURCES[-1].split()[i % 8 :]) for i in range(30)]
    _, by_kernels = translations(sources)
    with chosen_isa("none"):
        translator, by_operators = translations(sources)
    assert not isinstance(translator.models[0], NativeModel)
    for found, expected in zip(by_kernels, by_operators, strict=True):
        assert [h.tokens for h in found.hypotheses] == [
            h.tokens for h in expected.hypotheses
        ]
        assert [h.score for h in found.hypotheses] == pytest.approx(
            [h.score for h in expected.hypotheses], abs=1e-4
        )


@with_kernels
def test_native_coverage_needs_no_torch_model(trained_checkpoint):
    translator = Translator(trained_checkpoint, CPU)
    list(translator.translate_stream(SOURCES, SearchConfig(coverage_penalty=0.2)))
    assert "torch_model" not in vars(translator)


@with_kernels
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_coverage_depends_neither_on_the_batch_nor_on_processes(
    trained_checkpoint, precision
):
    checkpoint = sharpened(trained_checkpoint)
    config = SearchConfig(num_best=4, coverage_penalty=0.4)
    sources = [" ".join(SOURCES[-1].split()[i % 8 :]) for i in range(24)]
    translator = Translator(checkpoint, CPU, precision=precision)
    together = list(translator.translate_stream(sources, config))
    alone = [next(translator.translate_stream([each], config)) for each in sources]
    shared = Translator(checkpoint, CPU, precision=precision, num_processes=3)
    by_processes = list(shared.translate_stream(sources, config))
    shared.close()
    assert len({each.score for each in together}) > 3
    for one, other, third in zip(together, alone, by_processes, strict=True):
        expected = [
            (h.tokens, pytest.approx(h.score, abs=1e-5)) for h in one.hypotheses
        ]
        for each in (other, third):
            assert [(h.tokens, h.score) for h in each.hypotheses] == expected
