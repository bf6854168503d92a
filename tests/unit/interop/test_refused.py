"""Unsupported or damaged Marian folders are refused, and nothing is written."""

import ast
import json
import os
import re
import shlex
import shutil
from itertools import islice

import pytest
import torch
from safetensors.torch import load_file, save_file

import marian_folder as folders
from transduce.errors import CheckpointError, DataError, RequestError
from transduce.foreign_models import require_hugging_face_files
from transduce.grammar.corpus import Grammar
from transduce.interop import export
from transduce.interop import marian_export as exporting
from transduce.interop import marian_import as importing
from transduce.interop.export import ProofError

pytestmark = pytest.mark.filterwarnings("ignore")  # raised by the libraries
SENTENCES = [
    pair.source for pair in islice(Grammar.built_in().training_sentences(seed=9), 8)
]


REFUSED_SETTINGS = [
    ({"model_type": "bart"}, '`model_type` must be "marian", but is "bart"; such a'),
    ({"is_encoder_decoder": False}, "`is_encoder_decoder` must be true, but is false"),
    ({"model_type": "left out"}, '`model_type` must be "marian", but is null'),
    ({"normalize_before": True}, "`normalize_before` must be false, but is true"),
    ({"static_position_embeddings": False}, "`static_position_embeddings` must be"),
    ({"normalize_embedding": True}, "`normalize_embedding` must be false"),
    ({"add_final_layer_norm": True}, "`add_final_layer_norm` must be false"),
    ({"scale_embedding": False}, "`scale_embedding` must be true, but is false"),
    ({"scale_embedding": "left out"}, "`scale_embedding` must be true, but is false"),
    ({"activation_function": "gelu"}, '"relu" or "silu" or "swish", but is "gelu"'),
    ({"decoder_ffn_dim": 24}, "`decoder_ffn_dim` must be 20, but is 24"),
    ({"decoder_attention_heads": 4}, "`decoder_attention_heads` must be 2, but is 4"),
    ({"decoder_vocab_size": 7}, "`decoder_vocab_size` must be [0-9]+, but is 7"),
    (
        {"max_position_embeddings": 3_000_000},
        "`max_position_embeddings` must be at most 524,288 at this width, as "
        "`transformers` computes each slowly, but is 3,000,000; lower it there",
    ),
    (
        {"encoder_attention_heads": 16, "decoder_attention_heads": 16},
        "each of the 16 attention heads an even width, but gives 1",
    ),
]
DAMAGED_SETTINGS = [
    ({"d_model": "16"}, "`d_model` must be a whole number of 1 at least, but is '16'"),
    ({"dropout": "some"}, "`dropout` must be a number, but is 'some'"),
    ({"attention_dropout": True}, "`attention_dropout` must be a number, but is True"),
    ({"activation_dropout": [0]}, r"`activation_dropout` must be a number, but is "),
    (
        {"vocab_size": 10**9, "decoder_vocab_size": 10**9},
        "`vocab_size` must be at most 16,777,216, but is 1000000",
    ),
    ({"encoder_layers": 2_000}, "`model.num_layers` must be at most 1,000, but is 2"),
    ({"dropout": 1.5}, "`dropout` must be at least 0 and below 1, but is 1.5"),
    ({"encoder_layers": 0}, "`encoder_layers` must be a whole number of 1 at least"),
    ({"eos_token_id": [0]}, r"`eos_token_id` must be a whole number .* is \[0\]"),
    ({"pad_token_id": "left out"}, "`pad_token_id` must be a whole number of 0 at"),
    ({"pad_token_id": 9_000}, "special ids must be below the vocabulary's size"),
    (
        {"encoder_attention_heads": 3, "decoder_attention_heads": 3},
        "`d_model` must be a multiple of the 3 attention heads, but is 16",
    ),
]


@pytest.fixture
def refuses(folder, tmp_path):
    """Check that an import fails with a message and writes nothing."""

    def check(error, message: str) -> None:
        with pytest.raises(error, match=message):
            importing.import_model(folder, tmp_path / "out", SENTENCES[:1])
        assert [path.name for path in tmp_path.iterdir()] == ["marian"]

    return check


