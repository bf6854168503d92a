"""Table 2 trained: its systems on one corpus, at one size or cost (section 6.1).

All systems share the text, the metric and the accounting of cost; each has the
tokenizer, the training recipe and the search settings of its preset. Each training and
each translation is a process (`experiment`). After an interruption, a training that
has begun continues by `train --resume`, and a translation starts over.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import torch

from transduce.analysis.path_lengths import PathLengths, measure_path_lengths
from transduce.architectures.config import (
    ArchitectureConfig,
    architecture_of,
    num_parameters,
    scaled,
)
from transduce.checkpoint import build, build_on_meta
from transduce.data.corpus_files import CorpusFiles
from transduce.data.dataset import open_dataset
from transduce.data.prepared_corpus import (
    DEV,
    DEV_SOURCE,
    DEV_TARGET,
    PairEncoder,
    kept_pairs,
)
from transduce.errors import CheckpointError, ConfigError, DataError, unknown_name
from transduce.experiments.experiment import (
    LOGS,
    RUNS,
    EvaluationText,
    Experiment,
    PresetRun,
    changes,
    damaged_record,
    experiment_record,
    read_record,
    read_references,
    require_same_experiment,
    require_same_settings,
    settings,
    translated_lines,
    with_seed,
    write_record,
)
from transduce.experiments.presets import RunConfig, fitting_preset, preset
from transduce.experiments.resuming import recorded_environment
from transduce.experiments.run_folder import Entry, RunFolder, settings_of
from transduce.files import read_json, write_json
from transduce.machine import Precision
from transduce.metrics.comparison import ONE_TRIAL, Trials, pooled_scores
from transduce.metrics.scores import (
    choose_tokenization,
    corpus_bleu,
    language_for_paper_bleu,
    paper_bleu,
)
from transduce.model_folder import model_sum
from transduce.text.corpus import ENDINGS, read_pairs
from transduce.text.tokenizer import TOKENIZER_FILE, load_tokenizer
from transduce.text.vocabulary import NUM_RESERVED
from transduce.training.reward import sample_flops

Match = Literal["parameters", "flops", "none"]

EXPERIMENT_FORMAT = 1
EXPERIMENT = "table2_experiment.json"
MEAN_LENGTH = 27
"""Approximate sub-words per sentence of WMT 2014, with the end token."""
CHARACTERS_A_PIECE = 5
"""Approximate number of characters of a sub-word, for the length of a sentence in
characters."""
MATCH_TOLERANCE = 0.02
"""Relative difference of two numbers of parameters that counts as equal."""
WIDTH_STEP = 64
"""Widths are tried as multiples of 1 / WIDTH_STEP of the preset's."""
MAX_WIDENED = 16
"""Largest factor on a preset's widths that is tried."""
STEP_SETTINGS = (
    "warmup_steps",
    "hold_steps",
    "decay_steps",
    "reward_steps",
    "checkpoint_steps",
)
"""Settings of training that are a number of updates."""
FIRST_STEPS = ("decay_from", "sgd_from_step")
"""Settings of training that are the first update of a phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Row of Table 2, and the presets that train it."""

    name: str
    """Name in the paper's table."""
    large: str
    """Preset of the size that its authors published."""
    small: str
    """Preset for tens of thousands of pairs."""


SYSTEMS = {
    "bytenet": System(
        name="ByteNet", large="bytenet-en-de", small="bytenet-multi30k"
    ),
    "deep-att": System(
        name="Deep-Att + PosUnk", large="deep-att-en-de", small="deep-att-multi30k"
    ),
    "gnmt": System(name="GNMT", large="gnmt-en-de", small="gnmt-multi30k"),
    "gnmt-rl": System(
        name="GNMT + RL", large="gnmt-rl-en-de", small="gnmt-rl-multi30k"
    ),
    "convs2s": System(
        name="ConvS2S", large="convs2s-en-de", small="convs2s-multi30k"
    ),
    "moe": System(name="MoE", large="moe-en-de", small="moe-multi30k"),
    "base": System(name="Transformer (base model)", large="base", small="multi30k"),
    "big": System(name="Transformer (big)", large="big", small="multi30k-big"),
}  # fmt: skip
REFERENCE, UNMATCHED = "base", "big"
"""System that the others match, and the one that is larger on purpose."""


