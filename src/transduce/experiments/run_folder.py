"""Folder of a run: its files, its record of settings and its log.

The record is `config.json` (`RUN_CONFIG`); the model folders in it have files of the
same name that describe one model (`MODEL_CONFIG` in `transduce.model_folder`). The log
(`RunLog`) has an entry for each update, score and event, one JSON object a line.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar, cast, get_args
from uuid import uuid4

from transduce.architectures.config import CONFIGS, TRANSFORMER, architecture_of
from transduce.data.corpus_files import MAIN_DEV
from transduce.data.prepared_corpus import (
    CORPUS,
    DEV,
    DEV_SETS,
    TRAINING,
    PairEncoder,
    PreparedCorpus,
)
from transduce.data.treebank import DEV_TREES
from transduce.errors import (
    OVERWRITE,
    RESUME,
    START_FROM_RUN,
    START_OVER,
    CheckpointError,
    ConfigError,
    OverwriteError,
    VersionError,
)
from transduce.experiments.contradictions import (
    faults_without_dev,
    without_default_patience,
)
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_corpus import RunFiles, prepare_run_corpus
from transduce.files import (
    access_errors,
    atomic_directory,
    atomic_file,
    clear_leftovers,
    named_errors,
    others_in,
    path_lock,
    read_json,
    remove_folder,
    require_place,
    require_removable,
    require_without,
    without_infinity,
    write_json,
)
from transduce.machine import Precision
from transduce.model_folder import (
    AVERAGED,
    BEST,
    CHECKPOINTS,
    MODEL_FILES,
    STOPPED,
    checkpoints_of,
    newest_first,
    step_of,
)
from transduce.settings import (
    UnknownSettingError,
    apply_mapping,
    flattened,
    nested,
    shown,
)
from transduce.text.alignment import DICTIONARY_FILE
from transduce.text.tokenizer import TOKENIZER_FILE, load_tokenizer, own_target_size
from transduce.trees.linearization import SYMBOLS_FILE, SymbolVocabulary

RUN_FORMAT = 1
"""Format of the record."""
RENAMED = {"training.least_rate": "training.min_learning_rate"}
"""Present names of settings that older records have."""
RUN_CONFIG, LOG, PICTURE = "config.json", "log.jsonl", "learning_curve.png"
START, TENSORBOARD = "start", "tensorboard"
"""Folders of a run with the model that it started from, and with TensorBoard's logs."""
ENTRIES = {
    *(RUN_CONFIG, LOG, PICTURE, TOKENIZER_FILE, SYMBOLS_FILE, DICTIONARY_FILE),
    *(CORPUS, CHECKPOINTS, STOPPED, AVERAGED, BEST, START, TENSORBOARD),
}
"""Names of everything that a run keeps in its folder."""
EARLIER_AVERAGES = f"{AVERAGED}-" + 8 * "[0-9]"
"""Averages of earlier ends, in a run that was trained longer."""
DAMAGED = "damaged-"
"""Prefix of the names of damaged checkpoints, which are set aside."""
Value = TypeVar("Value", str, dict[str, Any])

FINAL, FINAL_DEV_SET, START_MODEL = "final", "final dev set", "start model"
"""Kinds of log entries with the scores at the end: of the run's model on the main dev
set and on further ones, and of the model that the run started from."""
RESULTS = (FINAL, FINAL_DEV_SET, START_MODEL)
SAVED = "saved"
"""Kind of log entry of a checkpoint that is about to be saved."""
LENGTHENED, EARLIER = "lengthened", "earlier"
"""Kind of log entry of a changed number of updates, and prefix of the kinds of the
scores at the end before."""
WENT_BACK = "went back"
"""Kind of log entry of a run that went back to a checkpoint after its loss diverged."""
DIVERGED = "diverged"
"""Kind of log entry of a run whose loss diverged again after that, which ended it."""
TAIL_BYTES = 4_096
"""Bytes that `read_tail` reads, more than a line has."""


