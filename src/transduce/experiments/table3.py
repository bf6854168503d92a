"""Reproduction of Table 3: the folder of its runs, and the commands that train them."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from transduce.data.corpus_files import CorpusFiles
from transduce.data.prepared_corpus import DEV, DEV_SOURCE, DEV_TARGET
from transduce.errors import ConfigError
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_folder import RUN_CONFIG, RunFolder
from transduce.experiments.run_processes import (
    LOGS,
    RUNS,
    PresetRun,
    settings,
    with_seed,
)
from transduce.experiments.table3_rows import row_config
from transduce.files import atomic_file, read_json
from transduce.machine import Precision
from transduce.search_config import SearchConfig

EXPERIMENT_FORMAT = 2
EXPERIMENT, CORPUS = "experiment.json", "corpus"
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
        for name in (RUNS, LOGS):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as new:
            new.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    @property
    def is_prepared(self) -> bool:
        """Whether a run has prepared the corpus, which all others then share."""
        return any((self.folder / RUNS).glob(f"*/{RUN_CONFIG}"))

    def next_command(self, run: RowRun) -> list[str] | None:
        """Command that continues a run; None if the run is done."""
        if run.is_done:
            return None
        options = (
            self._translation(run)
            if run.is_trained
            else run.training_options(self.files, self.precision)
        )
        return [sys.executable, "-m", "transduce", *options, "--device", self.device]

    def _translation(self, run: RowRun) -> list[str]:
        """Options to translate the dev text by the last checkpoint, not averaged."""
        checkpoint = RunFolder(run.path).checkpoint(run.last_entry("dev")["step"])
        options = ["translate", str(checkpoint)]
        options += ["--input", str(run.path / DEV / DEV_SOURCE)]
        # Start over after an interruption, as the dev text is short.
        options += ["--output", str(run.translations), "--force"]
        for field in fields(SearchConfig):
            value = getattr(run.config.search, field.name)
            if field.name != "num_best" and value is not None:
                options += [f"--{field.name.replace('_', '-')}", str(value)]
        return options


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


def refuse_other_contents(folder: Path) -> None:
    """Raise `ConfigError` if a folder holds anything but a reproduction of Table 3."""
    if not folder.exists() or (folder / EXPERIMENT).is_file():
        return
    if not folder.is_dir() or any(p.name != CORPUS for p in folder.iterdir()):
        raise ConfigError(
            f"{folder}: the output folder must be new or a reproduction of Table 3, "
            "but is neither; choose another."
        )


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
