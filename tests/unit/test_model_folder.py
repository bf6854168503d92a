"""Weights are read from their file when needed, and equal the saved ones."""

import os
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from copy import copy, deepcopy
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import transduce
from transduce.checkpoint import Checkpoint, load_model, save_model
from transduce.errors import CheckpointError, RequestError
from transduce.files import atomic_file
from transduce.model.config import ModelConfig
from transduce.model_folder import (
    MODEL_CONFIG,
    WEIGHTS,
    ModelFolder,
    QuantizedWeight,
    change_search,
    open_model,
    quantized_names,
)
from transduce.search_config import PARSING_SEARCH, SearchConfig
from transduce.text.alignment import WordDictionary
from transduce.text.shortlist import encode_pairs, learn_shortlist


@pytest.fixture
def folder(trained_checkpoint: Checkpoint, tmp_path: Path) -> Path:
    save_model(trained_checkpoint, tmp_path / "model")
    return tmp_path / "model"


def test_an_opened_model_equals_the_saved_one(
    folder: Path, trained_checkpoint: Checkpoint
) -> None:
    opened, saved = open_model(folder), trained_checkpoint
    assert (opened.config, opened.step) == (saved.config, saved.step)
    assert opened.tokenizer == saved.tokenizer
    arrays = opened.arrays
    assert set(arrays) == set(saved.arrays) == set(saved.weights)
    for name, array in saved.arrays.items():
        assert np.array_equal(arrays[name], array)


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_replaced_or_removed_file_can_still_be_read(
    folder: Path, trained_checkpoint: Checkpoint, change: str
) -> None:
    opened = open_model(folder)
    shutil.rmtree(folder)
    if change == "replaced":
        folder.mkdir()
        (folder / WEIGHTS).write_bytes(b"another")
    for name, array in trained_checkpoint.arrays.items():
        assert np.array_equal(opened.arrays[name], array)


@pytest.mark.parametrize("longer_by", [0, 4])
@pytest.mark.parametrize("is_relative", [False, True])
def test_a_file_that_is_overwritten_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, longer_by: int, is_relative: bool
) -> None:
    monkeypatch.chdir(folder.parent)
    opened = open_model(Path(folder.name) if is_relative else folder)
    monkeypatch.chdir("/")
    path = folder / WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    with path.open("r+b") as file:
        file.write(content + bytes(longer_by))
    os.utime(path, ns=(0, 0))  # it differs, however coarse the clock of the disk is
    message = "must stay as they are while they are in use, but were overwritten"
    with pytest.raises(CheckpointError, match=message):
        _ = opened.arrays["embedding.weight"]


def test_a_file_that_is_truncated_and_then_removed_is_refused(folder: Path) -> None:
    """Reading it would end the process."""
    opened = open_model(folder)
    os.truncate(folder / WEIGHTS, 100)
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match="but were overwritten"):
        _ = opened.arrays["embedding.weight"]


def test_a_rounded_weight_is_near_and_has_the_whole_range() -> None:
    weight = np.random.default_rng(1).normal(size=(9, 50)).astype(np.float32)
    weight *= np.logspace(-3, 3, 9, dtype=np.float32)[:, None]
    rounded = QuantizedWeight.of(weight)
    largest = np.abs(weight).max(axis=1)
    assert (np.abs(rounded.values.astype(int)).max(axis=1) == 127).all()
    np.testing.assert_allclose(rounded.scales, largest / 127, rtol=1e-6)
    error = np.abs(rounded.dequantized() - weight)
    assert (error <= 0.501 * rounded.scales[:, None]).all()


def test_halves_are_rounded_to_even_and_zeros_stay() -> None:
    weight = np.array([[127, 0.5, 1.5, -2.5], [0, 0, 0, 0]], dtype=np.float32)
    rounded = QuantizedWeight.of(weight)
    assert rounded.values.tolist() == [[127, 0, 2, -2], [0, 0, 0, 0]]
    assert (rounded.scales > 0).all()


@pytest.mark.parametrize("scores", ["scaled", "additive"])
def test_the_int8_weights_are_matrices_of_maps_and_embeddings(scores: str) -> None:
    config = ModelConfig(
        vocab_size=30, num_layers=1, target_vocab_size=20, norm="pre",
        positions="learned", scores=scores, output_bias=True,
    )  # fmt: skip
    maps = [
        *(f"{each}.{way}" for each in ("encoder_layers.0", "decoder_layers.0")
          for way in ("feed_forward.inner", "feed_forward.outer")),
        *(f"{each}.project_{what}"
          for each in ("encoder_layers.0.self_attention",
                       "decoder_layers.0.self_attention",
                       "decoder_layers.0.cross_attention")
          for what in ("query", "key_value", "output")),
    ]  # fmt: skip
    expected = {f"{each}.weight" for each in ["embedding", "target_embedding", *maps]}
    assert quantized_names(config) == expected


