"""Paths that are not models of this package: what they are, and what to do.

Reads only names, sizes, first bytes, and small JSON files; loads and downloads nothing.
"""

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any

from transduce.errors import RequestError

CONFIG, WEIGHTS = "config.json", "model.safetensors"
CHECKPOINT_NAME = re.compile(r"step-(\d{8}|[1-9]\d{8,})", re.ASCII)
"""Pattern of the name of a run's checkpoint. Other folders beside the checkpoints, such
as a user's copy of one, are not the run's."""
PICKLE, DECODER = "pytorch_model.bin", "decoder.yml"
INDEX = "model.safetensors.index.json"
"""Index of weights in several files."""
PICKLE_INDEX = f"{PICKLE}.index.json"
"""Index of pickled weights in several files."""
PICKLE_PARTS = "pytorch_model*.bin"
"""Pattern of the names of those files."""
OTHER_FRAMEWORKS = {
    "tf_model.h5": ("TensorFlow", "from_tf"),
    "flax_model.msgpack": ("Flax", "from_flax"),
}
"""Weights of other frameworks, with the option by which `transformers` reads them."""
CONVERTED = (".onnx", ".ot", ".xml")
"""Endings of models that are converted for other programs: ONNX Runtime, also in a
browser, rust-bert, and OpenVINO."""
ADAPTER = "adapter_config.json"
"""Settings of an adapter, such as LoRA's: changes of the weights in another file."""
MAX_JSON_BYTES = 10_000_000
"""Maximum size of a JSON file; a larger one is not a model's configuration."""
FIRST_BYTES = 4_096
TRAIN = "train one with `transduce train`"
DOWNLOAD = (
    "download one, such as by `hf download Helsinki-NLP/opus-mt-en-de --local-dir "
    "opus-mt-en-de`"
)
"""Origins of models to import; this package trains none of them."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_CACHE = re.compile(r"models--(.+?)--(.+)")
LFS_POINTER = b"version https://git-lfs"
EOLE_WEIGHTS = "model.00.safetensors"
"""Weights of a model of eole, or the first part of them."""
MARIAN_BINARY = (1).to_bytes(8, "little")
"""Beginning of a binary file of Marian: the version of its format."""
COMPRESSED_BINARY = ".bin.gz"
MARIAN_SETTINGS = (".yml", ".yaml")
"""Endings of the names of Marian's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Description of a path ("is a model of CTranslate2") with the next step."""

    what: str
    remedy: str

    def __str__(self) -> str:
        end = "" if self.remedy.endswith("?") else "."
        return f"{self.what}; {self.remedy}{end}"


IMPORT_FILE = (
    "make a model of it, with the vocabularies in the same folder, by `transduce "
    "import FILE --out MODEL`"
)
KINDS_OF_FILES = {
    ".safetensors": Finding(
        what="is a file of weights, which needs the files beside it",
        remedy="name the folder that holds it",
    ),
    **dict.fromkeys(
        (".bin", ".pt", ".pth", ".ckpt", ".pkl"),
        Finding(
            what="is a file of another program's weights, such as PyTorch or "
            "CTranslate2 writes",
            remedy="`transduce import` takes the folder of a Marian model, of Hugging "
            "Face or with model.npz or Marian's model.bin",
        ),
    ),
    ".npz": Finding(
        what="is a file of NumPy arrays, as Marian's own program writes its models",
        remedy=IMPORT_FILE,
    ),
    ".onnx": Finding(
        what="is a model in ONNX, which cannot be read back",
        remedy="name the model it was exported from",
    ),
    ".gguf": Finding(
        what="is a model of llama.cpp, which has another architecture",
        remedy=TRAIN,
    ),
    **dict.fromkeys(
        (".spm", ".model", ".vocab"),
        Finding(
            what="is a tokenizer without its model",
            remedy="name the folder of the model",
        ),
    ),
    ".argosmodel": Finding(
        what="is a package of Argos Translate, with a model of CTranslate2, which "
        "cannot be read back",
        remedy=TRAIN,
    ),
    **dict.fromkeys(
        (".zip", ".tar", ".tgz", ".gz", ".xz", ".bz2", ".zst"),
        Finding(
            what="is an archive or a compressed file",
            remedy="unpack it, and name the folder of the model",
        ),
    ),
}
"""Descriptions of files by the endings of their names."""
BINARY = Finding(what="is a model in Marian's binary format", remedy=IMPORT_FILE)


def describe(path: Path) -> Finding:
    """Describe a path that is not a model, with a remedy."""
    return _description(path, WEIGHTS)


