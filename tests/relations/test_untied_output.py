"""Models with a matrix of the output alone, and with another base of the sinusoids."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from transduce.checkpoint import Checkpoint, load_model, save_model
from transduce.decoding.native_decoder import NativeModel
from transduce.decoding.torch_model import prepare
from transduce.decoding.translator import Translator
from transduce.errors import ConfigError
from transduce.interop import ctranslate2 as to_ctranslate2
from transduce.interop import marian_export as to_marian
from transduce.interop import onnx as to_onnx
from transduce.interop.export import Proof
from transduce.model.config import ModelConfig, parameter_shapes
from transduce.model.transformer import Transformer
from transduce.native import api
from transduce.nn.fuse import fuse
from transduce.text.tokenizer import Tokenizer

SENTENCES = ["one two three", "four five"]
VARIANTS = list(product((None, 13), (False, True), ("pre", "post")))


def config_of(
    vocab_size: int, target: int | None, bias: bool, norm: str
) -> ModelConfig:
    return ModelConfig(
        vocab_size=vocab_size, target_vocab_size=target, output_bias=bias, norm=norm,
        tied_output=False, position_base=12_345.0, d_model=16, d_ff=20, num_heads=2,
        d_k=8, d_v=8, num_layers=2, dropout=0.0,
    )  # fmt: skip


@pytest.fixture
def checkpoint(tokenizer: Tokenizer) -> Checkpoint:
    config = config_of(tokenizer.vocab_size, None, True, "post")
    config = replace(config, num_layers=1)  # PyTorch takes seconds to trace a layer
    model = Transformer(config)
    torch.nn.init.normal_(model.output.bias)
    weights = dict(model.state_dict())
    return Checkpoint(config=config, weights=weights, tokenizer=tokenizer, step=1)


@pytest.mark.parametrize(("target", "bias", "norm"), VARIANTS)
def test_the_native_library_computes_the_models_logits(
    target: int | None, bias: bool, norm: str
) -> None:
    config = config_of(19, target, bias, norm)
    model = Transformer(config).eval()
    shapes = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    assert parameter_shapes(config) == shapes
    source, read = [4, 5, 6, 2], [1, 7, 9, 3]
    with torch.no_grad():
        expected = model(torch.tensor([source]), torch.tensor([read]))[0, -1]
        fused = fuse(model)(torch.tensor([source]), torch.tensor([read]))[0, -1]
    torch.testing.assert_close(fused, expected, atol=1e-4, rtol=1e-4)
    if api() is not None:
        weights = {name: p.numpy() for name, p in model.state_dict().items()}
        native = NativeModel(config, weights, "fp32")
        decoder = native.start(native.encode([source]))
        for token in read:
            logits = decoder.step(np.array([[token]]))
        np.testing.assert_allclose(logits[0, 0], expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_pytorch_translates_as_the_native_library(
    checkpoint: Checkpoint, precision: str
) -> None:
    if api() is None:
        pytest.skip("no native library")
    ours = Translator(checkpoint, "cpu", precision=precision)
    source = [[*checkpoint.tokenizer.encode(SENTENCES[0]), 2]]
    logits = []
    for model in (ours.models[0], prepare(checkpoint, precision, "cpu")):
        decoder = model.start(model.encode(source))
        logits.append(np.asarray(decoder.step(np.array([[1]]))))
    np.testing.assert_allclose(*logits, atol=1e-4)


def test_only_models_that_need_them_have_the_settings_in_their_folder(
    checkpoint: Checkpoint, trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    for name, model in (("untied", checkpoint), ("tied", trained_checkpoint)):
        save_model(model, tmp_path / name)
        content = json.loads((tmp_path / name / "config.json").read_text())
        has_settings = {"tied_output", "position_base"} <= content["model"].keys()
        assert "learned_start" not in content["model"]
        assert has_settings == (name == "untied")
        assert load_model(tmp_path / name).config == model.config


def test_all_parameters_have_gradients(checkpoint: Checkpoint) -> None:
    model = checkpoint.build_transformer()
    logits = model(torch.tensor([[4, 5, 2]]), torch.tensor([[1, 6]]))
    logits.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", [to_ctranslate2, to_onnx])
def test_such_models_can_be_exported(
    checkpoint: Checkpoint, tmp_path: Path, target
) -> None:
    proof = target.export(checkpoint, tmp_path / "exported", SENTENCES)
    assert isinstance(proof, Proof)


def test_hugging_face_has_no_such_models(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="must have `model.position_base` = 10000"):
        to_marian.export(checkpoint, tmp_path / "exported", SENTENCES)


@pytest.mark.parametrize("base", [1.0, 0.0, -3.0, float("nan"), 1e13])
def test_impossible_bases_are_refused(base: float) -> None:
    with pytest.raises(ConfigError, match=r"`model.position_base` must be above 1"):
        ModelConfig(position_base=base)
