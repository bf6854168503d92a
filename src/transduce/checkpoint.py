"""Checkpoints: config, weights and tokenizer of a model, in memory and in a folder.

`build` makes a model of any architecture from its settings, with random weights,
and `build_with_weights` one with given weights. A folder appears whole or not at all
(`files.atomic_directory`). A run's checkpoints also have the state from
which training continues bit for bit (`save_training`).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transduce.architectures.bytenet import ByteNet
from transduce.architectures.config import (
    ArchitectureConfig,
    ByteNetConfig,
    ConvolutionalConfig,
    DeepAttConfig,
    MixtureRecurrentConfig,
    MixtureTransformerConfig,
    RecurrentConfig,
    require_transformer,
)
from transduce.architectures.convolutional import Convolutional
from transduce.architectures.deep_att import DeepAtt
from transduce.architectures.interface import TransductionModel
from transduce.architectures.mixture_of_experts import (
    MixtureRecurrent,
    MixtureTransformer,
)
from transduce.architectures.recurrent import RecurrentModel
from transduce.errors import CheckpointError, RequestError, warn_caller
from transduce.files import (
    access_errors,
    atomic_directory,
    is_utf8,
    read_json,
    require_file,
)
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.model_folder import (
    FP32,
    MODEL_FILES,
    STATE_PROGRESS,
    STATE_TENSORS,
    WEIGHTS,
    Array,
    ModelDescription,
    ModelFolder,
    current_name,
    damaged,
    open_model,
    unsaved,
    weights_misfit,
    write_description,
)

EXPORT = "An export"
"""Task in the error about a model that is no Transformer."""
INITIALIZERS = {nn.init.normal_, Tensor.normal_, nn.init.uniform_, Tensor.uniform_}
"""Functions that draw initial weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(ModelDescription):
    """A model as config, weights and tokenizer, with its origin if that is known."""

    weights: Mapping[str, Tensor]

    def build(self) -> TransductionModel:
        """Build the model in evaluation mode; it shares memory with the weights."""
        return build_with_weights(self.config, self.weights)

    @property
    def transformer_config(self) -> ModelConfig:
        """Settings of a Transformer; `RequestError` for other architectures."""
        return require_transformer(self.config, EXPORT)

    def build_transformer(self) -> Transformer:
        """Build a Transformer; raise `RequestError` for other architectures."""
        require_transformer(self.config, EXPORT)
        return cast(Transformer, self.build())

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Weights in fp32; those of a CPU share memory with the tensors."""
        return {n: w.detach().cpu().float().numpy() for n, w in self.weights.items()}


def build_with_weights(
    config: ArchitectureConfig, weights: Mapping[str, Tensor]
) -> TransductionModel:
    """Build the model in evaluation mode; it shares memory with the weights.

    Raises `CheckpointError` if the weights are of another model.
    """
    model = build_on_meta(config)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if shapes != {name: weight.shape for name, weight in weights.items()}:
        raise CheckpointError(
            "The weights must have the names and shapes of the model's parameters, but "
            "do not; they are of another model."
        )
    model.load_state_dict(weights, assign=True)
    model.eval()
    return model


def build(config: ArchitectureConfig) -> TransductionModel:  # noqa: C901, PLR0911, PLR0912
    """Build a model with random weights."""
    # One case for each architecture, so that the bounds on branches do not apply.
    match config:
        case ModelConfig():
            return Transformer(config)
        case RecurrentConfig():
            return RecurrentModel(config)
        case DeepAttConfig():
            return DeepAtt(config)
        case ConvolutionalConfig():
            return Convolutional(config)
        case ByteNetConfig():
            return ByteNet(config)
        case MixtureRecurrentConfig():
            return MixtureRecurrent(config)
        case MixtureTransformerConfig():
            return MixtureTransformer(config)
        case _:
            raise TypeError(f"There is no architecture of {type(config).__name__}.")


class _Uninitialized(TorchFunctionMode):
    """Mode in which new weights are not drawn."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func in INITIALIZERS:
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def build_on_meta(config: ArchitectureConfig) -> TransductionModel:
    """Build the model on PyTorch's meta device: shapes without memory or weights.

    Drawing random weights takes time and advances the random numbers that dropout uses.
    Even on the meta device it makes PyTorch load its compiler, which takes a second.
    """
    with torch.device("meta"), _Uninitialized():
        return build(config)


