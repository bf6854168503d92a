"""Resumed runs: what may change since the last start, and what each start records.

Of the settings, only the number of updates may change; files and precision may not.
Hardware, software and micro-batches determine the weights bit for bit: other numbers of
threads or processes sum in another order, other versions and processors use other
kernels, and dropout and rounding depend on how batches are split. A resumed run has the
micro-batches of its last start, if they fit, and warns of changes.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

import transduce
from transduce import native
from transduce.architectures.config import architecture_of
from transduce.checkpoint import (
    Progress,
    load_model,
    load_training_state,
    save_model,
    with_search_and_shortlist_of,
)
from transduce.data.corpus_mixture import with_absolute_files, with_target_languages
from transduce.device import Hardware
from transduce.errors import (
    START_FROM_RUN,
    CheckpointError,
    ConfigError,
    VersionError,
    counted,
)
from transduce.experiments.contradictions import settings_without_effect
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_corpus import RunFiles
from transduce.experiments.run_folder import RunFolder, RunLog, settings_of
from transduce.machine import Precision, describe_processor
from transduce.model_folder import AVERAGED, BEST, newest_first
from transduce.native import string
from transduce.nn.kernels import bf16_unit, has_triton
from transduce.settings import differences
from transduce.text.languages import LanguagesConfig
from transduce.training.config import TrainingConfig
from transduce.training.memory import MicroBatchSize
from transduce.training.optimizer import scheduled_rate
from transduce.training.trainer import Trainer

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
    known = settings_without_effect(config)
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
        *(each for each in settings_without_effect(now) if each not in known),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Hardware, software and threads, which determine a run's weights and speed."""

    device: str
    """Type of the device: cpu or cuda."""
    processor: str
    """Name of the processor or the accelerator."""
    precision: str
    num_processes: int
    num_threads: int
    """Threads of each process."""
    instructions: str
    """Instruction set of the native library, or Triton's version on a GPU; "none" if
    neither is used."""
    torch: str
    transduce: str

    @property
    def num_workers(self) -> int:
        """Total number of threads on CPUs, or number of devices."""
        return self.num_processes * (self.num_threads if self.device == "cpu" else 1)


def current_environment(hardware: Hardware, num_processes: int) -> Environment:
    """Describe the hardware and software of this process."""
    is_cuda = hardware.device.type == "cuda"
    return Environment(
        device=hardware.device.type,
        processor=torch.cuda.get_device_name(hardware.device)
        if is_cuda
        else describe_processor(),
        precision=hardware.precision,
        num_processes=num_processes,
        num_threads=torch.get_num_threads(),
        instructions=_instructions(hardware),
        torch=str(torch.__version__),
        transduce=transduce.__version__,
    )


def _instructions(hardware: Hardware) -> str:
    precision = hardware.precision
    if hardware.device.type == "cuda":
        if precision != "bf16" or not has_triton():
            return "none"
        # The package's name differs (AMD), so its metadata cannot be read by name.
        import triton

        return f"triton {triton.__version__}"
    api = native.api()
    if api is None:
        return "none"
    isa = string(api.isa)
    unit = bf16_unit() if precision == "bf16" else None
    return isa if unit is None else f"{isa} {unit}"


def recorded_environment(entry: Mapping[str, Any]) -> Environment | None:
    """Read the environment of a log entry; None in logs of older versions."""
    content = entry.get("computing")
    known = {field.name: field.type for field in fields(Environment)}
    if not isinstance(content, dict) or set(content) != set(known):
        return None
    if any(type(value) is not known[name] for name, value in content.items()):
        return None
    return Environment(**content)


def environment_changes(before: Environment, now: Environment) -> str | None:
    """Describe the differences that change weights; None if there are none."""
    names = {
        "num_threads": "threads",
        "num_processes": "processes",
        "instructions": "kernels for",
        "torch": "torch",
        "transduce": "transduce",
        "processor": "processor",
        "device": "device",
    }
    if {before.device, now.device} == {"cuda"}:
        del names["num_threads"]
    old, new = asdict(before), asdict(now)
    differences = [
        f"{word}: {old[name]} before, {new[name]} now"
        for name, word in names.items()
        if old[name] != new[name]
    ]
    return "; ".join(differences) or None


def warn_of_changes(now: Environment, log: RunLog, warn: Callable[[str], None]) -> None:
    """Warn if hardware or software has changed since the last start of a run."""
    starts = log.entries("start")
    before = recorded_environment(starts[-1]) if starts else None
    if before is not None and (changes := environment_changes(before, now)) is not None:
        warn(
            "The hardware or software has changed since the run was interrupted, so "
            "its weights will not be bit for bit those of an uninterrupted run "
            f"({changes})."
        )


def fitting_micro_batch(
    trainer: Trainer, log: RunLog, warn: Callable[[str], None]
) -> MicroBatchSize:
    """Find the sizes of micro-batches: those of the run's last start, if they fit."""
    starts = log.entries("start", "was_cut")
    last = starts[-1] if starts else {}
    positions = last.get("max_positions") if last.get("was_cut") else None
    reward_positions = last.get("reward_positions")
    found = trainer.find_micro_batch(
        int(positions or 0) or None, int(reward_positions or 0) or None
    )
    differs = found.max_positions != positions
    reward_differs = found.reward_positions != reward_positions
    is_smaller = (found.was_cut and differs) or (
        reward_positions is not None and reward_differs
    )
    if not starts or not is_smaller:
        return found
    # Earlier versions counted positions for packed sentences, too.
    unit = last.get("unit", "positions")
    if positions is not None and differs and found.unit != unit:
        reason = (
            f"Parts of batches are counted in {found.unit}, and were in {unit} when "
            "the run was interrupted"
        )
    else:
        reason = "Less memory is free than when the run was interrupted"
    warn(
        f"{reason}, so batches are split into smaller parts, and its weights will not "
        "be bit for bit those of an uninterrupted run."
    )
    return found


def log_start(
    log: RunLog,
    step: int,
    environment: Environment,
    micro_batch: MicroBatchSize,
    augmentation: Mapping[str, float],
) -> None:
    """Log a start of a run at a step, with its rates of augmentation."""
    reward_positions = micro_batch.reward_positions
    log.append(
        "start",
        step=step,
        device=environment.device,
        precision=environment.precision,
        num_processes=environment.num_processes,
        max_positions=micro_batch.max_positions,
        unit=micro_batch.unit,
        was_cut=micro_batch.was_cut,
        computing=asdict(environment),
        **({"reward_positions": reward_positions} if reward_positions else {}),
        **({"augmentation": augmentation} if augmentation else {}),
    )
