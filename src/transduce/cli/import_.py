"""`transduce import`: a model of another library, proven to put out the same."""

from pathlib import Path

from transduce.cli.options import require_new
from transduce.cli.proof_sample import packages_for, proof_sentences


def import_(folder: Path, /, *, out: Path, sample: Path | None = None) -> None:
    """Make a Marian folder of Hugging Face a model folder, such as one of OPUS-MT.

    It ends with a proof: the model has the logits of MarianMTModel and chooses the same
    tokens, and its tokenizer gives the same ids, on all sample sentences. Where that
    cannot be, nothing is written.

    Parameters
    ----------
    folder
        Holds config.json, model.safetensors, source.spm, target.spm and vocab.json; or
        what `transduce export --to marian` wrote.
    out
        The model folder to write.
    sample
        Sentences for the proof, one a line; some of the built-in corpus by default.
    """
    require_new(out)
    sentences = proof_sentences(sample)
    with packages_for("Import"):
        from transduce.importing.marian import import_model

        proof = import_model(folder, out, sentences)
    print(f"The model is in {out}.")
    print(f"Proof: {proof}.")
