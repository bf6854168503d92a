"""Model folders: read lazily, described, and quantized. Needs no torch.

A model folder holds `config.json`, `model.safetensors` and `tokenizer.json`; a parser's
also holds `target_tokenizer.json`. A translator's may hold `shortlist.safetensors` and,
if its vocabulary is of words, `dictionary.json`. Its `config.json` (`MODEL_CONFIG`)
describes one model; the file of the same name in a run's folder holds the settings of
the run (`RUN_CONFIG` in `transduce.experiments.run_folder`). Loading never unpickles.

The weights are in fp32 or, in a quantized folder, in int8 with scales in fp32.
"""

import errno
import json
import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from hashlib import blake2b
from os import PathLike
from os.path import lexists
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

import numpy as np
from jaxtyping import Float, Float32, Int8, Shaped, UInt8
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from transduce.architectures.config import (
    CONFIGS,
    TRANSFORMER,
    ArchitectureConfig,
    architecture_of,
    require_transformer,
)
from transduce.errors import CheckpointError, ConfigError, RequestError, VersionError
from transduce.files import (
    FileBusyError,
    access_errors,
    atomic_directory,
    hidden_system_error,
    parse_json,
    path_of,
    read_json,
    reason,
    require_file,
    require_new_folder,
    require_other_folder,
    write_json,
)
from transduce.foreign_models import (
    CHECKPOINT_NAME,
    describe,
    foreign_type,
    is_pointer,
)
from transduce.model.config import ModelConfig, parameter_shapes
from transduce.search_config import SearchConfig, default_search
from transduce.settings import (
    UnknownSettingError,
    apply_mapping,
    require_flag,
    shown,
)
from transduce.text.alignment import DICTIONARY_FILE, WordDictionary
from transduce.text.languages import canonical
from transduce.text.sentence_pieces import SentencePieceTokenizer
from transduce.text.shortlist import SHORTLIST_FILE, Shortlist
from transduce.text.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer
from transduce.trees.linearization import SYMBOLS_FILE, SymbolVocabulary

MODEL_FORMAT = 5
"""Format version of model folders, raised when older code could not read newer ones.

Settings of `RARE` do not raise it: older code refuses them by name.
"""
QUANTIZED_FORMAT = 6
"""Format version of quantized model folders, whose config has a `precision`."""
DROPOUTS = {"attention_dropout", "relu_dropout"}
FORMATS = {
    1: {
        "decoder_layers",
        "activation",
        "norm_epsilon",
        "output_bias",
        "target_vocab_size",
        *DROPOUTS,
    },
    2: {"target_vocab_size", *DROPOUTS},
    3: DROPOUTS,
    4: set[str](),
    MODEL_FORMAT: set[str](),
    QUANTIZED_FORMAT: set[str](),
}
"""Readable formats, each with the settings it lacks; these have the paper's values."""
RARE = {"position_base", "tied_output", "decoder_self_attention", "learned_start"}
"""Settings of a Transformer that are left out where they have the paper's value, so
that older versions read the model."""
MAX_UPDATES = 10**12
"""Upper bound on a model's number of updates; a larger number is damage."""
MODEL_CONFIG, WEIGHTS = "config.json", "model.safetensors"
STATE_TENSORS, STATE_PROGRESS = "training.safetensors", "training.json"
"""Files of a checkpoint of a run that models lack: the state of the training."""
MODEL_FILES = {
    *(MODEL_CONFIG, WEIGHTS, TOKENIZER_FILE, SYMBOLS_FILE, DICTIONARY_FILE),
    *(SHORTLIST_FILE, STATE_TENSORS, STATE_PROGRESS),
}
"""Names of all files of a model or of a checkpoint."""
SUM_BYTES = 8
"""Size of a model's checksum in bytes."""
SUMMED_WORDS = 1 << 17
"""Number of words of weights covered by one sum."""
BUSY_SECONDS = 0.05
"""Pause before another attempt to write a file that another process is writing."""
AVERAGED, BEST, CHECKPOINTS = "averaged", "best", "checkpoints"
STOPPED = "stopped"
FP32, INT8 = "F32", "I8"
"""Types of numbers, as safetensors names them."""
NUMPY_TYPES: dict[str, np.dtype[Any]] = {FP32: np.dtype("<f4"), INT8: np.dtype("i1")}
HEADER_SIZE, METADATA = 8, "__metadata__"
"""Bytes of the length of a safetensors header, and its entry that is no tensor."""
SCALES = ".scales"
"""Ending of the name of an int8 weight's scales."""
MIN_MAX_WEIGHT, PER_MAX_INT8 = np.float32(1e-8), np.float32(1) / np.float32(127)
"""Lower bound of an output's largest weight, so that its scale is not zero; and 1 / the
largest int8 weight."""