@pytest.mark.parametrize(("changes", "message"), REFUSED_SETTINGS, ids=str)
def test_unsupported_settings_are_refused(changes, message, folder, refuses):
    folders.change_settings(folder / "config.json", **changes)
    refuses(RequestError, f"^{folder}/config.json: .*{message}")


@pytest.mark.parametrize(("changes", "message"), DAMAGED_SETTINGS, ids=str)
def test_damaged_settings_are_refused(changes, message, folder, refuses):
    folders.change_settings(folder / "config.json", **changes)
    refuses(CheckpointError, f"^{folder}/config.json: {message}")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_beams": "4"}, CheckpointError, "`num_beams` must be a whole number"),
        ({"num_beams": 0}, CheckpointError, "`num_beams` must be a whole number of 1"),
        (
            {"length_penalty": "much"},
            CheckpointError,
            "`length_penalty` must be a number, but is 'much'",
        ),
        (
            {"length_penalty": -1.5},
            RequestError,
            "must be at least 0, but is -1.5; change it there, to import the model",
        ),
    ],
    ids=str,
)
def test_unsupported_search_settings_are_refused(
    changes, error, message, folder, refuses
):
    folders.change_settings(folder / "generation_config.json", **changes)
    refuses(error, f"generation_config.json: .*{message}")


def test_settings_that_are_not_json_are_refused(folder, refuses):
    (folder / "config.json").write_text("{", encoding="utf-8")
    refuses(CheckpointError, "config.json: the file is missing or damaged")


def test_a_folder_that_transformers_cannot_load_is_refused(folder, refuses):
    folders.change_settings(folder / "config.json", dtype="nonsense")
    refuses(
        RequestError, "what the package `transformers` runs, .* but it says: [^\n]+$"
    )


def test_what_transformers_says_is_cut_short(folder, tmp_path):
    folders.change_settings(folder / "config.json", bos_token_id="a" * 10_000)
    with pytest.raises(RequestError, match="`transformers` runs") as error:
        importing.import_model(folder, tmp_path / "out", SENTENCES[:1])
    assert len(str(error.value)) < 1_000


@pytest.mark.parametrize(
    "settings",
    [
        {"attn_implementation": "someone/kernels"},
        {"_attn_implementation": "flash_attention_2"},
        {"transformers_weights": "other.bin"},
    ],
    ids=str,
)
def test_settings_that_load_programs_have_no_effect(settings, folder, tmp_path):
    """The library would download attention, and read pickled weights."""
    (folder / "other.bin").write_bytes(b"no weights")
    folders.change_settings(folder / "config.json", **settings)
    assert importing.import_model(folder, tmp_path / "out", SENTENCES[:1]).num_tokens


def test_a_tokenizer_that_fails_in_transformers_is_refused(folder, refuses):
    folders.change_settings(folder / "tokenizer_config.json", model_max_length={})
    refuses(RequestError, "what the package `transformers` runs, .* but it says: '>' ")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["config.json"],
            "must be a model of Marian or of Hugging Face's Marian, but holds no",
        ),
        (["model.safetensors"], "must hold model.safetensors, but does not; fetch all"),
        (["vocab.json"], "must hold source.spm, .* but has no vocab.json; fetch all"),
        (["source.spm", "target.spm"], "but has no source.spm"),
    ],
)
def test_missing_files_are_named(names, message, folder, refuses):
    for name in names:
        (folder / name).unlink()
    refuses((RequestError, CheckpointError), message)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_pickled_weights_are_refused(name, folder, refuses):
    (folder / "model.safetensors").rename(folder / name)
    refuses(
        RequestError,
        f"must hold model.safetensors, but has only {name}, which could run any "
        "program as it is loaded; if you trust it, convert it with: python -c "
        f'\'from .*from_pretrained\\("{folder}"\\).save_pretrained',
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "tf_model.h5",
            "has only tf_model.h5, the weights of TensorFlow; install TensorFlow and .*"
            "from_pretrained.*, from_tf=True.*save_pretrained",
        ),
        (
            "flax_model.msgpack",
            "has only flax_model.msgpack, the weights of Flax; install Flax and .*"
            "from_pretrained.*, from_flax=True.*save_pretrained",
        ),
        ("rust_model.ot", "has only rust_model.ot, which cannot be read back; fetch "),
        ("onnx/decoder.onnx", "has only onnx/decoder.onnx, which cannot be read back"),
        ("openvino_model.xml", "has only openvino_model.xml, which cannot be read"),
        (
            "pytorch_model-00001-of-00002.bin",
            "a part of pickled weights, without pytorch_model.bin.index.json; fetch "
            "all files of the model, .* convert them with: python -c ",
        ),
    ],
)
def test_other_weights_are_refused_with_their_conversion(name, message, tmp_path):
    for each in ("config.json", name):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_text("{}")
    with pytest.raises(RequestError, match=message):
        require_hugging_face_files(tmp_path)


