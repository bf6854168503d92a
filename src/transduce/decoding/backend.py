"""Choice of the device, the precision and the back end that decode models.

On a CPU the native library decodes. PyTorch is imported only where the library cannot
decode: on a GPU, in bf16, for other architectures than the Transformer, or without a C
compiler at installation. The library also searches, even for models in PyTorch; without
the library, Python searches (`start_search`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from transduce.architectures.config import architecture_of
from transduce.decoding.beam_search import BeamSearch, Excluded, GreedySearch
from transduce.decoding.native_decoder import (
    DecodingPrecision,
    NativeModel,
    NativePrecision,
    PrecisionChoice,
)
from transduce.decoding.native_search import NativeGreedySearch, NativeSearch
from transduce.decoding.search import Coverage, DecodingModel, Search
from transduce.errors import RequestError, packages_for
from transduce.machine import may_have_gpu, respect_cpu_quota
from transduce.model.config import ModelConfig
from transduce.model_folder import ModelFolder
from transduce.native import api
from transduce.search_config import SearchConfig
from transduce.text.languages import best_match

if TYPE_CHECKING:
    import transduce.checkpoint

StoredModel: TypeAlias = "ModelFolder | transduce.checkpoint.Checkpoint"
"""A model with its tokenizer and settings: in a folder, or loaded by PyTorch."""


def choose_device(name: str) -> str:
    """Return PyTorch's name of the device for "auto", "cpu" or "cuda".

    PyTorch is imported only if there may be a GPU. Choosing a CPU applies a CPU quota
    to the number of threads. Raises `RequestError` if the device is not available.
    """
    if name == "cpu" or (name == "auto" and not may_have_gpu()):
        respect_cpu_quota()
        return "cpu"
    with packages_for(f"Device {name}"):
        from transduce.device import choose_hardware
    return str(choose_hardware(name).device)


def choose_precision(
    precision: PrecisionChoice, device: str, checkpoints: Sequence[StoredModel]
) -> DecodingPrecision:
    """Return the precision of decoding.

    "auto" is int8 if all models are quantized, the device is a CPU and the native
    library is there; otherwise it is fp32.
    """
    if precision != "auto":
        return precision
    are_quantized = all(
        isinstance(each, ModelFolder) and each.is_quantized for each in checkpoints
    )
    has_int8 = device == "cpu" and api() is not None
    return "int8" if has_int8 and are_quantized else "fp32"


def decodes_natively(
    checkpoint: StoredModel, device: str, precision: DecodingPrecision
) -> bool:
    """Return whether the native library decodes a model."""
    return (
        device == "cpu"
        and precision != "bf16"
        and isinstance(checkpoint.config, ModelConfig)
        and api() is not None
    )


def prepare_for_decoding(
    checkpoint: StoredModel, device: str, precision: DecodingPrecision
) -> DecodingModel:
    """Prepare a model for decoding, in the native library where that is possible.

    Raises `RequestError` if PyTorch is needed and missing, or cannot compute in this
    precision on the device, and `CheckpointError` if the weights are of another model.
    """
    if not decodes_natively(checkpoint, device, precision):
        with packages_for(_need_of_torch(checkpoint, device, precision)):
            from transduce.decoding.torch_model import prepare
        return prepare(checkpoint, precision, device)
    # Unlike the paper: int8, for speed on processors that multiply 8-bit integers
    # faster. Off by default: `--precision int8`, or a quantized model.
    native_precision = cast(NativePrecision, precision)
    return NativeModel(
        cast(ModelConfig, checkpoint.config),
        checkpoint.arrays.mapped(in_fp32=native_precision == "fp32")
        if isinstance(checkpoint, ModelFolder)
        else checkpoint.arrays,
        native_precision,
        checkpoint.shortlist,
    )


def _need_of_torch(
    checkpoint: StoredModel, device: str, precision: DecodingPrecision
) -> str:
    """Return why PyTorch is needed to decode with a model."""
    if device != "cpu":
        return f"Device {device}"
    if precision == "bf16":
        return f"Precision {precision}"
    if not isinstance(checkpoint.config, ModelConfig):
        architecture = architecture_of(checkpoint.config)
        return f'Decoding with the architecture "{architecture}"'
    return "Decoding without the native library, which a C compiler builds,"


def require_ensemble(
    checkpoint: StoredModel,
    others: Sequence[StoredModel],
) -> None:
    """Raise `RequestError` if the models cannot form an ensemble."""
    parsers = [each.symbols for each in (checkpoint, *others) if each.symbols]
    if len({each.unescapes for each in parsers}) > 1:
        raise RequestError(
            "Parsers of an ensemble must read words alike, but only some of these "
            "remove the backslashes of the Penn Treebank; train all with one version "
            "of transduce."
        )
    if any(other.tokenizer != checkpoint.tokenizer for other in others):
        raise RequestError(
            "Models of an ensemble must have one tokenizer, but have different ones; "
            "train them on the same text and the same dev corpus, with the same "
            "settings."
        )
    if any(other.symbols != checkpoint.symbols for other in others):
        raise RequestError(
            "Models of an ensemble must have one target vocabulary, but have "
            "different ones; load models of one task, trained on the same data."
        )
    for side in ("source", "target"):
        if side == "target" and checkpoint.tokenizer.language_tags:
            continue  # `into` chooses one of several
        known = getattr(checkpoint, f"{side}_language")
        for other in others:
            language = getattr(other, f"{side}_language")
            if known and language and not best_match(language, [known]):
                raise RequestError(
                    "Models of an ensemble must have the same languages, but "
                    f"their {side} languages are {known} and {language}; load models "
                    "of one direction."
                )


def start_search(
    max_lengths: Sequence[int],
    config: SearchConfig,
    eos: int,
    excluded: Excluded = (),
    prefixes: Sequence[Sequence[int]] | None = None,
    coverage: Coverage | None = None,
    max_hypotheses: int | None = None,
) -> Search:
    """Start greedy search if the beam size is 1, otherwise beam search.

    The native library searches if there is one. The arguments are as in `BeamSearch`.
    """
    is_native = has_native_search()
    if config.beam_size == 1:
        greedy = NativeGreedySearch if is_native else GreedySearch
        return greedy(max_lengths, config, eos, excluded, prefixes)
    beam = NativeSearch if is_native else BeamSearch
    return beam(max_lengths, config, eos, excluded, prefixes, coverage, max_hypotheses)


def has_native_search() -> bool:
    """Whether the native library searches; its searches equal those in Python."""
    return api() is not None