@pytest.fixture
def quantized(folder: Path, tmp_path: Path) -> Path:
    transduce.quantize(folder, tmp_path / "int8")
    return tmp_path / "int8"


def test_weights_of_a_quantized_folder_are_read_rounded(
    quantized: Path, trained_checkpoint: Checkpoint
) -> None:
    opened = open_model(quantized)
    assert opened.is_quantized
    assert set(opened.arrays) == set(trained_checkpoint.arrays)
    assert len(opened.arrays) == len(trained_checkpoint.arrays)
    stored = opened.arrays.mapped(in_fp32=False)
    for name, array in trained_checkpoint.arrays.items():
        if name not in quantized_names(opened.config):
            assert np.array_equal(opened.arrays[name], array)
            continue
        weight, expected = stored[name], QuantizedWeight.of(array)
        assert isinstance(weight, QuantizedWeight)
        assert np.array_equal(weight.values, expected.values)
        assert np.array_equal(weight.scales, expected.scales)
        assert np.array_equal(opened.arrays[name], expected.dequantized())


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.pop("embedding.weight.scales"),
        lambda t: t.update({"embedding.weight.scales": np.ones(3, np.float32)}),
        lambda t: t.update({"another.scales": np.ones(3, np.float32)}),
        lambda t: t.update(
            {"embedding.weight": t["embedding.weight"].astype(np.float32)}
        ),
        lambda t: t.update(
            {"embedding.weight": t["embedding.weight"].astype(np.uint8)}
        ),
        lambda t: t.update({"embedding.weight": t["embedding.weight"].T.copy()}),
    ],
    ids=["no scales", "few scales", "more scales", "in fp32", "unsigned", "turned"],
)
def test_a_quantized_folder_with_other_tensors_is_refused(
    quantized: Path, change: Callable[[dict[str, np.ndarray]], object]
) -> None:
    tensors = load_file(quantized / WEIGHTS)
    change(tensors)
    save_file(tensors, quantized / WEIGHTS)
    with pytest.raises(CheckpointError, match="must fit the settings beside them"):
        open_model(quantized)


def test_scales_that_are_not_finite_are_refused(quantized: Path) -> None:
    tensors = load_file(quantized / WEIGHTS)
    tensors["embedding.weight.scales"][3] = np.inf
    save_file(tensors, quantized / WEIGHTS)
    message = "must be finite numbers, but those of embedding.weight.scales are not"
    with pytest.raises(CheckpointError, match=message):
        transduce.load(quantized, device="cpu").get_ready()


