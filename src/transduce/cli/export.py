"""`transduce export`: a model for another library, proven equal."""

from importlib import import_module
from pathlib import Path
from typing import Literal

from transduce.checkpoint import load_model
from transduce.cli.output import Force, require_new_folder
from transduce.cli.proof_sample import proof_sentences
from transduce.errors import RequestError, packages_for

Target = Literal["ctranslate2", "marian", "onnx"]
MARKS = {
    "ctranslate2": "model.bin",
    "marian": "model.safetensors",
    "onnx": "encoder.onnx",
}
"""File that identifies an older export, by target."""


def export(
    model: Path,
    /,
    *,
    to: Target,
    out: Path,
    force: Force = False,
    sample: Path | None = None,
) -> None:
    """Export a model to another library, and prove that the two are equal.

    The proof: on all sample sentences, the exported model, run by that library, has the
    same logits and chooses the same tokens, and its tokenizer gives the same ids. If
    the proof fails, nothing is written.

    For example:

        transduce export runs/mine --to ctranslate2 --out exported

    Parameters
    ----------
    model
        A model or run folder.
    to
        ctranslate2; marian, for MarianMTModel of Hugging Face; or onnx, an encoder and
        a decoder step.
    out
        The folder to write.
    force
        Overwrite an older export to the same library in that folder.
    sample
        A text file with sentences for the proof, one per line; - is standard input. By
        default sentences of the built-in corpus, in the model's source language if that
        is English, German or Chinese, otherwise in English.
    """
    require_new_folder(out, force=force, holding=MARKS[to])
    checkpoint = load_model(model)
    sentences = proof_sentences(sample, checkpoint.source_language)
    with packages_for(f"Export to {to}", "export"):
        from transduce.interop.proof import ProofError

        target = import_module(f"transduce.interop.{to}")
        try:
            proof = target.export(checkpoint, out, sentences)
        except (RequestError, ProofError) as error:
            raise type(error)(f"{model}: {error}") from None
    print(f"The model for {target.TARGET} is in {out}.")
    print(f"Proof: {proof}.")
