"""Checks of a run's settings before training: contradictions, and lack of effect.

A contradiction raises `ConfigError` before the first step, not hours later at a
checkpoint. A setting without effect only causes a warning.
"""

from collections.abc import Iterator

from transduce.data.treebank import AugmentationConfig, TreebankConfig, TreebankFiles
from transduce.errors import ConfigError
from transduce.experiments.presets import RunConfig
from transduce.experiments.run_folder import NO_DEV, RunFiles
from transduce.model.config import ModelConfig
from transduce.search_config import NOT_GREEDY, SearchConfig
from transduce.training.config import TrainingConfig


def refuse_contradictions(config: RunConfig, files: RunFiles) -> None:
    """Raise `ConfigError` if settings contradict each other, or the files."""
    for message in _contradictions(config, files):
        raise ConfigError(message)


def settings_without_effect(config: RunConfig) -> list[str]:
    """Warnings about settings that have no effect in combination with the others."""
    return list(_without_effect(config))


def _contradictions(config: RunConfig, files: RunFiles) -> Iterator[str]:
    training, is_parser = config.training, isinstance(files, TreebankFiles)
    will_have_dev = files.has_dev or config.evaluation.hold_out
    if training.patience is not None and not will_have_dev:
        yield NO_DEV
    metrics = ("auto", *files.metrics, "loss")
    if will_have_dev and training.best_by not in metrics:
        known = ", ".join(f'"{metric}"' for metric in metrics)
        yield (
            f"`training.best_by` must be one of {known} on this dev corpus, but is "
            f'"{training.best_by}".'
        )
    if training.best_by == "loss" and not will_have_dev:
        yield (
            '`training.best_by` is "loss", which needs a dev corpus, but there is none;'
            " add --dev-source and --dev-target, or --dev-trees, or leave it out."
        )
    if not is_parser and (name := _changed(config.treebank, TreebankConfig())):
        yield (
            f"`treebank.{name}` is a setting of parsers, but this run trains on text; "
            "leave it out, or give --trees."
        )
    yield from _contradictions_of_lengths(config)
    yield from _contradictions_of_search(config.search)


def _contradictions_of_lengths(config: RunConfig) -> Iterator[str]:
    if isinstance(config.model, ModelConfig):
        yield from _contradictions_of_positions(
            config.model, config.batching.max_length
        )
    training = config.training
    steps, minutes = training.checkpoint_steps, training.checkpoint_minutes
    if steps is not None and minutes != TrainingConfig().checkpoint_minutes:
        yield (
            f"`training.checkpoint_minutes` is {minutes:g}, but "
            f"`training.checkpoint_steps` is {steps:,}; set the steps to none, or "
            "leave the minutes out."
        )


def _contradictions_of_positions(model: ModelConfig, longest: int) -> Iterator[str]:
    usual = ModelConfig().max_positions
    if model.positions == "learned" and model.max_positions < longest:
        yield (
            "`model.max_positions` must be at least `batching.max_length`, "
            f"{longest:,}, as all later positions would share one embedding, but is "
            f"{model.max_positions:,}; raise the first, or lower the second."
        )
    if model.positions == "sinusoidal" and model.max_positions != usual:
        yield (
            f"`model.max_positions` is {model.max_positions:,}, but sinusoidal "
            "positions have no limit; leave it out, or set `model.positions` to "
            '"learned".'
        )


def _contradictions_of_search(search: SearchConfig) -> Iterator[str]:
    if search.beam_size > 1:
        return
    if name := _changed(search, SearchConfig(), among=NOT_GREEDY):
        yield (
            f"`search.{name}` has no effect on greedy search, and `search.beam_size` "
            "is 1; leave it out, or choose a larger beam."
        )


def _without_effect(config: RunConfig) -> Iterator[str]:
    training, batching = config.training, config.batching
    if training.warmup_steps > training.steps:
        yield (
            f"The warm-up of {training.warmup_steps:,} updates is longer than the "
            f"training of {training.steps:,}: the learning rate never reaches its peak."
            " See `training.warmup_steps`."
        )
    elif training.warmup_steps > training.steps * (1 - training.cooldown_share):
        yield (
            "The learning rate's cool-down begins before its warm-up ends; see "
            "`training.warmup_steps` and `training.cooldown_share`."
        )
    if (every := training.checkpoint_steps) and every > training.steps:
        yield (
            f"With a checkpoint every {every:,} updates, a training of "
            f"{training.steps:,} updates has only one, at its end; see "
            "`training.checkpoint_steps`."
        )
    if batching.batch_tokens > max(batching.source_tokens, batching.target_tokens):
        yield (
            f"Updates may be larger than {batching.source_tokens:,} source and "
            f"{batching.target_tokens:,} target tokens, as one batch may have "
            f"{batching.batch_tokens:,} positions; see `batching.batch_tokens`."
        )
    yield from _augmentation_without_effect(config.treebank.augmentation)
    model = config.model
    near = model.neighbourhood if isinstance(model, ModelConfig) else None
    if near is not None and near >= batching.max_length:
        yield (
            f"`model.neighbourhood` is {near:,}, which has no effect on sentences of "
            f"at most {batching.max_length:,} tokens."
        )
    if config.search.num_best > 1:
        yield (
            f"`search.num_best` is {config.search.num_best:,}, which has no effect: a "
            "line gets one translation unless a call requests more."
        )
    if config.search.penalty == "power" and config.search.length_penalty == 0:
        yield "`search.penalty` has no effect, as `search.length_penalty` is 0."


def _augmentation_without_effect(augmentation: AugmentationConfig) -> Iterator[str]:
    name = _changed(augmentation, AugmentationConfig())
    if name and augmentation.copies == 0:
        yield (
            f"`treebank.augmentation.{name}` has no effect, as "
            "`treebank.augmentation.copies` is 0."
        )


def _changed(config: object, usual: object, among: tuple[str, ...] = ()) -> str | None:
    """Name of the first setting that differs from its default."""
    names = among or type(config).__dataclass_fields__  # type: ignore[attr-defined]
    return next((n for n in names if getattr(config, n) != getattr(usual, n)), None)
