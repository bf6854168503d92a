import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import marian_npz
from marian_folder import change_settings
from transduce.errors import missing_package
from transduce.interop.marian_import import import_model

pytestmark = pytest.mark.filterwarnings("ignore")  # raised by the libraries


@pytest.fixture(scope="session")
def imported(marian_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("imported") / "model"
    import_model(marian_folder, out, ["The dog runs."])
    return out


def test_a_folder_is_imported_with_its_proof(
    succeeds: Callable[..., str], marian_folder: Path, tmp_path: Path
) -> None:
    out = succeeds("import", marian_folder, "--out", tmp_path / "model")
    first, second, _ = out.splitlines()
    assert first == f"The model is in {tmp_path}/model."
    assert second.startswith("Proof: ")
    assert "tokens of 7 sentences are the same" in second
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {
        "config.json", "model.safetensors", "tokenizer.json", ".made-by",
    }  # fmt: skip


def test_the_users_sentences_are_the_sample(
    succeeds: Callable[..., str], marian_folder: Path, tmp_path: Path
) -> None:
    sample = tmp_path / "sample"
    sample.write_text("The dog.\n\nA cat  runs.\n")
    options = ["--out", tmp_path / "model", "--sample", sample]
    assert "of 2 sentences" in succeeds("import", marian_folder, *options)


def test_the_attention_of_an_imported_model_is_shown(
    succeeds: Callable[..., str], imported: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    succeeds("attention", imported, "--source", ">>deu<< The dog runs.", "--out", page)
    text = page.read_text(encoding="utf-8")
    assert "The dog runs.</dd>" in text
    assert "encoder-decoder 2.2" in text


def test_the_heads_of_an_imported_model_are_surveyed(
    succeeds: Callable[..., str],
    refuses: Callable[..., str],
    imported: Path,
    tmp_path: Path,
) -> None:
    for side in ("source", "target"):
        (tmp_path / side).write_text(">>deu<< The dog runs.\n>>deu<< A cat.\n")
    files = ("--source", tmp_path / "source", "--target", tmp_path / "target")
    printed = succeeds("heads", imported, *files, "--out", tmp_path / "heads")
    assert "Pruning" in printed
    # Its vocabulary has gaps.
    refusal = refuses("heads", imported, "--out", tmp_path / "no", "--sentences", 2)
    assert refusal.startswith("The model's tokenizer must cover the words")


def test_a_failed_proof_names_the_folder(
    refuses: Callable[..., str], marian_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "marian"
    shutil.copytree(marian_folder, folder)
    change_settings(folder / "tokenizer_config.json", eos_token="other")
    assert refuses("import", folder, "--out", tmp_path / "model").startswith(
        f"{folder}: Both tokenizers must give the same ids and text, but do not for"
    )
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("beam_size", "warned_of"), [(1, "The model's own `search.patience`"), (4, "")]
)
def test_an_imported_model_translates(
    command: Callable[..., Any], imported: Path, beam_size: int, warned_of: str
) -> None:
    lines = b">>deu<< The dog runs.\n\n>>deu<< A cat.\n"
    options = ["--beam-size", beam_size, "--min-length", 3, "--jsonl"]
    outcome = command("translate", imported, *options, stdin=lines)
    assert outcome.code == 0
    assert outcome.err.startswith(f"Warning: {warned_of}" if warned_of else "")
    assert outcome.err.count("\n") == bool(warned_of)
    found = [json.loads(line)["hypotheses"] for line in outcome.out.splitlines()]
    assert [len(hypotheses) > 0 for hypotheses in found] == [True, False, True]
    assert len(found[0][0]["tokens"]) >= 3


def test_an_imported_model_is_scored_and_evaluated(
    succeeds: Callable[..., str], imported: Path, tmp_path: Path
) -> None:
    for name in ("source", "target"):
        (tmp_path / name).write_text("The dog runs.\nDer Hund.\n")
    source, target = tmp_path / "source", tmp_path / "target"
    assert len(
        succeeds("score", imported, "--source", source, "--target", target).split()
    )
    options = ["--source", source, "--reference", target]
    assert "BLEU" in succeeds("evaluate", imported, *options)


def test_an_existing_output_is_not_overwritten(
    refuses: Callable[..., str], marian_folder: Path, tmp_path: Path
) -> None:
    message = refuses("import", marian_folder, "--out", marian_folder)
    assert message.startswith(
        f"{marian_folder}: the output folder must be new or empty, but is not"
    )


def test_a_missing_model_to_import_is_to_be_downloaded(
    refuses: Callable[..., str], tmp_path: Path
) -> None:
    download = (
        "download one, such as by `hf download Helsinki-NLP/opus-mt-en-de --local-dir "
        "opus-mt-en-de`."
    )
    origin, out = tmp_path / "nope", tmp_path / "imported"
    needed = f"{origin}: must be a model of Marian or of Hugging Face's Marian, but"
    assert refuses("import", origin, "--out", out) == (
        f"{needed} is not there; name another folder, or {download}"
    )
    origin.mkdir()
    (origin / "model.pt").write_bytes(b"\x80")
    assert refuses("import", origin, "--out", out) == (
        f"{needed} holds another program's weights, which cannot be imported; "
        "`transduce import` takes the folder of a Marian model, with config.json, "
        f"model.npz or Marian's model.bin; else {download}"
    )


def test_a_student_of_marian_is_imported_with_its_shortlist(
    succeeds: Callable[..., str],
    refuses: Callable[..., str],
    tmp_path: Path,
) -> None:
    folder, out = tmp_path / "student", tmp_path / "imported"
    arrays = marian_npz.write_folder(folder, marian_npz.SHARED)
    weights = folder / "model.intgemm8.bin"
    marian_npz.write_binary(weights, arrays, marian_npz.OPTIONS)
    (folder / "model.npz").unlink()
    settings = folder / "config.intgemm8bit.yml"
    settings.write_text(
        f"models: [{weights.name}]\nshortlist: [lex.s2t, 50, 50]\nnormalize: 1.0\n"
    )
    (folder / "lex.s2t").write_text("\u2581Hund \u2581dog 0.9\n")
    shown = succeeds("import", weights, "--out", out)
    assert "It has a shortlist, which is used by default." in shown
    assert "Marian" not in succeeds("translate", out, stdin=b"The dog runs.\n")
    weights.write_bytes(weights.read_bytes()[:3_000])
    said = refuses("import", settings, "--out", tmp_path / "other")
    assert said.startswith(f"{weights}: the weights are missing or damaged (it must ")
    assert not (tmp_path / "other").exists()


def test_only_an_older_import_is_overwritten(
    refuses: Callable[..., str],
    succeeds: Callable[..., str],
    marian_folder: Path,
    imported: Path,
    model: Path,
    tmp_path: Path,
) -> None:
    for folder in (marian_folder, model):  # neither is an import
        copy = tmp_path / folder.name
        shutil.copytree(folder, copy)
        said = refuses("import", marian_folder, "--out", copy, "--force")
        assert said.startswith(f"{copy}: only a folder that the same")
    shutil.copytree(imported, tmp_path / "imported")
    (tmp_path / "imported" / "config.json").write_text("old")
    succeeds("import", marian_folder, "--out", tmp_path / "imported", "--force")
    assert (tmp_path / "imported" / "config.json").read_text() != "old"


@pytest.mark.usefixtures("marian_folder")
def test_a_folder_of_something_else_is_refused(
    refuses: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    message = refuses("import", tmp_path / "empty", "--out", tmp_path / "model")
    assert "or of Hugging Face's Marian, but holds no config.json" in message
    assert not (tmp_path / "model").exists()


def test_weights_that_would_be_unpickled_are_refused(
    refuses: Callable[..., str], marian_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(marian_folder, tmp_path / "marian")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    message = refuses("import", folder, "--out", tmp_path / "model")
    assert "has only pytorch_model.bin" in message
    assert not (tmp_path / "model").exists()


def test_a_missing_package_is_named(
    refuses: Callable[..., str],
    marian_folder: Path,
    tmp_path: Path,
    import_anew: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import_anew("transduce.interop")
    monkeypatch.setitem(sys.modules, "transformers", None)
    message = refuses("import", marian_folder, "--out", tmp_path / "model")
    assert message == missing_package("Import", "transformers", "export")


@pytest.mark.parametrize("name", ["model", "missing", "file"])
def test_a_path_that_is_no_model_is_refused_before_slow_imports(
    refuses: Callable[..., str],
    model: Path,
    tmp_path: Path,
    import_anew: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    (tmp_path / "file").write_text("text")
    import_anew("transduce.interop")
    monkeypatch.setitem(sys.modules, "transformers", None)
    folder = model if name == "model" else tmp_path / name
    refusal = refuses("import", folder, "--out", tmp_path / "out")
    assert refusal.startswith(
        f"{folder}: must be a model of Marian or of Hugging Face's Marian, but "
    )
    assert not (tmp_path / "out").exists()
