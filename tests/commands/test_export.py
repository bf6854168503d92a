import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from transduce.checkpoint import Checkpoint, save_model
from transduce.cli.export import NUM_SENTENCES, UNUSUAL_TEXT, Target, proof_sentences
from transduce.errors import missing_package
from transduce.files import MADE_BY
from transduce.machine import processor_flags
from transduce.search_config import SearchConfig

EXAMPLES = Path(__file__).parents[2] / "docs" / "how-to" / "export.md"
LIBRARYS = 'AutoTokenizer.from_pretrained("DIR")'
SOURCE_IDS = '("A dog runs.", add_special_tokens=False).input_ids'
AS_CTRANSLATE2 = "--penalty", "power", "--length-penalty", 1, "--patience", 1


def test_a_model_is_exported_with_its_proof(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    out = succeeds("export", model, "--to", "ctranslate2", "--out", tmp_path / "out")
    first, second, third = out.splitlines()
    assert first == f"The model for CTranslate2 is in {tmp_path}/out."
    assert second.startswith("Proof: ")
    assert third.startswith("A folder for CTranslate2 has no settings of search; give")
    assert (tmp_path / "out" / "model.bin").is_file()


@pytest.fixture(scope="module")
def exports() -> dict[str, Path]:
    """Folders of the model's exports, by target."""
    return {}


@pytest.fixture
def exported(
    exports: dict[str, Path],
    succeeds: Callable[..., str],
    model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """Function that exports the model to a target, once for all tests, into `DIR`."""

    def folder(target: str) -> Path:
        if target not in exports:
            out = tmp_path_factory.mktemp("exported") / "DIR"
            succeeds("export", model, "--to", target, "--force", "--out", out)
            exports[target] = out
        return exports[target]

    return folder


@pytest.mark.usefixtures("unchecked_types")  # traced sizes are not Python integers
@pytest.mark.filterwarnings("ignore")  # raised by the libraries
@pytest.mark.parametrize("target", sorted({*get_args(Target)} - {"marian-npz"}))
def test_only_an_older_export_is_overwritten(
    exported: Callable[[str], Path],
    refuses: Callable[..., str],
    model: Path,
    tmp_path: Path,
    target: str,
) -> None:
    out = exported(target)
    assert (out / MADE_BY).read_text().startswith(f"export --to {target}\n")
    shutil.copytree(model, tmp_path / "model")
    before = (tmp_path / "model" / "config.json").read_bytes()
    call = ("export", model, "--to", target, "--force", "--out", tmp_path / "model")
    assert "only a folder that the same" in refuses(*call)
    assert (tmp_path / "model" / "config.json").read_bytes() == before


def test_an_export_to_another_library_is_not_overwritten(
    refuses: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    (tmp_path / MADE_BY).write_text("export --to onnx\n")
    call = ("export", model, "--to", "ctranslate2", "--out", tmp_path, "--force")
    said = refuses(*call)
    assert "but this one was written by `transduce export --to onnx`; choose" in said


@pytest.mark.filterwarnings("ignore")  # raised by the libraries
def test_settings_that_another_library_lacks_are_one_warning(
    command: Callable[..., Any], trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    search = SearchConfig(coverage_penalty=0.2, diversity=0.1)
    save_model(replace(trained_checkpoint, search=search), tmp_path / "model")
    call = ("export", tmp_path / "model", "--to", "marian", "--out", tmp_path / "out")
    assert command(*call).err == (
        "Warning: Hugging Face Marian searches differently from these settings of the "
        "model, which it lacks: `search.coverage_penalty`, `search.diversity`.\n"
    )


def documented(first_lines: str) -> str:
    """Program of the page that begins with these lines, as the page says to run it."""
    blocks = re.findall(r"```python\n(.*?)```", EXAMPLES.read_text(), flags=re.DOTALL)
    [example] = [each for each in blocks if each.startswith(first_lines)]
    flags = processor_flags()
    if "avx2" in flags and not flags & {"avx512_vnni", "avx_vnni"}:
        # CTranslate2's sums in 8 bits would overflow.
        example = example.replace('compute_type="int8"', 'compute_type="float32"')
    return str(example)


@pytest.mark.usefixtures("unchecked_types")  # traced sizes are not Python integers
@pytest.mark.filterwarnings("ignore")  # raised by the libraries
@pytest.mark.parametrize(
    ("target", "first_lines", "options"),
    [
        (
            "ctranslate2",
            "import ctranslate2\nimport tokenizers",
            ["--beam-size", 4, *AS_CTRANSLATE2],
        ),
        ("onnx", "import numpy", ["--beam-size", 1]),
        ("marian", "from transformers", ["--beam-size", 1]),
    ],
)
def test_documented_examples_translate_as_transduce_does(
    exported: Callable[[str], Path],
    succeeds: Callable[..., str],
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    first_lines: str,
    options: list[object],
) -> None:
    monkeypatch.chdir(exported(target).parent)
    example = documented(first_lines)
    # ONNX Runtime has its own beam search.
    example = example.replace("generate(**batch)", "generate(**batch, num_beams=1)")
    found: dict[str, str] = {}
    exec(example, found)
    expected = succeeds("translate", model, *options, stdin=b"A dog runs.\n")
    assert found["text"] + "\n" == expected


@pytest.mark.usefixtures("unchecked_types")  # traced sizes are not Python integers
@pytest.mark.filterwarnings("ignore")  # raised by the libraries
@pytest.mark.parametrize(
    ("target", "first_lines", "options"),
    [
        (
            "ctranslate2",
            "import ctranslate2\nfrom transformers",
            ["--beam-size", 4, *AS_CTRANSLATE2],
        ),
        ("onnx", "import numpy", ["--beam-size", 1]),
        ("marian", "from transformers", ["--beam-size", 1]),
    ],
)
def test_documented_examples_translate_with_an_imported_model(
    command: Callable[..., Any],
    marian_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    first_lines: str,
    options: list[object],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("import", marian_folder, "--out", "model").code == 0
    assert command("export", "model", "--to", target, "--out", "DIR").code == 0
    names = {path.name for path in Path("DIR").iterdir()}
    assert {"source.spm", "target.spm", "vocab.json"} <= names
    example = documented(first_lines)
    # As the page says of ONNX.
    for ours, theirs in (
        ("import tokenizers", "from transformers import AutoTokenizer"),
        ('tokenizers.Tokenizer.from_file("DIR/tokenizer.json")', LIBRARYS),
        ('.encode("A dog runs.", add_special_tokens=False).ids', SOURCE_IDS),
    ):
        example = example.replace(ours, theirs)
    example = example.replace("generate(**batch)", "generate(**batch, num_beams=1)")
    found: dict[str, str] = {}
    exec(example, found)
    expected = command("translate", "model", *options, stdin=b"A dog runs.\n").out
    # The random model does not end, and the libraries have other limits of length.
    assert len(expected) > 100
    assert found["text"].startswith(expected.strip())


@pytest.mark.parametrize(
    ("language", "pattern"),
    [
        ("zh-Hans", "[\u4e00-\u9fff，]+。"),
        ("de-AT", r".*\b(der|die|das|ein|eine|einen|den|dem)\b.*"),
        ("en", r".*\b(the|a|an|his|her)\b.*"),
        ("ja", r".*\b(the|a|an|his|her)\b.*"),
        (None, r".*\b(the|a|an|his|her)\b.*"),
    ],
)
def test_the_proof_uses_sentences_in_the_models_language(
    language: str | None, pattern: str
) -> None:
    odd, *sentences = proof_sentences(None, language)
    assert odd == UNUSUAL_TEXT
    assert len(sentences) == NUM_SENTENCES
    assert sum(bool(re.fullmatch(pattern, each, re.I)) for each in sentences) >= 4


def test_the_users_sentences_are_the_sample(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    sample = tmp_path / "sample"
    sample.write_text("one two\n\nthree\n")
    options = ["--to", "ctranslate2", "--out", tmp_path / "out", "--sample", sample]
    assert "of 2 sentences" in succeeds("export", model, *options)


def test_a_sample_of_nothing_is_refused(
    refuses: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    sample = tmp_path / "sample"
    sample.write_text("\n \n")
    options = ["--to", "onnx", "--out", tmp_path / "out", "--sample", sample]
    assert "must have a sentence or more" in refuses("export", model, *options)


def test_an_existing_output_is_not_overwritten(
    refuses: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").touch()
    message = refuses("export", model, "--to", "onnx", "--out", tmp_path)
    assert "must be new or empty, but is not" in message


def test_a_missing_package_is_named(
    refuses: Callable[..., str],
    model: Path,
    tmp_path: Path,
    import_anew: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import_anew("transduce.interop.ctranslate2")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    message = refuses("export", model, "--to", "ctranslate2", "--out", tmp_path / "out")
    assert message == missing_package("Export to ctranslate2", "ctranslate2", "export")


def test_onnx_runtime_neither_reports_nor_keeps_an_identifier(tmp_path: Path) -> None:
    """It would warn of a home folder that cannot be written, and write into others.

    The package of the module that imports it sets what it reads.
    """
    (tmp_path / "file").touch()
    for home in ("file", "home"):
        done = subprocess.run(
            [sys.executable, "-c", "import transduce.interop, onnxruntime"],
            env={**os.environ, "HOME": str(tmp_path / home), "CI": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "home").exists()


def test_an_overlong_sample_is_refused(
    refuses: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    sample = tmp_path / "sample"
    sample.write_text("one\n\n" + "two " * 300)
    options = ["--to", "onnx", "--out", tmp_path / "out", "--sample", sample]
    message = refuses("export", model, *options)
    assert message == (
        "A sentence of the sample must have at most 250 tokens, but number 2 (two two "
        "two two two two two two two...) has 300; take it out."
    )


def test_a_setting_without_counterpart_is_named_with_its_path(
    refuses: Callable[..., str], parsing_model: Path, tmp_path: Path
) -> None:
    options = ["--to", "ctranslate2", "--out", tmp_path / "out"]
    assert refuses("export", parsing_model, *options) == (
        f"{parsing_model}: A model for CTranslate2 must translate into text, but this "
        "one parses; it cannot be exported there."
    )


def test_a_model_that_marian_cannot_express_is_refused(
    refuses: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    message = refuses("export", model, "--to", "marian-npz", "--out", out)
    assert message.startswith(f"{model}: A model for Marian must have a tokenizer of")
    assert not out.exists()