Array = Float[np.ndarray, "..."]
StoredArray = Shaped[np.ndarray, "..."]


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Weight of a linear map or an embedding in int8: `values * scales[:, None]`."""

    values: Int8[np.ndarray, "outputs inputs"]
    """Whole numbers from -127 to 127."""
    scales: Float32[np.ndarray, " outputs"]
    """Scale of each output or token."""

    @staticmethod
    def of(weight: Float32[np.ndarray, "outputs inputs"]) -> "QuantizedWeight":
        """Round a weight bit for bit as int8 decoding does (`csrc/gemm/quantize.c`)."""
        largest = np.maximum(np.abs(weight).max(axis=1), MIN_MAX_WEIGHT)
        scales = largest * PER_MAX_INT8
        values = np.rint(weight / scales[:, None]).astype(np.int8)
        return QuantizedWeight(values, scales)

    def dequantized(self) -> Float32[np.ndarray, "outputs inputs"]:
        """Return the weight in fp32."""
        return self.values * self.scales[:, None]


class StoredWeights(Mapping[str, Array]):
    """Weights of a safetensors file in fp32, each copied on access.

    The file is mapped, and stays valid if another file replaces it. Raises
    `CheckpointError` if it is missing, damaged, or overwritten in place.

    Pickled weights are the file's path and checksum: another process opens the file
    again, and raises `CheckpointError` if its content has changed. Copies share the
    map.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.absolute()  # also after a change of the current folder
        try:
            require_file(path)
            self._kept = _identity(path)
            with access_errors(path):
                # Opening checks the header and the sizes of all tensors.
                with cast(Any, safe_open(path, framework="np")):
                    pass
                with path.open("rb") as file:
                    self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._tensors, self._arrays = _read_mapped(self._map)
            if _identity(path) != self._kept:
                raise ValueError("it changed while it was read")
        except (SafetensorError, OSError, ValueError) as error:
            raise damaged(path, error) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._file, self.checksum)

    def __copy__(self) -> "StoredWeights":
        return self

    def __deepcopy__(self, memo: object) -> "StoredWeights":
        return self

    @cached_property
    def checksum(self) -> str:
        """Checksum of the file, which any single changed weight changes."""
        self._require_unchanged()
        content = np.frombuffer(self._map, dtype=np.uint8)
        return blake2b(_sums(content), digest_size=SUM_BYTES).hexdigest()

    @property
    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and shape of each tensor of the file; scales are tensors, too."""
        return self._tensors

    def is_quantized(self, name: str) -> bool:
        """Whether a weight is in int8."""
        return self._tensors[name][0] == INT8

    def mapped(self, *, in_fp32: bool) -> dict[str, Array | QuantizedWeight]:
        """Return all weights without copies, for use at once.

        Int8 weights stay what they are, or are dequantized if `in_fp32`. Reading
        mapped weights ends the process if the file has been truncated meanwhile.
        """

        def weight(name: str) -> Array | QuantizedWeight:
            if not self.is_quantized(name):
                return self._fp32(name)
            quantized = self._quantized(name)
            return quantized.dequantized() if in_fp32 else quantized

        return {name: weight(name) for name in self}

    def __getitem__(self, name: str) -> Array:
        if self.is_quantized(name):
            return self._quantized(name).dequantized()
        return self._fp32(name).copy()

    def _quantized(self, name: str) -> QuantizedWeight:
        self._require_unchanged()
        return QuantizedWeight(self._arrays[name], self._fp32(name + SCALES))

    def _fp32(self, name: str) -> Array:
        self._require_unchanged()
        # Aligned, as the native library reads it; writers align all but foreign files.
        array: Array = np.require(self._arrays[name], requirements=["C", "A"])
        # The sum is faster to check; it is not finite if any weight is not.
        with np.errstate(over="ignore", invalid="ignore"):
            is_sound = np.isfinite(array.sum()) or np.isfinite(array).all()
        if not is_sound:
            raise CheckpointError(
                f"{self.path}: the weights must be finite numbers, but those of {name} "
                "are not; use another checkpoint."
            )
        return array

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._tensors if not name.endswith(SCALES))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _require_unchanged(self) -> None:
        number, *state = self._kept
        # The map knows the file's size even if the file has lost its name since.
        is_changed = self._map.size() != state[0]
        with suppress(FileNotFoundError):
            number_now, *state_now = _identity(self._file)
            is_changed |= number_now == number and state_now != state
        if is_changed:
            raise CheckpointError(
                f"{self.path}: the weights must stay as they are while they are in "
                "use, but were overwritten; load the model again."
            )


def _reopened(path: Path, checksum: str) -> StoredWeights:
    """Open the weights that were pickled; `CheckpointError` if they have changed."""
    weights = StoredWeights(path)
    if weights.checksum != checksum:
        raise CheckpointError(
            f"{path}: the weights must be those of the pickled model, but have changed "
            "since; load the model again."
        )
    return weights


def _read_mapped(
    file: mmap.mmap,
) -> tuple[dict[str, tuple[str, tuple[int, ...]]], dict[str, StoredArray]]:
    """Return type and shape of each tensor of a sound file, and fp32 and int8 arrays.

    The arrays share the map's memory.
    """
    content = np.frombuffer(file, dtype=np.uint8)
    begin = HEADER_SIZE + int.from_bytes(content[:HEADER_SIZE].tobytes(), "little")
    header = parse_json(content[HEADER_SIZE:begin].tobytes().decode())
    header.pop(METADATA, None)
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    arrays: dict[str, StoredArray] = {}
    for older_name, each in header.items():
        name, kind = current_name(older_name), each["dtype"]
        tensors[name] = kind, tuple(each["shape"])
        if kind in NUMPY_TYPES:
            first, end = each["data_offsets"]
            numbers = content[begin + first : begin + end].view(NUMPY_TYPES[kind])
            arrays[name] = numbers.reshape(each["shape"])
    return tensors, arrays


def current_name(name: str) -> str:
    """Return the present name of a weight that an older format may have renamed."""
    return name.replace("memory_attention", "cross_attention")  # up to format 4


def _identity(path: Path) -> tuple[int, int, int]:
    """Return inode, size and modification time of a file."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def weights_misfit(weights: Path) -> CheckpointError:
    """Return the error for weights that do not fit the settings beside them."""
    return CheckpointError(
        f"{weights}: the weights must fit the settings beside them, but do not; the "
        "files are of different models."
    )


