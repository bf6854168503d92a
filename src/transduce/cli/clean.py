"""`transduce clean`: the pairs of a corpus to train on, and the others with reasons."""

from dataclasses import asdict, replace
from pathlib import Path

from transduce.cli.check import train_command
from transduce.cli.files import Files
from transduce.cli.options import Assignments, text_files
from transduce.cli.terminal import Json, error_console, print_json
from transduce.data.cleaning import DROPPED_FILE, CleaningReport
from transduce.data.cleaning_rules import RULES, CleaningConfig, require_rule
from transduce.data.corpus_files import CorpusFiles
from transduce.errors import ConfigError, DataError, counted
from transduce.experiments.cleaning import clean as clean_corpus
from transduce.settings import apply_assignments


def clean(
    *,
    source: Files = (),
    target: Files = (),
    out: Path,
    dev_source: Files = (),
    source_language: str | None = None,
    target_language: str | None = None,
    off: tuple[str, ...] = (),
    settings: Assignments = (),
    model: Path | None = None,
    reverse_model: Path | None = None,
    worst: float | None = None,
    device: str = "auto",
    processes: int | None = None,
    force: bool = False,
    json_output: Json = False,
) -> None:
    """Write the good pairs of a parallel corpus, and the others with reasons.

    Drops pairs that are empty, repeated, untranslated, in the wrong script, damaged, or
    of unusual lengths. A model also drops those that it finds least probable. The exit
    code is 2 if no pair is left.

    For example:

        transduce clean --source my.en --target my.de --out cleaned

    Parameters
    ----------
    source
        Text files, one sentence per line, plain or compressed.
    target
        Their translations, line by line.
    out
        Folder of the kept pairs, under the names of the files, and of dropped.jsonl,
        report.json and scores.tsv.
    dev_source
        Held-out text whose sentences are dropped from the source.
    source_language
        Language of the source, as in en or pt-BR; by default the endings of the files
        name it.
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
        Number of processes; by default one for each core within affinity and CPU
        quota, at most OMP_NUM_THREADS and 16.
    force
        Overwrite the folder of an earlier cleaning.
    json_output
        Print the report as one JSON object.
    """
    files = text_files(source, target, (), ())
    if not files.source:
        raise ConfigError("A corpus must be given: --source FILE... --target FILE...")
    for rule in off:
        require_rule(rule)
    config = apply_assignments(CleaningConfig(), settings, "--set: ")
    with error_console().status("Reading the corpus...") as status:
        report = clean_corpus(
            source,
            target,
            out,
            dev_source=dev_source,
            source_language=source_language,
            target_language=target_language,
            config=replace(config, off=(*config.off, *off)),
            model=model,
            reverse_model=reverse_model,
            worst=worst,
            device=device,
            num_processes=processes,
            overwrite=force,
            on_pairs=lambda what, number: status.update(
                f"{counted(number, 'pair')} {what}..."
            ),
        )
    if json_output:
        print_json(asdict(report))
    else:
        _show(report, out)
    if not report.kept:
        raise DataError(
            f"{out}: no pair is kept, as the rules drop all of them; the reasons are "
            f"in {DROPPED_FILE}. Switch rules off by --off, or change their thresholds "
            "by --set."
        )


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
    if report.kept:
        kept = CorpusFiles(
            source=tuple(out / each.source.name for each in report.files),
            target=tuple(out / each.target.name for each in report.files),
        )
        print(f"Train on them:\n  {train_command(kept)}")


def _percent(share: float) -> str:
    """Format a share, never rounded to nothing or to all."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    return "> 99.9 %" if 0.999 < share < 1 else f"{share:.1%}".replace("%", " %")
