"""Folder of a run: its files, its record of settings and its log.

The record is `config.json` (`RUN_CONFIG`); the model folders in it have files of the
same name that describe one model (`MODEL_CONFIG` in `transduce.model_folder`).
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, fields, is_dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast, get_args
from uuid import uuid4

from transduce.architectures.config import CONFIGS, TRANSFORMER, architecture_of
from transduce.data.corpus_files import (
    MAIN_DEV,
    MAX_HELD_OUT,
    CorpusFiles,
    choose_dev,
    hold_out_pairs,
    read_through,
)
from transduce.data.corpus_mixture import with_absolute_files, with_target_languages
from transduce.data.prepared_corpus import (
    CORPUS,
    DEV,
    DEV_SETS,
    TRAINING,
    PairEncoder,
    PreparedCorpus,
    prepare,
    prepare_dev_set,
)
from transduce.data.treebank import (
    DEV_TREES,
    TreebankFiles,
    hold_out_trees,
    prepare_treebank,
    read_treebank,
)
from transduce.errors import CheckpointError, ConfigError, DataError, VersionError
from transduce.experiments.presets import ADAPT, PRESETS, RunConfig
from transduce.files import (
    LEFTOVERS,
    atomic_directory,
    atomic_file,
    clear_leftovers,
    named_errors,
    path_lock,
    read_json,
    remove_folder,
    require_place,
    require_without,
    without_infinity,
)
from transduce.machine import Precision
from transduce.metrics.scores import choose_tokenization
from transduce.model_folder import (
    AVERAGED,
    BEST,
    CHECKPOINTS,
    STOPPED,
    checkpoints_of,
    newest_first,
)
from transduce.settings import apply_mapping, shown
from transduce.text.alignment import DICTIONARY_FILE
from transduce.text.corpus import read_pairs, read_text
from transduce.text.languages import LanguagesConfig, guess, guess_all
from transduce.text.tokenizer import (
    TOKENIZER_FILE,
    Tokenizer,
    load_tokenizer,
    own_target_size,
)
from transduce.text.vocabulary import find_language_tag, language_tags
from transduce.training.config import TrainingConfig
from transduce.trees.linearization import SYMBOLS_FILE, SymbolVocabulary

RUN_FORMAT = 1
"""Format of the record."""
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
Value = TypeVar("Value", str, dict[str, Any])

RunFiles = CorpusFiles | TreebankFiles
"""Files that a run is trained on."""


class RunFolder:
    """Files of one training run."""

    def __init__(self, path: Path) -> None:
        self.path = path

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
        with atomic_directory(path) as new:
            _require_new_run(path, files, overwrite=overwrite)
            corpus = _prepare(files, config, new, sibling_runs, encoder)
            if corpus.dev is None:  # there may be too few pairs to hold one out
                config = config if start is None else without_default_patience(config)
                for message in faults_without_dev(config.training):
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

    @classmethod
    def open(cls, path: Path) -> tuple["RunFolder", RunConfig]:
        """Open the folder of an existing run; also returns the run's settings."""
        if not is_run(path):
            if _lacks_corpus(path):
                raise CheckpointError(
                    f"{path / TRAINING}: must hold the training text of the run to "
                    "resume, but is missing; restore it, or start another run from "
                    "the run's model by --from."
                )
            raise CheckpointError(
                f"{path}: must be a run to resume, but holds none; leave out --resume "
                "to start one."
            )
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
        return cls(path), apply_mapping(config, settings, f"{path / RUN_CONFIG}: ")

    def locked(self) -> AbstractContextManager[object]:
        """Lock the run; `ConfigError` if another command is training it."""
        refusal = ConfigError(
            f"{self.path}: a run must be trained by one command at a time, but another "
            "one is training it; wait for it to end, or stop it."
        )
        return path_lock(self.path, refusal)

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

    def require_checkpoints(self) -> None:
        """Raise `CheckpointError` if all checkpoints of the run have been removed.

        The run would begin anew, and forget its log.
        """
        if newest_first(self.path):
            return
        kinds = [entry["kind"] for entry in self.read_log()]
        # A crash may leave the line of a first checkpoint without it. Then it is the
        # last one, but for those of a changed number of updates.
        before = [kind for kind in kinds if kind != LENGTHENED][:-1]
        # The best checkpoint is no sign: it may be the model that the run starts from.
        signs = (AVERAGED, EARLIER_AVERAGES, f"{CHECKPOINTS}/{DAMAGED}*")
        if SAVED not in before and not any(any(self.path.glob(s)) for s in signs):
            return
        remedy = "start it anew with --force"
        if self.last_model.is_dir():
            remedy = "start another run from the run's model by --from"
        raise CheckpointError(
            f"{self.path / CHECKPOINTS}: must hold the run's newest checkpoint, from "
            f"which it continues, but holds none to use; restore it, or {remedy}."
        )

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
        shutil.rmtree(aside, ignore_errors=True)
        aside.parent.mkdir(exist_ok=True)
        checkpoint.rename(aside)

    def log(self, kind: str, **values: Any) -> None:
        """Append an entry to the log."""
        path = self.path / LOG
        with named_errors(path), path.open("a", encoding="utf-8") as file:
            entry = without_infinity({"kind": kind, **values})
            file.write(json.dumps(entry) + "\n")

    def log_results(self, results: Iterable[Mapping[str, Any]]) -> None:
        """Append the scores at the end of the run: all of them, or after a crash none.

        They replace scores at the end that an older version had begun to log.
        """
        kept = [entry for entry in self.read_log() if entry["kind"] not in RESULTS]
        finite = [without_infinity(entry) for entry in results]
        self._write_log([*kept, *finite])

    def read_log(self) -> Iterator[dict[str, Any]]:
        """Read the log; a last line cut short by a crash is skipped.

        Raises `CheckpointError` if another line is damaged.
        """
        if not os.path.lexists(self.path / LOG):
            return
        if not (self.path / LOG).is_file():
            raise CheckpointError(
                f"{self.path / LOG}: must be the log of the run, but is not a file; "
                "restore it, or remove it."
            )
        *lines, last = (self.path / LOG).read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            entry = _entry(line)
            if entry is None:
                raise CheckpointError(
                    f"{self.path / LOG}:{number}: this line of the run's log is "
                    "damaged; restore the file, or remove the line."
                )
            yield entry
        if (entry := _entry(last)) is not None:
            yield entry

    @property
    def has_results(self) -> bool:
        """Whether the scores at the end are logged, as in a run with a dev corpus."""
        return any(entry["kind"] == FINAL for entry in self.read_log())

    def entries(self, kind: str, *needed: str) -> list[dict[str, Any]]:
        """Log entries of a kind; `CheckpointError` if one lacks a needed value."""
        entries = [entry for entry in self.read_log() if entry["kind"] == kind]
        for entry in entries:
            for name in needed:
                if name not in entry:
                    raise CheckpointError(
                        f"{self.path / LOG}: the line of kind {kind!r} at step "
                        f"{entry['step']:,} must have `{name}`, but does not; restore "
                        "the file."
                    )
        return entries

    def lengthen(self, made: int, before: RunConfig, config: RunConfig) -> None:
        """Record another number of updates, after the updates `made`.

        Results that were final before are renamed in the log, and the average of the
        end before is kept as `averaged-STEPS`: commands that are given the run would
        take it for the newest model.
        """
        entries = [
            {**entry, "kind": f"{EARLIER} {kind}"} if kind in RESULTS else entry
            for entry in self.read_log()
            for kind in [entry["kind"]]
        ]
        steps = {"before": before.training.steps, "now": config.training.steps}
        entries.append({"kind": LENGTHENED, "step": made, **steps})
        # The average first: after a crash, a run without one makes it again.
        if (self.path / AVERAGED).is_dir():
            earlier = self.path / f"{AVERAGED}-{before.training.steps:08d}"
            if earlier.is_dir():
                remove_folder(earlier)
            (self.path / AVERAGED).rename(earlier)
        self._write_log(entries)
        # Then the log. A crash before the next line leaves a line that changes little.
        record = {**read_json(self.path / RUN_CONFIG), "settings": asdict(config)}
        with atomic_file(self.path / RUN_CONFIG) as new:
            new.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    @property
    def last_model(self) -> Path:
        """The model that commands took for the run's at its last end, if it has one."""
        earlier = sorted(self.path.glob(EARLIER_AVERAGES), reverse=True)
        models = [self.path / AVERAGED, self.path / BEST, *earlier]
        return next((path for path in models if path.is_dir()), models[0])

    def _write_log(self, entries: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(entry) + "\n" for entry in entries)
        with atomic_file(self.path / LOG) as new:
            new.write_text(text, encoding="utf-8")

    def forget_log_after(
        self, step: int, *, keep_start: bool = False, is_lowered: bool = True
    ) -> None:
        """Drop the entries that a run which continues from a step will write again.

        They are all later ones and, without `keep_start`, that of a start at this step:
        a run that goes back after a divergence does not start again. `is_lowered` tells
        whether the state at this step has the lowered learning rate. If not, the run
        ended before it saved that state, and its `WENT_BACK` entry is dropped too.
        """
        kept = [
            entry
            for entry in self.read_log()
            if entry["step"] <= step
            and (keep_start or (entry["kind"], entry["step"]) != ("start", step))
            and (is_lowered or entry["kind"] != WENT_BACK)
        ]
        self._write_log(kept)


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


