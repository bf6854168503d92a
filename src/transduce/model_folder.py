"""Model folders: config, tokenizer and lazily read weights. Needs no torch.

A model folder holds `config.json`, `model.safetensors` and `tokenizer.json`; a parser's
also holds `target_tokenizer.json`, and a translator's whose vocabulary is of words may
hold `dictionary.json`. Its `config.json` (`MODEL_CONFIG`) describes one
model; the file of the same name in a run's folder holds the settings of the run
(`RUN_CONFIG` in `transduce.experiments.run_folder`). Loading never unpickles.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open

from transduce.architectures.config import CONFIGS, TRANSFORMER, ArchitectureConfig
from transduce.errors import CheckpointError, ConfigError, VersionError
from transduce.files import atomic_file, read_json, reason, require_file
from transduce.foreign_models import describe, foreign_type, is_pointer
from transduce.model.config import ModelConfig
from transduce.model.sizes import parameter_shapes
from transduce.search_config import SearchConfig
from transduce.settings import apply_mapping, shown
from transduce.text.dictionary import DICTIONARY_FILE, WordDictionary
from transduce.text.languages import canonical
from transduce.text.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer
from transduce.trees.linearization import SYMBOLS_FILE, SymbolVocabulary

MODEL_FORMAT = 5
"""Format version of model folders, raised when older code could not read newer ones."""
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
}
"""Readable formats, each with the settings it lacks; these have the paper's values."""
MAX_UPDATES = 10**12
"""Upper bound on a model's number of updates; a larger number is damage."""
MODEL_CONFIG, WEIGHTS = "config.json", "model.safetensors"
SUM_BYTES = 8
"""Size of a model's checksum in bytes."""
SUMMED_WORDS = 1 << 17
"""Number of words of weights covered by one sum."""
AVERAGED, BEST, CHECKPOINTS = "averaged", "best", "checkpoints"
STOPPED = "stopped"

Array = Float[np.ndarray, "..."]


class StoredWeights(Mapping[str, Array]):
    """Weights of a safetensors file, each read on access.

    The open file stays valid if another file replaces it. Raises `CheckpointError` if
    it is missing, damaged, or overwritten in place.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            require_file(path)
            self._file = cast(Any, safe_open(path, framework="np"))
            stored = self._file.keys()
            self._stored = {current_name(name): name for name in stored}
            self._shapes = {
                name: tuple(self._file.get_slice(stored).get_shape())
                for name, stored in self._stored.items()
            }
            self._kept = _identity(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise damaged(path, error) from None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each weight."""
        return self._shapes

    @property
    def are_fp32(self) -> bool:
        """Whether all weights are fp32."""
        stored = self._stored.values()
        return all(self._file.get_slice(each).get_dtype() == "F32" for each in stored)

    def __getitem__(self, name: str) -> Array:
        self._require_unchanged()
        array: Array = self._file.get_tensor(self._stored[name])
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
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def _require_unchanged(self) -> None:
        with suppress(FileNotFoundError):
            number, *state = _identity(self.path)
            if number == self._kept[0] and state != list(self._kept[1:]):
                raise CheckpointError(
                    f"{self.path}: the weights must stay as they are while they are "
                    "in use, but were overwritten; load the model again."
                )


def current_name(name: str) -> str:
    """Return the present name of a weight that an older format may have renamed."""
    return name.replace("memory_attention", "cross_attention")  # up to format 4


def _identity(path: Path) -> tuple[int, int, int]:
    """Return inode, size and modification time of a file."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


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
class ModelFolder:
    """Contents of a model folder; the weights are read on access."""

    config: ArchitectureConfig
    arrays: StoredWeights
    """Weights by the names of the model's state dict."""
    tokenizer: Tokenizer
    step: int
    """Number of updates; for an average, that of the last checkpoint."""
    symbols: SymbolVocabulary | None
    """Target vocabulary of a parser; None for a translator."""
    run: str | None
    """Id of the training run; None if there was none."""
    search: SearchConfig | None
    """Search settings of its run; None if unknown."""
    source_language: str | None = None
    """BCP 47 tag of the source language; None if unknown."""
    target_language: str | None = None
    """BCP 47 tag of the target language; None if unknown."""
    dictionary: WordDictionary | None = None
    """Translations of unknown words; None if there is no dictionary."""


