"""`transduce export`: a model for another library, proven to put out the same."""

from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Literal

from transduce.checkpoint import load_model
from transduce.decoding.translator import MAX_SOURCE_TOKENS
from transduce.errors import ConfigError, RequestError
from transduce.text.corpus import read_text
from transduce.text.grammar import Grammar

Target = Literal["ctranslate2", "marian", "onnx"]

NUM_SENTENCES = 6
"""Of the built-in grammar, for the proof."""
OUTLANDISH = "¿Ω  中文 <s> </s>\t🙂 e\u0301x 12.000?"
"""For the tokenizer: what few models have seen."""


def export(
    model: Path, /, *, to: Target, out: Path, sample: Path | None = None
) -> None:
    """Write a model as another library has it, and prove that it puts out the same.

    The proof: the exported model, run by that library, has the same logits and chooses
    the same tokens, and its tokenizer gives the same ids, on all sample sentences.
    Where that cannot be, nothing is written.

    Parameters
    ----------
    model
        A model or run folder.
    to
        ctranslate2; marian, for MarianMTModel of Hugging Face; or onnx, an encoder and
        a decoder step.
    out
        The folder to write.
    sample
        Sentences for the proof, one a line; some of the built-in corpus by default.
    """
    if out.exists():
        raise ConfigError(f"{out}: the output folder must be new, but exists.")
    sentences = _sentences(sample)
    checkpoint = load_model(model)
    if checkpoint.symbols is not None:
        raise RequestError(
            f"{model}: a model to export must have one vocabulary for source and "
            "target, but this one parses, and has two."
        )
    for text in sentences:
        if (length := len(checkpoint.tokenizer.encode(text))) > MAX_SOURCE_TOKENS:
            raise ConfigError(
                f"{sample}: a sentence must have at most {MAX_SOURCE_TOKENS} tokens, "
                f"but one has {length:,}; take it out."
            )
    try:
        target = import_module(f"transduce.export.{to}")
    except ModuleNotFoundError as error:
        raise RequestError(
            f"Export to {to} must have the package `{error.name}`, but it is not "
            "installed; install it with: pip install 'transduce[export]'"
        ) from None
    proof = target.export(checkpoint, out, sentences)
    print(f"The model for {target.TARGET} is in {out}.")
    print(f"Proof: {proof}.")


def _sentences(sample: Path | None) -> list[str]:
    if sample is None:
        grammar = Grammar.built_in().training_sentences(seed=1)
        return [OUTLANDISH, *(each.source for each in islice(grammar, NUM_SENTENCES))]
    sentences = [line for line in read_text([sample]) if line.strip()]
    if not sentences:
        raise ConfigError(f"{sample}: must hold a sentence at least, but holds none.")
    return sentences
