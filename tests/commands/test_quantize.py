import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import transduce
from transduce.architectures.config import CONFIGS
from transduce.checkpoint import Checkpoint, save_model
from transduce.errors import ConfigError
from transduce.model_folder import open_model
from transduce.text.alignment import WordDictionary
from transduce.text.tokenizer import TOKENIZER_FILE

LINES = b"one two three\n\nfour five\n"
ON_CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def quantized(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantize") / "int8"
    transduce.quantize(model, folder)
    return folder


def test_the_sizes_are_reported(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "deep" / "int8"
    said = succeeds("quantize", model, "--out", out)
    before, after = (
        (folder / "model.safetensors").stat().st_size for folder in (model, out)
    )
    assert said == (
        f"The quantized model is in {out}: {after / 1000:.1f} kB of weights instead of "
        f"{before / 1000:.1f} kB (33%).\n"
    )
    content = json.loads((out / "config.json").read_text())
    assert (content["format"], content["precision"]) == (6, "int8")


def test_a_run_is_quantized_as_its_average(
    succeeds: Callable[..., str], run: Path, tmp_path: Path
) -> None:
    succeeds("quantize", run, "--out", tmp_path / "int8")
    made, average = open_model(tmp_path / "int8"), open_model(run / "averaged")
    assert (made.step, made.run, made.search) == (
        average.step, average.run, average.search,
    )  # fmt: skip
    assert made.tokenizer == average.tokenizer
    assert made.config == average.config


def test_languages_and_dictionary_are_kept(
    succeeds: Callable[..., str], trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    dictionary = WordDictionary(translations={"one": "eins"})
    save_model(
        replace(
            trained_checkpoint, source_language="en", target_language="de",
            dictionary=dictionary,
        ),
        tmp_path / "fp32",
    )  # fmt: skip
    succeeds("quantize", tmp_path / "fp32", "--out", tmp_path / "int8")
    made = open_model(tmp_path / "int8")
    assert (made.source_language, made.target_language) == ("en", "de")
    assert made.dictionary == dictionary
    names = {each.name for each in (tmp_path / "fp32").iterdir()}
    assert {each.name for each in (tmp_path / "int8").iterdir()} == {
        *names, ".made-by",
    }  # fmt: skip
    assert TOKENIZER_FILE in names


@pytest.mark.parametrize(
    "options", [(), ("--jsonl", "--nbest", 2), ("--beam-size", 1), ("--processes", 2)]
)
def test_translations_are_those_of_int8(
    succeeds: Callable[..., str],
    model: Path,
    quantized: Path,
    options: tuple[object, ...],
) -> None:
    given = (*options, *ON_CPU)
    expected = succeeds(
        "translate", model, *given, "--precision", "int8", stdin=LINES * 3
    )
    assert succeeds("translate", quantized, *given, stdin=LINES * 3) == expected


def test_all_commands_that_decode_take_a_quantized_model(
    succeeds: Callable[..., str],
    quantized: Path,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    source, target = corpus_files
    shutil.copytree(quantized, tmp_path / "int8")
    folder = tmp_path / "int8"
    texts = ("--source", source, "--target", target)
    assert succeeds("score", folder, *texts).count("\n") == 41
    assert succeeds("sample", folder, stdin=LINES).count("\n") == 3
    found = succeeds(
        *("evaluate", folder, "--source", source, "--reference", target),
        *("--tokenize", "13a"),
    )
    assert "sacreBLEU" in found
    succeeds(
        *("attention", folder, "--source", "one two", "--target", "eins zwei"),
        *("--out", tmp_path / "attention.html"),
    )
    assert (tmp_path / "attention.html").is_file()
    succeeds(
        *("tune", folder, "--dev-source", source, "--dev-target", target),
        *("--beam-sizes", 1, "--length-penalties", 0.6, "--tokenize", "13a"),
    )
    assert open_model(folder).is_quantized


@pytest.mark.parametrize("name", ["average", "export", "quantize"])
def test_commands_that_write_models_refuse_a_quantized_one(
    refuses: Callable[..., str], quantized: Path, tmp_path: Path, name: str
) -> None:
    options = {"export": ("--to", "marian")}.get(name, ())
    message = refuses(name, quantized, *options, "--out", tmp_path / "out")
    assert message.startswith(f"{quantized}: a model must be in fp32 to be ")
    assert not list(tmp_path.iterdir())


def test_a_quantized_model_cannot_be_trained(
    refuses: Callable[..., str],
    quantized: Path,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    source, target = corpus_files
    files = ("--source", source, "--target", target)
    out = tmp_path / "run"
    message = refuses("train", "--from", quantized, *files, "--out", out)
    assert message.startswith(f"{quantized}: a model must be in fp32 to be trained")
    assert not out.exists()


@pytest.mark.parametrize(
    "architecture", [name for name in CONFIGS if name != "transformer"]
)
def test_other_architectures_are_refused(
    refuses: Callable[..., str],
    trained_checkpoint: Checkpoint,
    tmp_path: Path,
    architecture: str,
) -> None:
    config = replace(
        CONFIGS[architecture](), vocab_size=trained_checkpoint.config.vocab_size
    )
    weights = {"weight": torch.zeros(2, 2)}
    save_model(
        replace(trained_checkpoint, config=config, weights=weights),
        tmp_path / "other",
    )
    message = refuses("quantize", tmp_path / "other", "--out", tmp_path / "int8")
    assert message.startswith(f"{tmp_path / 'other'}: ")
    assert "Quantization must have a Transformer, but the architecture" in message
    assert not (tmp_path / "int8").exists()


def test_an_older_model_is_replaced_only_by_force(
    refuses: Callable[..., str],
    succeeds: Callable[..., str],
    model: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / "int8"
    succeeds("quantize", model, "--out", out)
    older = "{}"
    (out / "config.json").write_text(older)
    assert "must be new or empty" in refuses("quantize", model, "--out", out)
    assert (out / "config.json").read_text() == older
    succeeds("quantize", model, "--out", out, "--force")
    assert open_model(out).is_quantized
    assert [each.name for each in tmp_path.iterdir()] == ["int8"]


def test_from_python_too_an_older_model_is_replaced_only_by_request(
    model: Path, tmp_path: Path
) -> None:
    transduce.quantize(model, tmp_path / "int8")
    with pytest.raises(ConfigError, match="must be new or empty, but is not"):
        transduce.quantize(model, tmp_path / "int8")
    transduce.quantize(model, tmp_path / "int8", overwrite=True)


@pytest.mark.parametrize("command", [None, "", "average\n", "\xff"])
def test_even_by_force_no_trained_model_is_replaced(
    refuses: Callable[..., str],
    model: Path,
    run: Path,
    tmp_path: Path,
    command: str | None,
) -> None:
    out = tmp_path / "best"
    shutil.copytree(run / "best", out)
    if command is not None:
        (out / ".made-by").write_text(command, encoding="latin-1")
    before = {each.name: each.read_bytes() for each in out.iterdir()}
    message = refuses("quantize", model, "--out", out, "--force")
    assert "only a folder that the same command wrote can be overwritten" in message
    with pytest.raises(ConfigError, match="only a folder that the same command wrote"):
        transduce.quantize(model, out, overwrite=True)
    assert {each.name: each.read_bytes() for each in out.iterdir()} == before


def test_from_python_too_what_others_put_into_the_folder_is_kept(
    model: Path, tmp_path: Path
) -> None:
    transduce.quantize(model, tmp_path / "int8")
    (tmp_path / "int8" / "config.json").write_text("old")
    (tmp_path / "int8" / "mine").mkdir()
    transduce.quantize(model, tmp_path / "int8", overwrite=True)
    assert (tmp_path / "int8" / "config.json").read_text() != "old"
    assert (tmp_path / "int8" / "mine").exists()


def test_a_model_is_never_replaced_by_its_quantized_copy(
    refuses: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    message = refuses("quantize", folder, "--out", folder, "--force")
    assert "the output folder must be another than the model's" in message
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before


@pytest.mark.parametrize("damage", ["missing", "truncated", "no model"])
def test_a_damaged_model_leaves_nothing(
    refuses: Callable[..., str], model: Path, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    weights = folder / "model.safetensors"
    if damage == "missing":
        (folder / "config.json").unlink()
    elif damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-9])
    else:
        weights.unlink()
    assert str(folder) in refuses("quantize", folder, "--out", tmp_path / "int8")
    assert [each.name for each in tmp_path.iterdir()] == ["model"]
