"""`transduce import`: a model of another library, proven equal."""

from pathlib import Path

from transduce.cli.export import proof_sentences
from transduce.cli.terminal import warn
from transduce.errors import counted, packages_for
from transduce.files import require_new_folder
from transduce.foreign_models import is_marian, require_hugging_face_files
from transduce.model_folder import ModelFolder, open_model
from transduce.text.languages import LanguagesConfig
from transduce.text.vocabulary import languages_of


def import_(
    origin: Path,
    /,
    *,
    out: Path,
    force: bool = False,
    sample: Path | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> None:
    """Import a Marian model, in Marian's or Hugging Face's format, such as OPUS-MT's.

    For a model of Hugging Face the command ends with a proof: on all sample sentences,
    the model has the same logits as MarianMTModel and chooses the same tokens, and its
    tokenizer gives the same ids. For one of Marian itself, the tokenizer is compared
    with SentencePiece; its weights may be in 8 bits, and its shortlist is kept. If the
    proof fails, nothing is written. Generation settings of the folder are kept; those
    that have no counterpart are listed.

    For example:

        transduce import opus-mt-en-de --out imported

    Parameters
    ----------
    origin
        A folder with config.json, model.safetensors, source.spm, target.spm and
        vocab.json (and target_vocab.json, if targets have another vocabulary), or one
        written by `transduce export --to marian`; or one of Marian itself, with
        model.npz or model.bin and its vocabularies (.spm, or word lists in .yml beside
        them), whose order decoder.yml may give. Of several models or settings in such
        a folder, name one file.
    out
        The model folder to write.
    force
        Overwrite an older import in that folder.
    sample
        A text file with sentences for the proof, one per line; - is standard input. By
        default sentences of the built-in corpus, in the given source language if that
        is English, German or Chinese, otherwise in English.
    source_language
        Source language as a BCP 47 tag such as en or pt-BR; by default the one in
        tokenizer_config.json.
    target_language
        Target language. A model with several has none by default.
    """
    require_new_folder(out, overwrite=force, made_by="import")
    languages = LanguagesConfig(source=source_language, target=target_language)
    if not (is_of_marian := is_marian(origin)):
        require_hugging_face_files(origin)  # now, as the imports below take seconds
    sentences = proof_sentences(sample, languages.source)
    with packages_for("Import", "export"):
        from transduce.interop import marian_npz_import
        from transduce.interop.export import ProofError

        try:
            if is_of_marian:
                proof = marian_npz_import.import_marian(
                    origin, out, sentences, languages, overwrite=force
                )
                differing = marian_npz_import.differing_options(origin)
            else:
                # Only here, as it takes seconds.
                from transduce.interop import marian_import
                from transduce.interop.generation_settings import differing_settings

                found = marian_import.import_model(
                    origin, out, sentences, languages, overwrite=force
                )
                proof = f"Proof: {found}"
                differing = differing_settings(origin)
        except ProofError as error:
            raise ProofError(f"{origin}: {error}") from None
        for each in differing:
            warn(each)
    print(f"The model is in {out}.")
    print(f"{proof}.")
    _print_choices(open_model(out))


def _print_choices(imported: ModelFolder) -> None:
    """Print how to use a shortlist and several target languages, if there are any."""
    if imported.shortlist is not None:
        is_default = imported.search is not None and imported.search.shortlist
        use = "is used by default" if is_default else "`translate --shortlist` uses"
        print(f"It has a shortlist, which {use}.")
    tags = imported.tokenizer.language_tags
    if tags and imported.target_language is None:
        print(
            f"It has {counted(len(tags), 'target language')}: choose one by "
            f"`--target-language`, such as {languages_of(tags)[0]}, or begin each "
            f"source with a tag such as {tags[0]}."
        )