def test_the_command_that_converts_weights_has_any_folder_as_it_is(tmp_path):
    folder = tmp_path / """it's $(a) "ü" """
    folder.mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        (folder / name).write_text("{}")
    with pytest.raises(RequestError) as refused:
        require_hugging_face_files(folder)
    _, _, command = str(refused.value).partition("convert it with: ")
    python, option, program = shlex.split(command)
    assert (python, option) == ("python", "-c")
    assert ast.literal_eval(re.search(r"pretrained\((.*?)\)\.", program)[1]) == str(
        folder
    )


def test_an_adapter_beside_the_weights_is_refused(folder, refuses):
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    refuses(RequestError, "but has one .*, which would be lost; merge it by `merge_")


@pytest.mark.parametrize("size", [0, 9, 4_000])
def test_damaged_weights_are_refused(size, folder, refuses):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    refuses(CheckpointError, f"^{path}: the weights are missing or damaged")


NORM = "model.encoder.layer_norm.weight"
FC1 = "model.encoder.layers.0.fc1.weight"
WEIGHTS = {
    "one too few": (
        lambda weights: weights.pop(FC1),
        CheckpointError,
        rf"`{FC1}` must be \(20, 16\) by the settings beside it, but is nothing",
    ),
    "one too many": (
        lambda weights: weights.update({NORM: torch.ones(16)}),
        CheckpointError,
        rf"`{NORM}` must be nothing .* but is \(16,\)",
    ),
    "another shape": (
        lambda weights: weights.update({FC1: torch.ones(20, 18)}),
        CheckpointError,
        rf"`{FC1}` must be \(20, 16\) by .* but is \(20, 18\); the files are of",
    ),
    "not finite": (
        lambda weights: weights[FC1].fill_(float("inf")),
        CheckpointError,
        f"the weights must be finite numbers, but those of `{FC1}` are not; fetch",
    ),
    "learned positions": (
        lambda weights: weights.update(
            {"model.encoder.embed_positions.weight": torch.randn(96, 16)}
        ),
        RequestError,
        "`model.encoder.embed_positions.weight` must be sinusoids, but is learned",
    ),
    "an output of its own": (
        lambda weights: weights.update(
            {"lm_head.weight": weights["model.shared.weight"] + 1}
        ),
        RequestError,
        "`model.shared.weight` and `lm_head.weight` must be one matrix, but differ",
    ),
    "no embedding": (
        lambda weights: weights.pop("model.shared.weight"),
        CheckpointError,
        "must hold `model.shared.weight`, but does not; the file is damaged",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("edit", "error", "message"), WEIGHTS.values(), ids=WEIGHTS.keys()
)
def test_weights_of_another_model_are_refused(edit, error, message, folder, refuses):
    path = folder / "model.safetensors"
    weights = load_file(path)
    edit(weights)
    save_file(weights, path, metadata={"format": "pt"})
    refuses(error, f"^{path}: {message}")


def test_layers_without_weights_are_refused_before_they_are_built(folder, refuses):
    folders.change_settings(folder / "config.json", decoder_layers=1_000)
    name = "model.decoder.layers.999.fc1.weight"
    refuses(CheckpointError, rf"`{name}` must be \(20, 16\) by .* but is nothing;")


def test_a_folder_without_its_own_output_is_refused(folder, refuses):
    folders.change_settings(folder / "config.json", tie_word_embeddings=False)
    path = folder / "model.safetensors"
    weights = load_file(path)
    for side in ("encoder", "decoder"):
        name = f"model.{side}.embed_tokens.weight"
        weights[name] = weights["model.shared.weight"].clone()
    save_file(weights, path, metadata={"format": "pt"})
    refuses(CheckpointError, "must hold `lm_head.weight`, but does not")


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (torch.int8, "int8; import the model before it was quantized."),
        (torch.float8_e4m3fn, "float8_e4m3fn; import the model before it was quan"),
        (torch.bool, "bool; such a model cannot be imported."),
        (torch.complex64, "complex64; such a model cannot be imported."),
    ],
    ids=str,
)
def test_weights_that_are_no_numbers_in_floating_point_are_refused(
    dtype, message, folder, refuses
):
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights[FC1] = weights[FC1].to(dtype)
    save_file(weights, path, metadata={"format": "pt"})
    must = "must be numbers in fp64, fp32, fp16 or bf16, but is"
    refuses(RequestError, f"^{path}: `{FC1}` {must} {message}")


