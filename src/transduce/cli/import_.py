"""`transduce import`: a model of another library, proven to put out the same."""

from pathlib import Path

from transduce.cli.output import Force, require_new_folder
from transduce.cli.proof_sample import proof_sentences
from transduce.errors import packages_for
from transduce.model_folder import WEIGHTS
from transduce.text.languages import LanguagesConfig


def import_(
    folder: Path,
    /,
    *,
    out: Path,
    force: Force = False,
    sample: Path | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> None:
    """Make a Marian folder of Hugging Face a model folder, such as one of OPUS-MT.

    It ends with a proof: the model has the logits of MarianMTModel and chooses the same
    tokens, and its tokenizer gives the same ids, on all sample sentences. Where that
    cannot be, nothing is written.

    For example:

        transduce import opus-mt-en-de --out imported

    Parameters
    ----------
    folder
        Holds config.json, model.safetensors, source.spm, target.spm and vocab.json; or
        what `transduce export --to marian` wrote.
    out
        The model folder to write.
    force
        Overwrite an older model in that folder.
    sample
        A text file with sentences for the proof, one a line; - is standard input. By
        default some of the built-in corpus, in the stated source language if that is
        English, German or Chinese, else in English.
    source_language
        Language that the model reads, as a BCP 47 tag such as en or pt-BR; by default
        the one that tokenizer_config.json names.
    target_language
        Language that the model writes. A model with several has none by default.
    """
    require_new_folder(out, force=force, holding=WEIGHTS)
    languages = LanguagesConfig(source=source_language, target=target_language)
    sentences = proof_sentences(sample, languages.source)
    with packages_for("Import", "export"):
        from transduce.interop.marian_import import import_model

        proof = import_model(folder, out, sentences, languages)
    print(f"The model is in {out}.")
    print(f"Proof: {proof}.")
