"""`transduce clean`: the pairs of a corpus to train on, and the others with reasons."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.status import Status

from transduce.cli.files import Files, Force, require_new_folder
from transduce.cli.options import Assignments, require_both, text_files
from transduce.cli.terminal import error_console, program
from transduce.data.cleaning import (
    DROPPED_FILE,
    REPORT_FILE,
    CleaningReport,
    Scoring,
    clean_corpus,
)
from transduce.data.cleaning_rules import RULES, CleaningConfig, require_rule
from transduce.data.corpus_files import CorpusFiles
from transduce.decoding.translator import Translator, load
from transduce.errors import ConfigError, counted
from transduce.settings import apply_assignments
from transduce.text.languages import LanguagesConfig, base, guess_all

WORST = 0.1
"""Share of the pairs that a model's scores drop by default."""


def clean(
    *,
    source: Files = (),
    target: Files = (),
    out: Path,
    dev_source: Files = (),
    source_language: str | None = None,
    target_language: str | None = None,
    off: Annotated[
        tuple[str, ...],
        Parameter(consume_multiple=True, negative="", show_default=False),
    ] = (),
    settings: Assignments = (),
    model: Path | None = None,
    reverse_model: Path | None = None,
    worst: float | None = None,
    device: str = "auto",
    processes: int | None = None,
    force: Force = False,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Write the good pairs of a parallel corpus, and the others with reasons.

    Drops pairs that are empty, repeated, untranslated, in the wrong script, damaged, or
    of unusual lengths. A model also drops those that it finds least probable.

    For example:

        transduce clean --source my.en --target my.de --out cleaned

    Parameters
    ----------
    source
        Text files, one sentence per line, plain or gzip.
    target
        Their translations, line by line.
    out
        Folder of the kept pairs, under the names of the files, and of dropped.jsonl,
        report.json and scores.tsv.
    dev_source
        Held-out text whose sentences are dropped from the source.
    source_language
        Language of the source, as in en or pt-BR; by default the files' ending tells.
    target_language
        Language of the target.
    off
        Rules that are not applied, such as markup or numbers.
    settings
        Thresholds of the rules, such as max_words=100 or unique_source=true.
    model
        A model or run folder whose scores drop the worst pairs.
    reverse_model
        A model of the reverse direction. Pairs are then ranked by dual conditional
        cross-entropy.
    worst
        Share of the pairs that the scores drop; by default 0.1.
    device
        Device of the models: auto, cpu or cuda.
    processes
        Number of processes; by default one for each core.
    force
        Overwrite the folder of an earlier cleaning.
    json_output
        Print the report as one JSON object.
    """
    require_both(source, target)
    files = replace(text_files(source, target, (), ()), dev_source=dev_source)
    if not files.source:
        raise ConfigError("A corpus must be given: --source FILE... --target FILE...")
    for rule in off:
        require_rule(rule)
    config = replace(apply_assignments(CleaningConfig(), settings), off=off)
    given = {"source": source_language, "target": target_language}
    languages = LanguagesConfig().given(given)
    _require_replaceable(out, files, force=force)
    scoring = _scoring(model, reverse_model, worst, device, _known(languages, files))
    with error_console().status("Reading the corpus...") as status:
        report = clean_corpus(
            files,
            out,
            config,
            languages=languages,
            scoring=scoring,
            num_processes=processes,
            on_pairs=_progress(status),
        )
    if json_output:
        print(json.dumps(asdict(report), indent=2, default=str))
    else:
        _show(report, out)


def _require_replaceable(out: Path, files: CorpusFiles, *, force: bool) -> None:
    """Raise `ConfigError` if the folder holds files that would be lost."""
    require_new_folder(out, force=force, holding=REPORT_FILE)
    for path in (*files.source, *files.target, *files.dev_source):
        if out.resolve() in path.resolve().parents:
            raise ConfigError(
                f"{out}: the output must be a folder without the corpus in it, but is "
                f"not; choose another."
            )


def _known(languages: LanguagesConfig, files: CorpusFiles) -> LanguagesConfig:
    """Complete the languages by the endings of the files."""
    return LanguagesConfig(
        source=languages.source or guess_all(files.source),
        target=languages.target or guess_all(files.target),
    )


def _scoring(
    model: Path | None,
    reverse_model: Path | None,
    worst: float | None,
    device: str,
    languages: LanguagesConfig,
) -> Scoring | None:
    """Load the models; `ConfigError` if they do not fit the corpus or the options."""
    if model is None:
        option = "--worst" if reverse_model is None else "--reverse-model"
        if reverse_model is not None or worst is not None:
            raise ConfigError(
                f"{option} must be given together with a model of the corpus's own "
                "direction; add --model."
            )
        return None
    share = WORST if worst is None else worst
    Scoring(score=lambda _sources, _targets: (), worst=share)  # checks the share
    translator = _loaded(model, device, languages)
    if reverse_model is None:
        return Scoring(score=translator.score, worst=share)
    reverse = _loaded(
        reverse_model,
        device,
        LanguagesConfig(source=languages.target, target=languages.source),
    )
    return Scoring(score=translator.score, score_reverse=reverse.score, worst=share)


def _loaded(path: Path, device: str, languages: LanguagesConfig) -> Translator:
    """Load a model; `ConfigError` if it is known to be of other languages."""
    translator = load(path, device=device)
    translator.require_translation()
    for side in ("source", "target"):
        of_model = getattr(translator, f"{side}_language")
        of_corpus = getattr(languages, side)
        if of_model and of_corpus and base(of_model) != base(of_corpus):
            raise ConfigError(
                f"{path}: the model must have the languages of the corpus, but its "
                f"{side} is {of_model} and here {of_corpus}; choose another model, or "
                f"correct --source-language and --target-language."
            )
    return translator


def _progress(status: Status) -> Callable[[str, int], None]:
    def show(what: str, number: int) -> None:
        status.update(f"{counted(number, 'pair')} {what}...")

    return show


def _show(report: CleaningReport, out: Path) -> None:
    print(f"{counted(report.total, 'pair'):>20}  read")
    for rule, number in report.dropped.items():
        share = _percent(number / report.total)
        print(f"{counted(number, 'pair'):>20}  dropped: {rule} ({share})")
    share = _percent(report.kept / report.total)
    print(f"{counted(report.kept, 'pair'):>20}  kept ({share})")
    if report.dropped:
        reasons = [f"  {rule}: {RULES[rule]}" for rule in report.dropped]
        print("\n".join(("Reasons:", *reasons)))
        print(f"Dropped pairs with details: {out / DROPPED_FILE}")
    if report.largest_score is not None:
        print(f"Largest score of a kept pair: {report.largest_score:.4f}")
    sources, targets = (
        " ".join(str(out / getattr(each, side).name) for each in report.files)
        for side in ("source", "target")
    )
    if report.kept:
        print(
            f"Train on them:\n  {program()} train --source {sources} "
            f"--target {targets} --out runs/mine"
        )


def _percent(share: float) -> str:
    """Format a share, never rounded to nothing or to all."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    return "> 99.9 %" if 0.999 < share < 1 else f"{share:.1%}".replace("%", " %")