def describe_origin(path: Path) -> Finding:
    """Describe a path that is not a model to import, with a remedy."""
    finding = _description(path, CONFIG)
    return replace(finding, remedy=finding.remedy.replace(TRAIN, DOWNLOAD))


def _description(path: Path, needed: str) -> Finding:
    """Describe a path; `needed` is the file that a right folder would hold."""
    try:
        if path.is_dir():
            return _folder(path, needed)
        if path.is_file():
            return _file(path)
        if path.is_symlink():
            return Finding(
                what=f"is a link to {path.readlink()}, which is not there",
                remedy="name a folder that is there",
            )
        if path.exists():
            return Finding(what="is no folder", remedy="name the folder of a model")
    except OSError as error:
        return Finding(
            what=f"cannot be read ({error.strerror})", remedy="name another folder"
        )
    return _missing(path)


def foreign_type(folder: Path) -> str | None:
    """Type of a Hugging Face model, such as "marian"; None if it is not one."""
    config = _json(folder / CONFIG)
    kind = config.get("model_type")
    if kind is None and isinstance(config.get("architectures"), list):
        kind = ", ".join(map(str, config["architectures"]))
    return None if kind is None or "format" in config else str(kind)


def is_ours(folder: Path) -> bool:
    """Whether this package wrote the folder, a model or a run."""
    config = _json(folder / CONFIG)
    return "format" in config and bool({"model", "settings"} & config.keys())


def is_pointer(path: Path) -> bool:
    """Whether a file is only a pointer of Git LFS."""
    with suppress(OSError):
        if path.is_file() and path.stat().st_size < FIRST_BYTES:
            return path.read_bytes().startswith(LFS_POINTER)
    return False


def _missing(path: Path) -> Finding:
    name = str(path)
    if re.match(r"https?:/", name):
        return Finding(
            what="is a web address, and transduce downloads no models",
            remedy="download the model, and name its folder",
        )
    if HUB_NAME.fullmatch(name) and not path.parent.is_dir():
        folder = path.name
        return Finding(
            what="is not there",
            remedy="if it is the name of a Marian model at Hugging Face, download it "
            f"with `hf download {name} --local-dir {folder}`, then make a model of it "
            f"with `transduce import {folder} --out models/{folder}`",
        )
    with suppress(OSError):
        beside = {each.name: each for each in path.parent.iterdir() if each.is_dir()}
        if close := get_close_matches(path.name, beside, n=1):
            return Finding(
                what="is not there", remedy=f"did you mean {beside[close[0]]}?"
            )
    return Finding(what="is not there", remedy=f"name another folder, or {TRAIN}")


def _file(path: Path) -> Finding:
    with path.open("rb") as file:
        beginning = file.read(FIRST_BYTES)
    if not beginning:
        return Finding(what="is an empty file", remedy="name the folder of a model")
    is_whole = path.name == WEIGHTS and (path.parent / CONFIG).is_file()
    if path.name == CONFIG or is_whole:
        return Finding(
            what="is one of the files of a model",
            remedy=f"name its folder, {path.parent}",
        )
    if path.name == "tokenizer.json":
        return KINDS_OF_FILES[".spm"]
    by_name = KINDS_OF_FILES.get(path.suffix.lower())
    if finding := BINARY if beginning.startswith(MARIAN_BINARY) else by_name:
        return finding
    if _is_text(beginning):
        return Finding(
            what="is a text file",
            remedy="name the folder of the model first; give text by `transduce "
            "translate MODEL --input FILE`",
        )
    return Finding(
        what="is a file, not a folder", remedy="name the folder that holds the model"
    )


def _is_text(beginning: bytes) -> bool:
    try:
        beginning.decode("utf-8")
    except UnicodeDecodeError as error:
        # The last character may be cut off.
        return error.start > len(beginning) - 4 and b"\0" not in beginning
    return b"\0" not in beginning


def _folder(path: Path, needed: str) -> Finding:
    """Describe a folder by the most certain finding."""
    names = {each.name for each in path.iterdir()}
    known = (_run, _exported, _hugging_face, _not_imported, _others)
    for finding in chain.from_iterable(look(path, names) for look in known):
        return finding
    why = ", nor does any checkpoint in it" if names else ", as it is empty"
    return Finding(
        what=f"holds no {needed}{why}", remedy=f"name another folder, or {TRAIN}"
    )


