"""Tasks that only a Transformer can do are refused by their names, with a remedy."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from transduce.architectures.config import RecurrentConfig, require_transformer
from transduce.benchmark.decoding import random_checkpoint
from transduce.checkpoint import Checkpoint, build
from transduce.decoding.torch_model import TorchModel, prepare_model
from transduce.errors import RequestError
from transduce.experiments.presets import preset
from transduce.interop import marian_npz_export, onnx
from transduce.model.config import ModelConfig
from transduce.text.tokenizer import Tokenizer, learn_tokenizer
from transduce.text.vocabulary import TokenizerConfig

SMALL = RecurrentConfig(vocab_size=40, encoder_layers=2, decoder_layers=2, d_model=8)


def test_the_error_says_task_architecture_and_remedy() -> None:
    with pytest.raises(RequestError) as raised:
        require_transformer(SMALL, "Precision int8", "use fp32")
    assert str(raised.value) == (
        "Precision int8 must have a Transformer, but the architecture of the model is "
        '"recurrent"; use fp32.'
    )
    config = ModelConfig()
    assert require_transformer(config, "Precision int8", "use fp32") is config


def test_each_task_has_its_name(tokenizer: Tokenizer) -> None:
    model = build(replace(SMALL, vocab_size=tokenizer.vocab_size))
    with pytest.raises(RequestError, match="^Precision int8 .* use fp32 or bf16"):
        prepare_model(model, "int8", torch.device("cpu"))
    with pytest.raises(RequestError, match="^A survey of heads must .* another model"):
        TorchModel(model=model, stepper=model).transformer("A survey of heads")
    checkpoint = Checkpoint(
        config=model.config, weights=model.state_dict(), tokenizer=tokenizer, step=0
    )
    with pytest.raises(RequestError, match="^An export must have a Transformer"):
        checkpoint.build_transformer()
    with pytest.raises(RequestError, match="^The benchmark of decoding .* preset"):
        random_checkpoint(preset("gnmt-multi30k"), ["one two three"] * 30)


def test_an_export_names_the_architecture_before_the_tokenizer(tmp_path: Path) -> None:
    words = TokenizerConfig(kind="word", vocab_size=20)
    tokenizer = learn_tokenizer(["one two three"], words)
    model = build(replace(SMALL, vocab_size=tokenizer.vocab_size))
    checkpoint = Checkpoint(
        config=model.config, weights=model.state_dict(), tokenizer=tokenizer, step=0
    )
    for library in (onnx, marian_npz_export):
        with pytest.raises(RequestError, match="^An export must have a Transformer"):
            library.export(checkpoint, tmp_path / "exported", ["one two"])
    assert not list(tmp_path.iterdir())
