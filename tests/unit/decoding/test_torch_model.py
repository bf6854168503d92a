from dataclasses import replace

import pytest
import torch
from torch import nn

from instruction_sets import chosen_isa
from transduce.decoding import native_decoder, torch_model
from transduce.decoding import translator as translator_module
from transduce.decoding.torch_model import (
    MAX_INT8_INPUTS,
    Int8Linear,
    NativeLinear,
    TorchModel,
    available_precisions,
    prepare_model,
)
from transduce.decoding.translator import Translator
from transduce.errors import ConfigError, RequestError, TransduceWarning
from transduce.machine import processor_flags
from transduce.model.transformer import Transformer
from transduce.model_folder import QuantizedWeight
from transduce.native import api

CPU = torch.device("cpu")
needs_int8 = pytest.mark.skipif(
    "int8" not in available_precisions(CPU), reason="there are no kernels for 8 bits"
)
needs_vnni = pytest.mark.skipif(
    "avx512_vnni" not in processor_flags(),
    reason="PyTorch's sums of 16 bits overflow here",
)


@needs_vnni
@pytest.mark.parametrize("has_bias", [True, False])
def test_int8_products_are_near_the_exact_ones(has_bias):
    linear = nn.Linear(64, 48, bias=has_bias)
    # One scale for all outputs would round the small ones to zero.
    linear.weight.data[0] *= 100
    x = torch.randn(3, 5, 64)
    found, expected = Int8Linear(linear.weight, linear.bias)(x), linear(x)
    assert found.shape == expected.shape
    scale = expected.detach().abs().amax(dim=(0, 1))
    assert float(((found - expected).abs() / scale).detach().max()) < 0.03
    assert not torch.equal(found, expected)


@needs_vnni
def test_zero_weights_give_a_zero_output():
    found = Int8Linear(torch.zeros(4, 8), None)(torch.randn(2, 8))
    assert torch.equal(found, torch.zeros(2, 4))


@needs_vnni
def test_the_sum_of_the_most_inputs_does_not_overflow():
    ones = torch.ones(1, MAX_INT8_INPUTS)  # rounded to 255, with weights of 127
    found = Int8Linear(ones, None)(ones)
    assert found.item() == pytest.approx(MAX_INT8_INPUTS, rel=1e-4)


def test_a_linear_map_whose_sums_may_overflow_is_refused():
    with pytest.raises(RequestError, match=r"at most 66,311 inputs, .* has 66,312;"):
        Int8Linear(torch.ones(1, MAX_INT8_INPUTS + 1), None)


@pytest.mark.parametrize("precision", available_precisions(CPU))
def test_an_int8_model_translates_most_sentences_like_fp32(
    precision, trained_checkpoint, corpus
):
    with chosen_isa("none"):
        exact = Translator(trained_checkpoint, CPU).translate(corpus[0][:20])
    rough = Translator(trained_checkpoint, CPU, precision=precision)
    found = rough.translate(corpus[0][:20])
    same = [a.text == b.text for a, b in zip(exact, found, strict=True)]
    assert sum(same) >= (20 if precision == "fp32" else 14)
    for theirs, ours in zip(exact, found, strict=True):
        assert ours.score == pytest.approx(theirs.score, abs=1.0)


@needs_vnni
@pytest.mark.usefixtures("without_native_library")
def test_without_native_kernels_pytorchs_are_used(trained_checkpoint, corpus):
    exact = Translator(trained_checkpoint, CPU).translate(corpus[0][:20])
    with pytest.warns(TransduceWarning, match="int8 is without its compiled kernels"):
        rough = Translator(trained_checkpoint, CPU, precision="int8")
    assert isinstance(rough.torch_model.model.embedding.output, Int8Linear)
    found = rough.translate(corpus[0][:20])
    assert sum(a.text == b.text for a, b in zip(exact, found, strict=True)) >= 14


