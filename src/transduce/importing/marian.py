"""From Hugging Face: a folder of `MarianMTModel`, such as those of OPUS-MT.

It is the paper's model but for the order of its dimensions, as its sinusoids stand in
two halves; and for what `ModelConfig` then tells: its activation, its biases, and what
keeps its norms from dividing by zero. Ids are put into our order. Where one token both
pads and begins a target, it becomes two, and neither is ever put out. Of its settings
of search, the beam, the length penalty and where search ends are kept.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from transduce.checkpoint import Checkpoint, load_model, write_model
from transduce.errors import RequestError
from transduce.export.hugging_face import HuggingFaceModel, HuggingFaceTokenizer
from transduce.export.proof import Proof, prove, require_short
from transduce.foreign_models import describe, is_ours
from transduce.importing.marian_settings import SETTINGS, MarianSettings, read_settings
from transduce.importing.marian_tokenizer import read_tokenizer
from transduce.importing.marian_weights import PICKLE, WEIGHTS, read_weights
from transduce.languages import LanguagesConfig
from transduce.whole_folders import write_folder


def import_model(
    origin: Path,
    out: Path,
    sentences: Sequence[str],
    languages: LanguagesConfig | None = None,
) -> Proof:
    """Write a model folder once it is proven on the sentences.

    Its languages are those given, or else those that the folder names.
    `RequestError` if the model does not map, `CheckpointError` if it is damaged,
    `ProofError` if the proof fails.
    """
    _require_files(origin)
    settings = read_settings(origin)
    checkpoint = _checkpoint(origin, settings, languages or LanguagesConfig())
    require_short(sentences, checkpoint.tokenizer, settings.max_positions)
    model, tokenizer = _theirs(origin, settings)

    def write(new: Path) -> Proof:
        write_model(checkpoint, new)
        return prove(model, tokenizer, load_model(new), sentences)

    return write_folder(out, write)


def _checkpoint(
    origin: Path, settings: MarianSettings, given: LanguagesConfig
) -> Checkpoint:
    weights = read_weights(origin, settings)
    return Checkpoint(
        config=replace(settings.model, output_bias="embedding.bias" in weights),
        weights=weights,
        tokenizer=read_tokenizer(origin, settings),
        step=0,
        search=settings.search,
        source_language=given.source or settings.languages.source,
        target_language=given.target or settings.languages.target,
    )


def _theirs(
    origin: Path, settings: MarianSettings
) -> tuple[HuggingFaceModel, HuggingFaceTokenizer]:
    try:
        return (
            HuggingFaceModel(origin, settings.ids),
            HuggingFaceTokenizer(origin, settings.ids),
        )
    except Exception as error:  # the library raises nothing narrower
        reason = " ".join(str(error).split())
        raise RequestError(
            f"{origin}: must be what the package `transformers` loads, or there is no "
            f"proof, but it says: {reason}"
        ) from None


def _require_files(origin: Path) -> None:
    if is_ours(origin):
        raise RequestError(
            f"{origin}: must be a folder of Hugging Face's Marian, but is a model or a "
            "run of transduce; use it as it is."
        )
    if not (origin / SETTINGS).is_file():
        raise RequestError(
            f"{origin}: must be a folder of Hugging Face's Marian, but "
            f"{describe(origin, SETTINGS)}"
        )
    if not (origin / WEIGHTS).is_file() and (origin / PICKLE).is_file():
        raise RequestError(
            f"{origin}: must hold {WEIGHTS}, but has only {PICKLE}, which could run "
            "any program as it is loaded; if you trust it, convert it with: python -c "
            "'from transformers import MarianMTModel; "
            f'MarianMTModel.from_pretrained("{origin}").save_pretrained("{origin}")\''
        )
