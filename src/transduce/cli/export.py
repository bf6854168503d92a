"""`transduce export`: a model for another library, proven equal."""

from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Literal

from transduce.checkpoint import load_model
from transduce.errors import ConfigError, RequestError, packages_for
from transduce.files import require_new_folder
from transduce.grammar.corpus import BUILT_IN, Grammar
from transduce.text.corpus import read_text
from transduce.text.languages import base
from transduce.text.vocabulary import own_language_tag

Target = Literal["ctranslate2", "marian", "marian-npz", "onnx"]
MODULES: dict[Target, str] = {
    "ctranslate2": "transduce.interop.ctranslate2",
    "marian": "transduce.interop.marian_export",
    "marian-npz": "transduce.interop.marian_npz_export",
    "onnx": "transduce.interop.onnx",
}
"""Module of each target, whose function `export` writes the folder and proves it."""
WITHOUT_SEARCH = ("ctranslate2", "onnx")
"""Targets whose folders have no settings of search."""
NUM_SENTENCES = 6
"""Number of sentences of the built-in grammar."""
UNUSUAL_TEXT = "¿Ω  中文 <s> </s>\t🙂 e\u0301x 12.000?"
"""Text of rare characters and special tokens, where tokenizers differ most."""


def export(
    model: Path,
    /,
    *,
    to: Target,
    out: Path,
    force: bool = False,
    sample: Path | None = None,
) -> None:
    """Export a model to another library, and prove that the two are equal.

    The proof: on all sample sentences, the exported model, run by that library, has the
    same logits and chooses the same tokens, and its tokenizer gives the same ids. For
    Marian itself, the folder is read back and compared instead. If the proof fails,
    nothing is written.

    For example:

        transduce export runs/mine --to ctranslate2 --out exported

    Parameters
    ----------
    model
        A model or run folder.
    to
        ctranslate2; marian, for MarianMTModel of Hugging Face; marian-npz, for Marian
        itself; or onnx, an encoder and a decoder step.
    out
        The folder to write.
    force
        Overwrite an older export to the same library in that folder.
    sample
        A text file with sentences for the proof, one per line; - is standard input. By
        default sentences of the built-in corpus, in the model's source language if that
        is English, German or Chinese, otherwise in English.
    """
    require_new_folder(out, overwrite=force, made_by=f"export --to {to}")
    checkpoint = load_model(model)
    sentences = proof_sentences(sample, checkpoint.source_language)
    with packages_for(f"Export to {to}", "export"):
        from transduce.interop.export import ProofError, lost_search

        target = import_module(MODULES[to])
        try:
            proof = target.export(checkpoint, out, sentences, overwrite=force)
        except (ConfigError, RequestError, ProofError) as error:
            raise type(error)(f"{model}: {error}") from None
    print(f"The model for {target.TARGET} is in {out}.")
    print(f"Proof: {proof}.")
    if to in WITHOUT_SEARCH:
        print(lost_search(target.TARGET, checkpoint))
    if tags := checkpoint.tokenizer.language_tags:
        tag = own_language_tag(checkpoint.target_language, tags) or tags[0]
        print(
            "In training, each source begins with a tag of the target language: for "
            f"{target.TARGET} write a tag such as {tag} before each source, as none is "
            "put there."
        )


def proof_sentences(sample: Path | None, language: str | None) -> list[str]:
    """Return the user's sentences, or some of the built-in corpus.

    The latter are in `language`, a BCP 47 tag, or in English if the corpus lacks it.
    """
    if sample is None:
        return [UNUSUAL_TEXT, *_built_in(None if language is None else base(language))]
    sentences = [line for line in read_text([sample]) if line.strip()]
    if not sentences:
        raise ConfigError(
            f"{sample}: the sample must have a sentence or more, but has none."
        )
    return sentences


def _built_in(language: str | None) -> list[str]:
    found = [pair for pair in BUILT_IN if pair.endswith(f"-{language}")]
    grammar = Grammar.built_in(found[0] if found else "en-de")
    sentences = islice(grammar.training_sentences(seed=1), NUM_SENTENCES)
    return [each.target if found else each.source for each in sentences]