NUMBERS = {
    *("epoch", "learning_rate", "gradient_norm", "reward", "seconds", "flops"),
    *("bleu", "f1", "chrf", "gleu", "matched_4_grams"),
}
"""Values of log entries that must be numbers."""
OPTIONAL_NUMBERS = {"loss", "perplexity", "max_positions", "reward_positions"}
"""Values that must be numbers, or null if infinite or unbounded."""
LARGEST = 1e100
"""Magnitude from which on a number in the log counts as damaged."""


def _entry(line: bytes) -> dict[str, Any] | None:
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


def faults_without_dev(training: TrainingConfig) -> Iterator[str]:
    """Yield a message for each setting that needs a dev corpus, as there is none."""
    fault = (
        "needs a dev corpus, but there is none; add --dev-source and --dev-target, or "
        "--dev-trees"
    )
    if training.patience is not None:
        yield f"`training.patience` {fault}."
    if training.best_by == "loss":
        yield f'`training.best_by` is "loss", which {fault}, or leave it out.'
    if training.schedule == "plateau":
        yield (
            f'`training.schedule` is "plateau", which {fault}, or choose another '
            "schedule."
        )


def can_hold_out(files: RunFiles, seed: int) -> bool:
    """Whether there is enough text to hold a dev corpus out of it, as a run does.

    `DataError` if a file cannot be used.
    """
    if isinstance(files, TreebankFiles):
        return hold_out_trees(read_treebank(files.trees), seed) is not None
    return choose_dev(files, seed) is not None


