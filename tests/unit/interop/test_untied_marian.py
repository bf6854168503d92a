"""Marian models of Hugging Face with two vocabularies, or with untied embeddings."""

import json
from pathlib import Path

import jaxtyping
import pytest
import torch
from safetensors.torch import load_file, save_file

import marian_folder as folders
import transduce
from transduce.checkpoint import Checkpoint, load_model
from transduce.errors import CheckpointError, RequestError
from transduce.interop import ctranslate2 as to_ctranslate2
from transduce.interop import marian_export, onnx
from transduce.interop.marian_import import (
    import_model,
    read_settings,
    read_weights,
)

pytestmark = pytest.mark.filterwarnings("ignore")
SENTENCES = ["The dog runs.", ">>deu<< A cat sees the old house.", "naïve 中文 the the"]


@pytest.fixture(scope="module", params=folders.UNTIED)
def imported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Checkpoint]:
    path = tmp_path_factory.mktemp("untied")
    folders.write_untied_folder(path / "marian", request.param)
    proof = import_model(path / "marian", path / "model", SENTENCES)
    assert proof.num_tokens > len(SENTENCES)
    return request.param, load_model(path / "model")


def test_the_model_has_the_matrices_of_the_folder(
    imported: tuple[str, Checkpoint],
) -> None:
    name, checkpoint = imported
    config = checkpoint.transformer_config
    assert config.tied_output == ("nothing tied" not in name)
    assert ("output.weight" in checkpoint.weights) != config.tied_output
    if name.startswith("two vocabularies"):
        assert checkpoint.tokenizer.target_vocab_size == config.target_vocab_size
        assert config.target_vocab_size < config.vocab_size
    else:
        assert config.target_vocab_size == config.vocab_size


