"""`transduce check`: a report on a corpus before training."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import fill

from rich.console import Console
from rich.text import Text

from transduce.cli.files import Files
from transduce.cli.options import (
    Assignments,
    corpora_of,
    required_files,
    run_config,
    text_files,
)
from transduce.cli.terminal import (
    BoundedConsole,
    Json,
    error_console,
    print_json,
    program,
)
from transduce.data.corpus_files import CorpusFiles
from transduce.data.corpus_mixture import with_target_languages
from transduce.data.treebank import TreebankFiles
from transduce.errors import ConfigError, DataError, counted, percent
from transduce.experiments.contradictions import (
    faults_without_dev,
    refuse_contradictions,
)
from transduce.experiments.corpus_check import (
    Advice,
    CorpusReport,
    TreebankReport,
    TreesReport,
    advise,
    advise_on_treebank,
    check_corpus,
    check_treebank,
    preset_for,
)
from transduce.experiments.corpus_survey import (
    LengthBin,
    Occurrences,
    Overlap,
    PairReport,
    SideReport,
    SplitReport,
)
from transduce.experiments.presets import RunConfig, require_start, require_task
from transduce.experiments.run_corpus import (
    RunFiles,
    can_hold_out,
    known_languages,
    require_dev_sets,
)

WIDTH = 80
"""Columns of the report without a terminal, so that output is the same everywhere."""
LABEL_WIDTH, CELL_WIDTH, BAR_WIDTH, SHORTEST_BAR = 26, 12, 22, 5
LENGTHS_WIDTH, SHORT_LENGTHS_WIDTH = 13, 9
"""Width of a range of lengths beside bars, and without them."""
SHARE_WIDTH = 9
"""Width of a share with the spaces around it."""
TREES = "trees and variants"
NARROW = 60
"""Smallest width at which figures stand beside their labels."""


def check(
    *,
    source: Files = (),
    target: Files = (),
    dev_source: Files = (),
    dev_target: Files = (),
    trees: Files = (),
    dev_trees: Files = (),
    corpus: tuple[str, ...] = (),
    preset: str | None = None,
    config: Path | None = None,
    settings: Assignments = (),
    json_output: Json = False,
) -> None:
    """Report on a parallel corpus, or on treebanks, before training.

    The exit code is 0 if training would start, and 2 if it would not.

    For example:

        transduce check --source my.en --target my.de --preset multi30k

    Parameters
    ----------
    source
        Text files, one sentence per line, plain or compressed.
    target
        Their translations, line by line.
    dev_source
        Held-out text, scored during training.
    dev_target
        Its translations.
    trees
        Treebanks in brackets, instead of text and translations.
    dev_trees
        Held-out trees, scored during training.
    corpus
        A corpus of a mixture, as NAME SOURCE TARGET [WEIGHT]; repeat it for each. The
        report is on all of them together; updates and epochs count what weights
        and stages draw.
    preset
        Preset of the training; by default the one that fits the size of the corpus.
    config
        A TOML file of settings that change the preset.
    settings
        Single settings, such as batching.max_length=100.
    json_output
        Print one JSON object.
    """
    in_file = run_config(preset or "base", config, settings).corpora
    files = required_files(
        text_files(source, target, dev_source, dev_target),
        TreebankFiles(trees=trees, dev_trees=dev_trees),
        corpora_of(corpus) or in_file,
    )
    if preset is not None:
        require_task(preset, files.task)
        require_start(preset, has_start=False)
    report: CorpusReport | TreebankReport
    with error_console().status("Reading the corpus..."):
        name = preset or preset_for(files)
        if isinstance(files, CorpusFiles):
            files = replace(files, corpora=with_target_languages(files.corpora))
        run = _resolved(run_config(name, config, settings), files)
        refuse_contradictions(run, files)
        if isinstance(files, TreebankFiles):
            report = check_treebank(files, run)
            advice = advise_on_treebank(report)
        else:
            report = check_corpus(files, run)
            advice = advise(report)
        if not any(each.is_refusal for each in advice):  # or the report says why
            _refuse_dev(files, run)
    if json_output:
        print_json(
            {
                "preset": name,
                "would_train": not any(each.is_refusal for each in advice),
                **asdict(report),
                "advice": [asdict(each) for each in advice],
            }
        )
    else:
        console = BoundedConsole(highlight=False, soft_wrap=True)
        label = name if preset else f"{name}, which fits a corpus of this size"
        CorpusDisplay(console, label).show(report, advice)
    refuse(advice)


def _refuse_dev(files: RunFiles, run: RunConfig) -> None:
    """Raise an error if training would refuse the dev corpus, or needs a missing one.

    The corpus must be one that training accepts.
    """
    if isinstance(files, CorpusFiles):
        require_dev_sets(files, run)
    faults = [] if files.has_dev else list(faults_without_dev(run))
    if faults and not can_hold_out(files, run.training.seed):
        raise ConfigError(faults[0])


def train_command(files: CorpusFiles) -> str:
    """Return lines of a command that trains on files by the preset that fits them."""
    source, target = _words("--source", files.source), _words("--target", files.target)
    lines = [f"{program()} train {source} {target}"]
    if files.has_dev:
        source = _words("--dev-source", files.dev_source)
        target = _words("--dev-target", files.dev_target)
        lines.append(f"{source} {target}")
    lines.append(f"--preset {preset_for(files)} --out runs/mine")
    return " \\\n    ".join(lines)


def _words(option: str, paths: Sequence[Path]) -> str:
    """Write an option with its files for a shell."""
    return shlex.join((option, *map(str, paths)))


def _resolved(run: RunConfig, files: RunFiles) -> RunConfig:
    """Return the settings with corpora and languages, as a run would have them."""
    if isinstance(files, CorpusFiles):
        run = replace(run, corpora=files.corpora)
    return replace(run, languages=known_languages(run.languages, files))


def refuse(advice: Sequence[Advice]) -> None:
    """Raise `DataError` if training would refuse the corpus."""
    refusals = [each for each in advice if each.is_refusal]
    if refusals:
        reasons = f" for {len(refusals)} reasons, first" if len(refusals) > 1 else ""
        raise DataError(f"Training would refuse this corpus{reasons}: {refusals[0]}")


class CorpusDisplay:
    """Report as text: coloured on a terminal, plain elsewhere."""

    def __init__(self, console: Console, preset: str = "") -> None:
        self._console = console
        self._preset = preset
        self._width = console.width if console.is_terminal else WIDTH
        self._cell_width = CELL_WIDTH
        can_draw = console.is_terminal and not console.options.ascii_only
        self._block = "█" if can_draw else "#"

    def show(
        self, report: CorpusReport | TreebankReport, advice: Sequence[Advice]
    ) -> None:
        """Print the figures, the places of oddities, and the verdict."""
        if isinstance(report, TreebankReport):
            self._show_trees(report)
        else:
            self._show_corpus(report)
        self._show_verdict(advice)

    def _show_trees(self, report: TreebankReport) -> None:
        banks = {"training": report.training}
        if report.dev is not None:
            banks["dev"] = report.dev
        for name, bank in banks.items():
            self._fact(f"{name} trees", " ".join(map(str, bank.files)))
        self._heading("Trees", list(banks))
        self._rows([_bank_figures(bank) for bank in banks.values()])
        if report.overlap is not None and report.overlap.pairs.count:
            self._row(
                "in training too", ["", f"{report.overlap.pairs.count:,}"], "yellow"
            )
        self._show_batches(report)
        self._fact("symbols", f"{report.num_symbols:,}, in which trees are written")
        variants = f"{report.copies:,} of each tree (treebank.augmentation)"
        self._fact("variants", variants if report.copies else "none")
        self._fact("trained on", counted(report.prepared, "tree and variant", TREES))
        self._fact("left out, too long", f"{report.overlong:,}")

    def _show_corpus(self, report: CorpusReport) -> None:
        splits = {"training": report.training}
        if report.dev is not None:
            splits["dev"] = report.dev
        figures = [_side_figures(side) for _, side in _named_sides(splits)]
        longest = max(len(cell) for each in figures for cell in each.values())
        self._cell_width = max(longest + 1, CELL_WIDTH)
        for name, side in _named_sides(splits):
            self._fact(name, " ".join(map(str, side.files)))
        self._heading("Lines", [cell for name in splits for cell in (name, "")])
        self._row("", ["source", "target"] * len(splits), "dim")
        self._rows(figures)
        self._show_pairs(splits)
        self._show_places(_places(splits, report.overlap))
        self._show_lengths(report.training.lengths)
        self._show_batches(report)

    def _show_pairs(self, splits: Mapping[str, SplitReport]) -> None:
        self._heading("Pairs", [cell for name in splits for cell in (name, "")])
        counts = [_pair_counts(split.pairs) for split in splits.values()]
        for label in counts[0]:
            cells = [
                cell
                for each in counts
                for cell in (f"{each[label]:,}", _share(each[label], each["total"]))
            ]
            is_odd = label not in ("total", "kept") and any(c[label] for c in counts)
            self._row(label, cells, "yellow" if is_odd else "")

    def _show_places(self, places: Mapping[str, Sequence[str]]) -> None:
        if places:
            self._heading("Places")
        for label, lines in places.items():
            self._print(f"  {label}")
            for line in lines:
                self._print(f"    {line}", "dim")

    def _show_lengths(self, bins: Sequence[LengthBin]) -> None:
        if not bins:
            return
        self._print("")
        side_width = (self._width - LENGTHS_WIDTH - 4) // 2
        bar_width = min(BAR_WIDTH, side_width - SHARE_WIDTH)
        label_width = LENGTHS_WIDTH
        if bar_width < SHORTEST_BAR:  # the figures alone
            bar_width, label_width = 0, SHORT_LENGTHS_WIDTH
        heads = f"{'source':<{bar_width + SHARE_WIDTH}}target"
        self._print(f"{'Tokens a line':<{label_width + 5}}{heads}", "bold")
        totals = sum(each.source for each in bins), sum(each.target for each in bins)
        shares = [
            (each.source / max(totals[0], 1), each.target / max(totals[1], 1))
            for each in bins
        ]
        scale = bar_width / max(map(max, shares))
        for each, pair in zip(bins, shares, strict=True):
            bars = [
                f"{share:>7.1%} {self._block * round(share * scale):<{bar_width}}"
                for share in pair
            ]
            label = f"{each.shortest:,}-{each.longest:,}"
            self._print(f"  {label:>{label_width}}  {' '.join(bars)}", "cyan")

    def _show_batches(self, report: CorpusReport | TreebankReport) -> None:
        self._heading("Training")
        if self._preset:
            self._fact("preset", self._preset)
        pieces = f"{report.vocab_size:,} pieces, {report.asked_vocab_size:,} asked for"
        self._fact("vocabulary", pieces)
        if (epoch := report.epoch) is not None:
            self._fact("updates an epoch", f"{epoch.updates:,}")
            steps = counted(epoch.steps, "step")
            self._fact("epochs", f"{epoch.epochs:,.1f} in {steps}")
            padding = percent(epoch.padding, 1)
            self._fact("padding", f"{padding} of the positions computed")

    def _show_verdict(self, advice: Sequence[Advice]) -> None:
        would_train = not any(each.is_refusal for each in advice)
        self._heading("Verdict")
        if would_train:
            self._print("  Training would start.", "green")
        else:
            self._print("  Training would refuse this corpus.", "red")
        for number, each in enumerate(advice, start=1):
            style = "red" if each.is_refusal else "yellow"
            self._paragraph(f"{number:>2}. {each}", "  ", style)

    def _heading(self, title: str, cells: Sequence[str] = ()) -> None:
        self._print("")
        if self._has_room(cells):
            self._print(f"{title:<{LABEL_WIDTH + 2}}{self._cells(cells)}", "bold")
        else:
            self._print(title, "bold")
            self._row("", [cell for cell in cells if cell], "bold")

    def _row(self, label: str, cells: Sequence[str], style: str = "") -> None:
        """Print a label with its figures beside it, or below it if there is no room."""
        if self._has_room(cells):
            self._print(f"  {label:<{LABEL_WIDTH}}{self._cells(cells)}", style)
            return
        if label:
            self._print(f"  {label}", style)
        width = (self._width - 4) // len(cells)
        self._print("    " + "".join(f"{cell:<{width - 1}} " for cell in cells), style)

    def _rows(self, figures: Sequence[Mapping[str, str]]) -> None:
        """Print each label with the figures of all columns."""
        for label in figures[0]:
            self._row(label, [each[label] for each in figures])

    def _cells(self, cells: Sequence[str]) -> str:
        return "".join(f"{cell:>{self._cell_width}}" for cell in cells)

    def _has_room(self, cells: Sequence[str]) -> bool:
        needed = LABEL_WIDTH + 2 + self._cell_width * len(cells)
        return not cells or needed <= self._width

    def _fact(self, label: str, text: str) -> None:
        if self._width >= NARROW:
            self._print(f"  {label:<{LABEL_WIDTH}}  {text}")
        else:
            self._print(f"  {label}: {text}")

    def _paragraph(self, text: str, indent: str, style: str) -> None:
        filled = fill(
            text,
            self._width,
            initial_indent=indent,
            subsequent_indent=indent + "    ",
            # Never break a path.
            break_long_words=False,
            break_on_hyphens=False,
        )
        self._print(filled, style)

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text.rstrip()), style=style)


def _share(count: int, total: int) -> str:
    """Format a share of pairs: empty for none, and "100.0%" only for all."""
    return percent(count / total, 1) if count else ""


def _bank_figures(bank: TreesReport) -> dict[str, str]:
    return {
        "trees": f"{bank.trees:,}",
        "words": f"{bank.words:,}",
        "words a tree, mean": f"{bank.words / bank.trees:.1f}",
        "  longest": f"{bank.longest:,}",
        "constituents a tree, mean": f"{bank.constituents / bank.trees:.1f}",
        "labels": f"{bank.labels:,}",
        "tags": f"{bank.tags:,}",
    }


def _side_figures(side: SideReport) -> dict[str, str]:
    return {
        "lines": f"{side.lines:,}",
        "not UTF-8 text": f"{side.invalid.count:,}",
        "words": f"{side.words:,}",
        "characters": f"{side.characters:,}",
        "tokens": f"{side.tokens:,}",
        "tokens a word": f"{side.tokens_per_word:.2f}",
        "tokens a line, mean": f"{side.mean_length:.1f}",
        "  median": f"{side.median_length:g}",
        "  95 % have at most": f"{side.percentile_95_length:,}",
        "  longest": f"{side.longest:,}",
    }


def _pair_counts(pairs: PairReport) -> dict[str, int]:
    findings = {label: each.count for label, each in _pair_findings(pairs).items()}
    return {
        "total": pairs.total,
        "kept": pairs.kept,
        "left out, not UTF-8 text": pairs.invalid,
        **findings,
        "sources of several targets": pairs.ambiguous_sources,
    }


def _pair_findings(pairs: PairReport) -> dict[str, Occurrences]:
    return {
        "left out, source empty": pairs.empty_source,
        "left out, target empty": pairs.empty_target,
        "left out, both empty": pairs.empty_both,
        "left out, too long": pairs.overlong,
        "kept but lopsided": pairs.lopsided,
        "kept but same text twice": pairs.identical,
        "kept but repeated": pairs.repeated,
    }


def _places(
    splits: Mapping[str, SplitReport], overlap: Overlap | None
) -> dict[str, tuple[str, ...]]:
    """Return the places of the first findings, by kind."""
    places: dict[str, tuple[str, ...]] = {}
    findings: dict[str, Occurrences] = {}
    for name, side in _named_sides(splits):
        if side.longest_place:
            label = f"{name}, longest line: {counted(side.longest, 'token')}"
            places[label] = (side.longest_place,)
        findings[f"{name}, not UTF-8 text"] = side.invalid
        findings |= {f"{name}, {kind}": each for kind, each in side.suspicious.items()}
        findings[f"{name}, cut into sub-words"] = side.cut
    for name, split in splits.items():
        pairs = _pair_findings(split.pairs)
        findings |= {f"{name} pairs, {label}": each for label, each in pairs.items()}
    if overlap is not None:
        findings["dev pairs that are also in training"] = overlap.pairs
        findings["dev sources that are also in training"] = overlap.sources
    met = {label: finding for label, finding in findings.items() if finding.count}
    return places | {f"{label}: {f.count:,}": _examples(f) for label, f in met.items()}


def _named_sides(splits: Mapping[str, SplitReport]) -> Iterator[tuple[str, SideReport]]:
    for name, split in splits.items():
        yield f"{name} source", split.source
        yield f"{name} target", split.target


def _examples(finding: Occurrences) -> tuple[str, ...]:
    rest = finding.count - len(finding.examples)
    return (*finding.examples, f"and {rest:,} more") if rest else finding.examples
