"""A quantized folder decodes exactly as the original does in int8."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import transduce
from instruction_sets import chosen_isa
from transduce.checkpoint import Checkpoint, save_model
from transduce.decoding.native_decoder import NativeModel
from transduce.decoding.translator import Translator
from transduce.model.config import ModelConfig, parameter_shapes
from transduce.model.transformer import Transformer
from transduce.model_folder import (
    SCALES,
    WEIGHTS,
    Array,
    QuantizedWeight,
    open_model,
    quantized_names,
)
from transduce.native import api
from transduce.search_config import SamplingConfig, SearchConfig

pytestmark = pytest.mark.skipif(api() is None, reason="no native library")

SOURCES = ["one two three", "", "four", "two two five six one", "seven eight nine ten"]
TARGETS = ["eins zwei drei", "", "vier", "zwei zwei", "sieben acht neun zehn"]


@pytest.fixture(scope="module")
def folders(
    trained_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Folders of a model in fp32 and of its quantized copy."""
    folder = tmp_path_factory.mktemp("quantized")
    save_model(trained_checkpoint, folder / "fp32")
    transduce.quantize(folder / "fp32", folder / "int8")
    return folder / "fp32", folder / "int8"


def streamed(config: SearchConfig, *prefixes: str) -> Callable[[Translator], Any]:
    given = list(prefixes) or None
    return lambda each: list(each.translate_stream(SOURCES, config, given))


def one_by_one(translator: Translator) -> list[Any]:
    return [translator.translate(source) for source in SOURCES]


WAYS: dict[str, Callable[[Translator], Any]] = {
    "batches": lambda each: each.translate(SOURCES),
    "one by one": one_by_one,
    "greedy": lambda each: each.translate(SOURCES, beam_size=1),
    "a wide beam": lambda each: each.translate(SOURCES * 9, beam_size=12),
    "several best": streamed(SearchConfig(num_best=3)),
    "coverage": streamed(SearchConfig(coverage_penalty=0.3)),
    "prefixes": streamed(SearchConfig(), "eins", "", "vier", "zwei", ""),
    "samples": lambda each: each.sample(SOURCES, SamplingConfig(number=3, seed=4)),
    "scores": lambda each: each.score(SOURCES, TARGETS),
}


@pytest.mark.parametrize("way", WAYS)
def test_translations_and_scores_are_those_of_int8(
    folders: tuple[Path, Path], way: str
) -> None:
    original = transduce.load(folders[0], device="cpu", precision="int8")
    quantized = transduce.load(folders[1], device="cpu")
    assert quantized.precision == "int8"
    assert WAYS[way](quantized) == WAYS[way](original)


def test_they_are_equal_with_each_instruction_set(
    isa: str, folders: tuple[Path, Path]
) -> None:
    original = transduce.load(folders[0], device="cpu", precision="int8")
    quantized = transduce.load(folders[1], device="cpu")
    assert quantized.translate(SOURCES) == original.translate(SOURCES)
    assert quantized.score(SOURCES, TARGETS) == original.score(SOURCES, TARGETS)


