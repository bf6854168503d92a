"""`transduce tune`: choice of beam size and length penalty on dev text."""

import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from transduce.cli.files import Files
from transduce.cli.options import require_both
from transduce.cli.terminal import Json, error_console, print_json, table_console, warn
from transduce.data.treebank import read_treebank
from transduce.decoding.native_decoder import PrecisionChoice
from transduce.decoding.translator import Translator, load, require_translation
from transduce.errors import ConfigError, counted
from transduce.experiments.tuning import (
    Cell,
    Grid,
    OnSearch,
    Tuning,
    tune_parsing,
    tune_translation,
    tuned,
)
from transduce.metrics.comparison import SIGNIFICANT_P
from transduce.metrics.scores import Tokenize, choose_tokenization
from transduce.model_folder import change_search, find_model
from transduce.report.report import Report, Section, Table, columns
from transduce.report.terminal import show
from transduce.search_config import SearchConfig
from transduce.text.corpus import read_pairs, require_text
from transduce.text.languages import guess_all, require_language_of_files

DEFAULT_GRID = Grid()
PARSING_BEAMS = (1, 4, 10, 21)
"""Beam sizes tried for a parser; the paper's has 21."""


def tune(
    model: Path,
    /,
    *,
    dev_source: Files = (),
    dev_target: Files = (),
    dev_trees: Files = (),
    beam_sizes: tuple[int, ...] = (),
    length_penalties: tuple[float, ...] = (0.0, 0.3, 0.6, 0.9, 1.2, 1.5),
    patiences: tuple[float, ...] = (),
    constrained: bool = False,
    tokenize: Tokenize = "auto",
    dry_run: bool = False,
    json_output: Json = False,
    device: str = "auto",
    precision: PrecisionChoice = "auto",
    processes: int | None = None,
) -> None:
    """Choose beam size and length penalty on dev text (section 6.1).

    Every beam size is tried with every penalty, and the best pair is written to the
    model's settings, which are the defaults of all commands that search. A run's model
    is its average, or else its best checkpoint.

    For example:

        transduce tune runs/mine --dev-source dev.en --dev-target dev.de

    Parameters
    ----------
    model
        A model or run folder.
    dev_source
        Held-out text, one sentence per line; not the test text.
    dev_target
        Its translations, line by line.
    dev_trees
        Held-out trees, for a parser.
    beam_sizes
        Beam sizes to try: by default 1 2 4 8, or 1 4 10 21 for trees.
    length_penalties
        Length penalties (alpha) to try.
    patiences
        Patiences to try in addition to the model's.
    constrained
        Restrict the searches of a parser to well-formed trees, as `parse --constrained`
        does; greedy search and small beams are then far worse than without.
    tokenize
        sacreBLEU's tokenizer; by default the one for the target's language.
    dry_run
        Only print the choice; leave the model unchanged.
    json_output
        Print one JSON object.
    device
        auto, cpu or cuda.
    precision
        Precision of matrix products, as in translate; choose the one in which the model
        will be used.
    processes
        Number of processes that share the sentences, each on one core; by default one
        for each core within affinity and CPU quota, at most OMP_NUM_THREADS and 16.
    """
    require_both(dev_source, dev_target, "dev-")
    _require_one_kind(dev_source, dev_trees, tokenize, constrained=constrained)
    folder = find_model(model)
    if not dry_run and not os.access(folder, os.W_OK):
        raise ConfigError(
            f"{folder}: the model must be writable to keep another search, but is not; "
            "take --dry-run, or copy it."
        )
    beams = beam_sizes or (PARSING_BEAMS if dev_trees else DEFAULT_GRID.beam_sizes)
    grid = Grid(
        beam_sizes=beams, length_penalties=length_penalties, patiences=patiences
    )
    grid.searches(SearchConfig())  # refuse an impossible grid before any work
    translator = load(
        folder, device=device, precision=precision, num_processes=processes
    )
    if grid.lacks_greedy(translator.search):
        warn(
            "Greedy search is not tried, as the model has `search.coverage_penalty`, "
            "which needs a beam."
        )
    with error_console().status("Searching...") as status:

        def searching(number: int, total: int, search: SearchConfig) -> None:
            status.update(f"Search {number} of {total}: {_named(search)}...")

        if dev_trees:
            gold = read_treebank(dev_trees)
            tuning = tune_parsing(
                translator, gold, grid, searching, constrained=constrained
            )
        else:
            tuning = _tune_on_text(
                model,
                translator,
                dev_source,
                dev_target,
                tokenize=tokenize,
                grid=grid,
                on_search=searching,
            )
    _keep_and_print(
        tuning, folder, translator.search, dry_run=dry_run, json_output=json_output
    )


def _keep_and_print(
    tuning: Tuning, folder: Path, own: SearchConfig, *, dry_run: bool, json_output: bool
) -> None:
    """Write the best search to the model, and print all scores.

    They may be the work of hours, so they are printed even if the search cannot be
    written.
    """
    choose = partial(tuned, best=tuning.best.search)
    is_written = False
    try:
        if not dry_run and choose(own) != own:
            change_search(folder, choose)
            is_written = True
    finally:
        if json_output:
            print_json(_as_json(tuning, folder, is_written))
        else:
            show(as_report(tuning), table_console())
            print(_verdict(tuning, folder, is_written))