def without_default_patience(config: RunConfig) -> RunConfig:
    """Settings of a run from a model without a dev corpus, which patience needs.

    Only the patience of the preset `adapt` is left out.
    """
    if config.training.patience != PRESETS[ADAPT].training.patience:
        return config
    return replace(config, training=replace(config.training, patience=None))


def _require_new_run(path: Path, files: RunFiles, *, overwrite: bool) -> None:
    """Raise `ConfigError` unless the path is free, or a run to overwrite."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if overwrite and path.is_dir():
        require_replaceable_run(path, files.paths)
        return
    remedy = "choose another"
    if is_run(path):
        remedy = "continue that run with --resume, or choose another folder"
        # Force is offered only if it is not refused afterwards.
        with suppress(ConfigError):
            require_replaceable_run(path, files.paths)
            remedy += "; --force overwrites a run"
    raise ConfigError(
        f"{path}: the output folder must be new or empty, but is not; {remedy}."
    )


def require_replaceable_run(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Raise `ConfigError` unless a folder holds a run that another may replace.

    Besides the run, nothing may be lost: neither its folder nor the training's input.
    """
    if not is_run(path):
        raise ConfigError(
            f"{path}: only a run can be overwritten by another, but the folder holds "
            "none; choose another."
        )
    kept = (
        each.name for glob in (LEFTOVERS, EARLIER_AVERAGES) for each in path.glob(glob)
    )
    own = ENTRIES.union(kept)
    if others := sorted({each.name for each in path.iterdir()} - own):
        raise ConfigError(
            f"{path}: only the files of a run can be overwritten by another, but the "
            f"folder also holds {others[0]}; move it, or choose another folder."
        )
    require_without(path, inputs)
    with RunFolder(path).locked():  # raises if a process is training the run
        pass


