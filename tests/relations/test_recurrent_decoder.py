"""Models with recurrent units (SSRU) in place of the decoder's self-attention."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import transduce
from transduce.checkpoint import Checkpoint, load_model, save_model
from transduce.decoding.native_decoder import NativeModel, PrecisionChoice
from transduce.decoding.torch_model import prepare, prepare_model
from transduce.decoding.translator import Translator
from transduce.errors import RequestError
from transduce.interop import ctranslate2 as to_ctranslate2
from transduce.interop import marian_export as to_marian
from transduce.interop import onnx as to_onnx
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.native import api
from transduce.search_config import SearchConfig
from transduce.text.tokenizer import Tokenizer

SENTENCES = ["one two three four", "four five", "six", "seven eight eight one two"]
NATIVE = pytest.mark.skipif(api() is None, reason="no native library")


@pytest.fixture
def config(tokenizer: Tokenizer) -> ModelConfig:
    return ModelConfig(
        vocab_size=tokenizer.vocab_size, decoder_self_attention="ssru", d_model=16,
        d_ff=20, num_heads=2, d_k=8, d_v=8, num_layers=2, dropout=0.0,
    )  # fmt: skip


@pytest.fixture
def checkpoint(config: ModelConfig, tokenizer: Tokenizer) -> Checkpoint:
    return random_checkpoint(config, tokenizer)


def random_checkpoint(config: ModelConfig, tokenizer: Tokenizer) -> Checkpoint:
    model = Transformer(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    weights = dict(model.state_dict())
    return Checkpoint(config=config, weights=weights, tokenizer=tokenizer, step=1)


def test_only_models_with_recurrences_have_the_setting_in_their_folder(
    checkpoint: Checkpoint, trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    for name, model in (("ssru", checkpoint), ("attention", trained_checkpoint)):
        save_model(model, tmp_path / name)
        content = json.loads((tmp_path / name / "config.json").read_text())
        stored = content["model"].get("decoder_self_attention", "attention")
        assert stored == name
        assert load_model(tmp_path / name).config == model.config


def test_the_decoder_in_bf16_follows_the_one_in_fp32(checkpoint: Checkpoint) -> None:
    source = [[5, 6, 7, 2], [8, 2]]
    models = [
        prepare_model(checkpoint.build_transformer(), precision, torch.device("cpu"))
        for precision in ("fp32", "bf16")
    ]
    for each in models:
        assert each.model.config.decoder_self_attention == "ssru"
    decoders = [each.start(each.encode(source)) for each in models]
    for token in range(4, 24):
        ids = torch.tensor([[token], [token + 1]]).numpy()
        exact, rounded = (each.step(ids).float() for each in decoders)
        torch.testing.assert_close(rounded, exact, atol=0.25, rtol=0.05)


@NATIVE
@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_translation_does_not_depend_on_its_neighbours(
    checkpoint: Checkpoint, beam_size: int, precision: PrecisionChoice
) -> None:
    translator = Translator(checkpoint, "cpu", precision=precision)
    search = SearchConfig(beam_size=beam_size, num_best=beam_size)
    together = list(translator.translate_stream(SENTENCES, search))
    for sentence, found in zip(SENTENCES, together, strict=True):
        assert list(translator.translate_stream([sentence], search)) == [found]


@NATIVE
@pytest.mark.parametrize("prefixes", [None, ["eins", "", "zwei drei", "vier"]])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_native_library_finds_what_pytorch_finds(
    checkpoint: Checkpoint, beam_size: int, prefixes: list[str] | None
) -> None:
    natively = Translator(checkpoint, "cpu")
    assert isinstance(natively.models[0], NativeModel)
    by_torch = Translator(checkpoint, "cpu")
    by_torch.models[:] = [prepare(checkpoint, "fp32", "cpu")]
    search = SearchConfig(beam_size=beam_size, num_best=beam_size)
    found, expected = (
        list(each.translate_stream(SENTENCES, search, prefixes))
        for each in (natively, by_torch)
    )
    for one, other in zip(found, expected, strict=True):
        for ours, theirs in zip(one.hypotheses, other.hypotheses, strict=True):
            assert ours.tokens == theirs.tokens
            assert ours.log_probability == pytest.approx(
                theirs.log_probability, abs=1e-4
            )


@NATIVE
def test_the_native_library_scores_as_pytorch_does(checkpoint: Checkpoint) -> None:
    sources = [[5, 6, 7, 2], [8, 2], [9, 2]]
    targets = [[10, 11, 12, 13, 14, 15], [16, 17], []]
    model = NativeModel(checkpoint.transformer_config, checkpoint.arrays, "fp32")
    expected = prepare(checkpoint, "fp32", "cpu").score(sources, targets)
    for ours, theirs in zip(model.score(sources, targets), expected, strict=True):
        assert ours.log_probability == pytest.approx(theirs.log_probability, abs=1e-4)


@NATIVE
def test_a_quantized_folder_decodes_as_the_original_does_in_int8(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    save_model(checkpoint, tmp_path / "fp32")
    transduce.quantize(tmp_path / "fp32", tmp_path / "int8")
    rounded = transduce.load(tmp_path / "int8")
    original = transduce.load(tmp_path / "fp32", precision="int8")
    search = SearchConfig(num_best=4)
    found, expected = (
        list(each.translate_stream(SENTENCES, search)) for each in (rounded, original)
    )
    assert found == expected


@NATIVE
def test_a_beam_of_recurrences_needs_few_slots_however_long_it_reads(
    checkpoint: Checkpoint,
) -> None:
    native = api()
    assert native is not None
    model = NativeModel(checkpoint.transformer_config, checkpoint.arrays, "fp32")
    decoder = model.start(model.encode([[5, 6, 2]]))
    decoder.step(np.array([[4]]))
    decoder.reorder(np.zeros((1, 40), dtype=np.int64))
    for step in range(300):
        decoder.step(np.full((1, 40), 4 + step % 9))
    # One of the position before and one of the newest, of each hypothesis.
    assert 80 <= native.decode.decoder_capacity(decoder.handle) <= 160


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.filterwarnings("ignore")
def test_the_model_is_exported_to_onnx(
    config: ModelConfig, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    # PyTorch takes seconds to trace a layer; recurrences are in the decoder's.
    config = replace(config, num_layers=1, decoder_layers=2)
    checkpoint = random_checkpoint(config, tokenizer)
    proof = to_onnx.export(checkpoint, tmp_path / "exported", SENTENCES)
    assert proof.num_sentences == len(SENTENCES)
    assert proof.num_tokens > len(SENTENCES)


@pytest.mark.parametrize("target", [to_ctranslate2, to_marian])
def test_libraries_without_recurrences_refuse_the_model(
    checkpoint: Checkpoint, tmp_path: Path, target
) -> None:
    message = (
        '`model.decoder_self_attention` = "attention", but has "ssru"; it cannot be'
    )
    with pytest.raises(RequestError, match=message):
        target.export(checkpoint, tmp_path / "exported", SENTENCES)
    assert not list(tmp_path.iterdir())
