"""Checks of a run's settings before training: misfits, and lack of effect.

Settings that contradict each other, the files or the machine raise `ConfigError` before
the first step, not hours later at a checkpoint. A setting without effect only causes a
warning.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace

from transduce.architectures.config import (
    ArchitectureConfig,
    ConvolutionalConfig,
    RecurrentConfig,
    architecture_of,
    num_positions,
)
from transduce.data.augmentation import require_suitable
from transduce.data.batches import BatchingConfig
from transduce.data.corpus_mixture import require_mixture
from transduce.data.treebank import TreeAugmentationConfig, TreebankFiles
from transduce.errors import ConfigError, counted
from transduce.experiments.presets import ADAPT, PRESETS, RunConfig
from transduce.experiments.run_corpus import RunFiles
from transduce.search_config import NOT_GREEDY, SearchConfig
from transduce.settings import differences, flattened
from transduce.text.languages import english_name, is_unspaced
from transduce.text.pair_changes import TextAugmentationConfig
from transduce.text.tokenizer import Tokenizer
from transduce.training.config import TrainingConfig

DROPOUT_RATES = ("dropout", "attention_dropout", "relu_dropout")
"""Settings of a model that make two passes over a batch differ."""
SETTINGS_OF_ADAM = ("beta1", "beta2", "epsilon")
SETTINGS_OF_REWARD = ("reward_steps", "reward_samples", "likelihood_weight")
SETTINGS_OF_SCHEDULES = {
    "hold_steps": "warm-hold-decay",
    "decay_from": "halving",
    "decay_steps": "halving",
    "decay_factor": "plateau",
    "min_learning_rate": "plateau",
}
"""Settings that only one schedule has, and that schedule."""
UNREAD_SETTINGS = (
    ("forget_bias", "cell", "gru"),
    ("initial_range", "initial_weights", "orthogonal"),
    ("readout_width", "readout", "state"),
    ("attention_width", "attention", "general"),
    ("experts.load_weight", "experts.gating", "batchwise"),
)
"""Settings that a model does not read if another setting has a certain value: name of
the setting, name of the other, value of the other. Not all architectures have them."""


def refuse_contradictions(
    config: RunConfig, files: RunFiles, tokenizer: Tokenizer | None = None
) -> None:
    """Raise `ConfigError` if settings contradict each other, or the files.

    The languages must be those of the run. A `tokenizer` is one that is not learned,
    but given.
    """
    for message in _contradictions(config, files):
        raise ConfigError(message)
    if tokenizer is None:
        _require_spaced_words(config)
    if config.corpora or config.stages:
        require_mixture(config.corpora, config.stages, config.training.steps)
    require_suitable(config.augmentation, tokenizer or config.tokenizer)


def settings_without_effect(
    config: RunConfig, files: RunFiles | None = None
) -> list[str]:
    """Warnings about settings that have no effect in combination with the others."""
    is_parser = isinstance(files, TreebankFiles)
    return [*_without_effect(config), *_model_without_effect(config.model, is_parser)]


def _contradictions(config: RunConfig, files: RunFiles) -> Iterator[str]:
    training, is_parser = config.training, isinstance(files, TreebankFiles)
    will_have_dev = files.has_dev or config.evaluation.hold_out
    if not will_have_dev:
        yield from faults_without_dev(config)
    metrics = ("auto", *files.metrics, "loss")
    if will_have_dev and training.best_by not in metrics:
        known = ", ".join(f'"{metric}"' for metric in metrics)
        yield (
            f"`training.best_by` must be one of {known} on this dev corpus, but is "
            f'"{training.best_by}".'
        )
    if not is_parser and (name := _changed(config.treebank)):
        yield (
            f"`treebank.{name}` is a setting of parsers, but this run trains on text; "
            "leave it out, or give trees."
        )
    if is_parser and config.tokenizer.model is not None:
        yield (
            "`tokenizer.model` is a setting of translators, but this run trains on "
            "trees, whose vocabulary it learns; leave it out."
        )
    if is_parser and config.corpora:
        yield (
            f"A mixture must be of text, but the corpora {config.corpora[0].name}... "
            "are given beside trees; leave out the trees, or the corpora."
        )
    if is_parser and config.augmentation.used:
        yield (
            f"`augmentation.{next(iter(config.augmentation.used))}` changes text, but "
            "this run trains on trees; leave it out, or set "
            "`treebank.augmentation.copies` for variants of the trees."
        )
    yield from _contradictions_of_languages(config, files)
    yield from _contradictions_of_schedule(training)
    yield from _contradictions_of_plateau(training)
    yield from _contradictions_of_optimizer(training)
    yield from _contradictions_of_reward(training)
    yield from _contradictions_of_positions(config.model, config.batching.max_length)
    yield from _contradictions_of_checkpoints(training)
    yield from _contradictions_of_search(config.search)
    yield from _contradictions_of_architecture(config, is_parser)


def faults_without_dev(config: RunConfig) -> Iterator[str]:
    """Yield a message for each setting that needs a dev corpus, as there is none."""
    training, fault = config.training, "needs a dev corpus, but there is none"
    if config.evaluation.hold_out:
        fault += ", as the corpus is too small to hold one out; give dev files"
    else:
        fault += (
            "; give dev files, or hold out a part of the corpus (`evaluation.hold_out`)"
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


def without_default_patience(config: RunConfig) -> RunConfig:
    """Settings of a run from a model without a dev corpus, which patience needs.

    Only the patience of the preset `adapt` is left out.
    """
    if config.training.patience != PRESETS[ADAPT].training.patience:
        return config
    return replace(config, training=replace(config.training, patience=None))


def _contradictions_of_languages(config: RunConfig, files: RunFiles) -> Iterator[str]:
    has_several = any(corpus.target_language for corpus in config.corpora)
    if has_several and files.has_dev and config.languages.target is None:
        yield (
            "The target language of the dev corpus must be known, as the corpora have "
            "several; set `languages.target`."
        )


def _require_spaced_words(config: RunConfig) -> None:
    """Raise `ConfigError` for a vocabulary of words and a language without spaces.

    Text of an unknown language is examined when the vocabulary is learned.
    """
    if config.tokenizer.kind != "word" or config.tokenizer.model is not None:
        return
    for side, tag in asdict(config.languages).items():
        if tag is not None and is_unspaced(tag):
            raise ConfigError(
                '`tokenizer.kind` "word" must have text with spaces between words, but '
                f"the {side} language is {english_name(tag)}, which has none; set it "
                "to bpe or word-piece."
            )


def _contradictions_of_schedule(training: TrainingConfig) -> Iterator[str]:
    schedule = training.schedule
    has_peak = schedule != "inverse-sqrt"
    if has_peak and training.learning_rate is None:
        yield (
            f'`training.schedule` is "{schedule}", which needs a learning rate; set '
            "`training.learning_rate`."
        )
    if not has_peak and training.learning_rate is not None:
        yield (
            f"`training.learning_rate` is {training.learning_rate:g}, but the schedule "
            '"inverse-sqrt" has the rate of equation 3; leave it out, set '
            "`training.learning_rate_scale`, or choose another `training.schedule`."
        )
    if has_peak and training.learning_rate_scale != 1:
        yield (
            f"`training.learning_rate_scale` is {training.learning_rate_scale:g}, but "
            f'has no effect on the schedule "{schedule}"; set it to 1, and set '
            "`training.learning_rate`."
        )
    for name, owner in SETTINGS_OF_SCHEDULES.items():
        if schedule != owner and _changed(training, name):
            yield (
                f"`training.{name}` is a setting of the schedule "
                f'"{owner}", but `training.schedule` is "{schedule}"; leave it out, or '
                "change the schedule."
            )
    for name in ("decay_from", "decay_steps"):
        if schedule == "halving" and getattr(training, name) is None:
            yield f'`training.schedule` is "halving", which needs `training.{name}`.'


def _contradictions_of_plateau(training: TrainingConfig) -> Iterator[str]:
    rate, minimum = training.learning_rate, training.min_learning_rate
    if training.schedule == "plateau" and rate is not None and rate < minimum:
        yield (
            "`training.learning_rate` must be at least `training.min_learning_rate`, "
            f'{minimum:g}, below which the schedule "plateau" ends the training, but '
            f"is {rate:g}; raise the first, or lower the second."
        )


def _contradictions_of_optimizer(training: TrainingConfig) -> Iterator[str]:
    optimizer = training.optimizer
    if optimizer == "nesterov" and training.momentum == 0:
        yield (
            '`training.optimizer` is "nesterov", which needs a momentum above 0; set '
            "`training.momentum`, such as to 0.99."
        )
    if optimizer in ("adam", "muon") and training.momentum != 0:
        yield (
            f"`training.momentum` is {training.momentum:g}, but has no effect on the "
            f'optimizer "{optimizer}"; leave it out, or set `training.optimizer` to '
            '"sgd" or "nesterov".'
        )
    step, rate = training.sgd_from_step, training.sgd_learning_rate
    if (step is None) != (rate is None):
        given, missing = "sgd_from_step", "sgd_learning_rate"
        if step is None:
            given, missing = missing, given
        yield f"`training.{given}` needs `training.{missing}`; set both, or neither."
    if step is None:
        return
    if optimizer in ("sgd", "nesterov"):
        yield (
            f"`training.sgd_from_step` is {step:,}, but `training.optimizer` is "
            f'"{optimizer}" from the first update on; leave it out, or choose "adam" '
            'or "muon".'
        )
    if training.schedule == "inverse-sqrt":
        yield (
            f"`training.sgd_from_step` is {step:,}, but the rate of equation 3 is made "
            'for Adam; set `training.schedule` to "constant" or another with a peak.'
        )


def _contradictions_of_reward(training: TrainingConfig) -> Iterator[str]:
    reward, steps = training.reward, training.reward_steps
    if reward == "none":
        if name := _changed(training, *SETTINGS_OF_REWARD):
            yield (
                f"`training.{name}` is a setting of updates by reward, but "
                '`training.reward` is "none"; leave it out, or set the reward.'
            )
        return
    if steps is None:
        yield (
            f'`training.reward` is "{reward}", which needs the number of updates by '
            "reward; set `training.reward_steps`."
        )
    elif steps > training.steps:
        yield (
            f"`training.reward_steps` must be at most `training.steps`, "
            f"{training.steps:,}, but is {steps:,}."
        )


def _contradictions_of_positions(
    model: ArchitectureConfig, longest: int
) -> Iterator[str]:
    num_learned = num_positions(model)
    if num_learned is not None:
        if num_learned < longest:
            yield (
                "`model.max_positions` must be at least `batching.max_length`, "
                f"{longest:,}, as all later positions would share one embedding, but "
                f"is {num_learned:,}; raise the first, or lower the second."
            )
        return
    changed = differences(type(model)(), model)
    if "max_positions" in changed:
        _, max_positions = changed["max_positions"]
        yield (
            f"`model.max_positions` is {max_positions:,}, but sinusoidal positions "
            'have no limit; leave it out, or set `model.positions` to "learned".'
        )


def _contradictions_of_checkpoints(training: TrainingConfig) -> Iterator[str]:
    steps, minutes = training.checkpoint_steps, training.checkpoint_minutes
    if steps is not None and _changed(training, "checkpoint_minutes"):
        yield (
            f"`training.checkpoint_minutes` is {minutes:g}, but "
            f"`training.checkpoint_steps` is {steps:,}; set the steps to none, or "
            "leave the minutes out."
        )


def _contradictions_of_search(search: SearchConfig) -> Iterator[str]:
    if search.beam_size > 1:
        return
    if name := _changed(search, *NOT_GREEDY):
        yield (
            f"`search.{name}` has no effect on greedy search, and `search.beam_size` "
            "is 1; leave it out, or choose a larger beam."
        )


def _contradictions_of_architecture(
    config: RunConfig, is_parser: bool
) -> Iterator[str]:
    model = config.model
    if not model.has_cross_attention:
        for name, weight in (
            ("search.coverage_penalty", config.search.coverage_penalty),
            ("treebank.guidance", config.treebank.guidance),
        ):
            if weight > 0:
                yield (
                    f"`{name}` must be 0 for the architecture "
                    f'"{architecture_of(model)}", which has no cross-attention, but is '
                    f"{weight:g}."
                )
    if isinstance(model, ConvolutionalConfig) and model.shared_embedding and is_parser:
        yield (
            "`model.shared_embedding` must be false for a parser, whose trees have a "
            "vocabulary of their own, but is true."
        )
    if not isinstance(model, RecurrentConfig):
        return
    num_layers = max(model.encoder_layers, model.decoder_layers)
    if model.residual_from is not None and model.residual_from > num_layers:
        yield (
            "`model.residual_from` must be at most the number of layers, "
            f"{num_layers}, but is {model.residual_from}; set it to none for no "
            "residual connections."
        )
    if not model.input_feeding and model.attention_query == "previous":
        yield (
            '`model.input_feeding` is false, but `model.attention_query` is "previous",'
            ' which implies it; leave it out, or set the query to "current".'
        )


def _without_effect(config: RunConfig) -> Iterator[str]:
    training = config.training
    yield from _warm_up_without_effect(training)
    yield from _optimizer_without_effect(training)
    yield from _warnings_of_reward(training)
    yield from _consistency_without_effect(config)
    every, patience = training.checkpoint_steps, training.patience
    if every and patience and training.steps > every >= training.steps / patience:
        yield (
            f"`training.patience` is {patience:,}, which has no effect: with a "
            f"checkpoint every {every:,} updates, a training of {training.steps:,} has "
            "no more of them."
        )
    if every and every > training.steps:
        yield (
            f"With a checkpoint every {every:,} updates, a training of "
            f"{counted(training.steps, 'update')} has only one, at its end; see "
            "`training.checkpoint_steps`."
        )
    yield from _batching_without_effect(config.batching)
    yield from _augmentation_without_effect(config.treebank.augmentation)
    yield from _text_augmentation_without_effect(config.augmentation)
    near = getattr(config.model, "neighbourhood", None)
    if near is not None and near >= config.batching.max_length:
        yield (
            f"`model.neighbourhood` is {near:,}, which has no effect on sentences of "
            f"at most {counted(config.batching.max_length, 'token')}."
        )
    yield from _search_without_effect(config.search)


def _warm_up_without_effect(training: TrainingConfig) -> Iterator[str]:
    if training.warmup_steps > training.steps:
        yield (
            f"The warm-up of {counted(training.warmup_steps, 'update')} is longer than "
            f"the training of {training.steps:,}: the learning rate never reaches its "
            "peak. See `training.warmup_steps`."
        )
    elif training.warmup_steps > training.steps * (1 - training.cooldown_share):
        yield (
            "The learning rate's cooldown begins before its warm-up ends; see "
            "`training.warmup_steps` and `training.cooldown_share`."
        )
    held = training.warmup_steps + training.hold_steps
    if training.schedule == "warm-hold-decay" and held >= training.steps:
        yield (
            f"The learning rate never decays, as it is held up to update {held:,} of "
            f"{training.steps:,}; see `training.hold_steps`."
        )


def _batching_without_effect(batching: BatchingConfig) -> Iterator[str]:
    if batching.batch_tokens > max(batching.source_tokens, batching.target_tokens):
        yield (
            f"Updates may be larger than {batching.source_tokens:,} source and "
            f"{batching.target_tokens:,} target tokens, as one batch may have "
            f"{batching.batch_tokens:,} positions; see `batching.batch_tokens`."
        )


def _search_without_effect(search: SearchConfig) -> Iterator[str]:
    if search.num_best > 1:
        yield (
            f"`search.num_best` is {search.num_best:,}, which has no effect: a line "
            "gets one translation unless a call requests more."
        )
    if search.penalty == "power" and search.length_penalty == 0:
        yield "`search.penalty` has no effect, as `search.length_penalty` is 0."


def _consistency_without_effect(config: RunConfig) -> Iterator[str]:
    consistency = config.training.consistency
    rates = [getattr(config.model, name, 0.0) for name in DROPOUT_RATES]
    is_random = any(rates) or hasattr(config.model, "experts")  # gates draw noise
    if consistency > 0 and not is_random:
        yield (
            f"`training.consistency` is {consistency:g}, which has no effect but takes "
            "twice the time: without dropout both passes over a batch are the same; "
            "see `model.dropout`."
        )


def _model_without_effect(model: ArchitectureConfig, is_parser: bool) -> Iterator[str]:
    has_own_target = is_parser or model.target_vocab_size is not None
    if has_own_target and getattr(model, "shared_embedding", False):
        yield (
            "`model.shared_embedding` has no effect, as the target has a vocabulary of "
            "its own."
        )
    settings, changed = flattened(asdict(model)), differences(type(model)(), model)
    for name, other, value in UNREAD_SETTINGS:
        if name in changed and settings.get(other) == value:
            yield f'`model.{name}` has no effect, as `model.{other}` is "{value}".'


def _warnings_of_reward(training: TrainingConfig) -> Iterator[str]:
    if training.reward == "none":
        return
    first, last = training.decay_from, training.likelihood_steps
    if first is not None and last < first <= training.steps:
        yield (
            f"`training.decay_from` is {first:,}, which has no effect: updates by "
            f"reward, here those after {last:,}, do not halve the rate."
        )
    if training.best_by == "loss":
        yield (
            '`training.best_by` is "loss", which updates by reward may raise: the best '
            "of their checkpoints may be the first; leave it out to choose by score."
        )


def _optimizer_without_effect(training: TrainingConfig) -> Iterator[str]:
    for name in ("decay_from", "sgd_from_step"):
        if (first := getattr(training, name)) and first > training.steps:
            yield (
                f"`training.{name}` is {first:,}, which has no effect on a training of "
                f"{counted(training.steps, 'update')}."
            )
    optimizer = training.optimizer
    unused = _changed(training, *SETTINGS_OF_ADAM)
    if unused and optimizer in ("sgd", "nesterov"):
        yield f'`training.{unused}` has no effect on the optimizer "{optimizer}".'


def _augmentation_without_effect(augmentation: TreeAugmentationConfig) -> Iterator[str]:
    name = _changed(augmentation)
    if name and augmentation.copies == 0:
        yield (
            f"`treebank.augmentation.{name}` has no effect, as "
            "`treebank.augmentation.copies` is 0."
        )


def _text_augmentation_without_effect(
    augmentation: TextAugmentationConfig,
) -> Iterator[str]:
    rates = augmentation.subword_dropout, augmentation.subword_alpha
    if augmentation.subword_sides != "both" and not any(rates):
        yield (
            "`augmentation.subword_sides` has no effect, as "
            "`augmentation.subword_dropout` and `augmentation.subword_alpha` are 0."
        )


def _changed(config: object, *among: str) -> str | None:
    """Name of the first setting, or the first of `among`, that differs from its
    default."""
    names = among or type(config).__dataclass_fields__  # type: ignore[attr-defined]
    default = type(config)()
    return next((n for n in names if getattr(config, n) != getattr(default, n)), None)