class RunFolder:
    """Files of one training run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = RunLog(path / LOG)

    @classmethod
    @contextmanager
    def create(
        cls,
        path: Path,
        files: RunFiles,
        config: RunConfig,
        precision: Precision,
        *,
        overwrite: bool = False,
        encoder: PairEncoder | None = None,
        start: Mapping[str, object] | None = None,
    ) -> Iterator[tuple["RunFolder", RunConfig, PreparedCorpus]]:
        """Prepare the corpus of a new run in its folder; all or nothing is written.

        Yields the folder, the settings with the vocabulary's size, and the corpus. The
        vocabulary is learned unless an encoder of pairs is given, as for a run from a
        model, whose origin `start` is recorded.

        Inside the block the folder has a temporary path, and an error removes it; after
        the block it is at `path`. The corpus of a run beside this one is shared if
        it would be the same. An older run is replaced only with `overwrite`.
        """
        require_place(path)
        sibling_runs = sorted(path.absolute().parent.glob("[!.]*"))
        # First, as `atomic_directory` looks at everything in a folder that it replaces.
        _require_new_run(path, files, overwrite=overwrite)
        with atomic_directory(path) as new:
            corpus = prepare_run_corpus(files, config, new, sibling_runs, encoder)
            if corpus.dev is None:  # there may be too few pairs to hold one out
                config = config if start is None else without_default_patience(config)
                for message in faults_without_dev(config):
                    raise ConfigError(message)
            model = replace(
                config.model,
                vocab_size=corpus.vocab_size,
                target_vocab_size=corpus.target_vocab_size
                or own_target_size(load_tokenizer(new / TOKENIZER_FILE)),
            )
            sized = replace(config, model=model)
            record = _record(files, sized, precision, start)
            (new / RUN_CONFIG).write_text(record, encoding="utf-8")
            yield cls(new), sized, corpus
            # Preparing takes minutes, in which another command may have filled the
            # folder, or begun to train the run that is to be replaced.
            _require_new_run(path, files, overwrite=overwrite)

    @classmethod
    def open(cls, path: Path) -> tuple["RunFolder", RunConfig]:
        """Open the folder of an existing run; also returns the run's settings."""
        _require_run(path)
        record = read_json(path / RUN_CONFIG)
        if record.get("format") != RUN_FORMAT:
            raise VersionError(
                f"{path / RUN_CONFIG}: the format must be {RUN_FORMAT}, but is "
                f"{shown(record.get('format'))}; the run was started by another "
                "version of transduce."
            )
        settings = record.get("settings")
        if not isinstance(settings, dict):
            raise CheckpointError(
                f"{path / RUN_CONFIG}: must hold the run's `settings`, but does not; "
                "restore the file, or start another run."
            )
        architecture = record.get("architecture", TRANSFORMER)  # older runs lack it
        if not isinstance(architecture, str) or architecture not in CONFIGS:
            raise VersionError(
                f"{path / RUN_CONFIG}: `architecture` must be one of "
                f"{', '.join(sorted(CONFIGS))}, but is {shown(architecture)}; the run "
                "was started by another version of transduce."
            )
        config = RunConfig(model=CONFIGS[architecture]())
        present = nested(
            (RENAMED.get(name, name), value)
            for name, value in flattened(settings).items()
        )
        try:
            return cls(path), apply_mapping(config, present, f"{path / RUN_CONFIG}: ")
        except UnknownSettingError as error:
            raise VersionError(
                f"{error} The run was started by another version of transduce."
            ) from None

    def locked(self) -> AbstractContextManager[object]:
        """Lock the run; `ConfigError` if another command is training it, or has removed
        it."""
        refusal = ConfigError(
            f"{self.path}: a run must be trained by one command at a time, but another "
            "one is training it; wait for it to end, or stop it."
        )
        gone = ConfigError(
            f"{self.path}: a run must stay in its place while a command uses it, but "
            "another one has just removed or replaced it; try again, or name another."
        )
        return path_lock(self.path, refusal, gone)

    def files(self) -> dict[str, list[str]]:
        """Files that the run is trained on, by their option's name."""
        files = self._recorded("files", {})
        for names in files.values():
            if not isinstance(names, list) or not set(map(type, names)) <= {str}:
                raise self._damaged("files")
        further = files.get("dev_sets", [])  # a source and a target of each
        if 2 * len(files.get("dev_names", [MAIN_DEV])) != 2 + len(further):
            raise self._damaged("files")
        return files

    @property
    def id(self) -> str | None:
        """Identifier that checkpoints of this run share; None in older runs."""
        return self._recorded("id", "") or None

    @property
    def start(self) -> dict[str, Any]:
        """Origin of the model that the run started from; empty if there is none."""
        return self._recorded("start", {})

    @property
    def precision(self) -> Precision:
        """Precision of the run; "auto" if an older version did not record it."""
        precision = self._recorded("precision", "auto")
        if precision not in get_args(Precision):
            raise self._damaged("precision")
        return cast(Precision, precision)

    def _recorded(self, name: str, default: Value) -> Value:
        """Read a value of the record; `CheckpointError` if it has another type."""
        value = read_json(self.path / RUN_CONFIG).get(name)
        if value is None and name != "files":  # every version records the files
            return default
        if not isinstance(value, type(default)):
            raise self._damaged(name)
        return value

    def _damaged(self, name: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path / RUN_CONFIG}: the run's `{name}` is damaged; restore the "
            "file, or start another run."
        )

    @property
    def corpus(self) -> Path:
        """Folder of the encoded training corpus."""
        return self.path / TRAINING

    @property
    def has_dev_corpus(self) -> bool:
        """Whether the run has a dev corpus."""
        return (self.path / DEV).is_dir()

    @property
    def dev_corpora(self) -> dict[str, Path]:
        """Folders of the dev sets by name; the first chooses the best checkpoint."""
        if not self.has_dev_corpus:
            return {}
        main, *others = self.files().get("dev_names", [MAIN_DEV])
        folders = {name: self.path / DEV_SETS / name for name in others}
        return {main: self.path / DEV, **folders}

    @property
    def dev_trees(self) -> Path | None:
        """Gold trees of a parser's dev corpus; None if there are none."""
        path = self.path / DEV_TREES
        return path if path.is_file() else None

    def symbols(self) -> SymbolVocabulary | None:
        """Symbols of a parser's linearized trees; None for translation."""
        path = self.path / SYMBOLS_FILE
        return SymbolVocabulary.load(path) if path.is_file() else None

    def checkpoint(self, step: int) -> Path:
        """Path of the checkpoint of a step, whether it exists or not."""
        return self.path / CHECKPOINTS / f"step-{step:08}"

    def checkpoints(self) -> list[Path]:
        """Existing checkpoints of the schedule, oldest first."""
        return checkpoints_of(self.path)

    def saved_checkpoints(self) -> list[Path]:
        """Checkpoints of the schedule that exist or that the log has, oldest first.

        Those that newer ones have replaced are among them.
        """
        # Older versions did not log checkpoints.
        logged = {self.checkpoint(entry["step"]) for entry in self.log.entries(SAVED)}
        return sorted(logged.union(self.checkpoints()), key=step_of)

    def require_checkpoints(self) -> None:
        """Raise `CheckpointError` if all checkpoints of the run have been removed.

        The run would start over, and forget its log.
        """
        if newest_first(self.path):
            return
        kinds = [entry["kind"] for entry in self.log.read()]
        # A crash may leave the line of a first checkpoint that was not saved. It is the
        # last line then, apart from lines of a changed number of updates.
        before = [kind for kind in kinds if kind != LENGTHENED][:-1]
        # The best checkpoint is no sign: it may be the model that the run starts from.
        signs = (AVERAGED, EARLIER_AVERAGES, f"{CHECKPOINTS}/{DAMAGED}*")
        if SAVED not in before and not any(any(self.path.glob(s)) for s in signs):
            return
        raise self.no_checkpoint_error()

    def no_checkpoint_error(self) -> CheckpointError:
        """Error for a run that has no usable checkpoint to continue from."""
        return CheckpointError(
            f"{self.path / CHECKPOINTS}: must hold the run's newest checkpoint, from "
            "which it continues, but holds none to use; restore it, or "
            f"{self.remedy_without_checkpoint}."
        )

    @property
    def remedy_without_checkpoint(self) -> str:
        """Phrase of an error for what to do with a run that cannot be continued."""
        return START_FROM_RUN if self.last_model.is_dir() else START_OVER

    @property
    def stopped(self) -> Path:
        """Path of the checkpoint of a run that was stopped between checkpoints.

        It is not among the others, so that stopping does not change the average.
        """
        return self.path / STOPPED

    def clear_leftovers(self) -> None:
        """Undo or complete writes that a crash interrupted."""
        for parent in (self.path, self.path / CHECKPOINTS):
            clear_leftovers(parent)

    def set_aside(self, checkpoint: Path) -> None:
        """Rename a damaged checkpoint so that it is kept, but not used."""
        aside = self.path / CHECKPOINTS / f"{DAMAGED}{checkpoint.name}"
        if aside.is_dir():
            remove_folder(aside, MODEL_FILES)
        aside.parent.mkdir(exist_ok=True)
        checkpoint.rename(aside)

    def lengthen(self, made: int, before: RunConfig, config: RunConfig) -> None:
        """Record another number of updates, after the updates `made`.

        Results that were final before are renamed in the log, and the average of the
        end before is kept as `averaged-STEPS`: commands that are given the run would
        take it for the newest model.
        """
        steps = before.training.steps
        entries = self.log.lengthened(made, steps, config.training.steps)
        # The average first: after a crash, a run without one makes it again.
        if (self.path / AVERAGED).is_dir():
            earlier = self.path / f"{AVERAGED}-{steps:08d}"
            if earlier.is_dir():
                remove_folder(earlier, MODEL_FILES)
            (self.path / AVERAGED).rename(earlier)
        # Then the log. After a crash before the record is written, the same call adds
        # another entry of kind `LENGTHENED`, which changes nothing.
        self.log.replace(entries)
        record = {**read_json(self.path / RUN_CONFIG), "settings": asdict(config)}
        write_json(self.path / RUN_CONFIG, record)

    @property
    def last_model(self) -> Path:
        """The model that commands took for the run's at its last end, if it has one."""
        earlier = sorted(self.path.glob(EARLIER_AVERAGES), reverse=True)
        models = [self.path / AVERAGED, self.path / BEST, *earlier]
        return next((path for path in models if path.is_dir()), models[0])