@pytest.mark.parametrize(("device", "is_kept"), [("cpu", True), ("meta", False)])
def test_a_cpu_keeps_freed_memory(trained_checkpoint, monkeypatch, device, is_kept):
    calls = []
    monkeypatch.setattr(translator_module, "keep_freed_memory", lambda: calls.append(1))
    Translator(trained_checkpoint, device)
    assert bool(calls) == is_kept


@pytest.mark.skipif(api() is None, reason="no native library")
@pytest.mark.parametrize(
    ("precision", "has_unit", "is_by_unit"),
    [("int8", True, True), ("int8", False, False), ("fp32", True, False)],
)
def test_the_fixed_cost_of_a_step_is_higher_with_amx(
    trained_checkpoint, monkeypatch, precision, has_unit, is_by_unit
):
    monkeypatch.setattr(native_decoder, "has_amx_int8", lambda: has_unit)
    [model] = Translator(trained_checkpoint, CPU, precision=precision).models
    assert (model.step_overhead > native_decoder.STEP_OVERHEAD) == is_by_unit


def test_bf16_works_on_every_cpu(trained_checkpoint):
    translator = Translator(trained_checkpoint, CPU, precision="bf16")
    [found] = translator.models
    assert isinstance(found, TorchModel)
    assert found.model.output_weight.dtype == torch.bfloat16
    assert translator.translate(["one two"])[0].hypotheses


@pytest.mark.parametrize("scores", ["scaled", "additive"])
def test_a_decoding_step_has_all_weights_in_bf16(tiny, scores):
    model = Transformer(replace(tiny, scores=scores)).eval()
    in_bf16 = prepare_model(model, "bf16", CPU)
    state = in_bf16.stepper.start(in_bf16.model.encode(torch.tensor([[5]])))
    logits = in_bf16.stepper.step(torch.tensor([[1]]), state)
    assert logits.dtype == torch.bfloat16
    assert {w.dtype for w in in_bf16.model.parameters()} == {torch.bfloat16}


@needs_int8
def test_the_output_matrix_and_the_embedding_are_in_8_bits(trained_checkpoint):
    model = prepare_model(trained_checkpoint.build(), "int8", CPU).model
    assert not [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert isinstance(model.embedding.output, Int8Linear | NativeLinear)
    ids = torch.tensor([[5, 6]])
    exact = trained_checkpoint.build().embedding
    rounded = QuantizedWeight.of(exact.weight.detach().numpy()).dequantized()
    expected = torch.from_numpy(rounded)[ids] * exact.d_model**0.5
    torch.testing.assert_close(model.embedding(ids), expected)
    assert not torch.equal(model.embedding(ids), exact(ids))


@pytest.mark.usefixtures("without_native_library")
def test_int8_without_kernels_or_vnni_is_refused(trained_checkpoint, monkeypatch):
    monkeypatch.setattr(torch_model, "processor_flags", lambda: {"avx2", "fma"})
    message = "kernels here, which are compiled when transduce is installed, but"
    with pytest.raises(RequestError, match=message):
        Translator(trained_checkpoint, CPU, precision="int8")
    assert "int8" not in available_precisions(CPU)
    monkeypatch.setattr(torch_model, "processor_flags", lambda: {"neon"})
    with pytest.raises(RequestError, match="int8 must have an x86 processor with AVX2"):
        Translator(trained_checkpoint, CPU, precision="int8")


def test_an_unknown_precision_is_refused(trained_checkpoint, unchecked_types):
    with pytest.raises(ConfigError, match='"fp32", "bf16" or "int8", but is "fp8"'):
        Translator(trained_checkpoint, CPU, precision="fp8")


def test_int8_on_another_device_is_refused(trained_checkpoint):
    message = "int8 must have a CPU, but the device is meta; choose the device"
    with pytest.raises(RequestError, match=message):
        prepare_model(trained_checkpoint.build(), "int8", torch.device("meta"))
