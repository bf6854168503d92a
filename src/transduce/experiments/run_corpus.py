"""Corpus of a run: files, languages and dev sets, and their preparation."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from transduce.data.corpus_files import (
    MAX_HELD_OUT,
    CorpusFiles,
    choose_dev,
    hold_out_pairs,
    read_through,
)
from transduce.data.prepared_corpus import (
    DEV_SETS,
    PairEncoder,
    PreparedCorpus,
    prepare,
    prepare_dev_set,
)
from transduce.data.treebank import (
    TreebankFiles,
    choose_dev_trees,
    prepare_treebank,
)
from transduce.errors import DataError
from transduce.experiments.presets import RunConfig
from transduce.metrics.scores import choose_tokenization
from transduce.text.corpus import read_pairs, read_text
from transduce.text.languages import LanguagesConfig, guess, guess_all
from transduce.text.sentence_pieces import tokenizer_of_model
from transduce.text.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer
from transduce.text.vocabulary import find_language_tag, language_tags

RunFiles = CorpusFiles | TreebankFiles
"""Files that a run is trained on."""


def given_encoder(config: RunConfig, files: RunFiles) -> PairEncoder | None:
    """Return the encoder by the model of SentencePiece that the settings name.

    None if they name none. Raises `CheckpointError` if the model is missing or damaged,
    `RequestError` if it cannot be used.
    """
    if config.tokenizer.model is None or isinstance(files, TreebankFiles):
        return None
    path = Path(config.tokenizer.model)
    return PairEncoder(tokenizer=tokenizer_of_model(path, files.tags))


def can_hold_out(files: RunFiles, seed: int) -> bool:
    """Whether there is enough text to hold a dev corpus out of it, as a run does.

    `DataError` if a file cannot be used.
    """
    if isinstance(files, TreebankFiles):
        return choose_dev_trees(files.trees, seed) is not None
    return choose_dev(files, seed) is not None


def prepare_run_corpus(
    files: RunFiles,
    config: RunConfig,
    folder: Path,
    sibling_runs: Sequence[Path],
    encoder: PairEncoder | None,
) -> PreparedCorpus:
    """Prepare the corpus of a run; a dev corpus is held out if the config says so."""
    holds_out = config.evaluation.hold_out and not files.has_dev
    seed = config.training.seed if holds_out else None
    if isinstance(files, TreebankFiles):
        return prepare_treebank(
            files,
            config.treebank,
            encoder or config.tokenizer,
            config.batching.max_length,
            folder,
            sibling_runs,
            seed,
        )
    tokenizer = encoder.tokenizer if encoder else None
    return _prepare_text(files, config, folder, sibling_runs, tokenizer, seed)


def _prepare_text(
    files: CorpusFiles,
    config: RunConfig,
    folder: Path,
    sibling_runs: Sequence[Path],
    tokenizer: Tokenizer | None,
    seed: int | None,
) -> PreparedCorpus:
    """Prepare parallel text; with a seed, a dev corpus is held out of it.

    A tokenizer is learned unless one is given.
    """
    # Find faults before any work.
    require_dev_sets(files, config, tokenizer)
    languages = languages_of_dev_sets(files, config, tokenizer)
    max_length = config.batching.max_length
    parts = None
    if seed is not None:
        parts = hold_out_pairs(files, folder / "text", seed)
    corpus = prepare(
        replace(parts or files, dev_language=languages[0]),
        tokenizer or config.tokenizer,
        max_length,
        folder,
        sibling_runs,
        target_language=config.languages.target,
    )
    if parts is not None:
        shutil.rmtree(folder / "text")
        corpus = replace(corpus, is_held_out=True)
    learned = load_tokenizer(folder / TOKENIZER_FILE)
    dev_sets = {
        dev.name: prepare_dev_set(
            dev, learned, language, max_length, folder / DEV_SETS / dev.name
        )
        for dev, language in zip(files.dev_sets, languages[1:], strict=True)
    }
    return replace(corpus, dev_name=files.dev_name, dev_sets=dev_sets)


def dev_languages(
    config: RunConfig, files: Mapping[str, Sequence[str]], *, has_tags: bool
) -> list[str | None]:
    """Return the target language of each dev set, the main one first.

    `files` are the run's files as it records them. A model without tags of languages
    has one target language, and so have all dev sets. With tags, the language of a dev
    set is that of its file's ending, and a held-out dev set has the language of the
    first corpus.
    """
    default, further = config.languages.target, files.get("dev_sets", [])[1::2]
    if not has_tags:
        return [default] * (1 + len(further))
    if given := files.get("dev_target"):
        main = guess_all(given)
    else:
        main = config.corpora[0].target_language if config.corpora else None
    return [language or default for language in (main, *map(guess, further))]


def languages_of_dev_sets(
    files: CorpusFiles, config: RunConfig, tokenizer: Tokenizer | None = None
) -> list[str | None]:
    """Return the target language of each dev set of a new run, the main one first.

    A tokenizer is given if none is learned.
    """
    has_tags = bool(_language_tags(files, tokenizer))
    return dev_languages(config, files.absolute_names(), has_tags=has_tags)


def _language_tags(files: CorpusFiles, tokenizer: Tokenizer | None) -> tuple[str, ...]:
    """Return the tags of languages of a given tokenizer, or of one to be learned."""
    return tokenizer.language_tags if tokenizer else language_tags(files.tags)


def require_scoring(
    files: CorpusFiles, config: RunConfig, tokenizer: Tokenizer | None = None
) -> None:
    """Raise `RequestError` if a package is missing that scores of dev sets need.

    This is found before training, not at the first checkpoint. A tokenizer is given if
    none is learned.
    """
    if not (files.has_dev or config.evaluation.hold_out):
        return
    languages = languages_of_dev_sets(files, config, tokenizer)
    texts = [files.dev_target or files.target]
    texts += [(dev.target,) for dev in files.dev_sets]
    for paths, language in zip(texts, languages, strict=True):
        references = islice(read_text(paths), MAX_HELD_OUT)
        choose_tokenization(config.evaluation.tokenize, language, references)


def require_dev_sets(
    files: CorpusFiles, config: RunConfig, tokenizer: Tokenizer | None = None
) -> None:
    """Raise an error if a run cannot be scored on its dev sets.

    It cannot if a dev set has no text, or if the run or a dev set has a language that
    the model lacks. A `tokenizer` is one that is not learned, but given.
    """
    tags = _language_tags(files, tokenizer)
    if tags and config.languages.target is not None:
        find_language_tag(config.languages.target, tags)
    languages = languages_of_dev_sets(files, config, tokenizer)
    main = (files.dev_source, files.dev_target)
    further = [((dev.source,), (dev.target,)) for dev in files.dev_sets]
    for (source, target), language in zip((main, *further), languages, strict=True):
        if not (source or target):  # held out, or none
            continue
        read_through(source, target)
        if not any(
            p.source.strip() and p.target.strip() for p in read_pairs(source, target)
        ):
            raise DataError(
                f"{source[0]}: a dev set must have a pair with text on both sides, but "
                "all are blank."
            )
        if tags and language is not None:
            what = f"{target[0]}: the target language of a dev set"
            find_language_tag(language, tags, what)


def known_languages(given: LanguagesConfig, files: RunFiles) -> LanguagesConfig:
    """Fill in missing languages from the files' endings."""
    if isinstance(files, TreebankFiles):
        return replace(given, source=given.source or guess_all(files.trees))
    target = guess_all(files.target)
    if files.corpora and files.corpora[0].target_language is not None:
        # The language of the dev corpus, which may be held out of the first corpus.
        target = files.corpora[0].target_language
        target = guess_all(files.dev_target) if files.has_dev else target
    return LanguagesConfig(
        source=given.source or guess_all(files.source), target=given.target or target
    )
