"""Speed and memory of decoding: transduce and other systems, on the same sentences.

All systems take turns, one setting at a time, each in a process of its own.
"""

import math
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from statistics import median

import numpy as np
import torch

from transduce.architectures.config import require_transformer
from transduce.benchmark.measurement import (
    MAX_ROUNDS,
    NAME_WIDTH,
    Machine,
    Turn,
    Turns,
    Worker,
    describe_machine,
    load_warning,
    order_of_turns,
    within_quota,
)
from transduce.benchmark.peers import (
    REFERENCE,
    DecodingTask,
    LoadedSystem,
    Prepare,
    Setting,
    System,
    convert,
    fitting,
    systems_on,
)
from transduce.checkpoint import Checkpoint
from transduce.device import choose_hardware
from transduce.errors import ConfigError, RequestError, percent
from transduce.experiments.presets import RunConfig
from transduce.model.transformer import Transformer
from transduce.settings import require_between
from transduce.text.tokenizer import learn_tokenizer
from transduce.training.memory import require_memory

WARM_UP_SENTENCES = 32
"""Most sentences translated at the start of a turn without being measured, as the
caches hold another system's data."""


def warm_up(batches: Sequence[list[str]]) -> list[list[str]]:
    """Batches to translate before the measurement."""
    count = max(WARM_UP_SENTENCES // len(batches[0]), 1)
    return [texts[:WARM_UP_SENTENCES] for texts in batches[:count]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingOutcome:
    """Translations and times of one turn."""

    num_tokens: int
    """Tokens of the translations, with end tokens."""
    num_words: int
    """Words of the sources, between spaces."""
    batch_seconds: tuple[float, ...]
    translations: tuple[tuple[int, ...], ...]
    load_seconds: float
    """Time to load the model, the same in every turn."""


def translate_in_turns(
    prepare: Prepare,
    module: str,
    task: DecodingTask,
    turns: Turns[DecodingOutcome],
) -> None:
    """Translate in every turn; `module` is imported before the model is loaded."""
    import_module(module)  # not counted in the loading time
    started = time.perf_counter()
    system = prepare(task)
    load_seconds = time.perf_counter() - started
    batches = {setting: task.batches(setting) for setting in task.settings}
    with closing(system):
        turns.begin()
        for setting in task.jobs():
            turns.done(_outcome(system, setting, batches[setting], load_seconds))


def _outcome(
    system: LoadedSystem,
    setting: Setting,
    batches: Sequence[list[str]],
    load_seconds: float,
) -> DecodingOutcome:
    """Translate the batches of a turn."""
    for texts in warm_up(batches):
        system.translate(texts, setting)
    seconds: list[float] = []
    found: list[list[int]] = []
    for texts in batches:
        system.get_ready(texts, setting)
        started = time.perf_counter()
        found += system.translate(texts, setting)
        seconds.append(time.perf_counter() - started)
    forced = setting.forced_length
    return DecodingOutcome(
        num_tokens=sum(forced or len(ids) + 1 for ids in found),
        num_words=sum(len(text.split()) for text in chain(*batches)),
        batch_seconds=tuple(seconds),
        translations=tuple(map(tuple, found)),
        load_seconds=load_seconds,
    )


BENCHMARK = "The benchmark of decoding"
WARM_UP_ROUNDS = 1
SEED = 1
WEIGHT_BYTES = 4
"""Bytes of a weight in fp32."""
PACKAGES = ("torch", "ctranslate2", "transformers")
CELL_WIDTH = 9
"""Least width of a column of figures in a table, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSpeed:
    """Speed of one system with one setting; medians are over the rounds."""

    setting: Setting
    tokens_per_second: float
    sentences_per_second: float
    words_per_second: float
    """Words of the source, between spaces."""
    batch_seconds: tuple[float, float, float]
    """Median, 90th percentile and maximum of the time of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpeed:
    """Speed and memory of one system."""

    name: str
    library: str
    has_shortlist: bool
    """Whether it chooses among a shortlist's candidates."""
    is_ours: bool
    load_seconds: float
    peak_bytes: int
    """Peak resident memory, PyTorch included; on a GPU, growth of its memory use."""
    settings: tuple[SettingSpeed, ...]
    greedy_agreement: float | None
    """Share of greedy translations that equal those of our fp32. The last token of a
    forced length is not compared, as only ours may be an end token."""
    beam_agreement: float | None
    """Share of beam search's translations without a forced length that equal those of
    our fp32. Endless repetitions may differ, as the peers limit the length by
    batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingSpeed:
    """Results of a comparison of decoding."""

    machine: Machine
    num_parameters: int
    vocab_size: int
    rounds: int
    proofs: tuple[str, ...]
    """Evidence that the peers have the same model."""
    left_out: tuple[str, ...]
    """Sentences about systems that could not take part."""
    decoders: tuple[DecoderSpeed, ...]
    load: float
    """Load average of the minute before the measurement."""

    @property
    def settings(self) -> list[Setting]:
        """Settings that all systems translate with."""
        return [each.setting for each in self.decoders[0].settings]

    def advantage(
        self,
        setting: Setting,
        *,
        library: str | None = None,
        has_shortlist: bool = False,
    ) -> float:
        """Best tokens per second of ours over the best of the peers, or of one library.

        Compares the systems that choose among a shortlist's candidates, or those that
        choose among the whole vocabulary. NaN if either side has none.
        """
        rates: dict[bool, list[float]] = {True: [], False: []}
        for decoder in self.decoders:
            if decoder.has_shortlist == has_shortlist and (
                decoder.is_ours or library in {None, decoder.library}
            ):
                rates[decoder.is_ours] += [
                    speed.tokens_per_second
                    for speed in decoder.settings
                    if speed.setting == setting
                ]
        if not all(rates.values()):
            return math.nan
        return max(rates[True]) / max(rates[False])


def random_checkpoint(run: RunConfig, sentences: Sequence[str]) -> Checkpoint:
    """Untrained model of a preset's sizes, which is as fast as a trained one.

    Its vocabulary is learned from the sentences, and is smaller than the preset's if
    they have too few words.
    """
    model = require_transformer(run.model, BENCHMARK, "choose another preset")
    tokenizer = learn_tokenizer(sentences, run.tokenizer)
    config = replace(model, vocab_size=tokenizer.vocab_size)
    require_memory(config, choose_hardware("cpu"), "Decoding", WEIGHT_BYTES)
    torch.manual_seed(SEED)
    weights = Transformer(config).state_dict()
    return Checkpoint(config=config, weights=weights, tokenizer=tokenizer, step=0)


def measure_decoding(
    checkpoint: Checkpoint,
    sentences: Sequence[str],
    settings: Sequence[Setting],
    rounds: int,
    device: torch.device,
    on_turn: Callable[[str], None],
    names: Collection[str] | None = None,
) -> DecodingSpeed:
    """Measure the decoding speed of all systems in turns.

    `names` restricts the systems, for example to "CTranslate2 float16"; our fp32, with
    which translations are compared, always takes part. Calls `on_turn` with the name
    of each step before it. Raises `ConfigError` if there is no setting, and
    `RequestError` if the model is no Transformer, if there is no peer, or if no system
    has one of the names.
    """
    require_transformer(checkpoint.config, BENCHMARK)
    require_between("rounds", rounds, 1, MAX_ROUNDS)
    if not settings:
        raise ConfigError(
            "A comparison needs at least one batch size and one beam size, but none is "
            "given."
        )
    for setting in settings:
        fitting(sentences, setting, checkpoint.tokenizer)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        on_turn("exporting the model")
        peers = convert(checkpoint, Path(folder), sentences, settings, device)
        task = DecodingTask(
            models=Path(folder),
            sentences=tuple(sentences),
            settings=tuple(settings),
            rounds=WARM_UP_ROUNDS + rounds,
            device=device,
        )
        systems = list(
            systems_on(device, peers, has_shortlist=checkpoint.shortlist is not None)
        )
        missing = _missing_names(names or (), systems)
        if names is not None:
            systems = [each for each in systems if each.name in {REFERENCE, *names}]
        turns = _measure_turns(task, systems, on_turn)
    first = len(settings) * WARM_UP_ROUNDS
    reference = turns[REFERENCE]
    return DecodingSpeed(
        machine=describe_machine(PACKAGES, device),
        num_parameters=checkpoint.build().num_parameters(),
        vocab_size=checkpoint.config.vocab_size,
        rounds=rounds,
        proofs=tuple(f"{peer}: {proof}" for peer, proof in peers.proofs.items()),
        left_out=(*peers.left_out, *missing),
        decoders=tuple(
            _decoder_speed(each, task, turns[each.name][first:], reference[first:])
            for each in systems
        ),
        load=load,
    )


def _missing_names(names: Collection[str], systems: Sequence[System]) -> list[str]:
    """Return a sentence about each name that no system has.

    Raises `RequestError` if no name belongs to a system.
    """
    known = [each.name for each in systems]
    missing = [
        f"There is no system {name!r} here; there are {', '.join(map(repr, known))}."
        for name in names
        if name not in known
    ]
    if missing and len(missing) == len(names):
        raise RequestError(missing[0])
    return missing


def _measure_turns(
    task: DecodingTask,
    systems: Sequence[System],
    on_turn: Callable[[str], None],
) -> dict[str, list[Turn[DecodingOutcome]]]:
    """Turns of each system, by its name."""
    turns: dict[str, list[Turn[DecodingOutcome]]] = {each.name: [] for each in systems}
    with ExitStack() as stack:
        workers: dict[str, Worker[DecodingOutcome]] = {}
        for each in systems:
            on_turn(f"{each.name}: loading the model")
            work = partial(translate_in_turns, each.prepare, each.module, task)
            workers[each.name] = stack.enter_context(
                Worker(
                    each.name,
                    partial(within_quota, work),
                    task.device,
                    each.environment,
                )
            )
        for number, setting in enumerate(task.jobs()):
            for name in order_of_turns(list(workers), number):
                on_turn(f"{name}: {setting}")
                turns[name].append(workers[name].take_turn())
    return turns


def _decoder_speed(
    system: System,
    task: DecodingTask,
    turns: Sequence[Turn[DecodingOutcome]],
    reference: Sequence[Turn[DecodingOutcome]],
) -> DecoderSpeed:
    compared = list(zip(_repeated(task), turns, reference, strict=True))
    return DecoderSpeed(
        name=system.name,
        library=system.library,
        has_shortlist=system.has_shortlist,
        is_ours=system.is_ours,
        load_seconds=turns[0].outcome.load_seconds,
        peak_bytes=turns[-1].peak_bytes,
        settings=tuple(
            _setting_speed(setting, turns[i :: len(task.settings)])
            for i, setting in enumerate(task.settings)
        ),
        greedy_agreement=_agreement(
            turn for turn in compared if turn[0].beam_size == 1
        ),
        beam_agreement=_agreement(
            turn
            for turn in compared
            if turn[0].beam_size > 1 and turn[0].forced_length is None
        ),
    )


def _agreement(
    compared: Iterable[tuple[Setting, Turn[DecodingOutcome], Turn[DecodingOutcome]]],
) -> float | None:
    """Share of translations that are the same in both systems' turns."""
    same = [
        _compared(mine, setting) == _compared(theirs, setting)
        for setting, turn, other in compared
        for mine, theirs in zip(
            turn.outcome.translations, other.outcome.translations, strict=True
        )
    ]
    return float(np.mean(same)) if same else None


def _compared(ids: tuple[int, ...], setting: Setting) -> tuple[int, ...]:
    return ids if setting.forced_length is None else ids[: setting.forced_length - 1]


def _repeated(task: DecodingTask) -> list[Setting]:
    return list(task.jobs())[len(task.settings) * WARM_UP_ROUNDS :]


def _setting_speed(
    setting: Setting, turns: Sequence[Turn[DecodingOutcome]]
) -> SettingSpeed:
    seconds = [second for turn in turns for second in turn.outcome.batch_seconds]
    turn_seconds = [sum(turn.outcome.batch_seconds) for turn in turns]

    def usual_rate(number: Callable[[DecodingOutcome], int]) -> float:
        rates = zip(turns, turn_seconds, strict=True)
        return median(number(turn.outcome) / seconds for turn, seconds in rates)

    middle, high, highest = np.percentile(seconds, (50, 90, 100)).tolist()
    return SettingSpeed(
        setting=setting,
        tokens_per_second=usual_rate(lambda outcome: outcome.num_tokens),
        sentences_per_second=usual_rate(lambda _: setting.num_sentences),
        words_per_second=usual_rate(lambda outcome: outcome.num_words),
        batch_seconds=(middle, high, highest),
    )


def decoding_table(speed: DecodingSpeed) -> Iterator[str]:
    """Format a comparison of decoding as lines of text, the ratios last."""
    yield f"Machine: {speed.machine}"
    yield (
        f"Model: {speed.num_parameters:,} parameters, vocabulary of "
        f"{speed.vocab_size:,}; rounds: {speed.rounds}"
    )
    for proof in speed.proofs:
        yield f"Same model: {proof}"
    yield from speed.left_out
    width = max(NAME_WIDTH, *(len(each.name) + 2 for each in speed.decoders))
    for unit, rate in (
        ("tokens/s", lambda each: each.tokens_per_second),
        ("sentences/s", lambda each: each.sentences_per_second),
        ("words of the source/s", lambda each: each.words_per_second),
    ):
        yield ""
        yield from _rates(speed, width, unit, rate)
    yield ""
    # The smallest batch shows the latency of a single user.
    shown = max(speed.settings, key=lambda each: (-each.batch_size, each.beam_size))
    yield f"Milliseconds per batch ({shown}); share of translations equal to our fp32"
    yield from _costs(speed, width, shown)
    for has_shortlist in (False, True):
        yield from _advantages(speed, width, has_shortlist)
    yield ""
    for setting in speed.settings:
        advantage = speed.advantage(setting)
        shortlisted = speed.advantage(setting, has_shortlist=True)
        line = f"{setting}: {advantage:.2f} x the best other system"
        if not math.isnan(shortlisted):
            line += f", with shortlists {shortlisted:.2f} x"
        if not math.isnan(advantage):
            yield line
    yield from load_warning(speed.load)


def _costs(speed: DecodingSpeed, width: int, shown: Setting) -> Iterator[str]:
    """Format loading, memory, latencies and agreement of each decoder as a table."""
    rows = [("", ["load", "memory", "median", "90 %", "max", "greedy", "beam"])]
    for decoder in speed.decoders:
        [one] = [each for each in decoder.settings if each.setting == shown]
        shares = (decoder.greedy_agreement, decoder.beam_agreement)
        cells = [
            f"{decoder.load_seconds:.2f} s",
            f"{decoder.peak_bytes / 1e6:,.0f} MB",
            *(f"{1000 * seconds:,.0f}" for seconds in one.batch_seconds),
            *("-" if share is None else percent(share, 1) for share in shares),
        ]
        rows.append((decoder.name, cells))
    yield from _in_columns(rows, width)


def _heads(speed: DecodingSpeed) -> list[str]:
    return [f"b{each.batch_size} k{each.beam_size}" for each in speed.settings]


def _in_columns(rows: Sequence[tuple[str, list[str]]], width: int) -> Iterator[str]:
    """Format rows of a name and cells, with a space before the longest cell."""
    longest = max(len(cell) for _, cells in rows for cell in cells)
    cell_width = max(longest + 1, CELL_WIDTH)
    for name, cells in rows:
        yield f"{name:<{width}}" + "".join(f"{cell:>{cell_width}}" for cell in cells)


def _rates(
    speed: DecodingSpeed, width: int, unit: str, rate: Callable[[SettingSpeed], float]
) -> Iterator[str]:
    """Table of a rate by decoder and setting."""
    rows = [(unit, _heads(speed))]
    for decoder in speed.decoders:
        rows.append((decoder.name, [f"{rate(each):,.1f}" for each in decoder.settings]))
    yield from _in_columns(rows, width)


def _advantages(speed: DecodingSpeed, width: int, has_shortlist: bool) -> Iterator[str]:
    """Table of our best speed over the best of each library, by setting."""
    libraries = dict.fromkeys(
        each.library
        for each in speed.decoders
        if not each.is_ours and each.has_shortlist == has_shortlist
    )
    if not libraries:
        return
    vocabulary = "with a shortlist" if has_shortlist else "with the whole vocabulary"
    yield ""
    yield f"Our best over the best of each, {vocabulary}"
    rows = [("", _heads(speed))]
    for library in libraries:
        ratios = [
            speed.advantage(each, library=library, has_shortlist=has_shortlist)
            for each in speed.settings
        ]
        cells = ["-" if math.isnan(ratio) else f"{ratio:.2f}x" for ratio in ratios]
        rows.append((library, cells))
    yield from _in_columns(rows, width)
