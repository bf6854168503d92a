"""All that passes from training to decoding: config, weights, tokenizer.

Folders appear whole or not at all.
"""

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transduce.files import atomic_directory
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.model_folder import CONFIG, FORMAT, WEIGHTS, Array, damaged, open_model
from transduce.search_config import SearchConfig
from transduce.text.tokenizer import TOKENIZER_FILE, Tokenizer
from transduce.trees.vocabulary import SYMBOLS_FILE, SymbolVocabulary

FILLING = {nn.init.normal_, Tensor.normal_, nn.init.uniform_, Tensor.uniform_}
"""What draws first weights."""


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
    source_language: str | None = None
    """BCP 47 tag of the language that it reads; None if unknown."""
    target_language: str | None = None
    """BCP 47 tag of the language that it writes; None if unknown."""

    def build(self) -> Transformer:
        """The model, ready to compute with these very weights: no copy of them."""
        return built(self.config, self.weights)

    def arrays(self) -> Mapping[str, Array]:
        """The weights; on a CPU, these very ones."""
        return {n: w.detach().cpu().float().numpy() for n, w in self.weights.items()}


def built(config: ModelConfig, weights: Mapping[str, Tensor]) -> Transformer:
    """The model, ready to compute with these very weights: no copy of them."""
    model = _outline(config)
    model.load_state_dict(weights, assign=True)
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
    with atomic_directory(folder) as new:
        write_model(checkpoint, new)


def write_model(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the files of a model into a folder that is there."""
    config = {
        "format": FORMAT,
        "step": checkpoint.step,
        "run": checkpoint.run,
        "source_language": checkpoint.source_language,
        "target_language": checkpoint.target_language,
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
    stored = open_model(path)
    return Checkpoint(
        config=stored.config,
        weights={n: torch.from_numpy(w) for n, w in stored.weights.items()},
        tokenizer=stored.tokenizer,
        step=stored.step,
        symbols=stored.symbols,
        run=stored.run,
        search=stored.search,
        source_language=stored.source_language,
        target_language=stored.target_language,
    )


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
        raise damaged(path, error) from None