def _run(path: Path, names: set[str]) -> Iterator[Finding]:
    """Findings about runs of this package and the folders in or above them."""
    if CONFIG in names and "settings" in _json(path / CONFIG):
        yield Finding(
            what="is a run that has saved no checkpoint yet",
            remedy="wait for its first, or continue the run by `transduce train --out "
            f"{shlex.quote(str(path))} --resume`",
        )
    if any(map(CHECKPOINT_NAME.fullmatch, names)):
        yield Finding(
            what="is the folder of a run's checkpoints",
            remedy=f"name the run, {path.parent}, or one of the checkpoints",
        )
    inner = sorted(
        each.parent
        for pattern in (f"*/{WEIGHTS}", f"*/averaged/{WEIGHTS}", f"*/best/{WEIGHTS}")
        for each in path.glob(pattern)
    )
    runs = [p.parent if p.name in ("averaged", "best") else p for p in inner]
    if runs and CONFIG not in names:
        yield Finding(
            what=f"holds no {WEIGHTS}, but folders with models",
            remedy=f"name one of them, such as {runs[0]}",
        )


def _exported(path: Path, names: set[str]) -> Iterator[Finding]:
    vocabularies = any(re.match(r"(shared|source|target)_vocab", n) for n in names)
    if "model.bin" in names and (vocabularies or CONFIG in names):
        yield Finding(
            what="is a model of CTranslate2, which cannot be read back",
            remedy="name the model it was made of, which `transduce import` takes if "
            "it is a Marian model",
        )
    if "metadata.json" in names and (path / "model" / "model.bin").is_file():
        yield KINDS_OF_FILES[".argosmodel"]
    if any(name.endswith(".onnx") for name in names):
        yield Finding(
            what="is a model in ONNX, which cannot be read back",
            remedy="name the model it was exported from",
        )


def _hugging_face(path: Path, names: set[str]) -> Iterator[Finding]:
    kind = foreign_type(path) if CONFIG in names else None
    if kind is not None and "marian" in kind.lower():
        quoted = shlex.quote(str(path))
        yield Finding(
            what="is a Marian model of Hugging Face, which must be imported first",
            remedy=f"make a model of it by `transduce import {quoted} --out MODEL`",
        )
    elif kind is not None:
        yield Finding(
            what=f"is a model of Hugging Face of the type {kind}, which has another "
            "architecture or other files",
            remedy="only those of the type marian can be imported",
        )
    if cached := HUB_CACHE.fullmatch(os.path.basename(os.path.realpath(path))):
        snapshots = sorted((path / "snapshots").glob("*"))
        where = snapshots[-1] if snapshots else path / "snapshots"
        yield Finding(
            what=f"is a folder of Hugging Face's cache, of {'/'.join(cached.groups())}",
            remedy=f"name what is in it: {where}",
        )


def _not_imported(path: Path, names: set[str]) -> Iterator[Finding]:
    """Findings about models that are known by name and cannot be imported."""
    suffixes = {Path(name).suffix for name in names}
    dictionaries = any(re.fullmatch(r"dict\..*txt", name) for name in names)
    if dictionaries and suffixes & {".pt"}:
        yield Finding(
            what="is a model of fairseq, which cannot be imported", remedy=TRAIN
        )
    if EOLE_WEIGHTS in names:
        yield Finding(what="is a model of eole, which cannot be imported", remedy=TRAIN)
    if "checkpoint" in names and ".index" in suffixes:
        yield Finding(
            what="holds checkpoints of TensorFlow, such as those of OpenNMT-tf and "
            "tensor2tensor, which cannot be imported",
            remedy=TRAIN,
        )


def _others(path: Path, names: set[str]) -> Iterator[Finding]:
    suffixes = {Path(name).suffix for name in names}
    if ".npz" in suffixes or is_marian(path):
        yield Finding(
            what="is a model of Marian's own program, which must be imported first",
            remedy="make a model of it by `transduce import "
            f"{shlex.quote(str(path))} --out MODEL`",
        )
    if any(name.endswith(COMPRESSED_BINARY) for name in names):
        yield Finding(
            what="holds compressed files, as those of Marian's models for browsers",
            remedy=f"unpack them by `gunzip {shlex.quote(str(path))}/*.gz`, and make a "
            "model of the folder by `transduce import`",
        )
    if suffixes & {".pt", ".pth", ".bin", ".ckpt"} or "params.best" in names:
        yield Finding(
            what="holds another program's weights, which cannot be imported",
            remedy="`transduce import` takes the folder of a Marian model, with "
            f"{CONFIG}, model.npz or Marian's model.bin; else {TRAIN}",
        )
    if WEIGHTS in names and CONFIG not in names:
        yield Finding(
            what=f"holds no {CONFIG} beside its {WEIGHTS}",
            remedy="copy the whole folder of the model",
        )
    if suffixes & {".safetensors"}:
        yield Finding(
            what=f"holds weights, but not as {WEIGHTS} with its {CONFIG}",
            remedy="name a whole model folder, of one part",
        )
    if {"tokenizer.json", "source.spm"} & names or suffixes & {".spm"}:
        yield Finding(
            what=f"holds a tokenizer, but no {WEIGHTS}",
            remedy="copy the whole folder of the model, or name another",
        )


