"""Quantized model folders: weights in int8, a quarter as large."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import save_file

from transduce.architectures.config import require_transformer
from transduce.errors import ConfigError, RequestError
from transduce.files import atomic_directory, require_new_folder
from transduce.model_folder import (
    SCALES,
    WEIGHTS,
    Array,
    QuantizedWeight,
    find_model,
    open_model,
    quantized_names,
    unsaved,
    write_description,
)


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

    Its translations and their scores are those of `load(model, precision="int8")`, bit
    by bit. `load` decodes it in int8 on a CPU. It cannot be trained, averaged or
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
    source, folder = find_model(Path(model)), Path(out)
    if folder.resolve() == source.resolve():
        raise ConfigError(
            f"{folder}: the output folder must be another than the model's, but is the "
            "same; choose another."
        )
    require_new_folder(folder, force=overwrite, made_by="quantize")
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
    with atomic_directory(folder, "quantize") as new:
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