def test_a_shared_matrix_takes_the_place_of_absent_ones(tmp_path: Path) -> None:
    """Transformers before 5 stores only this one, and uses it."""
    name = "nothing tied, a shared matrix without use"
    folder = folders.write_untied_folder(tmp_path / "marian", name)
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights.pop("model.shared.weight", None)
    own = [f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    source, target = (weights.pop(each) for each in own)

    def read(**matrices: torch.Tensor) -> dict[str, torch.Tensor]:
        given = {f"model.{name}.weight": each for name, each in matrices.items()}
        save_file({**weights, **given}, path, metadata={"format": "pt"})
        return read_weights(folder, read_settings(folder))

    theirs = {"encoder.embed_tokens": source, "decoder.embed_tokens": source.clone()}
    expected, found = read(**theirs), read(shared=source)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    found = read(shared=source, **{"decoder.embed_tokens": target})
    assert not torch.equal(found["embedding.weight"], found["target_embedding.weight"])


def test_an_export_to_hugging_face_comes_back_weight_by_weight(
    imported: tuple[str, Checkpoint], tmp_path: Path
) -> None:
    _, checkpoint = imported
    marian_export.export(checkpoint, tmp_path / "out", SENTENCES)
    import_model(tmp_path / "out", tmp_path / "again", SENTENCES)
    again = load_model(tmp_path / "again")
    assert again.config == checkpoint.config
    assert again.tokenizer == checkpoint.tokenizer
    assert again.weights.keys() == checkpoint.weights.keys()
    for name, weight in checkpoint.weights.items():
        assert torch.equal(again.weights[name], weight), name


def test_an_export_to_ctranslate2_translates_alike(
    imported: tuple[str, Checkpoint], tmp_path: Path
) -> None:
    _, checkpoint = imported
    assert to_ctranslate2.export(checkpoint, tmp_path / "out", SENTENCES).num_tokens


def test_an_export_to_onnx_chooses_the_same_tokens(
    imported: tuple[str, Checkpoint], tmp_path: Path
) -> None:
    name, checkpoint = imported
    if name != "two vocabularies":
        pytest.skip("one of the variants is enough")
    # While PyTorch exports, sizes are symbols, which are no integers to jaxtyping.
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        assert onnx.export(checkpoint, tmp_path / "out", SENTENCES).num_tokens
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_a_translation_has_pieces_of_the_target_only(
    imported: tuple[str, Checkpoint], tmp_path: Path
) -> None:
    name, checkpoint = imported
    if not name.startswith("two vocabularies"):
        pytest.skip("all pieces are of the target")
    from transduce.checkpoint import save_model

    save_model(checkpoint, tmp_path / "model")
    targets = checkpoint.tokenizer.vocabulary[: checkpoint.tokenizer.target_vocab_size]
    known = {piece.replace("\u2581", " ") for piece in targets}
    for each in transduce.load(tmp_path / "model").translate(SENTENCES):
        assert known.issuperset(each.hypotheses[0].tokens)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    return folders.write_untied_folder(tmp_path / "marian", "two vocabularies")


CHANGES = {
    "the flag is missing": (
        "tokenizer_config.json", {"separate_vocabs": False}, RequestError,
        "must have target_vocab.json, and `separate_vocabs` = true in tokenizer_config",
    ),
    "embeddings are shared": (
        "config.json", {"share_encoder_decoder_embeddings": True}, RequestError,
        "two vocabularies must have `share_encoder_decoder_embeddings` = false, but",
    ),
    "a token was added": (
        "tokenizer_config.json", {"extra_special_tokens": [">>deu<<"]}, RequestError,
        "tokenizer_config.json: a model of two vocabularies must have no added tokens, "
        "but has '>>deu<<'",
    ),
    "the flag is no truth value": (
        "config.json", {"tie_word_embeddings": "yes"}, CheckpointError,
        "`tie_word_embeddings` must be true or false, but is 'yes'",
    ),
    "the start is beyond the target": (
        "config.json", {"decoder_start_token_id": 1_000}, CheckpointError,
        "special ids must be below the number of pieces 150 of target_vocab.json",
    ),
    "sizes are of another model": (
        "config.json", {"decoder_vocab_size": 149}, CheckpointError,
        "target_vocab.json: must give the ids from 0 on to one piece each, 149 at most",
    ),
    "the target's size is missing": (
        "config.json", {"decoder_vocab_size": None}, CheckpointError,
        "`decoder_vocab_size` must be a whole number",
    ),
    "the source has no end": (
        "vocab.json", {"</s>": "left out", "other": 0}, RequestError,
        "vocab.json: must hold </s> and <unk>, but does not",
    ),
    "the target has no unknown piece": (
        "target_vocab.json", {"<unk>": "left out", "other": 1}, RequestError,
        "target_vocab.json: must hold <unk>, but does not",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_damaged_folders_are_refused(two: Path, tmp_path: Path, name: str) -> None:
    file, changes, error, said = CHANGES[name]
    folders.change_settings(two / file, **changes)
    with pytest.raises(error, match=said):
        import_model(two, tmp_path / "model", SENTENCES)
    assert not (tmp_path / "model").exists()


def test_embeddings_padded_to_a_multiple_of_64_are_cut(
    two: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(two / "model.safetensors")
    for name, weight in weights.items():
        if "embed_tokens" in name:
            padded = torch.zeros(192, weight.size(1))
            padded[: len(weight)] = weight
            weights[name] = padded
    weights["final_logits_bias"] = torch.nn.functional.pad(
        weights["final_logits_bias"], (0, 192 - weights["final_logits_bias"].size(1))
    )
    save_file(weights, two / "model.safetensors", metadata={"format": "pt"})
    sizes = {"vocab_size": 192, "decoder_vocab_size": 192}
    folders.change_settings(two / "config.json", **sizes)
    import_model(two, tmp_path / "model", SENTENCES)
    checkpoint = load_model(tmp_path / "model")
    pieces = json.loads((two / "target_vocab.json").read_text(encoding="utf-8"))
    # Padding and start are one piece there.
    assert checkpoint.tokenizer.target_vocab_size == len(pieces) + 1