def save_model(
    checkpoint: Checkpoint,
    folder: Path,
    made_by: str | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write a model folder atomically.

    `made_by` and `overwrite` are as in `atomic_directory`. Files of an older folder
    that are not a model's are kept.
    """
    with atomic_directory(folder, made_by, overwrite=overwrite, own=MODEL_FILES) as new:
        write_model(checkpoint, new)


def write_model(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the files of a model into an existing folder."""
    write_description(checkpoint, folder)
    weights = {n: w.detach().cpu().contiguous() for n, w in checkpoint.weights.items()}
    save_tensors(weights, folder / WEIGHTS)


def with_search_and_shortlist_of(checkpoint: Checkpoint, older: Path) -> Checkpoint:
    """Copy the tuned search and the shortlist of an older model of the same run.

    There may be no older model. A damaged file is left out, with a warning.
    """
    if not older.is_dir():
        return checkpoint
    try:
        search = open_model(older, with_shortlist=False).search
        checkpoint = replace(checkpoint, search=search or checkpoint.search)
        return replace(checkpoint, shortlist=open_model(older).shortlist)
    except CheckpointError as error:
        message = f"{error} The next model of the run does without it."
        warn_caller(message)
        return checkpoint


def require_fitting_weights(stored: ModelFolder) -> None:
    """Raise `CheckpointError` unless the weights fit the settings beside them.

    `open_model` checks those of Transformers, without PyTorch.
    """
    if isinstance(stored.config, ModelConfig):
        return
    parameters = build_on_meta(stored.config).state_dict().items()
    expected = {name: (FP32, tuple(tensor.shape)) for name, tensor in parameters}
    if stored.arrays.tensors != expected:
        raise weights_misfit(stored.arrays.path)


def load_model(path: Path) -> Checkpoint:
    """Read a model folder, or a run's model.

    Raises `CheckpointError` if it is missing or damaged, and `RequestError` if it is
    quantized: rounded weights are for decoding only.
    """
    stored = open_model(path)
    if stored.is_quantized:
        raise RequestError(
            f"{path}: a model must be in fp32 to be trained, averaged, exported or "
            "quantized, but this one is quantized; take the one from which it was made."
        )
    require_fitting_weights(stored)
    description = {
        field.name: getattr(stored, field.name) for field in fields(ModelDescription)
    }
    weights = {name: torch.from_numpy(array) for name, array in stored.arrays.items()}
    return Checkpoint(**description, weights=weights)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors as safetensors; raise `OSError` if that fails."""
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:
        raise unsaved(error) from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read safetensors.

    Raises `CheckpointError` if the file is missing or damaged, and `AccessError` as
    `access_errors` does.
    """
    try:
        require_file(path)
        with access_errors(path):
            if not is_utf8(str(path)):  # PyTorch cannot map a file of such a name
                return load(path.read_bytes())
            # Copies, because the library maps the file, which may be overwritten.
            return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except (SafetensorError, OSError, ValueError) as error:
        raise damaged(path, error) from None


def average(
    checkpoints: Sequence[Checkpoint], names: Sequence[str] | None = None
) -> Checkpoint:
    """Average the weights of checkpoints of one run (section 6.1).

    All else, such as the step, is copied from the newest. Messages call the checkpoints
    by their `names`, by default by their steps. Raises `CheckpointError` if there are
    none, or if they are of different models or runs.
    """
    if not checkpoints:
        raise CheckpointError(
            "An average must have at least one checkpoint, but has 0."
        )
    if names is None:
        names = [f"that of step {each.step:,}" for each in checkpoints]
    number = max(range(len(checkpoints)), key=lambda i: checkpoints[i].step)
    newest, newest_name = checkpoints[number], names[number]
    trained = trained_name = None
    for other, name in zip(checkpoints, names, strict=True):
        if _identity(other) != _identity(newest):
            raise CheckpointError(
                f"Averaged checkpoints must be of one model, but {name} and "
                f"{newest_name} have different settings or tokenizers."
            )
        if other.run is None:
            continue
        if trained is None:
            trained, trained_name = other.run, name
        if other.run != trained:
            raise CheckpointError(
                f"Averaged checkpoints must be of one run, but {trained_name} and "
                f"{name} are of two; weights of different runs have no useful average."
            )
    mean = {
        name: _mean([c.weights[name] for c in checkpoints]) for name in newest.weights
    }
    return replace(newest, weights=mean, run=trained)


def _identity(checkpoint: Checkpoint) -> tuple[object, ...]:
    return checkpoint.config, checkpoint.tokenizer, checkpoint.symbols


def _mean(weights: Sequence[Tensor]) -> Tensor:
    """Average in double precision, so that the mean of equal weights is that weight."""
    total = weights[0].double()
    for weight in weights[1:]:
        total = total + weight
    return (total / len(weights)).float()


RISE = 0.2
"""Rise of the recent loss that may be the beginning of divergence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Position in training."""

    step: int = 0
    """Number of updates made."""
    epoch: int = 0
    update: int = 0
    """Number of updates made in this epoch."""
    recent_loss: float = math.inf
    """Moving average of the loss over about fifty updates."""
    lowest_loss: float = math.inf
    """Minimum of the recent loss."""
    flops: int = 0
    """FLOPs of the updates made, without padding and without lost updates. Those of
    updates by reward include their samples."""
    earlier_updates: int = 0
    """Number of updates of the optimizer before the run, whose moments it continues."""
    rate_factor: float = 1.0
    """Factor on the learning rate, lowered when training has diverged."""
    plateau_factor: float = 1.0
    """Factor on the learning rate, lowered when the dev loss has not fallen."""
    lowest_dev_loss: float = math.inf
    """Lowest dev loss of a checkpoint, by the schedule plateau."""
    corpus_pairs: tuple[int, ...] = ()
    """Number of pairs of each corpus of a mixture in this stage; empty without one."""

    @property
    def is_rising(self) -> bool:
        """Whether the loss may have begun to diverge."""
        return self.recent_loss > self.lowest_loss + RISE


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """State from which training continues bit for bit, beside the weights."""

    progress: Progress
    tensors: dict[str, Tensor]


def save_training(checkpoint: Checkpoint, state: TrainingState, folder: Path) -> None:
    """Write a model and its training state into a folder, atomically."""
    with atomic_directory(folder, own=MODEL_FILES) as new:
        write_model(checkpoint, new)
        save_tensors(state.tensors, new / STATE_TENSORS)
        text = json.dumps(asdict(state.progress)) + "\n"
        (new / STATE_PROGRESS).write_text(text, encoding="utf-8")


def load_training_state(folder: Path) -> TrainingState:
    """Read the training state beside a model; raise `CheckpointError` if damaged."""
    content = read_json(folder / STATE_PROGRESS)
    try:
        pairs = tuple(content.pop("corpus_pairs", ()))
        progress = Progress(**content, corpus_pairs=pairs)
        _require_numbers(progress)
    except TypeError:
        raise CheckpointError(
            f"{folder / STATE_PROGRESS}: must hold a run's progress, but does not; "
            "use another checkpoint."
        ) from None
    tensors = load_tensors(folder / STATE_TENSORS)
    return TrainingState(
        progress=progress, tensors={current_name(n): t for n, t in tensors.items()}
    )


def _require_numbers(progress: Progress) -> None:
    """Raise `TypeError` unless all values are numbers of their types, 0 or above."""
    initial = Progress()
    for field in fields(Progress):
        value, default = getattr(progress, field.name), getattr(initial, field.name)
        is_several = isinstance(default, tuple)
        numbers, kind = (value, int) if is_several else ([value], type(default))
        # NaN fails every comparison.
        if not all(type(number) is kind and number >= 0 for number in numbers):
            raise TypeError
