"""Training from Python: `transduce.train` and `transduce.resume`."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from os import PathLike
from types import MappingProxyType
from typing import Any

from transduce.data.corpus_files import MAIN_DEV, CorpusFiles, DevSet, Files, paths_of
from transduce.data.treebank import TreebankFiles
from transduce.device import choose_hardware
from transduce.errors import ConfigError
from transduce.experiments.dev_corpus import DevScore
from transduce.experiments.pipeline import (
    Consent,
    RunObserver,
    RunResult,
    RunStart,
)
from transduce.experiments.pipeline import resume as resume_run
from transduce.experiments.pipeline import train as train_run
from transduce.experiments.presets import (
    ADAPT,
    FITTING,
    RunConfig,
    changed,
    require_start,
    require_task,
)
from transduce.experiments.presets import preset as preset_named
from transduce.experiments.run_corpus import RunFiles
from transduce.experiments.run_folder import precision_of
from transduce.experiments.start_model import open_start, settings_from
from transduce.files import path_of
from transduce.machine import Precision, use_one_arena
from transduce.settings import (
    apply_mapping,
    flattened,
    nested,
    require_flag,
    require_string,
    shown,
)
from transduce.training.trainer import StepReport

File = str | PathLike[str]
NO_SETS: Mapping[str, tuple[File, File]] = MappingProxyType({})

LOGGER = logging.getLogger("transduce")


def train(
    source: Files = (),
    target: Files = (),
    out: str | PathLike[str] | None = None,
    *,
    trees: Files = (),
    dev_trees: Files = (),
    preset: str | None = None,
    start: str | PathLike[str] | None = None,
    keep_optimizer: bool = False,
    settings: Mapping[str, Any] | None = None,
    dev_source: Files = (),
    dev_target: Files = (),
    dev_sets: Mapping[str, tuple[File, File]] = NO_SETS,
    source_language: str | None = None,
    target_language: str | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    overwrite: bool = False,
    observers: Iterable[RunObserver] = (),
) -> RunResult:
    """Train a model on text or trees, average its last checkpoints and score it.

        result = transduce.train("my.en", "my.de", "runs/mine", preset="multi30k")
        translator = transduce.load(result.model)
        transduce.train("new.en", "new.de", "runs/adapted", start=result.model)
        transduce.train(trees="my.trees", out="runs/parser", preset="parsing-small")

    Parameters
    ----------
    source, target
        Line-aligned text files, plain or compressed. Leave them out for a mixture
        of corpora, which the setting `corpora` lists, each with `name`, `source`,
        `target` and `weight`.
    out
        Folder of the run, new or empty. It must be given.
    trees, dev_trees
        Treebanks in brackets, in place of text, to train a parser, and held-out ones,
        scored at each checkpoint. A file given twice counts twice.
    preset
        Preset of all settings, such as "base" for millions of pairs, "multi30k" for
        tens of thousands, or "parsing-small" for thousands of trees; `transduce
        presets` lists them. The default is "base", with trees "parsing-wsj", and with a
        start "adapt".
    start
        Folder of a trained model to start from: a run, a model or an imported model.
        Its tokenizer, sizes, languages and search are those of the new run.
    keep_optimizer
        Whether to start from the newest checkpoint of the run `start`, and to continue
        its optimizer.
    settings
        Single settings by name, such as {"training.steps": 1000, "model.dropout": 0.2};
        `transduce settings` lists them.
    dev_source, dev_target
        Held-out text, scored at each checkpoint; by default 1 % of the pairs.
    dev_sets
        Further dev sets by name, each a source and a target file. The first, unless
        `dev_source` is given, chooses the best checkpoint.
    source_language, target_language
        BCP 47 tags; by default guessed from the files' endings.
    device
        "auto", "cpu" or "cuda".
    precision
        "auto", "fp32" or "bf16".
    overwrite
        Whether the run may replace an older one in the folder.
    observers
        Objects whose methods are called as the run proceeds. The logger `transduce`
        receives the same reports: scores at level INFO, warnings at WARNING.

    Raises
    ------
    ConfigError
        A setting is unknown or impossible, or the folder holds a run.
    DataError
        A file cannot be used; the message names file and line.
    CheckpointError
        The model to start from is missing or damaged, or the run cannot be written.
    RequestError
        The device is not available.
    TrainingStoppedError
        Ctrl-C or SIGTERM has stopped the training, which is saved: `resume` continues
        it. Only a training in the main thread is stopped so.
    DivergedError
        The loss has diverged twice, the second time at half the learning rate.
    """
    sets = _dev_sets(dev_sets)
    files = _text_or_trees(
        CorpusFiles(
            source=paths_of("source", source),
            target=paths_of("target", target),
            dev_source=paths_of("dev_source", dev_source),
            dev_target=paths_of("dev_target", dev_target),
        ),
        TreebankFiles(
            trees=paths_of("trees", trees), dev_trees=paths_of("dev_trees", dev_trees)
        ),
        sets,
    )
    observers = checked_observers(observers)
    require_flag("overwrite", overwrite)
    require_flag("keep_optimizer", keep_optimizer)
    default = FITTING[files.task][0] if start is None else ADAPT
    name = default if preset is None else preset
    require_string("preset", name)
    require_task(name, files.task)
    require_start(name, has_start=start is not None)
    if keep_optimizer and start is None:
        raise ConfigError("`keep_optimizer` needs a run as `start`.")
    base, origin = preset_named(name), None
    if start is not None:
        use_one_arena()  # before the threads of the start's tokenizer
        origin = open_start(path_of("start", start), keep_optimizer=keep_optimizer)
        base = settings_from(origin, name)
    config = with_settings(base, settings or {})
    if isinstance(files, CorpusFiles):
        files = _with_corpora(files, config).with_dev_sets(sets)
    elif config.corpora:
        raise ConfigError("Either `trees` or `corpora` must be given, but both are.")
    if out is None:
        raise ConfigError("`out` must be given: the folder of the run.")
    config = _with_languages(config, source_language, target_language)
    hardware = choose_hardware(device, precision, width=config.model.d_model)
    reporter = _Reporter()
    train_run(
        files,
        config,
        path_of("out", out),
        hardware,
        reporter,
        *observers,
        consent=Consent(overwrites=overwrite),
        start=origin,
    )
    return reporter.result()


def checked_observers(observers: object) -> tuple[RunObserver, ...]:
    """Return the observers of a run, which may be given as a generator.

    Raises the exceptions of `require_observer`, before the run.
    """
    if not isinstance(observers, Iterable):
        raise ConfigError(
            f"Observers must be given as a list, but are given as {shown(observers)}; "
            "put them into a list."
        )
    several = tuple(observers)
    for each in several:
        require_observer(each, RunObserver)
    return several


def require_observer(observer: object, protocol: type) -> None:
    """Raise `ConfigError` for an observer that lacks a method of its protocol."""
    if isinstance(observer, type):
        raise ConfigError(
            f"An observer must be an object, but is the class {observer.__name__}; "
            f"make an object of it: {observer.__name__}()."
        )
    for name in vars(protocol):
        if name[0] != "_" and not callable(getattr(observer, name, None)):
            raise ConfigError(
                f"An observer must have all methods of `{protocol.__name__}`, but "
                f"{shown(observer)} lacks `{name}`; make it a subclass."
            )


def _dev_sets(pairs: object) -> list[DevSet]:
    """Return dev sets; `ConfigError` unless they are pairs of files by name."""
    if not isinstance(pairs, Mapping) or not all(
        isinstance(name, str) for name in pairs
    ):
        raise ConfigError(
            f"`dev_sets` must be pairs of files by their names, but are {shown(pairs)}."
        )
    return [_dev_set(name, pair) for name, pair in pairs.items()]


def _dev_set(name: str, pair: object) -> DevSet:
    """Return a dev set; `ConfigError` unless it is a source and a target file."""
    if (
        not isinstance(pair, tuple | list)
        or len(pair) != 2
        or not all(isinstance(path, str | PathLike) for path in pair)
    ):
        raise ConfigError(
            f"The dev set {name!r} must be a pair of files, its source and its target, "
            f"but is {shown(pair)}."
        )
    source, target = pair
    first, second = (path_of("dev_sets", each) for each in (source, target))
    return DevSet(name=name, source=first, target=second)


def resume(
    out: str | PathLike[str],
    *,
    steps: int | None = None,
    device: str = "auto",
    observers: Iterable[RunObserver] = (),
) -> RunResult:
    """Continue the run in a folder from its newest checkpoint, in its own precision.

        result = transduce.resume("runs/mine", steps=20_000)

    A finished run returns its result, unless it is to make more updates.

    Parameters
    ----------
    out
        Folder of the run.
    steps
        Number of updates that the run is to have made at its end, also of a finished
        run; by default that of its settings.
    device
        "auto", "cpu" or "cuda".
    observers
        Objects whose methods are called as the run proceeds, as in `train`.

    Raises
    ------
    CheckpointError
        The folder holds no run, or no checkpoint can be used.
    ConfigError
        The run has made more updates than `steps`, or another program trains it.
    RequestError
        The device is not available.
    TrainingStoppedError, DivergedError
        As in `train`.
    """
    observers = checked_observers(observers)
    run = path_of("out", out)
    reporter = _Reporter()
    hardware = choose_hardware(device, precision_of(run))
    resume_run(run, hardware, reporter, *observers, steps=steps)
    return reporter.result()


class _Reporter:
    """Observer that logs the progress of a run, and keeps its result."""

    def __init__(self) -> None:
        self._result: RunResult | None = None

    def started(self, start: RunStart) -> None:
        LOGGER.info(
            "training from step %d of %d with %d parameters on %s",
            start.steps_done,
            start.config.training.steps,
            start.num_parameters,
            start.hardware,
        )
        for advice in start.advice:
            LOGGER.warning("%s", advice)

    def stepped(self, report: StepReport) -> None:
        LOGGER.debug("step %d: loss %.3f", report.step, report.loss)

    def scored(self, score: DevScore) -> None:
        name = "" if score.name == MAIN_DEV else f"{score.name}: "
        LOGGER.info(
            "step %d: %s%s, loss %.3f", score.step, name, score.quality, score.loss
        )

    def warned(self, message: str) -> None:
        LOGGER.warning("%s", message)

    def went_back(self, step: int) -> None:
        LOGGER.warning("the loss diverged; training continues from step %d", step)

    def finished(self, result: RunResult) -> None:
        self._result = result
        LOGGER.info("the model is in %s", result.model)

    def result(self) -> RunResult:
        """Return the result of the finished run."""
        assert self._result is not None
        return self._result


def _with_languages(
    config: RunConfig, source: str | None, target: str | None
) -> RunConfig:
    """Return settings with the languages that are given."""
    given = {"source": source, "target": target}
    for side, language in given.items():
        if language is not None:
            require_string(f"{side}_language", language)
    return replace(config, languages=config.languages.given(given))


def _text_or_trees(
    text: CorpusFiles, treebanks: TreebankFiles, sets: list[DevSet]
) -> RunFiles:
    """Return the given files; `ConfigError` if there are text and trees."""
    if not treebanks.paths:
        return text
    if text.source or text.target or text.dev_source or text.dev_target or sets:
        raise ConfigError(
            "Either text or trees must be given, but both are; leave out `trees` and "
            "`dev_trees`, or the others."
        )
    if not treebanks.trees:
        raise ConfigError(
            "Trees to train on must be given, but only `dev_trees` are; add `trees`."
        )
    return treebanks


def _with_corpora(files: CorpusFiles, config: RunConfig) -> CorpusFiles:
    """Return the files, or those of the mixture if the settings list its corpora."""
    if not config.corpora:
        _require_both(files)
        return files
    if files.source or files.target:
        raise ConfigError(
            "Either `source` and `target` or `corpora` must be given, but both are."
        )
    return CorpusFiles.of(config.corpora, files.dev_source, files.dev_target)


def _require_both(files: CorpusFiles) -> None:
    if not files.source or not files.target:
        raise ConfigError("`source` and `target`, or `trees`, must name files.")
    if bool(files.dev_source) != bool(files.dev_target):
        raise ConfigError("`dev_source` and `dev_target` must be given together.")


def _require_names(settings: object) -> None:
    """Raise `ConfigError` unless settings are values by their names."""
    if not isinstance(settings, Mapping) or not all(
        isinstance(name, str) for name in settings
    ):
        raise ConfigError(
            '`settings` must be values by their names, such as {"training.steps": '
            f"1000}}, but are {shown(settings)}."
        )


def with_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """Return the configuration with single settings changed.

    They are checked together. If a name comes twice, its last value counts.
    """
    _require_names(settings)
    tables = nested(flattened(settings).items())
    return changed(
        config, lambda before: apply_mapping(before, tables, where="settings: ")
    )