def _require_one_kind(
    dev_source: Files, dev_trees: Files, tokenize: Tokenize, *, constrained: bool
) -> None:
    """Raise `ConfigError` unless text or trees are given, with options for them."""
    if bool(dev_source) == bool(dev_trees):
        raise ConfigError(
            "Dev text must be given: either --dev-source and --dev-target, or "
            "--dev-trees."
        )
    if dev_trees and tokenize != "auto":
        raise ConfigError(
            "--tokenize is for the BLEU of a text, but --dev-trees are scored by F1; "
            "leave it out."
        )
    if constrained and not dev_trees:
        raise ConfigError(
            "--constrained is for the trees of a parser, but text is given; leave it "
            "out, or give --dev-trees."
        )


def _tune_on_text(
    model: Path,
    translator: Translator,
    source: Files,
    target: Files,
    *,
    tokenize: Tokenize,
    grid: Grid,
    on_search: OnSearch,
) -> Tuning:
    """Tune on sources and references.

    Raises an error if the files' endings name other languages than the model's. A model
    with several target languages translates into that of the references.
    """
    require_translation(translator)
    require_language_of_files(model, "source", translator.source_language, source)
    has_several = bool(translator.target_languages)
    if not has_several:
        language = translator.target_language
        require_language_of_files(model, "target", language, target)
    pairs = list(read_pairs(source, target))
    sources = [pair.source for pair in pairs]
    references = [pair.target for pair in pairs]
    require_text(source[0], sources)
    require_text(target[0], references)
    named = guess_all(target)
    if has_several:
        language = named or translator.target_language
        translator = translator if language is None else translator.into(language)
    else:
        language = translator.target_language or named
    tokenization = choose_tokenization(tokenize, language, references)
    return tune_translation(
        translator, sources, references, tokenization, grid, on_search
    )


def as_report(tuning: Tuning) -> Report:
    """Report with a table of beam sizes by penalties for each patience."""
    patiences = dict.fromkeys(cell.search.patience for cell in tuning.cells)
    tables = tuple(_table(tuning, patience) for patience in patiences)
    what = f"{tuning.metric} of {counted(tuning.num_sentences, 'sentence')}"
    section = Section(
        title="Beam sizes by length penalties", parts=(*tables, tuning.protocol)
    )
    return Report(title=what, sections=(section,))


def _table(tuning: Tuning, patience: float | None) -> Table:
    scores = {
        (cell.search.beam_size, cell.search.length_penalty): cell
        for cell in tuning.cells
        if cell.search.patience == patience
    }
    penalties = sorted({penalty for beam, penalty in scores if beam > 1})
    if not penalties:  # only greedy search was tried
        penalties = sorted({penalty for _, penalty in scores})
    rows = []
    for beam in sorted({beam for beam, _ in scores}):
        cells_of_beam = [c for (b, _), c in scores.items() if b == beam]
        cells = [scores.get((beam, penalty)) for penalty in penalties]
        if beam == 1:  # the same for all penalties
            cells = [cells_of_beam[0]] * len(penalties)
        rows.append((f"{beam}", *(_cell(tuning, cell) for cell in cells)))
    heads = columns("beam", *(f"{penalty:g}" for penalty in penalties))
    title = "" if patience is None else f"Patience {patience:g}"
    return Table(columns=heads, rows=tuple(rows), title=title)


def _cell(tuning: Tuning, cell: Cell | None) -> str:
    """Format a score; a star marks the best, a point that of the model's own search."""
    if cell is None:
        return ""
    if cell is tuning.best:
        return f"{cell.score:.2f}*"
    return f"{cell.score:.2f}." if cell is tuning.now else f"{cell.score:.2f}"


def _named(search: SearchConfig) -> str:
    patience = "" if search.patience is None else f", patience {search.patience:g}"
    if search.beam_size == 1:
        return "greedy"
    return (
        f"beam {search.beam_size}, length penalty {search.length_penalty:g}{patience}"
    )


def _verdict(tuning: Tuning, folder: Path, is_written: bool) -> str:
    best, now = tuning.best, tuning.now
    if best is now:
        return (
            f"The model's own search ({_named(now.search)}) is the best of these: "
            f"{now.score:.2f}. {folder} stays as it is."
        )
    assert tuning.p is not None
    is_sure = tuning.p < SIGNIFICANT_P
    sureness = "significant" if is_sure else "not significant: it may be chance"
    where = (
        f"It is now the search of {folder}."
        if is_written
        else f"{folder} stays as it is."
    )
    return (
        f"Best: {_named(best.search)}: {best.score:.2f} (*), where the model's own "
        f"search ({_named(now.search)}) has {now.score:.2f} (.).\nThe gain of "
        f"{tuning.gain:.2f} {tuning.metric} is {sureness} (p = {tuning.p:.3f}, not "
        f"corrected for {len(tuning.cells)} searches). {where}"
    )


def _as_json(tuning: Tuning, folder: Path, is_written: bool) -> dict[str, Any]:
    return {
        "model": str(folder),
        "is_written": is_written,
        "gain": tuning.gain,
        "best": asdict(tuning.best),
        "now": asdict(tuning.now),
        **asdict(tuning),
    }
