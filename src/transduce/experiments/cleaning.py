"""Cleaning of a parallel corpus by rules and models: `transduce clean` in Python."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from transduce.data.cleaning import (
    CleaningReport,
    FilePair,
    Scoring,
    clean_corpus,
    file_pairs,
)
from transduce.data.cleaning_rules import CleaningConfig
from transduce.data.corpus_files import CorpusFiles, Files, paths_of
from transduce.decoding.translator import Translator, load, require_translation
from transduce.errors import ConfigError
from transduce.files import path_of, require_new_folder, require_without
from transduce.settings import (
    require_between,
    require_config,
    require_flag,
    require_function,
)
from transduce.text.languages import LanguagesConfig, require_language

WORST = 0.1
"""Share of the pairs that a model's scores drop by default."""


def clean(
    source: Files,
    target: Files,
    out: str | PathLike[str],
    *,
    dev_source: Files = (),
    source_language: str | None = None,
    target_language: str | None = None,
    config: CleaningConfig | None = None,
    model: str | PathLike[str] | None = None,
    reverse_model: str | PathLike[str] | None = None,
    worst: float | None = None,
    device: str = "auto",
    num_processes: int | None = None,
    overwrite: bool = False,
    on_pairs: Callable[[str, int], object] | None = None,
) -> CleaningReport:
    """Write the good pairs of a parallel corpus to a folder, and the others with
    reasons.

        report = transduce.clean("my.en", "my.de", "cleaned")
        print(report.kept, report.dropped)

    The folder appears once it is complete. It holds the kept pairs under the names of
    the files, the dropped ones in `dropped.jsonl`, `report.json`, and with a model
    `scores.tsv`.

    Parameters
    ----------
    source
        Text files, one sentence per line, plain or compressed.
    target
        Their translations, line by line.
    out
        Folder of the result.
    dev_source
        Held-out text whose sentences are dropped from the source.
    source_language, target_language
        BCP 47 tags; by default the endings of the files name them.
    config
        Thresholds of the rules, and rules that are switched off
        (`transduce.data.cleaning_rules.CleaningConfig`).
    model
        A model or run folder. Of the pairs that all rules keep, those with the largest
        cross-entropy per token are dropped.
    reverse_model
        A model of the reverse direction. Pairs are then ranked by dual conditional
        cross-entropy (Junczys-Dowmunt, 2018).
    worst
        Share of the pairs that the scores drop; by default 0.1.
    device
        Device of the models: "auto", "cpu" or "cuda".
    num_processes
        Number of processes; by default one for each core, or OMP_NUM_THREADS, at
        most 16. The result is the same.
    overwrite
        Whether to replace the result of an earlier cleaning.
    on_pairs
        Called with "read", "scored" or "written", and the number of pairs so far.

    Raises
    ------
    DataError
        A file cannot be used; the message names it, and the line.
    ConfigError
        The folder holds something else, two files have one name, a model is of other
        languages, or a number is out of bounds.
    CheckpointError
        A model is missing or damaged, or the folder cannot be written.
    RequestError
        A process was killed, or a model cannot score, or not in this target language.
    """
    require_flag("overwrite", overwrite)
    if on_pairs is not None:
        require_function("on_pairs", on_pairs)
    if config is not None:
        require_config("config", config, CleaningConfig)
    files = CorpusFiles(
        source=paths_of("source", source),
        target=paths_of("target", target),
        dev_source=paths_of("dev_source", dev_source),
    )
    if not files.source or not files.target:
        raise ConfigError("Both sides of a corpus must be given, but are not.")
    folder = path_of("out", out)
    require_new_folder(folder, overwrite=overwrite, made_by="clean")
    require_without(folder, files.paths)
    if worst and config is not None and not config.has("low-score"):
        raise ConfigError(
            "The rule low-score must be applied to drop a share of the worst scores, "
            "but is switched off; leave it out of the rules that are off, or leave out "
            "`worst`."
        )
    given = LanguagesConfig(source=source_language, target=target_language)
    scoring = _scoring(model, reverse_model, worst, device, file_pairs(files, given))
    return clean_corpus(
        files,
        folder,
        config,
        languages=given,
        scoring=scoring,
        num_processes=num_processes,
        overwrite=overwrite,
        on_pairs=on_pairs or (lambda what, number: None),
    )


def _scoring(
    model: str | PathLike[str] | None,
    reverse_model: str | PathLike[str] | None,
    worst: float | None,
    device: str,
    files: Sequence[FilePair],
) -> Scoring | None:
    """Load the models; `ConfigError` if they do not fit the corpus or the options."""
    if model is None:
        has_others = {
            "reverse_model": reverse_model is not None,
            "worst": worst is not None,
            "device": device != "auto",
        }
        if others := [name for name, is_given in has_others.items() if is_given]:
            raise ConfigError(
                f"`{others[0]}` must be given together with a model of the corpus's "
                "own direction, but is given alone; add the model, or leave out "
                f"`{others[0]}`."
            )
        return None
    share = WORST if worst is None else worst
    require_between("worst", share, 0, 1)
    translator = _loaded(path_of("model", model), device, files)
    if reverse_model is None:
        return Scoring(score=translator.score, worst=share)
    reverse = _loaded(
        path_of("reverse_model", reverse_model),
        device,
        [each.reversed() for each in files],
    )
    return Scoring(score=translator.score, score_reverse=reverse.score, worst=share)


def _loaded(path: Path, device: str, files: Sequence[FilePair]) -> Translator:
    """Load a model; `ConfigError` if a file is known to be in another language.

    A model of several target languages scores with the tag of the corpus's.
    """
    translator = load(path, device=device)
    require_translation(translator)
    if translator.target_languages:
        translator = translator.into(_one_target(path, files))
    has_one_direction = len({each.direction for each in files}) == 1
    for pair in files:
        for side in ("source", "target"):
            known = getattr(translator, f"{side}_language")
            language = getattr(pair, f"{side}_language")
            remedy = "correct the languages"
            if not has_one_direction:
                file = getattr(pair, side)
                remedy = f"clean {file} without the files of other languages"
            require_language(path, side, known, language, remedy=remedy)
    return translator


def _one_target(path: Path, files: Sequence[FilePair]) -> str:
    """Return the files' target language; `ConfigError` if it is unknown, or several."""
    targets = sorted({each.target_language for each in files if each.target_language})
    if not targets:
        raise ConfigError(
            f"{path}: a model of several target languages needs the language of the "
            "corpus to score it, but the files' endings name none; give the languages, "
            "or rename the files as in my.en and my.de."
        )
    if len(targets) > 1:
        raise ConfigError(
            f"{path}: a model of several target languages must score a corpus in one "
            f"of them, but the files are in {', '.join(targets)}; clean each language "
            "alone."
        )
    return targets[0]
