"""Reproduction of Table 3: its rows, and the folder and commands of their runs.

Each row's change is applied to a base of any scale. The scale is a factor on the
dimensions `d_model`, `d_ff`, `d_k` and `d_v` and on the vocabulary. The numbers of
heads and layers stay, so that heads times `d_k` remains `d_model` and every row exists.
A row's change of a size or of the steps is applied as the paper's factor; dropout,
smoothing and positions are the row's own values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from transduce.architectures.config import ArchitectureConfig
from transduce.data.corpus_files import CorpusFiles
from transduce.data.prepared_corpus import DEV, DEV_SOURCE, DEV_TARGET
from transduce.errors import ConfigError
from transduce.experiments.presets import BASE, MODEL, TABLE_3, RunConfig
from transduce.experiments.run_folder import RunFolder
from transduce.experiments.run_processes import (
    PresetRun,
    command_line,
    has_prepared_corpus,
    settings,
    with_seed,
    write_record,
)
from transduce.files import read_json
from transduce.machine import Precision
from transduce.training.config import TrainingConfig

WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
BY_FACTOR = (*WIDTHS, "num_heads", "num_layers", "steps")
"""Settings that a row changes by a factor."""
PARTS = 8
"""The scale is a multiple of 1/8, so that `d_k` is even in every row, as sinusoids
need."""
WARMUP_SHARE = 5
"""With fewer steps than the paper's, at most one in five is warm-up."""

MULTI30K_SCALE, MULTI30K_STEPS = 0.25, 2_000
"""About 2 million tokens in five epochs: on one core without matrix instructions, base
takes 8 minutes and all rows four hours."""

Part = TypeVar("Part", ArchitectureConfig, TrainingConfig)


