"""Changes of a run that is resumed: only its number of updates may change."""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from transduce.architectures.config import architecture_of
from transduce.checkpoint import (
    Progress,
    load_model,
    load_training_state,
    save_model,
    with_search_and_shortlist_of,
)
from transduce.data.corpus_mixture import with_absolute_files, with_target_languages
from transduce.errors import (
    START_FROM_RUN,
    CheckpointError,
    ConfigError,
    VersionError,
    counted,
)
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_corpus import RunFiles
from transduce.experiments.run_folder import RunFolder, settings_of
from transduce.machine import Precision
from transduce.model_folder import AVERAGED, BEST, newest_first
from transduce.settings import differences
from transduce.text.languages import LanguagesConfig
from transduce.training.config import TrainingConfig
from transduce.training.optimizer import scheduled_rate

LISTS = ("corpora", "stages")
"""Settings that are lists of tables."""
RISE_OF_RATE = 1.5
"""Rise of the learning rate by a changed number of updates that causes a warning."""


def refuse_changed_precision(folder: RunFolder, precision: Precision) -> None:
    """Raise `ConfigError` if a run to resume has another precision."""
    if folder.precision not in ("auto", precision):
        raise ConfigError(
            f"{folder.path}: the precision of the run to resume is {folder.precision}, "
            f"but {precision} is requested; leave the precision out, or start another "
            "run."
        )


def refuse_changed_settings(
    out: Path,
    config: RunConfig,
    remedy: str = "leave the preset or the setting out, or start another run",
) -> None:
    """Raise `ConfigError` if a run to resume has other settings."""
    recorded = settings_of(out)
    kind, kind_before = architecture_of(config.model), architecture_of(recorded.model)
    if kind != kind_before:
        raise ConfigError(
            f"{out}: the architecture of the run to resume is {kind_before}, but "
            f"{kind} is requested; leave the preset out, or start another run."
        )
    config = _as_recorded(config, recorded)
    for name in LISTS:
        requested = getattr(config, name)
        if requested and requested != getattr(recorded, name):
            raise ConfigError(
                f"{out}: the {name} (`{name}`) of the run to resume differ from those "
                "requested; leave them out, or start another run."
            )
    for name, (theirs, ours) in differences(recorded, config).items():
        if name not in LISTS:
            raise ConfigError(
                f"{out}: `{name}` of the run to resume is {theirs!r}, but {ours!r} is "
                f"requested; {remedy}."
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


def lengthen(folder: RunFolder, config: RunConfig, steps: int) -> list[str]:
    """Record another number of updates of a run; return warnings about it.

    Raises `ConfigError` if that number is impossible, and `CheckpointError` if no
    checkpoint can be used; the run is then as it was before.
    """
    progress, before = _newest_progress(folder), config.training
    training = _lengthened(before, steps, progress, folder.path)
    now = replace(config, training=training)
    averaged, best = folder.path / AVERAGED, folder.path / BEST
    with suppress(CheckpointError):  # a damaged best is reported at the end
        if averaged.is_dir() and best.is_dir():  # the average is about to be set aside
            save_model(with_search_and_shortlist_of(load_model(best), averaged), best)
    folder.lengthen(progress.step, config, now)
    return [
        f"The number of updates of the run (`training.steps`) changes from "
        f"{before.steps:,} to {steps:,}.",
        *_changes_of_rate(now, before, progress),
    ]


def _lengthened(
    training: TrainingConfig, steps: int, progress: Progress, run: Path
) -> TrainingConfig:
    """Settings for another number of updates; `ConfigError` if it is impossible."""
    made = progress.step
    if steps < made:
        raise ConfigError(
            f"{run}: `training.steps` must be at least {made:,}, the number of updates "
            f"that the run has made, but is {steps:,}; `transduce average` makes a "
            "model of earlier checkpoints."
        )
    rate = (training.learning_rate or math.inf) * progress.plateau_factor
    if training.schedule == "plateau" and rate < training.min_learning_rate:
        raise ConfigError(
            f"{run}: the schedule plateau has ended the run, as its learning rate is "
            f"below `training.min_learning_rate`; {START_FROM_RUN}."
        )
    by_reward = training.reward_steps
    if training.reward == "none" or by_reward is None:
        return replace(training, steps=steps)
    if made > training.likelihood_steps:  # the updates added are by reward, too
        added = steps - training.steps
        return replace(training, steps=steps, reward_steps=by_reward + added)
    if steps - by_reward < made:
        raise ConfigError(
            f"{run}: `training.steps` must leave room for "
            f"{counted(by_reward, 'update')} by reward after the {made:,} made, but is "
            f"{steps:,}; take {made + by_reward:,} at least."
        )
    return replace(training, steps=steps)


def _newest_progress(folder: RunFolder) -> Progress:
    """Progress of the newest undamaged checkpoint; no updates if none is saved.

    Raises `CheckpointError` if all are damaged.
    """
    saved = newest_first(folder.path)
    for path in saved:
        try:
            load_model(path)
            return load_training_state(path).progress
        except VersionError:
            raise
        except CheckpointError:
            continue
    if saved:
        raise folder.no_checkpoint_error()
    return Progress()


def _changes_of_rate(
    config: RunConfig, before: TrainingConfig, progress: Progress
) -> Iterator[str]:
    """Warning that the learning rate rises again after a cooldown.

    A rise that was planned, as in the warm-up, is not due to the new number.
    """
    made, training = progress.step, config.training
    if not 0 < made < training.steps:
        return
    factor = progress.rate_factor * progress.plateau_factor
    old, planned, new = (
        factor * scheduled_rate(step, config.model.d_model, each)
        for step, each in ((made, before), (made + 1, before), (made + 1, training))
    )
    if new > max(old, planned) * RISE_OF_RATE:
        yield (
            f"The learning rate rises from {old:.2g} to {new:.2g} at step "
            f"{made + 1:,}, as the cooldown (training.cooldown_share) now comes "
            f"at the end of {training.steps:,} updates."
        )