def is_marian(path: Path) -> bool:
    """Return whether a path is that of a model of Marian's own: a folder with weights
    in any of its formats, weights, or settings.

    A folder that also has Hugging Face's `config.json` counts as theirs.
    """
    if path.is_file():
        return path.suffix in (".npz", *MARIAN_SETTINGS) or is_marian_binary(path)
    names = [each.name for each in path.glob("*")] if path.is_dir() else []
    if CONFIG in names:
        return False
    binaries = [name for name in names if name.endswith(".bin")]
    return (
        any(name.endswith(".npz") for name in names)
        or (DECODER in names and bool(binaries))
        or any(is_marian_binary(path / name) for name in binaries)
    )


def is_marian_binary(path: Path) -> bool:
    """Return whether a file is in Marian's binary format."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(len(MARIAN_BINARY)) == MARIAN_BINARY
    return False


def require_hugging_face_files(folder: Path) -> None:
    """Raise `RequestError` unless a folder has the files of a model of Hugging Face."""
    needed = f"{folder}: must be a model of Marian or of Hugging Face's Marian, but"
    if is_ours(folder):
        raise RequestError(
            f"{needed} is a model or a run of transduce; use it as it is."
        )
    has_weights = (folder / WEIGHTS).is_file() or (folder / INDEX).is_file()
    pickles = [n for n in (PICKLE, PICKLE_INDEX) if (folder / n).is_file()]
    others = [name for name in OTHER_FRAMEWORKS if (folder / name).is_file()]
    is_of_others = not (has_weights or pickles or others) and any(
        (folder / name).is_file() for name in ("model.bin", EOLE_WEIGHTS)
    )
    if is_of_others or not (folder / CONFIG).is_file():
        raise RequestError(f"{needed} {describe_origin(folder)}")
    if os.path.lexists(folder / ADAPTER):
        raise RequestError(
            f"{folder}: must hold weights that need no adapter, but has one ({ADAPTER})"
            ", which would be lost; merge it by `merge_and_unload` of the package "
            "`peft`, and save the model again."
        )
    if not has_weights:
        raise RequestError(
            f"{folder}: must hold {WEIGHTS}, but {_without_weights(folder)}"
        )


def _without_weights(folder: Path) -> str:
    """Describe the files that a folder of Hugging Face has in place of its weights,
    with a remedy.

    Pickles come first, as converting them needs no other framework.
    """
    for name in (PICKLE, PICKLE_INDEX):
        if (folder / name).is_file():
            return (
                f"has only {name}, which could run any program as it is loaded; if you "
                f"trust it, convert it with: {_conversion(folder)}"
            )
    for name, (framework, option) in OTHER_FRAMEWORKS.items():
        if (folder / name).is_file():
            return (
                f"has only {name}, the weights of {framework}; install {framework} and "
                "`transformers` below version 5 in an environment of their own, and "
                f"convert it there with: {_conversion(folder, f', {option}=True')}"
            )
    beside = chain(folder.glob("*"), folder.glob("*/*"))
    if converted := sorted(each for each in beside if each.suffix in CONVERTED):
        return (
            f"has only {converted[0].relative_to(folder)}, which cannot be read back; "
            "fetch the model that it was made of."
        )
    if parts := sorted(folder.glob(PICKLE_PARTS)):
        return (
            f"has only {parts[0].name}, a part of pickled weights, without "
            f"{PICKLE_INDEX}; fetch all files of the model, and if you trust them, "
            f"convert them with: {_conversion(folder)}"
        )
    return "does not; fetch all files of the model."


def _conversion(folder: Path, option: str = "") -> str:
    """Return the command that converts the weights of a folder of Hugging Face."""
    name = json.dumps(str(folder), ensure_ascii=False)
    program = (
        "from transformers import MarianMTModel; "
        f"MarianMTModel.from_pretrained({name}{option}).save_pretrained({name})"
    )
    return f"python -c {shlex.quote(program)}"


def _json(path: Path) -> dict[str, Any]:
    """Read the object of a JSON file; empty if the file holds none."""
    with suppress(OSError, ValueError, RecursionError):
        if path.is_file() and path.stat().st_size <= MAX_JSON_BYTES:
            content = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(content, dict):
                return content
    return {}