def test_weights_beyond_fp32_are_refused(folder, refuses):
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights[FC1] = weights[FC1].double().fill_(1e39)
    save_file(weights, path, metadata={"format": "pt"})
    refuses(CheckpointError, f"^{path}: the weights must be finite numbers, .*`{FC1}`")


@pytest.mark.parametrize("damage", ["text", "link", "folder"])
def test_damaged_settings_of_the_tokenizer_are_refused(damage, folder, refuses):
    path = folder / "tokenizer_config.json"
    path.unlink()
    match damage:
        case "text":
            path.write_text("{", encoding="utf-8")
        case "link":
            path.symlink_to("nowhere")
        case "folder":
            path.mkdir()
    refuses(CheckpointError, f"^{path}: the file is missing or damaged")


def test_a_second_vocabulary_without_its_setting_is_refused(folder, refuses):
    shutil.copy(folder / "vocab.json", folder / "target_vocab.json")
    refuses(
        RequestError, "a model of two vocabularies must have target_vocab.json, and"
    )


@pytest.mark.parametrize(
    "edit",
    [
        lambda ids: ids.pop("<unk>"),
        lambda ids: ids.update({"more": len(ids)}),
        lambda ids: ids.update({"<unk>": 0}),
        lambda ids: ids.update({"<unk>": "1"}),
    ],
)
def test_a_vocabulary_of_another_model_is_refused(edit, folder, refuses):
    path = folder / "vocab.json"
    ids = json.loads(path.read_text(encoding="utf-8"))
    edit(ids)
    path.write_text(json.dumps(ids), encoding="utf-8")
    refuses(CheckpointError, f"^{path}: must give the ids 0 to [0-9]+ to one piece")


def test_a_piece_with_half_a_character_is_refused(folder, refuses):
    path = folder / "vocab.json"
    ids = json.loads(path.read_text(encoding="utf-8"))
    halved = {"\ud800" if i == 20 else piece: i for piece, i in ids.items()}
    path.write_text(json.dumps(halved), encoding="utf-8")
    refuses(CheckpointError, f"^{path}: all pieces must be text, but .*ud800. has half")


@pytest.mark.parametrize(
    "names", [{"<unk>": "[UNK]"}, {">>deu<<": "<s>", ">>fra<<": ""}]
)
def test_a_vocabulary_with_other_special_tokens_is_refused(names, folder, refuses):
    path = folder / "vocab.json"
    ids = json.loads(path.read_text(encoding="utf-8"))
    renamed = {names.get(piece, piece): i for piece, i in ids.items()}
    path.write_text(json.dumps(renamed), encoding="utf-8")
    refuses(RequestError, f"^{path}: must hold <unk>, and no more special tokens than")


