"""Paths that are not models of this package are described, with the next step."""

import json
import os
from pathlib import Path

import pytest

from transduce.errors import CheckpointError, RequestError
from transduce.foreign_models import describe
from transduce.interop.marian_import import import_model
from transduce.model_folder import open_model

MARIAN = json.dumps({"model_type": "marian", "architectures": ["MarianMTModel"]})
T5 = json.dumps({"architectures": ["T5ForConditionalGeneration"]})
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"

FOLDERS: dict[str, tuple[dict[str, str], str]] = {
    "nothing": ({}, "holds no model.safetensors, as it is empty; name another folder"),
    "text": (
        {"train.en": "a\n", "train.de": "b\n"},
        "holds no model.safetensors, nor does any checkpoint in it; name another",
    ),
    "CTranslate2": (
        {"model.bin": "x", "config.json": "{}", "shared_vocabulary.json": "[]"},
        "is a model of CTranslate2, which cannot be read back; name the model",
    ),
    "old CTranslate2": (
        {"model.bin": "x", "source_vocabulary.txt": "", "target_vocabulary.txt": ""},
        "is a model of CTranslate2,",
    ),
    "Argos Translate": (
        {"metadata.json": "{}", "model/model.bin": "x", "sentencepiece.model": "x"},
        "is a package of Argos Translate, with a model of CTranslate2, which cannot be "
        "read back; train one with `transduce train`.",
    ),
    "eole": (
        {"config.json": "{}", "model.00.safetensors": "x", "vocab.json": "{}"},
        "is a model of eole, which cannot be imported; train one with",
    ),
    "OpenNMT-tf": (
        {"checkpoint": "x", "ckpt-5000.index": "x", "data.yml": ""},
        "holds checkpoints of TensorFlow, such as those of OpenNMT-tf and "
        "tensor2tensor, which cannot be imported; train one with",
    ),
    "Marian's own, binary": (
        {"model.intgemm.alphas.bin": "\1" + 7 * "\0" + "x", "vocab.spm": "x"},
        "is a model of Marian's own program, which must be imported first; make a",
    ),
    "Marian's own, compressed": (
        {"model.ende.intgemm.alphas.bin.gz": "x", "vocab.ende.spm.gz": "x"},
        "holds compressed files, as those of Marian's models for browsers; unpack them "
        "by `gunzip 'a folder'/*.gz`, and make a model of the folder by `transduce",
    ),
    "Marian, safetensors": (
        {"config.json": MARIAN, "model.safetensors": "x", "vocab.json": "{}"},
        "is a Marian model of Hugging Face, which must be imported first; make a model "
        "of it by `transduce import 'a folder' --out MODEL`.",
    ),
    "Marian, pickled": (
        {"config.json": MARIAN, "pytorch_model.bin": "x", "source.spm": "x"},
        "is a Marian model of Hugging Face, which must be imported first;",
    ),
    "T5": (
        {"config.json": T5, "model.safetensors": "x"},
        "is a model of Hugging Face of the type T5ForConditionalGeneration, which has "
        "another architecture or other files; only those of the type marian can be",
    ),
    "ONNX": (
        {"encoder.onnx": "x", "decoder.onnx": "x", "tokenizer.json": "{}"},
        "is a model in ONNX, which cannot be read back; name the model it was exported",
    ),
    "fairseq": (
        {"model.pt": "x", "dict.en.txt": "", "dict.de.txt": ""},
        "is a model of fairseq, which cannot be imported; train one with",
    ),
    "Marian's own": (
        {"model.npz": "x", "decoder.yml": "", "vocab.spm": "x"},
        "is a model of Marian's own program, which must be imported first; make a",
    ),
    "Sockeye": (
        {"params.best": "x", "version": "3"},
        "holds another program's weights, which cannot be imported;",
    ),
    "a tokenizer": (
        {"tokenizer.json": "{}"},
        "holds a tokenizer, but no model.safetensors; copy the whole folder",
    ),
    "weights alone": (
        {"model.safetensors.index.json": "{}", "x/config.json": "{}", "y.npy": ""},
        "holds no model.safetensors, nor does any checkpoint in it;",
    ),
    "parts": (
        {"model-00001-of-00002.safetensors": "x"},
        "holds weights, but not as model.safetensors with its config.json;",
    ),
    "a run that has just begun": (
        {"config.json": '{"format": 1, "settings": {}}', "tokenizer.json": "{}"},
        "is a run that has saved no checkpoint yet; wait for its first, or continue "
        "the run by `transduce train --out 'a folder' --resume`.",
    ),
    "checkpoints": (
        {"step-00000010/config.json": "{}"},
        "is the folder of a run's checkpoints; name the run,",
    ),
    "steps of something else": (
        {"step-1/notes": "x", "step-2/notes": "x"},
        "holds no model.safetensors, nor does any checkpoint in it;",
    ),
    "a quickstart": (
        {"run/averaged/model.safetensors": "x", "corpus/train.en": "a\n"},
        "holds no model.safetensors, but folders with models; name one of them, such "
        "as a folder/run.",
    ),
    "several runs": (
        {"b/best/model.safetensors": "x", "c/averaged/model.safetensors": "x"},
        "holds no model.safetensors, but folders with models;",
    ),
}