@pytest.mark.parametrize("members", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_an_ensemble_may_have_quantized_members(
    folders: tuple[Path, Path], members: Sequence[int]
) -> None:
    paths = [folders[i] for i in members]
    original = transduce.load(folders[0], folders[0], device="cpu", precision="int8")
    ensemble = transduce.load(*paths, device="cpu", precision="int8")
    assert ensemble.translate(SOURCES) == original.translate(SOURCES)
    chosen = transduce.load(*paths, device="cpu").precision
    assert chosen == ("int8" if all(members) else "fp32")


def test_several_processes_translate_alike(folders: tuple[Path, Path]) -> None:
    alone = transduce.load(folders[1], device="cpu")
    together = transduce.load(folders[1], device="cpu", num_processes=2)
    try:
        assert together.translate(SOURCES * 4) == alone.translate(SOURCES * 4)
    finally:
        together.close()


def test_a_quantized_parser_parses_as_in_int8(
    parsing_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    save_model(parsing_checkpoint, tmp_path / "fp32")
    transduce.quantize(tmp_path / "fp32", tmp_path / "int8")
    original = transduce.load(tmp_path / "fp32", device="cpu", precision="int8")
    quantized = transduce.load(tmp_path / "int8", device="cpu")
    texts = ["one two", "three four five"]
    assert quantized.parse(texts) == original.parse(texts)


def arrays_of(model: Transformer) -> dict[str, Array]:
    return {name: weight.numpy() for name, weight in model.state_dict().items()}


def test_every_configuration_has_the_same_states_and_logits(
    isa: str, model: Transformer
) -> None:
    """The library rounds weights as `QuantizedWeight` does, whatever the model."""
    arrays = arrays_of(model)
    rounded: dict[str, Array | QuantizedWeight] = dict(arrays)
    for name in quantized_names(model.config):
        rounded[name] = QuantizedWeight.of(arrays[name])
    sources, found = [[3, 4, 5, 2], [7, 2]], []
    for weights in (arrays, rounded):
        native = NativeModel(model.config, weights, "int8")
        encoded = native.encode(sources)
        decoder = native.start(encoded)
        found.append([encoded.states])
        for token in (1, 5, 9):
            found[-1].append(decoder.step(np.full((2, 1), token)))
    for one, other in zip(*found, strict=True):
        assert np.isfinite(one).all()
        assert np.array_equal(one, other)


def test_fp32_decodes_the_rounded_weights(folders: tuple[Path, Path]) -> None:
    translator = transduce.load(folders[1], device="cpu", precision="fp32")
    stored = open_model(folders[1])
    checkpoint = Checkpoint(
        config=stored.config,
        weights={name: torch.from_numpy(w) for name, w in stored.arrays.items()},
        tokenizer=stored.tokenizer,
        step=stored.step,
    )
    expected = Translator(checkpoint, "cpu", precision="fp32").translate(SOURCES)
    assert translator.translate(SOURCES) == expected


def test_pytorch_decodes_the_rounded_weights(folders: tuple[Path, Path]) -> None:
    natively = transduce.load(folders[1], device="cpu", precision="fp32")
    expected = [each.text for each in natively.translate(SOURCES)]
    with chosen_isa("none"):
        translator = transduce.load(folders[1], device="cpu")
        assert translator.precision == "fp32"
        assert [each.text for each in translator.translate(SOURCES)] == expected


def num_bytes(config: ModelConfig) -> tuple[int, int]:
    """Bytes of the weights in fp32 and of the quantized ones, from the shapes."""
    shapes = parameter_shapes(config)
    rounded = quantized_names(config)
    whole = sum(4 * int(np.prod(shape)) for shape in shapes.values())
    small = sum(
        int(np.prod(shape)) + 4 * shape[0] if name in rounded else 4 * shape[0]
        for name, shape in shapes.items()
    )
    return whole, small


def without_header(path: Path) -> int:
    """Bytes of the tensors of a safetensors file."""
    content = path.read_bytes()
    return len(content) - 8 - int.from_bytes(content[:8], "little")


def test_a_quantized_model_has_a_quarter_of_the_size(
    trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """A layer of `base` is stored; a whole model would be too large for a test."""
    config = ModelConfig(vocab_size=trained_checkpoint.config.vocab_size, num_layers=1)
    weights = {
        name: torch.full(shape, 0.5) for name, shape in parameter_shapes(config).items()
    }
    save_model(
        replace(trained_checkpoint, config=config, weights=weights), tmp_path / "fp32"
    )
    made = transduce.quantize(tmp_path / "fp32", tmp_path / "int8")
    files = tmp_path / "fp32" / WEIGHTS, tmp_path / "int8" / WEIGHTS
    assert (made.bytes_before, made.num_bytes) == tuple(
        path.stat().st_size for path in files
    )
    assert tuple(map(without_header, files)) == num_bytes(config)
    whole, small = num_bytes(ModelConfig(vocab_size=37_000))
    for ratio in (made.num_bytes / made.bytes_before, small / whole):
        assert ratio == pytest.approx(0.25, rel=0.02)
    tensors = open_model(tmp_path / "int8").arrays.tensors
    in_int8 = {name for name, (kind, _) in tensors.items() if kind == "I8"}
    assert in_int8 == quantized_names(config)
    assert {name for name in tensors if name.endswith(SCALES)} == {
        name + SCALES for name in in_int8
    }


def test_a_weight_of_minus_128_is_read_as_it_is(
    isa: str, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """The format has no such weight, but a file of another program may have it."""
    folder = tmp_path / "int8"
    shutil.copytree(folders[1], folder)
    tensors = load_file(folder / WEIGHTS)
    for name, array in tensors.items():
        if array.dtype == np.int8:
            tensors[name] = np.where(array == -127, np.int8(-128), array)
            tensors[name][::2, 0] = -128
    save_file(tensors, folder / WEIGHTS)
    exact = transduce.load(folder, device="cpu", precision="fp32")
    rounded = transduce.load(folder, device="cpu")
    assert rounded.precision == "int8"
    for one, other in zip(
        exact.score(SOURCES, TARGETS), rounded.score(SOURCES, TARGETS), strict=True
    ):
        assert other.log_probability == pytest.approx(
            one.log_probability, abs=0.1, rel=0.02
        )