def open_model(path: Path) -> ModelFolder:
    """Open a model folder or a run's model; `CheckpointError` if it is damaged."""
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
    symbols = _load_symbols(folder, config)
    weights = StoredWeights(folder / WEIGHTS)
    is_fitting = not isinstance(config, ModelConfig) or (
        weights.shapes == parameter_shapes(config)
    )
    if not (is_fitting and weights.are_fp32):
        raise CheckpointError(
            f"{folder / WEIGHTS}: the weights must fit the settings beside them, but "
            "do not; the files are of different models."
        )
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
    )


def load_dictionary(folder: Path) -> WordDictionary | None:
    """Load the dictionary of a model or run folder, if there is one."""
    path = folder / DICTIONARY_FILE
    return WordDictionary.load(path) if path.is_file() else None


def _load_symbols(folder: Path, config: ArchitectureConfig) -> SymbolVocabulary | None:
    """Load a parser's target vocabulary, and check its size against the model's."""
    if config.target_vocab_size is None:
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
    """Return the folder itself, or a run's averaged, else best, else newest model."""
    for folder in [path, path / AVERAGED, path / BEST, *newest_first(path)]:
        if (folder / WEIGHTS).is_file() and _may_be_ours(folder):
            return folder
    raise CheckpointError(f"{path}: must be a model or a run, but {describe(path)}")


def model_sum(path: Path) -> str:
    """Return a checksum of a model's settings, vocabulary and weights."""
    folder, digest = find_model(path), blake2b(digest_size=SUM_BYTES)
    for name in (MODEL_CONFIG, TOKENIZER_FILE, SYMBOLS_FILE):
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    weights = np.memmap(folder / WEIGHTS, dtype=np.uint8, mode="r")
    whole = len(weights) - len(weights) % np.dtype(np.uint64).itemsize
    words = weights[:whole].view(np.uint64)
    # Far faster than a cryptographic hash; any single changed weight changes it.
    starts = np.arange(0, len(words), SUMMED_WORDS)
    digest.update(np.add.reduceat(words, starts).tobytes() if len(words) else b"")
    digest.update(weights[whole:].tobytes() + len(weights).to_bytes(8, "little"))
    return digest.hexdigest()


def _may_be_ours(folder: Path) -> bool:
    """Return False for a model of Hugging Face, whose config has no format."""
    with suppress(CheckpointError):
        if "format" in read_json(folder / MODEL_CONFIG):
            return True
    return foreign_type(folder) is None


def checkpoints_of(run: Path) -> list[Path]:
    """List a run's checkpoints, oldest first."""
    return sorted((run / CHECKPOINTS).glob("step-*[0-9]"))


def newest_first(run: Path) -> list[Path]:
    """List a run's saved models, newest first: checkpoints and the stopped state."""
    stopped = [run / STOPPED] if (run / STOPPED).exists() else []
    return sorted([*stopped, *checkpoints_of(run)], key=_name_by_step, reverse=True)


def _name_by_step(folder: Path) -> str:
    """Return a name that sorts by step; an unknown step sorts as the newest."""
    if folder.name != STOPPED:
        return folder.name
    with suppress(CheckpointError, KeyError, TypeError, ValueError):
        return f"step-{read_json(folder / MODEL_CONFIG)['step']:08}"
    return STOPPED  # sorts after "step-"


def _read_config(
    content: dict[str, Any], path: Path
) -> tuple[ArchitectureConfig, int, SearchConfig | None]:
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
    settings, default = content.get("model"), CONFIGS[architecture]()
    known = {field.name for field in fields(default)} - FORMATS[number]
    if not isinstance(settings, dict) or set(settings) != known:
        raise CheckpointError(
            f"{path}: `model` must hold the settings {', '.join(sorted(known))}, but "
            "holds others; the model was saved by another version of transduce."
        )
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
    except ConfigError as error:  # such as a beam that older versions allowed
        raise CheckpointError(f"{path}: {error} Correct it there.") from None


def _run(content: dict[str, Any], path: Path) -> str | None:
    """Return the id of the training run, or None."""
    run = content.get("run")
    if run is not None and type(run) is not str:
        raise CheckpointError(
            f"{path}: `run` must be a string or null, but is {shown(run)}; use another "
            "checkpoint."
        )
    return run


def write_search(folder: Path, search: SearchConfig) -> None:
    """Replace the search settings of a model folder atomically.

    Raises `CheckpointError` if they cannot be written.
    """
    path = folder / MODEL_CONFIG
    content = {**read_json(path), "search": asdict(search)}
    try:
        with atomic_file(path) as new:
            new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
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