BYTES_A_TOKEN = 5
"""Approximate number of bytes of text for a sub-word."""
COMPRESSION = 3
"""Approximate ratio at which text is compressed."""


def is_small_corpus(files: CorpusFiles) -> bool:
    """Whether the presets for tens of thousands of pairs fit, by the files' sizes."""
    size = sum(
        path.stat().st_size * (COMPRESSION if path.suffix in ENDINGS else 1)
        for path in files.target
    )
    fitting = fitting_preset(size // BYTES_A_TOKEN, "translation")
    return fitting == SYSTEMS[REFERENCE].small


def require_systems(names: Sequence[str]) -> list[str]:
    """Put the named systems in the paper's order; without names, all.

    For an unknown name, raises `ConfigError`, which suggests the nearest.
    """
    for name in names:
        if name not in SYSTEMS:
            raise ConfigError(unknown_name("system", name, SYSTEMS))
    return [name for name in SYSTEMS if not names or name in names]


def system_config(
    key: str,
    *,
    is_small: bool,
    scale: float = 1.0,
    steps: int | None = None,
    match: Match = "parameters",
    change: Callable[[RunConfig], RunConfig] = lambda config: config,
) -> tuple[str, RunConfig]:
    """Return the preset of a system, and its settings at a scale.

    The scale is a factor on all widths and on the vocabulary. `steps` is the number of
    updates of the reference; the others keep their proportion to it. `match` changes
    the widths, or the number of updates, until the parameters, or the FLOPs of the
    whole training, are those of the reference. `change` applies single settings.
    Raises `ConfigError` if that is impossible.
    """
    name, reference_name = (_preset(k, is_small=is_small) for k in (key, REFERENCE))
    factor = Fraction(1)
    if steps is not None:
        factor = Fraction(steps, preset(reference_name).training.steps)
    config, reference = (
        change(with_steps(_at_scale(preset(each), scale), factor))
        for each in (name, reference_name)
    )
    if key in (REFERENCE, UNMATCHED) or match == "none":
        return name, config
    if match == "parameters":
        target = num_parameters(reference.sized_model)
        return name, replace(config, model=_with_parameters(config, target))
    ratio = training_flops(reference) / training_flops(config)
    return name, with_steps(config, Fraction(ratio).limit_denominator(10_000))


def _preset(key: str, *, is_small: bool) -> str:
    return SYSTEMS[key].small if is_small else SYSTEMS[key].large


def _at_scale(config: RunConfig, scale: float) -> RunConfig:
    if scale == 1:
        return config
    tokenizer = config.tokenizer
    vocab_size = tokenizer.vocab_size
    if str(tokenizer.kind) != "character":  # an alphabet has its size
        vocab_size = max(int(vocab_size * scale), 1)
    return replace(
        config,
        tokenizer=replace(tokenizer, vocab_size=vocab_size),
        model=scaled(config.model, scale),
    )


def with_steps(config: RunConfig, factor: Fraction) -> RunConfig:
    """Multiply all settings that are a number of updates by a factor.

    The number of updates before each phase is multiplied too.
    """
    training = config.training
    changed: dict[str, Any] = {
        name: max(round(value * factor), 1)
        for name in ("steps", *STEP_SETTINGS)
        if (value := getattr(training, name)) is not None and value > 0
    }
    changed |= {
        name: round((value - 1) * factor) + 1
        for name in FIRST_STEPS
        if (value := getattr(training, name)) is not None
    }
    return replace(config, training=replace(training, **changed))


def _with_parameters(config: RunConfig, target: int) -> ArchitectureConfig:
    """Scale the widths so that the number of parameters is closest to a target."""
    model = config.sized_model
    if abs(num_parameters(model) - target) <= MATCH_TOLERANCE * target:
        return config.model
    widths = set()
    for step in range(1, MAX_WIDENED * WIDTH_STEP + 1):
        with suppress(ConfigError):  # too narrow or too wide
            widths.add(scaled(model, step / WIDTH_STEP))
    best = min(widths, key=lambda each: abs(num_parameters(each) - target))
    if abs(num_parameters(best) - target) > target / 2:
        raise ConfigError(
            f"The {architecture_of(model)} system must get about {target:,} "
            f"parameters, but the nearest size has {num_parameters(best):,}; choose "
            'another `scale`, or "none" as `match`.'
        )
    return replace(best, vocab_size=config.model.vocab_size)


def training_flops(config: RunConfig) -> float:
    """FLOPs of a whole training on sentences of the mean length, without padding.

    Samples of updates by reward are as long as the references.
    """
    length, training = MEAN_LENGTH, config.training
    if str(config.tokenizer.kind) == "character":
        length *= CHARACTERS_A_PIECE
    model = build_on_meta(config.sized_model)
    lengths = np.array([length])
    by_reward = training.steps - training.likelihood_steps
    num_passes = training.likelihood_steps * training.num_passes + by_reward
    flops = num_passes * model.update_flops(lengths, lengths)
    if by_reward:
        samples = np.full((1, training.reward_samples), length)
        flops += by_reward * sample_flops(model, lengths, samples)
    return flops * config.batching.target_tokens / length


@dataclass(frozen=True, kw_only=True)
class SystemRun(PresetRun):
    """Training of a system with one seed, and its translations of the test texts."""

    tests: tuple[EvaluationText, ...]

    def translations(self, test: EvaluationText) -> Path:
        """Translations of a test text."""
        return self.path / f"translations-{test.name}.txt"

    @property
    def is_done(self) -> bool:
        """Whether all test texts are translated."""
        return all(self.translations(test).is_file() for test in self.tests)

    def next_options(self, files: CorpusFiles, precision: Precision) -> list[str]:
        """Options to train, or to translate a test text."""
        if not self.is_trained:
            return super().next_options(files, precision)
        return _translation(self, [self.path])


@dataclass(frozen=True, kw_only=True)
class EnsembleRun:
    """Translations of the test texts by all runs of a system together."""

    members: tuple[SystemRun, ...]
    tests: tuple[EvaluationText, ...]

    @property
    def row(self) -> str:
        """Key of the system."""
        return self.members[0].row

    @property
    def name(self) -> str:
        """Name of its translations and its log."""
        seeds = "-".join(str(member.seed) for member in self.members)
        return f"{self.row}-ensemble-{seeds}"

    @property
    def log(self) -> Path:
        """Output of the processes."""
        return self.members[0].folder / LOGS / f"{self.name}.log"

    def translations(self, test: EvaluationText) -> Path:
        """Translations of a test text."""
        return self.members[0].folder / RUNS / f"{self.name}-{test.name}.txt"

    def discard_stale(self) -> None:
        """Remove translations by other models than the members have now.

        Also records the members' models beside each translation that is to be made.
        """
        try:
            sums = {member.name: model_sum(member.path) for member in self.members}
        except CheckpointError:  # a model was removed after it had translated
            return
        for path in map(self.translations, self.tests):
            record, known = path.with_suffix(".json"), None
            with suppress(CheckpointError):
                known = read_json(record)
            if known != sums:
                path.unlink(missing_ok=True)
                write_json(record, sums)

    @property
    def is_done(self) -> bool:
        """Whether all test texts are translated."""
        return all(self.translations(test).is_file() for test in self.tests)

    @property
    def num_steps(self) -> int:
        """An ensemble makes no updates."""
        return 0

    @property
    def steps_made(self) -> int:
        """An ensemble makes no updates."""
        return 0

    def final_failure(self) -> str | None:
        """Return None, as an ensemble is tried again if it has failed."""
        return None

    def next_options(self, files: CorpusFiles, precision: Precision) -> list[str]:
        """Options to translate a test text."""
        return _translation(self, [member.path for member in self.members])


def _translation(run: SystemRun | EnsembleRun, models: Sequence[Path]) -> list[str]:
    """Options to translate the first test text that is not translated yet."""
    test = next(each for each in run.tests if not run.translations(each).is_file())
    first, *others = models
    return [
        *("translate", str(first)),
        *(("--ensemble", *map(str, others)) if others else ()),
        *("--input", str(test.source.absolute())),
        # Start over after an interruption, as test texts are short.
        *("--output", str(run.translations(test)), "--force"),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemExperiment(Experiment):
    """Runs of Table 2's systems."""

    def begin(self, runs: Sequence[SystemRun]) -> None:
        """Record the settings; `ConfigError` if the folder has other ones.

        Raises `DataError` if a test text cannot be read, or has no text.
        """
        record: dict[str, Any] = {
            **experiment_record(
                EXPERIMENT_FORMAT, self.folder, self.files, self.precision
            ),
            "systems": {
                run.row: {
                    "preset": run.preset,
                    "architecture": architecture_of(run.config.model),
                    **settings(with_seed(run.config, 0)),
                }
                for run in runs
            },
            "tests": {test.name: test.read_through() for test in runs[0].tests},
        }
        path = self.folder / EXPERIMENT
        if path.is_file():
            known = read_record(path)
            _require_same(path, known, record)
            for name in ("systems", "tests"):
                record[name] = {**known.get(name, {}), **record[name]}
        write_record(path, record)


# A system has the settings of its preset, which may differ in another version.
OTHER_VERSION = (
    "give the same settings, continue with the version of transduce that began it"
)


def _require_same(
    path: Path, recorded: Mapping[str, Any], requested: Mapping[str, Any]
) -> None:
    tests = {"tests": {}, **recorded}["tests"]
    require_same_experiment(
        path, {**recorded, "tests": tests}, requested, "systems", "tests"
    )
    _require_same_tests(path.parent, tests, requested["tests"])
    for system, new in requested["systems"].items():
        known = recorded["systems"].get(system, new)
        if not isinstance(known, dict):
            raise damaged_record(path)
        require_same_settings(path.parent, system, known, new, OTHER_VERSION)


def _require_same_tests(
    folder: Path, recorded: Mapping[str, Any], requested: Mapping[str, Any]
) -> None:
    for test, digest in requested.items():
        if recorded.get(test, digest) != digest:
            raise ConfigError(
                f"{folder}: the test text {test} has changed since it was translated "
                "here; restore its files, or give the other text another name."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """A checkpoint on a learning curve."""

    step: int
    flops: float
    """FLOPs counted up to this checkpoint."""
    bits: float | None
    """Bits per character of the dev text, by its likelihood; None with a vocabulary of
    words, for which an unknown word is one token whatever its letters."""
    bleu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceScore:
    """Scores of a system on a test text, pooled over its seeds."""

    test: str
    bleu: float
    """sacreBLEU."""
    interval: float
    """Half width of the 95 % confidence interval, by the bootstrap over sentences."""
    by_seed: tuple[float, ...]
    paper_bleu: float | None
    """Mean over the seeds of BLEU by the paper's protocol; None for languages without
    spaces between words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemResult:
    """Quality and cost of a system."""

    system: str
    """Key of the system."""
    architecture: str
    seeds: tuple[int, ...]
    is_ensemble: bool
    parameters: int
    steps: int
    """Updates made, the mean over the seeds."""
    flops: float
    """FLOPs counted in one training, the mean over the seeds; their sum for an
    ensemble."""
    seconds: float
    """Time of the updates of one training, the mean over the seeds; their sum for an
    ensemble."""
    scores: tuple[ReferenceScore, ...]
    curve: tuple[CurvePoint, ...]
    """Learning curve of the first seed; empty for an ensemble."""
    diverged: tuple[int, ...]
    """Seeds of runs whose loss diverged and that continued at half the rate."""

    def reached(self, bits: float) -> CurvePoint | None:
        """Return the first checkpoint at which a character takes at most these bits."""
        points = ((point, point.bits) for point in self.curve)
        return next((p for p, own in points if own is not None and own <= bits), None)


def results_of(
    runs: Sequence[SystemRun],
    ensembles: Sequence[EnsembleRun],
    trials: Trials,
) -> list[SystemResult]:
    """Collect the results of all systems whose runs are done."""
    results = []
    for key in SYSTEMS:
        done = [run for run in runs if run.row == key and run.is_done]
        if done:
            results.append(_result(done, trials))
    for ensemble in ensembles:
        if ensemble.is_done:
            results.append(_ensemble_result(ensemble, results, trials))
    return results


def read_results(run: SystemRun | EnsembleRun) -> None:
    """Read all results of a run that is done.

    Raises `CheckpointError` or `DataError` if they are damaged.
    """
    if isinstance(run, EnsembleRun):
        _scores([run], run.members[0], ONE_TRIAL)
    else:
        _result([run], ONE_TRIAL)
        processors_of([run])


def _result(runs: Sequence[SystemRun], trials: Trials) -> SystemResult:
    costs = [logged_cost(RunFolder(run.path)) for run in runs]
    model = runs[0].recorded_settings().model
    return SystemResult(
        system=runs[0].row,
        architecture=architecture_of(model),
        seeds=tuple(run.seed for run in runs),
        is_ensemble=False,
        parameters=num_parameters(model),
        steps=round(fmean(cost.steps for cost in costs)),
        flops=fmean(cost.flops for cost in costs),
        seconds=fmean(cost.seconds for cost in costs),
        scores=_scores(runs, runs[0], trials),
        curve=_curve(runs[0]),
        diverged=tuple(run.seed for run in runs if run.has_diverged),
    )


def _ensemble_result(
    ensemble: EnsembleRun, results: Sequence[SystemResult], trials: Trials
) -> SystemResult:
    [single] = [each for each in results if each.system == ensemble.row]
    count = len(ensemble.members)
    return replace(
        single,
        seeds=tuple(member.seed for member in ensemble.members),
        is_ensemble=True,
        parameters=count * single.parameters,
        flops=count * single.flops,
        seconds=count * single.seconds,
        scores=_scores([ensemble], ensemble.members[0], trials),
        curve=(),
        diverged=(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCost:
    """Cost of a training by its log."""

    steps: int
    flops: float
    seconds: float
    """Mean time of the logged updates, times the number of all."""


def logged_updates(run: RunFolder) -> list[Entry]:
    """Log entries of a run's updates; `DataError` if there are none."""
    if not (updates := run.log.entries("step", "seconds", "flops")):
        raise DataError(f"{run.path}: must have a log of its updates, but has none.")
    return updates


def logged_cost(run: RunFolder) -> LoggedCost:
    """Return the cost of a training by its log; `DataError` if that has no updates.

    The last update of a run that ended early may be logged by its dev scores alone.
    Then updates since the last entry count as much as those before.
    """
    updates = logged_updates(run)
    last = updates[-1]
    steps = max(entry["step"] for entry in (last, *run.log.entries("dev")))
    return LoggedCost(
        steps=steps,
        flops=float(last["flops"]) * steps / max(last["step"], 1),
        seconds=fmean(entry["seconds"] for entry in updates) * steps,
    )


def processors_of(runs: Sequence[SystemRun]) -> tuple[str, ...]:
    """Return the processors that trained the runs, as their logs record them."""
    starts = (e for run in runs for e in RunFolder(run.path).log.entries("start"))
    known = (recorded_environment(entry) for entry in starts)
    return tuple(dict.fromkeys(each.processor for each in known if each is not None))


def _scores(
    translated: Sequence[SystemRun | EnsembleRun], run: SystemRun, trials: Trials
) -> tuple[ReferenceScore, ...]:
    """Score the translations of each test text; `run` has the settings of scoring."""
    config = run.recorded_settings()
    return tuple(_score(test, translated, config, trials) for test in run.tests)


def _score(
    test: EvaluationText,
    translated: Sequence[SystemRun | EnsembleRun],
    config: RunConfig,
    trials: Trials,
) -> ReferenceScore:
    """Score the translations of a test text, pooled over those who made them."""
    language = config.languages.target
    references = read_references(test.source, test.reference)
    tokenization = choose_tokenization(config.evaluation.tokenize, language, references)
    texts = [
        translated_lines(each.translations(test), len(references))
        for each in translated
    ]
    [bleu] = pooled_scores({"": texts}, references, tokenization, trials).systems
    by_paper, moses = None, language_for_paper_bleu(language, references)
    if moses is not None:
        by_paper = fmean(paper_bleu(text, references, moses).score for text in texts)
    return ReferenceScore(
        test=test.name,
        bleu=bleu.score,
        interval=bleu.interval,
        by_seed=tuple(
            corpus_bleu(text, references, tokenization=tokenization).score
            for text in texts
        ),
        paper_bleu=by_paper,
    )


def _curve(run: SystemRun) -> tuple[CurvePoint, ...]:
    """Read the learning curve: the likelihood of the dev text over FLOPs.

    Tokens differ between systems, so the likelihood is per character.
    """
    folder = RunFolder(run.path)
    updates = folder.log.entries("step", "flops")
    # Every tenth update and the last are logged; those by reward cost several times
    # as much.
    steps = [0, *(entry["step"] for entry in updates)]
    flops = [0.0, *(float(entry["flops"]) for entry in updates)]
    is_of_words = run.config.tokenizer.kind == "word"
    per_character = None if is_of_words else _tokens_per_character(run.path)
    points = []
    for entry in folder.log.entries("dev", "perplexity"):
        if entry["perplexity"] is None:  # infinite
            continue
        bits, step = math.log2(entry["perplexity"]), entry["step"]
        points.append(
            CurvePoint(
                step=step,
                flops=float(np.interp(step, steps, flops)),
                bits=None if per_character is None else bits * per_character,
                bleu=entry.get("bleu"),
            )
        )
    return tuple(points)


def _tokens_per_character(run: Path) -> float:
    """Return target tokens per character of the dev pairs that have a likelihood.

    Pairs that were dropped as empty or overlong have none.
    """
    dataset, sides = open_dataset(run / DEV), (DEV_SOURCE, DEV_TARGET)
    source, target = (run / DEV / name for name in sides)
    pairs = kept_pairs(
        read_pairs([source], [target]),
        PairEncoder(tokenizer=load_tokenizer(run / TOKENIZER_FILE)),
        settings_of(run).batching.max_length,
    )
    if len(pairs) != len(dataset):
        raise DataError(
            f"{run / DEV}: the text of the dev corpus must give the {len(dataset):,} "
            f"pairs of its ids, but gives {len(pairs):,}; remove the run to train it "
            "again."
        )
    # Each target has an end token, and each line its end.
    num_tokens = len(dataset.target.ids) + len(dataset)
    return num_tokens / sum(len(pair.target) + 1 for pair in pairs)


def system_runs(
    folder: Path,
    configs: Mapping[str, tuple[str, RunConfig]],
    seeds: Sequence[int],
    tests: Sequence[EvaluationText],
) -> list[SystemRun]:
    """Runs of all systems, ordered by seed, so that a first table is done early."""
    return [
        SystemRun(
            row=key,
            preset=name,
            seed=seed,
            config=with_seed(config, seed),
            folder=folder,
            tests=tuple(tests),
        )
        for seed in seeds
        for key, (name, config) in configs.items()
    ]


def ensembles_of(runs: Sequence[SystemRun]) -> list[EnsembleRun]:
    """Ensembles of each system with several finished trainings."""
    ensembles = []
    for key in SYSTEMS:
        members = tuple(run for run in runs if run.row == key and run.is_done)
        if len(members) > 1:
            ensembles.append(EnsembleRun(members=members, tests=members[0].tests))
    return ensembles


def recipes(configs: Mapping[str, tuple[str, RunConfig]]) -> dict[str, dict[str, str]]:
    """Return the settings in which each system differs from its preset."""
    return {
        key: {
            "preset": name,
            **{k: str(v) for k, v in changes(config, preset(name)).items()},
        }
        for key, (name, config) in configs.items()
    }


LENGTHS = (8, 16, 32)
"""Numbers of tokens for which path lengths are measured."""
FEW_EXPERTS = 4
TRACED_PARAMETERS = 200_000
"""Models with more parameters are traced at a smaller width, which has the same
paths."""


def _traced(model: ArchitectureConfig) -> ArchitectureConfig:
    """Return a smaller model with the same paths."""
    experts = getattr(model, "experts", None)
    if experts is not None:  # a token's path does not depend on their number
        few = replace(experts, num_experts=FEW_EXPERTS, num_groups=None, top_k=1)
        model = replace(model, experts=few)
    with suppress(ConfigError):  # it cannot be narrower
        while num_parameters(model) > TRACED_PARAMETERS:
            model = scaled(model, 0.5)
    return model


def path_lengths(
    configs: Mapping[str, tuple[str, RunConfig]], lengths: Sequence[int] = LENGTHS
) -> dict[str, tuple[PathLengths, ...]]:
    """Measure the path lengths of each system's architecture."""
    found = {}
    for key, (_, config) in configs.items():
        size = NUM_RESERVED + max(lengths)
        model = _traced(replace(config.model, vocab_size=size))
        torch.manual_seed(1)
        built = build(model)
        found[key] = tuple(measure_path_lengths(built, n) for n in lengths)
    return found
