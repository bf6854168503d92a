"""All that passes from training to decoding: config, weights, tokenizer.

A model folder holds `config.json`, `model.safetensors` and `tokenizer.json`, that of a
parser `target_tokenizer.json` too. Folders appear whole or not at all. Loading never
unpickles.
"""

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transduce.errors import CheckpointError, ConfigError, VersionError
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.parsing.vocabulary import SYMBOLS_FILE, SymbolVocabulary
from transduce.search_config import SearchConfig
from transduce.settings import apply_mapping
from transduce.text.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer
from transduce.whole_folders import write_folder

FORMAT = 3
"""Of the model folder; raised when an older version could not read a newer folder."""
FORMATS = {
    1: {
        "decoder_layers",
        "activation",
        "norm_epsilon",
        "output_bias",
        "target_vocab_size",
    },
    2: {"target_vocab_size"},
    FORMAT: set[str](),
}
"""Those that can be read, and the settings each does not have: they are the paper's."""
CONFIG, WEIGHTS = "config.json", "model.safetensors"
FILLING = {nn.init.normal_, Tensor.normal_, nn.init.uniform_, Tensor.uniform_}
"""What draws first weights."""
AVERAGED, BEST, CHECKPOINTS = "averaged", "best", "checkpoints"
STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model at rest."""

    config: ModelConfig
    weights: Mapping[str, Tensor]
    tokenizer: Tokenizer
    step: int
    """Updates it was trained for; of an average, the last member's."""
    symbols: SymbolVocabulary | None = None
    """What a parser writes."""
    run: str | None = None
    """The id of the run that trained it, if there is one."""
    search: SearchConfig | None = None
    """How its run searches, if that is known."""

    def build(self) -> Transformer:
        """The model, ready to compute with these very weights: no copy of them."""
        model = _outline(self.config)
        model.load_state_dict(self.weights, assign=True)
        return model.eval()


class _Unfilled(TorchFunctionMode):
    """Leaves new tensors without first numbers."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func in FILLING:
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def _outline(config: ModelConfig) -> Transformer:
    """The model without its weights.

    Random first ones would take time, and change what dropout draws next; even without
    memory for them, PyTorch would load its compiler, which takes a second.
    """
    with torch.device("meta"), _Unfilled():
        return Transformer(config)


def save_model(checkpoint: Checkpoint, folder: Path) -> None:
    """Write a model folder, whole or not at all."""
    write_folder(folder, lambda new: write_model(checkpoint, new))


def write_model(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the files of a model into a folder that is there."""
    config = {
        "format": FORMAT,
        "step": checkpoint.step,
        "run": checkpoint.run,
        "model": asdict(checkpoint.config),
    }
    if checkpoint.search is not None:
        config["search"] = asdict(checkpoint.search)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    checkpoint.tokenizer.save(folder / TOKENIZER_FILE)
    if checkpoint.symbols is not None:
        checkpoint.symbols.save(folder / SYMBOLS_FILE)
    weights = {n: w.detach().cpu().contiguous() for n, w in checkpoint.weights.items()}
    save_tensors(weights, folder / WEIGHTS)


def load_model(path: Path) -> Checkpoint:
    """Read a model folder, or a run's model; `CheckpointError` if it is damaged."""
    folder = find_model(path)
    config, step, search = _read_config(folder / CONFIG)
    tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
    if tokenizer.vocab_size != config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer must have the model's {config.vocab_size} "
            f"pieces, but has {tokenizer.vocab_size}; the files are of different "
            "models."
        )
    symbols = _load_symbols(folder, config)
    weights = load_tensors(folder / WEIGHTS)
    _check_weights(weights, config, folder / WEIGHTS)
    return Checkpoint(
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        step=step,
        symbols=symbols,
        run=read_json(folder / CONFIG).get("run"),
        search=search,
    )


def _load_symbols(folder: Path, config: ModelConfig) -> SymbolVocabulary | None:
    """Those of a parser, as many as its model's."""
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
    """The model folder itself, or a run's averaged, else best, else newest model."""
    for folder in [path, path / AVERAGED, path / BEST, *newest_first(path)]:
        if (folder / WEIGHTS).is_file():
            return folder
    raise CheckpointError(
        f"{path}: must be a model or a run, but holds no {WEIGHTS}, nor does any "
        "checkpoint in it; name another folder, or train one with `transduce train`."
    )


def checkpoints_of(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted((run / CHECKPOINTS).glob("step-*[0-9]"))


def newest_first(run: Path) -> list[Path]:
    """Where a run was saved: its checkpoints, and where it was stopped."""
    stopped = [run / STOPPED] if (run / STOPPED).exists() else []
    return sorted([*stopped, *checkpoints_of(run)], key=_name_by_step, reverse=True)


def _name_by_step(folder: Path) -> str:
    """That of a checkpoint; what does not tell its step is taken for the newest."""
    if folder.name != STOPPED:
        return folder.name
    with suppress(CheckpointError, KeyError, TypeError, ValueError):
        return f"step-{read_json(folder / CONFIG)['step']:08}"
    return STOPPED  # in the order of letters after all steps


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors as safetensors; `OSError` if that fails."""
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:
        # The library hides the system's error in its text.
        number = errno.ENOSPC if "os error 28" in str(error) else errno.EIO
        raise OSError(number, os.strerror(number)) from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read safetensors; `CheckpointError` if missing, damaged or cut short."""
    try:
        # Copied, for what the library gives lies in the file, which may be overwritten.
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: the weights are missing or damaged ({error}); use another "
            "checkpoint."
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; `CheckpointError` if missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: the file is missing or damaged ({error}); use another checkpoint."
        ) from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, but does not.")
    return content


def _read_config(path: Path) -> tuple[ModelConfig, int, SearchConfig | None]:
    content = read_json(path)
    number = content.get("format")
    if number not in list(FORMATS):
        raise VersionError(
            f"{path}: the format must be from {min(FORMATS)} to {max(FORMATS)}, but is "
            f"{number}; the model was saved by another version of transduce."
        )
    settings = content.get("model")
    known = {field.name for field in fields(ModelConfig)} - FORMATS[number]
    if not isinstance(settings, dict) or set(settings) != known:
        raise CheckpointError(
            f"{path}: `model` must hold the settings {', '.join(sorted(known))}, but "
            "holds others; the model was saved by another version of transduce."
        )
    step = content.get("step")
    if type(step) is not int:
        raise CheckpointError(
            f"{path}: `step` must be a whole number, but is {step!r}; use another "
            "checkpoint."
        )
    try:
        config = apply_mapping(ModelConfig(), settings, where="", prefix="model.")
        return config, step, _search(content.get("search"))
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error} Use another checkpoint.") from None


def _search(settings: object) -> SearchConfig | None:
    """As the folder has it, which an older version or an import has not."""
    if settings is None:
        return None
    if not isinstance(settings, dict):
        raise ConfigError(f"`search` must be a table, but is {settings!r}.")
    return apply_mapping(SearchConfig(), settings, where="", prefix="search.")


def _check_weights(
    weights: Mapping[str, Tensor], config: ModelConfig, path: Path
) -> None:
    expected = _outline(config).state_dict()
    kinds = {name: (tuple(w.shape), w.dtype) for name, w in weights.items()}
    if kinds != {name: (tuple(w.shape), w.dtype) for name, w in expected.items()}:
        raise CheckpointError(
            f"{path}: the weights must fit the settings beside them, but do not; the "
            "files are of different models."
        )