def test_a_start_token_that_is_text_is_refused(folder, refuses):
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    folders.change_settings(folder / "config.json", decoder_start_token_id=ids["▁the"])
    refuses(RequestError, "names, none of them text, but does not")


@pytest.mark.parametrize(
    ("settings", "obstacle"),
    [
        ({"model_type": "char"}, "cuts by other means"),
        ({"treat_whitespace_as_suffix": True}, "writes spaces after words"),
        ({"denormalization_rule_tsv": True}, "changes what it decodes"),
    ],
    ids=str,
)
def test_unsupported_sentencepiece_models_are_refused(
    settings, obstacle, folder, refuses, tmp_path_factory
):
    if "denormalization_rule_tsv" in settings:
        rules = tmp_path_factory.mktemp("rules") / "rules.tsv"
        rules.write_text("41\t61\n", encoding="utf-8")
        settings = {"denormalization_rule_tsv": str(rules)}
    path = folder / "target.spm"
    folders.write_sentencepiece(SENTENCES * 30, path, **settings)
    refuses(RequestError, f"^{path}: the model of SentencePiece must be .* {obstacle};")


@pytest.mark.parametrize("damage", [lambda data: data[:999], lambda _: b"no model"])
def test_a_damaged_sentencepiece_model_is_refused(damage, folder, refuses):
    path = folder / "source.spm"
    path.write_bytes(damage(path.read_bytes()))
    refuses(CheckpointError, f"^{path}: the model of SentencePiece is missing or dam")


@pytest.fixture
def exported(trained_checkpoint, tmp_path_factory):
    """Exported folder with a tokenizer of this project."""
    folder = tmp_path_factory.mktemp("exported") / "marian"
    exporting.export(trained_checkpoint, folder, ["one two"])
    return folder


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (lambda text: text[:-9], CheckpointError, "tokenizer is missing or dam"),
        (lambda text: text.replace('"NFC"', '"NFD"'), RequestError, "that `transduce"),
        (lambda text: text.replace('"<0x00>"', '"<0>"'), RequestError, "elsewhere"),
    ],
)  # fmt: skip
def test_other_tokenizers_are_refused(edit, error, message, exported, tmp_path):
    path = exported / "tokenizer.json"
    path.write_text(edit(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(error, match=f"^{path}: .*{message}"):
        importing.import_model(exported, tmp_path / "out", ["one"])
    assert not list(tmp_path.iterdir())


def test_a_pipe_in_place_of_the_tokenizer_is_refused(exported, tmp_path):
    """Opening it would block forever."""
    path = exported / "tokenizer.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match=f"^{path}: .* not a regular file"):
        importing.import_model(exported, tmp_path / "out", ["one"])


def test_a_sentence_longer_than_marians_positions_is_refused(refuses, monkeypatch):
    monkeypatch.setattr(f"{__name__}.SENTENCES", ["dog " * 95 + "dog"])
    refuses(DataError, "at most 95 tokens, but number 1 .* has [0-9]+; take it")


def test_a_failed_proof_writes_nothing(refuses, monkeypatch):
    monkeypatch.setattr(export, "TOLERANCE", 0.0)
    refuses(ProofError, "same logits within 0.0, but .* nothing was written")


def test_a_failed_proof_keeps_an_existing_model(marian_folder, tmp_path, monkeypatch):
    out = tmp_path / "out"
    importing.import_model(marian_folder, out, SENTENCES[:1])
    before = {each.name: each.read_bytes() for each in out.iterdir()}
    monkeypatch.setattr(export, "TOLERANCE", 0.0)
    with pytest.raises(ProofError, match="same logits within 0.0, but"):
        importing.import_model(marian_folder, out, SENTENCES[:1], overwrite=True)
    assert {each.name: each.read_bytes() for each in out.iterdir()} == before