FILES: dict[str, tuple[str, bytes, str]] = {
    "text": (
        "text.en",
        "Ein Satz über Bäume.\n".encode(),
        "is a text file; name the folder of the model first; give text by `transduce "
        "translate MODEL --input FILE`.",
    ),
    "text cut within a letter": ("t", b"x" * 4_095 + "ä".encode() * 9, "is a text"),
    "weights": ("w.safetensors", b"\0\1", "is a file of weights, which needs"),
    "PyTorch": ("pytorch_model.bin", b"PK\3\4", "another program's weights,"),
    "fairseq": ("checkpoint_best.pt", b"PK\3\4", "another program's weights,"),
    "Marian's own": ("model.NPZ", b"PK\3\4", "is a file of NumPy arrays, as Marian"),
    "Marian's own, binary": (
        "model.bin",
        b"\1\0\0\0\0\0\0\0x",
        "is a model in Marian's binary format; make a model of it, with the "
        "vocabularies in the same folder, by `transduce import FILE --out MODEL`.",
    ),
    "Argos Translate": ("en_de.argosmodel", b"PK", "is a package of Argos Translate, "),
    "ONNX": ("model.onnx", b"\0\1", "is a model in ONNX, which cannot be read back"),
    "a tokenizer": ("tokenizer.json", b"{}", "is a tokenizer without its model"),
    "pieces": ("source.spm", b"\0", "is a tokenizer without its model; name the"),
    "an archive": ("opus.zip", b"PK", "is an archive or a compressed file; unpack it"),
    "settings": ("config.json", b"{}", "is one of the files of a model; name its fold"),
    "empty": ("x", b"", "is an empty file; name the folder of a model"),
    "something": ("x", b"\0\1\2", "is a file, not a folder; name the folder"),
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(path: str) -> str:
    with pytest.raises(CheckpointError) as refused:
        open_model(Path(path))
    message = str(refused.value)
    assert message.startswith(f"{path}: must be a model or a run, but ")
    assert message.endswith((".", "?"))
    assert "\n" not in message
    return message.partition(", but ")[2]


@pytest.mark.parametrize(("files", "expected"), FOLDERS.values(), ids=list(FOLDERS))
def test_a_folder_of_another_kind_is_described(
    files: dict[str, str], expected: str
) -> None:
    folder = Path("a folder")
    folder.mkdir()
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(content)
    assert refusal("a folder").startswith(expected)


@pytest.mark.parametrize(
    ("name", "content", "expected"), FILES.values(), ids=list(FILES)
)
def test_a_file_is_described(name: str, content: bytes, expected: str) -> None:
    Path(name).write_bytes(content)
    assert expected in refusal(name)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "Helsinki-NLP/opus-mt-en-de",
            "is not there; if it is the name of a Marian model at Hugging Face, "
            "download it with `hf download Helsinki-NLP/opus-mt-en-de --local-dir "
            "opus-mt-en-de`, then make a model of it with `transduce import "
            "opus-mt-en-de --out models/opus-mt-en-de`.",
        ),
        ("https:/example.org/model", "is a web address, and transduce downloads no"),
        ("runs/mnie", "is not there; did you mean runs/mine?"),
        ("runs/other", "is not there; name another folder, or train one with"),
        ("base", "is not there; name another folder, or train one with"),
        ("/no/such/model", "is not there; name another folder, or train one with"),
        ("broken", "is a link to gone, which is not there; name a folder that is"),
        ("/dev/null", "is no folder; name the folder of a model."),
    ],
)
def test_a_missing_path_is_described(path: str, expected: str) -> None:
    Path("runs/mine").mkdir(parents=True)
    Path("broken").symlink_to("gone")
    assert refusal(path).startswith(expected)


def test_a_folder_of_hugging_faces_cache_leads_to_its_snapshot() -> None:
    folder = Path("models--Helsinki-NLP--opus-mt-en-de")
    (folder / "snapshots" / "0a1b").mkdir(parents=True)
    assert refusal(str(folder)) == (
        "is a folder of Hugging Face's cache, of Helsinki-NLP/opus-mt-en-de; name what "
        f"is in it: {folder}/snapshots/0a1b."
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_folder_is_described() -> None:
    Path("locked").mkdir(mode=0)
    assert refusal("locked").startswith("cannot be read (Permission denied)")


def test_a_pointer_of_git_lfs_is_described(tmp_path: Path) -> None:
    from transduce.model_folder import StoredWeights

    path = tmp_path / "model.safetensors"
    path.write_text(LFS)
    with pytest.raises(CheckpointError, match="fetch them with `git lfs pull`"):
        StoredWeights(path)


def test_malicious_settings_are_read_without_harm() -> None:
    folder = Path("folder")
    folder.mkdir()
    for content in ("[" * 100_000, "[1, 2]", "\0", '{"model_type": 7}'):
        (folder / "config.json").write_text(content)
        assert describe(folder).remedy


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"config.json": '{"format": 3, "model": {}}', "model.safetensors": ""},
            "is a model or a run of transduce; use it as it is.",
        ),
        ({"model.bin": "", "shared_vocabulary.txt": ""}, "is a model of CTranslate2,"),
        ({"model.bin": "", "config.json": "{}"}, "is a model of CTranslate2, which"),
        (
            {"config.json": "{}", "model.00.safetensors": "", "vocab.json": "{}"},
            "is a model of eole, which cannot be imported; download one, such as by",
        ),
        ({"model.npz": ""}, "is a model of Marian's own program, which must be"),
        ({}, "holds no config.json, as it is empty; name another folder"),
        ({"model.safetensors": ""}, "holds no config.json beside its model.safet"),
    ],
)
def test_a_folder_that_cannot_be_imported_is_described(
    files: dict[str, str], expected: str
) -> None:
    Path("folder").mkdir()
    for name, content in files.items():
        (Path("folder") / name).write_text(content)
    with pytest.raises(RequestError) as refused:
        import_model(Path("folder"), Path("out"), ["One."])
    message = str(refused.value)
    assert message.startswith(
        "folder: must be a model of Marian or of Hugging Face's Marian, but "
    )
    assert message.partition(", but ")[2].startswith(expected)