def _record(
    files: RunFiles,
    config: RunConfig,
    precision: Precision,
    start: Mapping[str, object] | None,
) -> str:
    """Return the record of a new run as JSON."""
    content = {
        "format": RUN_FORMAT,
        "id": uuid4().hex,
        "files": files.absolute_names(),
        "precision": precision,
        **({} if start is None else {"start": start}),
        "architecture": architecture_of(config.model),
        "settings": asdict(config),
    }
    return json.dumps(content, indent=2) + "\n"


def _require_new_run(path: Path, files: RunFiles, *, overwrite: bool) -> None:
    """Raise `ConfigError` unless the path is free, or a run to overwrite."""
    if path.exists() and not path.is_dir():
        raise ConfigError(
            f"{path}: the output folder must be new or empty, but is a file; choose "
            "another name."
        )
    with access_errors(path):
        is_free = not path.exists() or not any(path.iterdir())
    if is_free:
        return
    if overwrite:
        require_replaceable_run(path, files.paths)
        return
    kind: type[ConfigError] = ConfigError
    remedy = "choose another"
    if is_run(path):
        remedy = f"{RESUME}, or choose another folder"
        # Overwriting is offered only if it is not refused afterwards.
        with suppress(ConfigError):
            require_replaceable_run(path, files.paths)
            kind = OverwriteError
            remedy = f"{RESUME}, choose another folder, or {OVERWRITE}"
    raise kind(f"{path}: the output folder must be new or empty, but is not; {remedy}.")