def damaged(path: Path, error: Exception) -> CheckpointError:
    """Return the error for weights that cannot be read."""
    if is_pointer(path):
        return CheckpointError(
            f"{path}: the file is only a pointer of Git LFS to the weights; fetch them "
            "with `git lfs pull`."
        )
    return CheckpointError(
        f"{path}: the weights are missing or damaged ({reason(error)}); use another "
        "checkpoint."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model but for its weights: settings, tokenizer, and its known origin."""

    config: ArchitectureConfig
    tokenizer: Tokenizer
    step: int
    """Number of updates in training; of an average, its last member's."""
    symbols: SymbolVocabulary | None = None
    """Target vocabulary of a parser; None for a translator."""
    run: str | None = None
    """Id of the run that trained it; None if there is none."""
    search: SearchConfig | None = None
    """Search settings of its run; None if unknown."""
    source_language: str | None = None
    """BCP 47 tag of the source language; None if unknown."""
    target_language: str | None = None
    """BCP 47 tag of the target language; None if unknown."""
    dictionary: WordDictionary | None = None
    """Translations of unknown words; None if there is no dictionary."""
    shortlist: Shortlist | None = None
    """Candidates of source pieces; None if there is no shortlist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder(ModelDescription):
    """Contents of a model folder; the weights are read on access."""

    arrays: StoredWeights
    """Weights by the names of the model's state dict."""
    is_quantized: bool = False
    """Whether weights and embeddings are in int8."""


def write_description(
    model: ModelDescription, folder: Path, *, is_quantized: bool = False
) -> None:
    """Write all files of a model but the weights into an existing folder."""
    content: dict[str, Any] = {
        "format": QUANTIZED_FORMAT if is_quantized else MODEL_FORMAT,
        "architecture": architecture_of(model.config),
        "step": model.step,
        "run": model.run,
        "source_language": model.source_language,
        "target_language": model.target_language,
        "model": _settings_of(model.config),
    }
    if is_quantized:
        content["precision"] = "int8"
    if model.search is not None:
        content["search"] = asdict(model.search)
    (folder / MODEL_CONFIG).write_text(
        json.dumps(content, indent=2) + "\n", encoding="utf-8"
    )
    model.tokenizer.save(folder / TOKENIZER_FILE)
    if model.symbols is not None:
        model.symbols.save(folder / SYMBOLS_FILE)
    if model.dictionary is not None:
        model.dictionary.save(folder / DICTIONARY_FILE)
    if model.shortlist is not None:
        model.shortlist.save(folder / SHORTLIST_FILE)


def _settings_of(config: ArchitectureConfig) -> dict[str, Any]:
    """Return all settings of a model but the rare ones that have the paper's value."""
    default = asdict(CONFIGS[architecture_of(config)]())
    return {
        name: value
        for name, value in asdict(config).items()
        if name not in RARE or value != default[name]
    }


def unsaved(error: SafetensorError) -> OSError:
    """Return the error of a safetensors file that cannot be written."""
    unknown = OSError(errno.EIO, os.strerror(errno.EIO))
    return hidden_system_error(error) or unknown


def quantized_names(config: ModelConfig) -> set[str]:
    """Return the names of the weights that are in int8 in a quantized folder.

    They are those that int8 decoding multiplies, and embeddings. Biases, layer norms,
    additive attention's vectors and learned positions stay in fp32.
    """
    return {
        name
        for name, shape in parameter_shapes(config).items()
        if len(shape) == 2 and name.endswith(".weight") and name != "positions.weight"
    }


def _tensors_of(
    config: ModelConfig, *, is_quantized: bool
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the type and the shape of each tensor of a Transformer's file."""
    rounded = quantized_names(config) if is_quantized else set[str]()
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, shape in parameter_shapes(config).items():
        tensors[name] = (INT8 if name in rounded else FP32, shape)
        if name in rounded:
            tensors[name + SCALES] = (FP32, shape[:1])
    return tensors


def open_model(path: Path, *, with_shortlist: bool = True) -> ModelFolder:
    """Open a model folder or a run's model; `CheckpointError` if it is damaged.

    `with_shortlist` False leaves out the shortlist, which may be damaged then.
    """
    folder = find_model(path)
    content = read_json(folder / MODEL_CONFIG)
    config, step, search = _read_config(content, folder / MODEL_CONFIG)
    tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
    if tokenizer.vocab_size != config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer must have the model's {config.vocab_size} "
            f"pieces, but has {tokenizer.vocab_size}; the files are of different "
            "models."
        )
    symbols = _load_symbols(folder, config, tokenizer)
    weights = StoredWeights(folder / WEIGHTS)
    is_quantized = _is_quantized(content, config, folder / MODEL_CONFIG)
    if isinstance(config, ModelConfig):
        expected = _tensors_of(config, is_quantized=is_quantized)
        is_fitting = weights.tensors == expected
    else:  # `checkpoint.require_fitting_weights` checks the shapes
        is_fitting = all(kind == FP32 for kind, _ in weights.tensors.values())
    if not is_fitting:
        raise weights_misfit(folder / WEIGHTS)
    return ModelFolder(
        config=config,
        arrays=weights,
        tokenizer=tokenizer,
        step=step,
        symbols=symbols,
        run=_run(content, folder / MODEL_CONFIG),
        search=search,
        source_language=_language(content, "source_language", folder / MODEL_CONFIG),
        target_language=_language(content, "target_language", folder / MODEL_CONFIG),
        dictionary=load_dictionary(folder),
        shortlist=load_shortlist(folder, tokenizer) if with_shortlist else None,
        is_quantized=is_quantized,
    )


def _is_quantized(
    content: dict[str, Any], config: ArchitectureConfig, path: Path
) -> bool:
    """Read whether a model folder is quantized."""
    if content["format"] < QUANTIZED_FORMAT:
        return False
    precision = content.get("precision")
    if precision != "int8" or not isinstance(config, ModelConfig):
        raise CheckpointError(
            f'{path}: `precision` must be "int8" and the architecture "{TRANSFORMER}" '
            f"in a quantized model, but are {shown(precision)} and "
            f'"{architecture_of(config)}"; use another checkpoint.'
        )
    return True


def load_shortlist(folder: Path, tokenizer: Tokenizer) -> Shortlist | None:
    """Load the shortlist of a model folder, if there is one."""
    path = folder / SHORTLIST_FILE
    return Shortlist.load(path, tokenizer) if lexists(path) else None


def load_dictionary(folder: Path) -> WordDictionary | None:
    """Load the dictionary of a model or run folder, if there is one."""
    path = folder / DICTIONARY_FILE
    return WordDictionary.load(path) if lexists(path) else None


def _load_symbols(
    folder: Path, config: ArchitectureConfig, tokenizer: Tokenizer
) -> SymbolVocabulary | None:
    """Load a parser's target vocabulary, and check its size against the model's."""
    if config.target_vocab_size is None or (
        isinstance(tokenizer, SentencePieceTokenizer)
        and tokenizer.target_vocab_size == config.target_vocab_size
    ):
        return None
    symbols = SymbolVocabulary.load(folder / SYMBOLS_FILE)
    if symbols.vocab_size != config.target_vocab_size:
        raise CheckpointError(
            f"{folder}: the target's vocabulary must have the model's "
            f"{config.target_vocab_size} symbols, but has {symbols.vocab_size}; the "
            "files are of different models."
        )
    return symbols


def find_model(path: Path) -> Path:
    """Return the folder itself, or a run's averaged, else best, else newest model.

    Raises `CheckpointError` if there is none. A model of a run that lacks its weights
    is an error, so that the next one does not take its place unnoticed.
    """
    for folder in [path, path / AVERAGED, path / BEST, *newest_first(path)]:
        has_weights = (folder / WEIGHTS).is_file()
        # The folder of a run has a file of this name, too.
        has_config = folder != path and (folder / MODEL_CONFIG).is_file()
        if not (has_weights or has_config) or not _may_be_ours(folder):
            continue
        if not has_weights:
            raise CheckpointError(
                f"{folder / WEIGHTS}: the weights are missing; copy the whole folder, "
                "or name another model of the run."
            )
        return folder
    raise CheckpointError(f"{path}: must be a model or a run, but {describe(path)}")


def model_sum(path: Path) -> str:
    """Return a checksum of all files of a model that its translations depend on.

    Raises `CheckpointError` if the model or its weights are missing.
    """
    folder, digest = find_model(path), blake2b(digest_size=SUM_BYTES)
    for name in (MODEL_CONFIG, TOKENIZER_FILE, SYMBOLS_FILE):
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    for name in (DICTIONARY_FILE, SHORTLIST_FILE):  # one may be there without the other
        if (folder / name).is_file():
            digest.update(
                name.encode() + blake2b((folder / name).read_bytes()).digest()
            )
    try:
        with access_errors(folder / WEIGHTS):
            weights = np.memmap(folder / WEIGHTS, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:  # NumPy cannot map an empty file
        raise damaged(folder / WEIGHTS, error) from None
    digest.update(_sums(weights))
    return digest.hexdigest()


def _sums(content: UInt8[np.ndarray, " bytes"]) -> bytes:
    """Return sums over parts of a file of weights, and its size.

    Sums are far faster than a cryptographic hash; any single changed weight changes
    one.
    """
    whole = len(content) - len(content) % np.dtype(np.uint64).itemsize
    words = content[:whole].view(np.uint64)
    starts = np.arange(0, len(words), SUMMED_WORDS)
    sums = np.add.reduceat(words, starts).tobytes() if len(words) else b""
    return sums + content[whole:].tobytes() + len(content).to_bytes(8, "little")


def _may_be_ours(folder: Path) -> bool:
    """Return False for a model of Hugging Face, whose config has no format."""
    with suppress(CheckpointError):
        if "format" in read_json(folder / MODEL_CONFIG):
            return True
    return foreign_type(folder) is None


def checkpoints_of(run: Path) -> list[Path]:
    """List a run's checkpoints, oldest first; `OSError` if they cannot be listed."""
    try:
        found = list((run / CHECKPOINTS).iterdir())  # `glob` would hide a refusal
    except (FileNotFoundError, NotADirectoryError):
        return []
    own = [each for each in found if CHECKPOINT_NAME.fullmatch(each.name)]
    return sorted(own, key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the number of updates in the name of a run's checkpoint."""
    return int(checkpoint.name.removeprefix("step-"))


def newest_first(run: Path) -> list[Path]:
    """List a run's saved models, newest first: checkpoints and the stopped state."""
    stopped = [run / STOPPED] if (run / STOPPED).exists() else []
    return sorted([*stopped, *checkpoints_of(run)], key=_saved_step, reverse=True)


def _saved_step(folder: Path) -> float:
    """Return the number of updates of a saved model; infinite if it is unknown."""
    if folder.name != STOPPED:
        return step_of(folder)
    with suppress(CheckpointError):
        step = read_json(folder / MODEL_CONFIG).get("step")
        if type(step) is int:
            return step
    return math.inf


def _read_config(
    content: dict[str, Any], path: Path
) -> tuple[ArchitectureConfig, int, SearchConfig | None]:
    """Return the settings, the step and the search of a `config.json`."""
    number = content.get("format")
    if type(number) is not int or number not in FORMATS:
        raise VersionError(
            f"{path}: the format must be from {min(FORMATS)} to {max(FORMATS)}, but is "
            f"{shown(number)}; the model was saved by another version of transduce."
        )
    architecture = content.get("architecture", TRANSFORMER)
    if not isinstance(architecture, str) or architecture not in CONFIGS:
        raise VersionError(
            f"{path}: `architecture` must be one of {', '.join(sorted(CONFIGS))}, but "
            f"is {shown(architecture)}; the model was saved by another version of "
            "transduce."
        )
    default = CONFIGS[architecture]()
    known = {field.name for field in fields(default)} - FORMATS[number]
    settings = _table_of(known, content.get("model"), number, path)
    step = content.get("step")
    if type(step) is not int or not 0 <= step <= MAX_UPDATES:
        raise CheckpointError(
            f"{path}: `step` must be a whole number from 0 to {MAX_UPDATES:,}, but is "
            f"{shown(step)}; use another checkpoint."
        )
    try:
        config = apply_mapping(default, settings, where="", prefix="model.")
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error} Use another checkpoint.") from None
    try:
        return config, step, _search(content.get("search"))
    except UnknownSettingError as error:
        raise VersionError(
            f"{path}: {error} The model was saved by another version of transduce."
        ) from None
    except ConfigError as error:  # such as a beam that older versions allowed
        raise CheckpointError(f"{path}: {error} Correct it there.") from None


def _table_of(
    known: set[str], settings: object, number: int, path: Path
) -> dict[str, Any]:
    """Return the model's settings, if they are those of its format."""
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path}: `model` must be a table, but is not.")
    wrong = [
        *(f"has {shown(name)}" for name in sorted(settings.keys() - known)),
        *(f"lacks {shown(name)}" for name in sorted(known - RARE - settings.keys())),
    ]
    if wrong:
        raise VersionError(
            f"{path}: `model` must hold the settings of format {number}, but "
            f"{wrong[0]}; the model was saved by another version of transduce."
        )
    return settings


def _run(content: dict[str, Any], path: Path) -> str | None:
    """Return the id of the training run, or None."""
    run = content.get("run")
    if run is not None and type(run) is not str:
        raise CheckpointError(
            f"{path}: `run` must be a string or null, but is {shown(run)}; use another "
            "checkpoint."
        )
    return run


def change_search(
    folder: Path,
    change: Callable[[SearchConfig], SearchConfig],
    *,
    patience_s: float = 10.0,
) -> None:
    """Change the search settings of a model folder atomically.

    `change` gets the present settings, or the defaults if the folder has none: another
    command may have changed them since the caller read them, perhaps hours ago. If
    another command is writing them, which takes milliseconds, this one waits for at
    most `patience_s` seconds. Raises `CheckpointError` if they cannot be written.
    """
    path, deadline = folder / MODEL_CONFIG, monotonic() + patience_s
    while True:
        try:
            return _write_search(folder, change)
        except FileBusyError:
            if monotonic() >= deadline:
                raise CheckpointError(
                    f"{path}: the search settings cannot be written, as another "
                    "process is writing this file and does not end; the old ones stay. "
                    "End that process, and write them into the file or try again."
                ) from None
        sleep(BUSY_SECONDS)


def _write_search(folder: Path, change: Callable[[SearchConfig], SearchConfig]) -> None:
    path = folder / MODEL_CONFIG
    try:
        content = read_json(path)
        _, _, search = _read_config(content, path)
        is_parser = (folder / SYMBOLS_FILE).exists()
        search = search or default_search(is_parser=is_parser)
        content["search"] = asdict(change(search))
        write_json(path, content)
    except OSError as error:
        raise CheckpointError(
            f"{path}: the search settings cannot be written ({error.strerror}); the "
            "old ones stay."
        ) from None


def _language(content: dict[str, Any], name: str, path: Path) -> str | None:
    """Read a language tag of a model folder; None in folders of older versions."""
    tag = content.get(name)
    if tag is None:
        return None
    try:
        if isinstance(tag, str):
            return canonical(tag)
    except ConfigError:
        pass
    raise CheckpointError(
        f"{path}: `{name}` must be a BCP 47 tag such as en, or null, but is "
        f"{shown(tag)}; correct it there."
    )


def _search(settings: object) -> SearchConfig | None:
    """Read the search settings; None in older or imported folders."""
    if settings is None:
        return None
    if not isinstance(settings, dict):
        raise ConfigError(f"`search` must be a table, but is {shown(settings)}.")
    return apply_mapping(SearchConfig(), settings, where="", prefix="search.")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedModel:
    """A quantized model folder, and the sizes of its weights and of the original's."""

    folder: Path
    bytes_before: int
    """Size of the original's file of weights."""
    num_bytes: int
    """Size of the new file of weights."""


def quantize(
    model: str | PathLike[str], out: str | PathLike[str], *, overwrite: bool = False
) -> QuantizedModel:
    """Write a model folder a quarter as large, with weights and embeddings in int8.

    Translations and scores equal those of `load(model, precision="int8")`, bit for bit.
    `load` decodes the folder in int8 on a CPU. It cannot be trained, averaged or
    exported, so quantize last.

        transduce.quantize("runs/en-de", "en-de-int8")

    Parameters
    ----------
    model
        A model folder, or a run folder, whose averaged model is taken, else its best,
        else its newest.
    out
        Folder of the new model, new or empty.
    overwrite
        Whether an older quantized model in that folder may be replaced.

    Raises
    ------
    CheckpointError
        The model is missing or damaged, or the new one cannot be written.
    ConfigError
        The folder is the model's own, or holds anything else.
    RequestError
        The model is no Transformer, or is quantized already.
    """
    require_flag("overwrite", overwrite)
    folder = path_of("out", out)
    source = find_model(path_of("model", model))
    require_other_folder(folder, [source])
    require_new_folder(folder, overwrite=overwrite, made_by="quantize")
    stored = open_model(source)
    if stored.is_quantized:
        raise RequestError(
            f"{source}: a model must be in fp32 to be quantized, but this one is "
            "quantized already."
        )
    config = require_transformer(stored.config, f"{source}: Quantization")
    tensors: dict[str, Array] = {}
    rounded = quantized_names(config)
    for name, weight in stored.arrays.items():
        if name not in rounded:
            tensors[name] = weight
            continue
        quantized = QuantizedWeight.of(weight)
        tensors[name], tensors[name + SCALES] = quantized.values, quantized.scales
    with atomic_directory(folder, "quantize", overwrite=overwrite) as new:
        write_description(stored, new, is_quantized=True)
        try:
            save_file(tensors, new / WEIGHTS)
        except SafetensorError as error:
            raise unsaved(error) from None
    return QuantizedModel(
        folder=folder,
        bytes_before=(source / WEIGHTS).stat().st_size,
        num_bytes=(folder / WEIGHTS).stat().st_size,
    )