def test_a_truncated_quantized_file_is_refused(quantized: Path) -> None:
    content = (quantized / WEIGHTS).read_bytes()
    for size in (0, 7, 100, len(content) // 2, len(content) - 1):
        (quantized / WEIGHTS).write_bytes(content[:size])
        with pytest.raises(CheckpointError, match="are missing or damaged"):
            open_model(quantized)


def test_fp32_weights_under_a_quantized_config_are_refused(
    folder: Path, quantized: Path
) -> None:
    shutil.copy(folder / WEIGHTS, quantized / WEIGHTS)
    with pytest.raises(CheckpointError, match="must fit the settings beside them"):
        open_model(quantized)


def test_int8_weights_under_an_fp32_config_are_refused(
    folder: Path, quantized: Path
) -> None:
    shutil.copy(quantized / WEIGHTS, folder / WEIGHTS)
    with pytest.raises(CheckpointError, match="must fit the settings beside them"):
        open_model(folder)


def test_a_quantized_model_cannot_be_loaded_for_training(quantized: Path) -> None:
    message = "must be in fp32 to be trained, averaged, exported or quantized, but"
    with pytest.raises(RequestError, match=message):
        load_model(quantized)


def test_search_settings_of_a_quantized_folder_can_be_replaced(quantized: Path) -> None:
    change_search(quantized, lambda _: SearchConfig(beam_size=7))
    opened = open_model(quantized)
    assert opened.search == SearchConfig(beam_size=7)
    assert opened.is_quantized


def test_the_search_of_a_parser_that_stores_none_is_the_papers(
    parsing_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    save_model(replace(parsing_checkpoint, search=None), tmp_path / "parser")
    change_search(tmp_path / "parser", lambda search: replace(search, beam_size=2))
    expected = replace(PARSING_SEARCH, beam_size=2)
    assert open_model(tmp_path / "parser").search == expected


@pytest.mark.skipif(os.name == "nt", reason="Windows locks no file this way")
def test_a_change_of_the_search_waits_for_another_that_is_written(folder: Path) -> None:
    path = folder / MODEL_CONFIG
    with ThreadPoolExecutor() as pool:
        with atomic_file(path) as new:
            new.write_text(path.read_text())
            waiting = pool.submit(
                change_search, folder, lambda _: SearchConfig(beam_size=7)
            )
            assert not wait([waiting], timeout=0.1).done
        waiting.result()
    assert open_model(folder).search == SearchConfig(beam_size=7)


@pytest.mark.skipif(os.name == "nt", reason="Windows locks no file this way")
def test_a_file_that_stays_locked_keeps_the_search_with_a_remedy(folder: Path) -> None:
    before = (folder / MODEL_CONFIG).read_bytes()
    message = "the old ones stay. End that process, and write them into the file or try"
    with atomic_file(folder / MODEL_CONFIG) as new:
        new.write_bytes(before)
        with pytest.raises(CheckpointError, match=message):
            change_search(folder, lambda _: SearchConfig(), patience_s=0)
    assert (folder / MODEL_CONFIG).read_bytes() == before


@pytest.mark.parametrize("in_fp32", [True, False])
def test_mapped_weights_equal_those_that_are_read(
    folder: Path, quantized: Path, in_fp32: bool
) -> None:
    for path in (folder, quantized):
        arrays = open_model(path).arrays
        for name, weight in arrays.mapped(in_fp32=in_fp32).items():
            is_rounded = isinstance(weight, QuantizedWeight)
            assert is_rounded == (path == quantized and arrays.is_quantized(name)
                                  and not in_fp32)  # fmt: skip
            found = weight.dequantized() if is_rounded else weight
            assert np.array_equal(found, arrays[name])


def test_weights_that_are_not_aligned_in_their_file_are_copied(folder: Path) -> None:
    path = folder / WEIGHTS
    expected = {name: weight for name, weight in open_model(folder).arrays.items()}
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size] + b" "
    path.write_bytes((size + 1).to_bytes(8, "little") + header + content[8 + size :])
    arrays = open_model(folder).arrays
    for name, weight in arrays.mapped(in_fp32=True).items():
        assert isinstance(weight, np.ndarray)
        assert weight.flags.aligned
        assert np.array_equal(weight, expected[name])
    translator = transduce.load(folder, device="cpu")
    assert translator.translate("one two three").text


def test_read_weights_outlive_their_file(folder: Path) -> None:
    weight = open_model(folder).arrays["embedding.weight"]
    expected = weight.copy()
    (folder / WEIGHTS).write_bytes(b"")
    assert np.array_equal(weight, expected)


def pickled_and_loaded(folder: ModelFolder) -> ModelFolder:
    return cast(ModelFolder, pickle.loads(pickle.dumps(folder)))


@pytest.mark.parametrize("again", [copy, deepcopy, pickled_and_loaded])
def test_a_copied_or_pickled_folder_keeps_replaced_fields(
    folder: Path,
    trained_checkpoint: Checkpoint,
    again: Callable[[ModelFolder], ModelFolder],
) -> None:
    tokenizer = trained_checkpoint.tokenizer
    pairs = encode_pairs([("one two", "eins zwei")], tokenizer)
    shortlist = learn_shortlist(pairs, tokenizer)
    dictionary = WordDictionary(translations={"one": "eins"})
    opened = replace(
        open_model(folder),
        source_language="fr",
        dictionary=dictionary,
        shortlist=shortlist,
    )
    found = again(opened)
    assert found.source_language == "fr"
    assert found.dictionary == dictionary
    assert found.shortlist is not None
    assert found.shortlist.digest() == shortlist.digest()
    assert found.tokenizer == tokenizer
    for name, weight in opened.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], weight)


@pytest.mark.parametrize("again", [copy, deepcopy])
def test_a_copied_folder_is_not_opened_again(
    folder: Path, again: Callable[[ModelFolder], ModelFolder]
) -> None:
    opened = open_model(folder)
    shutil.rmtree(folder)
    assert again(opened).arrays is opened.arrays