def require_replaceable_run(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Raise `ConfigError` unless a folder holds a run that another may replace.

    Besides the run, nothing may be lost: neither its folder nor the training's input.
    """
    if not is_run(path):
        raise ConfigError(
            f"{path}: only a run can be overwritten by another, but the folder holds "
            "none; choose another."
        )
    if others := _others_in_run(path):
        raise ConfigError(
            f"{path}: only the files of a run can be overwritten by another, but the "
            f"folder also holds {others[0].relative_to(path)}; move it, or choose "
            "another folder."
        )
    require_without(path, inputs)
    require_removable(path)
    with RunFolder(path).locked():  # raises if a process is training the run
        pass


def _others_in_run(run: Path) -> list[Path]:
    """Return what is in the folder of a run, or beside its models, but not the run's.

    The encoded corpus and TensorBoard's logs are not searched.
    """
    earlier = sorted(run.glob(EARLIER_AVERAGES))
    others = others_in(run, ENTRIES.union(each.name for each in earlier))
    checkpoints = run / CHECKPOINTS
    saved = set(checkpoints.glob(f"{DAMAGED}step-*")).union(checkpoints_of(run))
    if checkpoints.is_dir():
        others += others_in(checkpoints, {each.name for each in saved})
    named = (run / name for name in (AVERAGED, BEST, STOPPED, START))
    for model in (*named, *earlier, *sorted(saved)):
        if model.is_dir():
            others += others_in(model, MODEL_FILES)
    return others


def _require_run(path: Path) -> None:
    """Raise `CheckpointError` unless a folder holds a run."""
    if is_run(path):
        return
    if _lacks_corpus(path):
        raise CheckpointError(
            f"{path / TRAINING}: must hold the training text of the run to resume, but "
            f"is missing; restore it, or {START_FROM_RUN}."
        )
    raise CheckpointError(
        f"{path}: must be a run to resume, but holds none; name another folder, or "
        "start a new run there, without resuming."
    )


def is_run(path: Path) -> bool:
    """Whether a folder holds a run, not a model."""
    return (path / RUN_CONFIG).is_file() and (path / TRAINING).is_dir()


def _lacks_corpus(path: Path) -> bool:
    """Whether a folder would hold a run if its training text were not missing."""
    config = path / RUN_CONFIG
    is_there = config.is_file() and not (path / TRAINING).is_dir()
    return is_there and "settings" in read_json(config)  # which a model's lacks


def settings_of(out: Path) -> RunConfig:
    """Settings of the run in the folder `out`."""
    return RunFolder.open(out)[1]


def precision_of(out: Path) -> Precision:
    """Precision of the run in the folder `out`; "auto" if it is not recorded."""
    return RunFolder.open(out)[0].precision


NUMBERS = {
    *("epoch", "learning_rate", "gradient_norm", "reward", "seconds", "flops"),
    *("bleu", "f1", "chrf", "gleu", "matched_4_grams"),
}
"""Values of log entries that must be numbers."""
OPTIONAL_NUMBERS = {"loss", "perplexity", "max_positions", "reward_positions"}
"""Values that must be numbers, or null if infinite or unbounded."""
LARGEST = 1e100
"""Least magnitude of a number in the log that counts as damaged."""

Entry = dict[str, Any]
"""Log entry: its `kind`, its `step`, and values that depend on the kind."""


class RunLog:
    """Log file of a run. Entries have finite values: infinity is null, as in JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, kind: str, **values: Any) -> None:
        """Append an entry."""
        with named_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            entry = without_infinity({"kind": kind, **values})
            file.write(json.dumps(entry) + "\n")

    def append_results(self, results: Iterable[Mapping[str, Any]]) -> None:
        """Append the run's final scores: all of them, or none after a crash.

        The scores replace final scores that an older version had begun to log.
        """
        kept = [entry for entry in self.read() if entry["kind"] not in RESULTS]
        finite = [without_infinity(entry) for entry in results]
        self.replace([*kept, *finite])

    def replace(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Replace all entries at once."""
        text = "".join(json.dumps(entry) + "\n" for entry in entries)
        with atomic_file(self.path) as new:
            new.write_text(text, encoding="utf-8")

    def read(self) -> Iterator[Entry]:
        """Yield the entries; a last line cut short by a crash is skipped.

        Raises `CheckpointError` if another line is damaged.
        """
        if not os.path.lexists(self.path):
            return
        if not self.path.is_file():
            raise CheckpointError(
                f"{self.path}: must be the log of the run, but is not a file; "
                "restore it, or remove it."
            )
        *lines, last = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            entry = _parsed(line)
            if entry is None:
                raise CheckpointError(
                    f"{self.path}:{number}: this line of the run's log is "
                    "damaged; restore the file, or remove the line."
                )
            yield entry
        if (entry := _parsed(last)) is not None:
            yield entry

    def entries(self, kind: str, *needed: str) -> list[Entry]:
        """Return entries of a kind; `CheckpointError` if one lacks a needed value."""
        entries = [entry for entry in self.read() if entry["kind"] == kind]
        for entry in entries:
            for name in needed:
                if name not in entry:
                    raise CheckpointError(
                        f"{self.path}: the line of kind {kind!r} at step "
                        f"{entry['step']:,} must have `{name}`, but does not; restore "
                        "the file."
                    )
        return entries

    @property
    def newest_step(self) -> int:
        """Step of the newest entry, read from the end of the file; 0 without one.

        A line that is damaged or cut short is skipped, as the run may be writing it.
        """
        if not self.path.is_file():
            return 0
        entries = map(_parsed, reversed(read_tail(self.path).split(b"\n")))
        return next((int(entry["step"]) for entry in entries if entry is not None), 0)

    @property
    def has_results(self) -> bool:
        """Whether the scores at the end are logged, as in a run with a dev corpus."""
        return any(entry["kind"] == FINAL for entry in self.read())

    def forget_after(
        self, step: int, *, keep_start: bool = False, is_lowered: bool = True
    ) -> None:
        """Drop the entries that a run will write again when it continues from a step.

        These are all later entries. A run that is resumed also writes another entry of
        its start at this step; one that goes back after a divergence does not, and sets
        `keep_start`. `is_lowered` tells whether the state at this step has the lowered
        learning rate. If not, the run ended before it saved that state, and its
        `WENT_BACK` entry is dropped too.
        """

        def is_kept(entry: Entry) -> bool:
            if entry["kind"] == "start" and entry["step"] == step:
                return keep_start
            if entry["kind"] == WENT_BACK and not is_lowered:
                return False
            return entry["step"] <= step

        self.replace([entry for entry in self.read() if is_kept(entry)])

    def lengthened(self, made: int, before: int, now: int) -> list[Entry]:
        """Return the entries for another number of updates, after the updates `made`.

        Results that were final before are renamed.
        """
        entries = list(self.read())
        for entry in entries:
            if entry["kind"] in RESULTS:
                entry["kind"] = f"{EARLIER} {entry['kind']}"
        steps = {"before": before, "now": now}
        return [*entries, {"kind": LENGTHENED, "step": made, **steps}]


def read_tail(path: Path) -> bytes:
    """Return the end of a log, with its last line."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - TAIL_BYTES, 0))
        return file.read()


def _parsed(line: bytes) -> Entry | None:
    """Parse a line of the log; None if it is damaged."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        return None
    has_numbers = _is_number(entry.get("step"), int) and all(
        _is_number(value, int, float) or (value is None and name in OPTIONAL_NUMBERS)
        for name, value in entry.items()
        if name in NUMBERS | OPTIONAL_NUMBERS
    )
    has_text = isinstance(entry.get("signature", ""), str)
    return entry if has_numbers and has_text and entry["step"] >= 0 else None


def _is_number(value: object, *kinds: type) -> bool:
    return type(value) in kinds and abs(value) < LARGEST  # type: ignore[arg-type] # a number