def _prepare(
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
    languages = require_dev_sets(files, config, tokenizer)
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

    `files` are those of the run as it records them. A model without tags of languages
    has one target language, which is that of all dev sets. With tags, the ending of its
    file names the language of a dev set, and the first corpus that of a held-out one.
    """
    usual, further = config.languages.target, files.get("dev_sets", [])[1::2]
    if not has_tags:
        return [usual] * (1 + len(further))
    if given := files.get("dev_target"):
        main = guess_all(given)
    else:
        main = config.corpora[0].target_language if config.corpora else None
    return [language or usual for language in (main, *map(guess, further))]


def require_scoring(files: CorpusFiles, config: RunConfig, *, has_tags: bool) -> None:
    """Raise `RequestError` if a package is missing that scores of dev sets need.

    This is found before training, not at the first checkpoint.
    """
    if not (files.has_dev or config.evaluation.hold_out):
        return
    languages = dev_languages(config, files.absolute_names(), has_tags=has_tags)
    texts = [files.dev_target or files.target]
    texts += [(dev.target,) for dev in files.dev_sets]
    for paths, language in zip(texts, languages, strict=True):
        references = islice(read_text(paths), MAX_HELD_OUT)
        choose_tokenization(config.evaluation.tokenize, language, references)


def require_dev_sets(
    files: CorpusFiles, config: RunConfig, tokenizer: Tokenizer | None = None
) -> list[str | None]:
    """Return the target language of each dev set, as `dev_languages` does.

    Raises an error if a dev set has no text, or if the run or a dev set has a language
    that the model lacks. A tokenizer is given if none is learned.
    """
    tags = tokenizer.language_tags if tokenizer else language_tags(files.tags)
    languages = dev_languages(config, files.absolute_names(), has_tags=bool(tags))
    if tags and config.languages.target is not None:
        find_language_tag(config.languages.target, tags)
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
    return languages


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


def last_of_phase(checkpoints: Sequence[Path], training: TrainingConfig) -> list[Path]:
    """Return the last ones of a run's checkpoints, which are averaged (section 6.1).

    Those before the first update by reward are left out if there are later ones, as
    they would be most of the average.
    """
    last = list(checkpoints[-training.keep_checkpoints :])
    return [path for path in last if is_by_reward(path, training)] or last


def is_by_reward(checkpoint: Path, training: TrainingConfig) -> bool:
    """Return whether the last update before a run's checkpoint was by reward."""
    return training.is_by_reward(int(checkpoint.name.rpartition("-")[2]))


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


def refuse_changed_precision(folder: RunFolder, precision: Precision) -> None:
    """Raise `ConfigError` if a run to resume has another precision."""
    if folder.precision not in ("auto", precision):
        raise ConfigError(
            f"{folder.path}: the precision of the run to resume is {folder.precision}, "
            f"but {precision} is requested; leave --precision out, or start another "
            "run."
        )


OPTIONS = {
    "corpora": " (--corpus, --replay)",
    "languages.source": " (--source-language)",
    "languages.target": " (--target-language)",
}
"""Options of `transduce train` for some settings, as they stand in messages."""


def refuse_changed_settings(out: Path, config: RunConfig) -> None:
    """Raise `ConfigError` if a run to resume has other settings."""
    recorded = settings_of(out)
    kind, kind_before = architecture_of(config.model), architecture_of(recorded.model)
    if kind != kind_before:
        raise ConfigError(
            f"{out}: the architecture of the run to resume is {kind_before}, but "
            f"{kind} is requested; leave the preset out, or start another run."
        )
    config = _as_recorded(config, recorded)
    for name in ("corpora", "stages"):
        requested = getattr(config, name)
        if requested and requested != getattr(recorded, name):
            raise ConfigError(
                f"{out}: `{name}`{OPTIONS.get(name, '')} of the run to resume are "
                "others than are requested; leave them out, or start another run."
            )
    tables = (f.name for f in fields(config) if is_dataclass(getattr(config, f.name)))
    for name in tables:
        ours, theirs = asdict(getattr(config, name)), asdict(getattr(recorded, name))
        for key, value in ours.items():
            if value != theirs[key]:
                raise ConfigError(
                    f"{out}: `{name}.{key}`{OPTIONS.get(f'{name}.{key}', '')} of the "
                    f"run to resume is {theirs[key]!r}, but {value!r} is requested; "
                    "leave the setting out, or start another run."
                )


def _as_recorded(config: RunConfig, recorded: RunConfig) -> RunConfig:
    """Return requested settings as a run would record them.

    Settings that may differ in a resumed run are taken from the recorded ones.
    """
    # The sizes follow from the tokenizer; the caller cannot choose them.
    model = replace(
        config.model,
        vocab_size=recorded.model.vocab_size,
        target_vocab_size=recorded.model.target_vocab_size,
    )
    # Languages that are not given were guessed when the run started.
    languages = LanguagesConfig(
        source=config.languages.source or recorded.languages.source,
        target=config.languages.target or recorded.languages.target,
    )
    return replace(
        config,
        model=model,
        languages=languages,
        # The number of updates may change while a run is resumed.
        training=replace(config.training, steps=recorded.training.steps),
        corpora=with_target_languages(with_absolute_files(config.corpora)),
    )


def refuse_changed_files(out: Path, files: RunFiles) -> None:
    """Raise `ConfigError` if a run to resume has other files."""
    folder, _ = RunFolder.open(out)
    recorded, given = folder.files(), files.absolute_names()
    changed = [
        f"{part.replace('_', ' ')}: {', '.join(recorded.get(part, [])) or 'none'}"
        for part in dict.fromkeys([*recorded, *given])
        if recorded.get(part, []) != given.get(part, [])
    ]
    if changed:
        raise ConfigError(
            f"{out}: the run to resume was started with other files "
            f"({'; '.join(changed)}); leave the files out, or start another run."
        )