def scaled_base(scale: float = 1.0, steps: int | None = None) -> RunConfig:
    """Scale the paper's base model, and set its number of steps.

    A run keeps one checkpoint, as Table 3 averages none. Raises `ConfigError` if the
    scale is not a multiple of 1/8 between 1/8 and 1.
    """
    if not 1 <= scale * PARTS <= PARTS or scale * PARTS % 1:
        raise ConfigError(
            f"`scale` must be a multiple of 1/{PARTS} from 1/{PARTS} to 1, but is "
            f"{scale:g}."
        )
    if steps is None:
        steps = BASE.training.steps
    widths: dict[str, Any] = {
        name: int(getattr(BASE.model, name) * scale) for name in WIDTHS
    }
    warmup_steps = min(BASE.training.warmup_steps, max(steps // WARMUP_SHARE, 1))
    return replace(
        BASE,
        tokenizer=replace(
            BASE.tokenizer, vocab_size=int(BASE.tokenizer.vocab_size * scale)
        ),
        model=replace(BASE.model, **widths),
        training=replace(
            BASE.training, steps=steps, warmup_steps=warmup_steps, keep_checkpoints=1
        ),
    )


def base_for(corpus: str | None, scale: float | None, steps: int | None) -> RunConfig:
    """Base model at a scale, which defaults to one that fits the corpus.

    The default is the paper's base model, except for Multi30k, which is too small for
    it: there it has a quarter of the dimensions, half the layers and small updates, for
    which two cores are enough.
    """
    if corpus != "multi30k" or scale is not None:
        return scaled_base(1.0 if scale is None else scale, steps)
    base = scaled_base(MULTI30K_SCALE, MULTI30K_STEPS if steps is None else steps)
    return replace(
        base,
        tokenizer=replace(base.tokenizer, vocab_size=6_000),
        model=replace(base.model, num_layers=MODEL.num_layers // 2),
        batching=replace(
            base.batching, source_tokens=1_024, target_tokens=1_024, batch_tokens=1_024
        ),
    )


def row_config(base: RunConfig, row: str) -> RunConfig:
    """Apply a row's change of the paper's base to another base.

    Raises `ConfigError` if that is impossible, or changes nothing.
    """
    paper = TABLE_3[row]
    config = replace(
        base,
        model=_changed(base.model, BASE.model, paper.model, row),
        training=_changed(
            base.training,
            BASE.training,
            replace(paper.training, keep_checkpoints=BASE.training.keep_checkpoints),
            row,
        ),
    )
    if row != "base" and config == base:
        raise ConfigError(
            f"Row {row} must differ from base, but with these settings does not; leave "
            "it out of --rows, or change the settings."
        )
    return config


def require_rows(rows: tuple[str, ...]) -> list[str]:
    """Put the named rows, and base, in the paper's order; without names, all rows.

    For an unknown row, raises `ConfigError`, which suggests the nearest.
    """
    for row in rows:
        if row not in TABLE_3:
            nearest = get_close_matches(row, TABLE_3, n=1, cutoff=0.0)[0]
            raise ConfigError(
                f"A row must be one of {', '.join(TABLE_3)}, but is {row!r}; did you "
                f"mean {nearest!r}?"
            )
    return [row for row in TABLE_3 if not rows or row in (*rows, "base")]


def _changed(base: Part, paper_base: Part, paper_row: Part, row: str) -> Part:
    new: dict[str, Any] = {}
    for name in (field.name for field in fields(base)):
        before, after = getattr(paper_base, name), getattr(paper_row, name)
        if after != before:
            is_size = name in BY_FACTOR
            ours = getattr(base, name)
            new[name] = _sized(row, name, ours, before, after) if is_size else after
    return replace(base, **new)


def _sized(row: str, name: str, ours: int, before: int, after: int) -> int:
    factor = Fraction(after, before)
    size = factor * ours
    if size.denominator > 1:
        raise ConfigError(
            f"`{name}` of row {row} must be a whole number, but is {factor} of the "
            f"base's {ours}; leave the row out of --rows, or set another base."
        )
    return int(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """Results of a row in the paper, on newstest2013 from English to German."""

    perplexity: float
    """Perplexity per sub-word of the paper's byte-pair encoding."""
    bleu: float
    """BLEU by beam search, without averaging of checkpoints."""
    millions: int
    """Millions of parameters; rows without a number have those of base."""

    @property
    def difference(self) -> float:
        """Difference from base in BLEU."""
        return round(self.bleu - PAPER_ROWS["base"].bleu, 1)


PAPER_ROWS = {
    "base": PaperRow(perplexity=4.92, bleu=25.8, millions=65),
    "A-h1": PaperRow(perplexity=5.29, bleu=24.9, millions=65),
    "A-h4": PaperRow(perplexity=5.00, bleu=25.5, millions=65),
    "A-h16": PaperRow(perplexity=4.91, bleu=25.8, millions=65),
    "A-h32": PaperRow(perplexity=5.01, bleu=25.4, millions=65),
    "B-dk16": PaperRow(perplexity=5.16, bleu=25.1, millions=58),
    "B-dk32": PaperRow(perplexity=5.01, bleu=25.4, millions=60),
    "C-N2": PaperRow(perplexity=6.11, bleu=23.7, millions=36),
    "C-N4": PaperRow(perplexity=5.19, bleu=25.3, millions=50),
    "C-N8": PaperRow(perplexity=4.88, bleu=25.5, millions=80),
    "C-d256": PaperRow(perplexity=5.75, bleu=24.5, millions=28),
    "C-d1024": PaperRow(perplexity=4.66, bleu=26.0, millions=168),
    "C-ff1024": PaperRow(perplexity=5.12, bleu=25.4, millions=53),
    "C-ff4096": PaperRow(perplexity=4.75, bleu=26.2, millions=90),
    "D-drop0": PaperRow(perplexity=5.77, bleu=24.6, millions=65),
    "D-drop0.2": PaperRow(perplexity=4.95, bleu=25.5, millions=65),
    "D-smooth0": PaperRow(perplexity=4.67, bleu=25.3, millions=65),
    "D-smooth0.2": PaperRow(perplexity=5.47, bleu=25.7, millions=65),
    "E-learned": PaperRow(perplexity=4.92, bleu=25.7, millions=65),
    "big": PaperRow(perplexity=4.33, bleu=26.4, millions=213),
}
"""Rows by the name of our preset, in the paper's order."""


EXPERIMENT_FORMAT = 2
EXPERIMENT = "experiment.json"
TRANSLATIONS = "dev_translations.txt"


@dataclass(frozen=True, kw_only=True)
class RowRun(PresetRun):
    """Run of one row with one seed, in a folder of its own."""

    @property
    def translations(self) -> Path:
        """Translations of the dev text, written when the run is done."""
        return self.path / TRANSLATIONS

    @property
    def references(self) -> Path:
        """References of the dev text."""
        return self.path / DEV / DEV_TARGET

    @property
    def is_done(self) -> bool:
        """Whether the dev text is translated."""
        return self.translations.is_file()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Runs of Table 3's rows on one corpus, in one folder."""

    folder: Path
    files: CorpusFiles
    base: RunConfig
    device: str = "auto"
    precision: Precision = "fp32"
    """Precision of all rows; "auto" could give wide and narrow rows different ones."""

    def begin(self) -> None:
        """Record the settings; `ConfigError` if the folder has other ones."""
        record = {
            "format": EXPERIMENT_FORMAT,
            "files": self.files.absolute_names(),
            "precision": self.precision,
            "settings": settings(self.base),
        }
        path = self.folder / EXPERIMENT
        if path.is_file():
            _require_same(self.folder, read_json(path), record)
            return
        write_record(path, record)

    @property
    def is_prepared(self) -> bool:
        """Whether a run has prepared the corpus, which all others then share."""
        return has_prepared_corpus(self.folder)

    def next_command(self, run: RowRun) -> list[str] | None:
        """Command that continues a run; None if the run is done."""
        if run.is_done:
            return None
        options = (
            self._translation(run)
            if run.is_trained
            else run.training_options(self.files, self.precision)
        )
        return command_line(options, self.device)

    def _translation(self, run: RowRun) -> list[str]:
        """Options to translate the dev text by the last checkpoint, not averaged."""
        checkpoint = RunFolder(run.path).checkpoint(run.last_entry("dev")["step"])
        options = ["translate", str(checkpoint)]
        options += ["--input", str(run.path / DEV / DEV_SOURCE)]
        # Start over after an interruption, as the dev text is short.
        return [*options, "--output", str(run.translations), "--force"]


def row_runs(
    folder: Path, base: RunConfig, rows: Sequence[str], seeds: Sequence[int]
) -> list[RowRun]:
    """Runs of all rows, ordered by seed, so that the first whole table is done early.

    Raises `ConfigError` if a row or a seed is impossible.
    """
    return [
        RowRun(
            row=row,
            preset=row,
            seed=seed,
            config=with_seed(row_config(base, row), seed),
            folder=folder,
        )
        for seed in seeds
        for row in rows
    ]


def _require_same(
    folder: Path, recorded: Mapping[str, Any], requested: Mapping[str, Any]
) -> None:
    if recorded.get("format") != EXPERIMENT_FORMAT:
        raise ConfigError(
            f"{folder / EXPERIMENT}: the format must be {EXPERIMENT_FORMAT}, but is "
            f"{recorded.get('format')}; the experiment was started by another version "
            "of transduce."
        )
    if not isinstance(recorded.get("settings"), dict) or "precision" not in recorded:
        raise ConfigError(
            f"{folder / EXPERIMENT}: the record of the experiment is damaged; "
            "restore the file, or choose another folder."
        )
    if recorded.get("files") != requested["files"]:
        files = recorded.get("files")
        parts = files.values() if isinstance(files, dict) else ()
        names = [str(each) for part in parts if isinstance(part, list) for each in part]
        raise ConfigError(
            f"{folder}: the experiment in this folder was started with other files "
            f"({', '.join(names)}); give those, or choose another folder."
        )
    if recorded["precision"] != requested["precision"]:
        raise ConfigError(
            f"{folder}: the precision of the experiment in this folder is "
            f"{recorded['precision']}, but {requested['precision']} is requested; give "
            f"--precision {recorded['precision']}, or choose another folder."
        )
    # Settings that an older version did not have were at their defaults.
    known = settings(RunConfig()) | recorded["settings"]
    for name, value in requested["settings"].items():
        if (theirs := known[name]) != value:
            raise ConfigError(
                f"{folder}: `{name}` of the experiment in this folder is {theirs!r}, "
                f"but {value!r} is requested; give the same --scale, --steps and "
                "--set, or choose another folder."
            )
