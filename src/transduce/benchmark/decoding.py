"""Speed and memory of decoding: transduce and other systems, on the same sentences.

All systems take turns, one setting at a time, each in a process of its own. They get
text, and tokenize it the same way.
"""

import math
import os
import tempfile
import time
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from transduce.architectures.config import require_transformer
from transduce.benchmark.measurement import (
    MOST_ROUNDS,
    NAME_WIDTH,
    Machine,
    Turn,
    Turns,
    Worker,
    describe_machine,
    load_warning,
    order_of_turns,
    peer_environment,
    within_quota,
)
from transduce.checkpoint import Checkpoint, save_model
from transduce.data.tensors import pad_rows
from transduce.decoding.native_model import DecodingPrecision
from transduce.decoding.processes import default_processes
from transduce.decoding.torch_model import available
from transduce.decoding.translations import MAX_SOURCE_TOKENS
from transduce.decoding.translator import load
from transduce.errors import ConfigError, RequestError, missing_package
from transduce.experiments.presets import RunConfig
from transduce.interop.export import Proof
from transduce.interop.portable_tokenizer import portable_pieces
from transduce.model.transformer import Transformer
from transduce.search_config import MAX_BEAM_SIZE, MAX_TOKENS, SearchConfig
from transduce.settings import require_between
from transduce.text.sentence_pieces import SPACE
from transduce.text.tokenizer import (
    TOKENIZER_FILE,
    Tokenizer,
    learn_tokenizer,
    load_tokenizer,
)
from transduce.text.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES

SENTENCES_OF_ONE = 12
"""Sentences per turn with a batch size of 1."""
SENTENCES_OF_SEVERAL = 256
"""Approximate sentences per turn with larger batches, rounded to whole batches."""
MOST_SENTENCES = 100_000
"""Largest batch in sentences, as the text is held in memory."""
MOST_BATCHES = 8
"""Most batches per turn."""
WARM_UP_SENTENCES = 32
"""Most sentences translated at the start of a turn without being measured, as the
caches hold another system's data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Batch size and search settings of one measurement."""

    batch_size: int
    """Sentences per batch."""
    beam_size: int
    forced_length: int | None = None
    """Length that every translation is forced to, with the end token; None for the
    model's own lengths."""

    def __post_init__(self) -> None:
        require_between("batch_size", self.batch_size, 1, MOST_SENTENCES)
        require_between("beam_size", self.beam_size, 1, MAX_BEAM_SIZE)
        require_between("length", self.forced_length, 2, MAX_TOKENS)

    @property
    def num_sentences(self) -> int:
        """Sentences per turn."""
        if self.batch_size == 1:
            return SENTENCES_OF_ONE
        batches = SENTENCES_OF_SEVERAL // self.batch_size
        return min(max(batches, 1), MOST_BATCHES) * self.batch_size

    def __str__(self) -> str:
        length = f", {self.forced_length} tokens" if self.forced_length else ""
        return f"batch {self.batch_size}, beam {self.beam_size}{length}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingTask:
    """Sentences and settings that every system translates."""

    models: Path
    """Folder with the model of each library: `ours`, `ctranslate2`, `marian`."""
    sentences: tuple[str, ...]
    settings: tuple[Setting, ...]
    rounds: int
    """Rounds over all settings; the first is a warm-up."""
    device: torch.device

    def jobs(self) -> Iterator[Setting]:
        """Setting of each turn."""
        for _ in range(self.rounds):
            yield from self.settings

    def batches(self, setting: Setting) -> list[list[str]]:
        """Batches of a turn; the sentences are repeated if there are too few."""
        tokenizer = load_tokenizer(self.models / "ours" / TOKENIZER_FILE)
        chosen = fitting(self.sentences, setting, tokenizer)
        texts = [chosen[i % len(chosen)] for i in range(setting.num_sentences)]
        starts = range(0, len(texts), setting.batch_size)
        return [texts[start : start + setting.batch_size] for start in starts]


def warm_up(batches: Sequence[list[str]]) -> list[list[str]]:
    """Batches to translate before the measurement."""
    count = max(WARM_UP_SENTENCES // len(batches[0]), 1)
    return [texts[:WARM_UP_SENTENCES] for texts in batches[:count]]


def fitting(
    sentences: Sequence[str], setting: Setting, tokenizer: Tokenizer
) -> list[str]:
    """Sentences that no system truncates or translates in parts.

    With a forced length, only shorter ones, as our translations may be as long as the
    source. Raises `ConfigError` if there are none.
    """
    longest = (setting.forced_length or MAX_SOURCE_TOKENS) - 1
    ids = tokenizer.encode_sources(sentences)
    chosen = [
        text
        for text, source in zip(sentences, ids, strict=True)
        if 0 < len(source) <= longest
    ]
    if not chosen:
        raise ConfigError(
            f"At least one sentence must have at most {longest} tokens, but none has."
        )
    return chosen


LENGTH_PENALTY = 0.6
EXTRA_LENGTH = 50
"""Most tokens of a translation beyond the length of its source."""

Translate = Callable[[list[str], Setting], list[list[int]]]
"""Translates texts to token ids without special tokens."""
Prepare = Callable[[DecodingTask], Translate]
"""Loads a system's model."""


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


def work_of(
    prepare: Prepare, module: str, task: DecodingTask
) -> Callable[[Turns[DecodingOutcome]], None]:
    """Work of a system's process; `module` is imported before the model is loaded."""
    return partial(_take_turns, prepare, module, task)


def _take_turns(
    prepare: Prepare,
    module: str,
    task: DecodingTask,
    turns: Turns[DecodingOutcome],
) -> None:
    import_module(module)  # not counted in the loading time
    started = time.perf_counter()
    translate = prepare(task)
    load_seconds = time.perf_counter() - started
    batches = {setting: task.batches(setting) for setting in task.settings}
    turns.begin()
    for setting in task.jobs():
        for texts in warm_up(batches[setting]):
            translate(texts, setting)
        seconds, found = [], []
        for texts in batches[setting]:
            started = time.perf_counter()
            found += translate(texts, setting)
            seconds.append(time.perf_counter() - started)
        forced = setting.forced_length
        turns.done(
            DecodingOutcome(
                num_tokens=sum(forced or len(ids) + 1 for ids in found),
                num_words=sum(len(text.split()) for text in chain(*batches[setting])),
                batch_seconds=tuple(seconds),
                translations=tuple(map(tuple, found)),
                load_seconds=load_seconds,
            )
        )


def ours(
    precision: DecodingPrecision, shortlist: bool, task: DecodingTask
) -> Translate:
    """Translate as `transduce translate` does, with or without the shortlist."""
    translator = load(
        task.models / "ours",
        device=task.device.type,
        precision=precision,
        num_processes=None,
    )
    translator.get_ready()
    pieces = translator.tokenizer.pieces(range(translator.tokenizer.vocab_size))
    ids = {piece: i for i, piece in enumerate(pieces)}

    def translate(texts: list[str], setting: Setting) -> list[list[int]]:
        forced = setting.forced_length
        search = SearchConfig(
            beam_size=setting.beam_size,
            # As in the peers.
            patience=1,
            penalty="power",
            length_penalty=LENGTH_PENALTY,
            min_length=forced - 1 if forced else 0,
            extra_length=0 if forced else EXTRA_LENGTH,
            shortlist=shortlist,
        )
        found = translator.translate_stream(texts, search)
        return [[ids[piece] for piece in each.hypotheses[0].tokens] for each in found]

    return translate


def ctranslate2(
    compute_type: str, num_workers: int, use_vmap: bool, task: DecodingTask
) -> Translate:
    """`ctranslate2.Translator` on all cores, with our search settings.

    Its workers share the cores. Each gets a part of every batch with short and long
    sentences, as CTranslate2 does not split a batch by itself. `use_vmap` is its form
    of a shortlist: all sentences of a batch choose among the candidates of all.
    """
    import ctranslate2 as library

    translator = library.Translator(
        str(task.models / "ctranslate2"),
        device=task.device.type,
        compute_type=compute_type,
        inter_threads=num_workers,
        intra_threads=max(torch.get_num_threads() // num_workers, 1),
    )
    tokenizer = load_tokenizer(task.models / "ours" / TOKENIZER_FILE)
    pieces = portable_pieces(tokenizer, SPACE)
    ids = {piece: i for i, piece in enumerate(pieces)}
    never = [[SPECIAL_PIECES[PAD]], [SPECIAL_PIECES[BOS]]]

    def translate(texts: list[str], setting: Setting) -> list[list[int]]:
        sources = tokenizer.encode_sources(texts)
        forced = setting.forced_length
        texts_of_pieces = [[pieces[i] for i in source] for source in sources]
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        shares = [order[i::num_workers] for i in range(num_workers)]
        running = [
            translator.translate_batch(
                [texts_of_pieces[i] for i in share],
                asynchronous=True,
                beam_size=setting.beam_size,
                length_penalty=LENGTH_PENALTY,
                min_decoding_length=forced or 0,
                max_decoding_length=forced or max(map(len, sources)) + 1 + EXTRA_LENGTH,
                suppress_sequences=never,
                use_vmap=use_vmap,
            )
            for share in shares
        ]
        found: list[list[int]] = [[] for _ in sources]
        for share, results in zip(shares, running, strict=True):
            for i, result in zip(share, results, strict=True):
                found[i] = [ids[piece] for piece in result.result().hypotheses[0]]
        return found

    return translate


def marian(dtype: torch.dtype, task: DecodingTask) -> Translate:
    """`MarianMTModel.generate` of Hugging Face."""
    from transformers import MarianMTModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model: Any = MarianMTModel.from_pretrained(task.models / "marian", dtype=dtype)
    model.to(task.device).eval()
    tokenizer = load_tokenizer(task.models / "ours" / TOKENIZER_FILE)

    def translate(texts: list[str], setting: Setting) -> list[list[int]]:
        source = pad_rows([[*ids, EOS] for ids in tokenizer.encode_sources(texts)])
        source = source.to(task.device)
        forced = setting.forced_length
        with torch.inference_mode():
            found = model.generate(
                source,
                attention_mask=(source != PAD).long(),
                num_beams=setting.beam_size,
                length_penalty=LENGTH_PENALTY,
                early_stopping=True,
                max_length=None,
                min_new_tokens=forced or 0,
                max_new_tokens=forced or source.size(1) + EXTRA_LENGTH,
            )
        return [[i for i in row if i > EOS] for row in found.tolist()]

    return translate


BENCHMARK = "The benchmark of decoding"
WARM_UP_ROUNDS = 1
SEED = 1
OURS = "transduce"
REFERENCE = f"{OURS} fp32"
CTRANSLATE2, MARIAN = "CTranslate2", "Hugging Face"
CT2_MODULE, HF_MODULE = "ctranslate2", "transformers.models.marian.modeling_marian"
CT2_TYPES = (
    "float32", "int8", "bfloat16", "float16", "int8_bfloat16", "int8_float16",
)  # fmt: skip
"""Compute types of CTranslate2, of which a device supports some."""
NUM_PROVEN = 4
"""Sentences with which the exported model is compared with ours."""
PACKAGES = ("torch", "ctranslate2", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A library that translates, in one precision and form."""

    library: str
    form: str
    """Precision and what else distinguishes it from others of the library."""
    prepare: Prepare
    module: str
    """Module that is imported before the model is loaded."""
    has_shortlist: bool = False
    """Whether it chooses among a shortlist's candidates."""

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"{self.library} {self.form}"

    @property
    def is_ours(self) -> bool:
        """Whether it is transduce."""
        return self.library == OURS

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of its process."""
        return {} if self.is_ours else peer_environment()


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
    """Setting for beam search without a forced length. Endless repetitions may
    differ, as the peers limit the length by batch."""


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
    `RequestError` if the model is no Transformer, or if there is no peer.
    """
    require_transformer(checkpoint.config, BENCHMARK)
    require_between("rounds", rounds, 1, MOST_ROUNDS)
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
        proofs, left_out = _convert(checkpoint, Path(folder), sentences)
        task = DecodingTask(
            models=Path(folder),
            sentences=tuple(sentences),
            settings=tuple(settings),
            rounds=WARM_UP_ROUNDS + rounds,
            device=device,
        )
        systems = [
            each
            for each in _systems_on(
                device, set(proofs), has_shortlist=checkpoint.shortlist is not None
            )
            if names is None or each.name in {REFERENCE, *names}
        ]
        turns = _measure_turns(task, systems, on_turn)
    first = len(settings) * WARM_UP_ROUNDS
    reference = turns[REFERENCE]
    return DecodingSpeed(
        machine=describe_machine(PACKAGES, device),
        num_parameters=checkpoint.build().num_parameters(),
        vocab_size=checkpoint.config.vocab_size,
        rounds=rounds,
        proofs=tuple(f"{peer}: {proof}" for peer, proof in proofs.items()),
        left_out=left_out,
        decoders=tuple(
            _decoder_speed(each, task, turns[each.name][first:], reference[first:])
            for each in systems
        ),
        load=load,
    )


def _convert(
    checkpoint: Checkpoint, folder: Path, sentences: Sequence[str]
) -> tuple[dict[str, Proof], tuple[str, ...]]:
    """Export the model to each peer.

    Returns the proof that the export is right by peer, and sentences on those that
    cannot have the model.
    """
    save_model(checkpoint, folder / "ours")
    setting = Setting(batch_size=1, beam_size=1)
    sample = fitting(sentences, setting, checkpoint.tokenizer)[:NUM_PROVEN]
    proofs: dict[str, Proof] = {}
    left_out: list[str] = []
    for peer, target, package, module in (
        (CTRANSLATE2, "ctranslate2", "ctranslate2", "ctranslate2"),
        (MARIAN, "marian", "transformers", "marian_export"),
    ):
        if find_spec(package) is None:
            left_out.append(missing_package(peer, package, "benchmark"))
            continue
        export = import_module(f"transduce.interop.{module}").export
        try:
            proofs[peer] = export(checkpoint, folder / target, sample)
        except RequestError as error:
            left_out.append(f"{peer} is left out: {error}")
    if not proofs:
        raise RequestError(" ".join(left_out))
    return proofs, tuple(left_out)


def _systems_on(
    device: torch.device, peers: Collection[str], *, has_shortlist: bool
) -> Iterator[System]:
    """Systems that a device has, with the peers that have the model.

    A model with a shortlist is measured both with it and without it, on a CPU.
    """
    ready = available(device)
    shortlists = (False, True) if has_shortlist and device.type == "cpu" else (False,)
    for precision, shortlist in product(ready, shortlists):
        yield System(
            library=OURS,
            form=f"{precision}, shortlist" if shortlist else precision,
            prepare=partial(ours, precision, shortlist),
            module="transduce",
            has_shortlist=shortlist,
        )
    if CTRANSLATE2 in peers:
        known = import_module(CT2_MODULE).get_supported_compute_types(device.type)
        numbers = sorted({1, default_processes(str(device))})
        kinds = [kind for kind in CT2_TYPES if kind in known]
        for kind, number, use_vmap in product(kinds, numbers, shortlists):
            several = f", {number} workers" if number > 1 else ""
            yield System(
                library=CTRANSLATE2,
                form=f"{kind}{several}{', vmap' if use_vmap else ''}",
                prepare=partial(ctranslate2, kind, number, use_vmap),
                module=CT2_MODULE,
                has_shortlist=use_vmap,
            )
    if MARIAN in peers:
        for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            if precision in ready:
                yield System(
                    library=MARIAN,
                    form=precision,
                    prepare=partial(marian, dtype),
                    module=HF_MODULE,
                )


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
            work = partial(within_quota, work_of(each.prepare, each.module, task))
            workers[each.name] = stack.enter_context(
                Worker(each.name, work, task.device, each.environment)
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
    settings = [each.setting for each in speed.decoders[0].settings]
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
    shown = max(settings, key=lambda each: (-each.batch_size, each.beam_size))
    yield f"Milliseconds per batch ({shown}); share of translations equal to our fp32"
    names = ("load", "memory", "median", "90 %", "max", "greedy", "beam")
    yield f"{'':<{width}}" + "".join(f"{name:>9}" for name in names)
    for decoder in speed.decoders:
        [one] = [each for each in decoder.settings if each.setting == shown]
        cells = [
            f"{decoder.load_seconds:.2f} s",
            f"{decoder.peak_bytes / 1e6:,.0f} MB",
            *(f"{1000 * seconds:,.0f}" for seconds in one.batch_seconds),
            *(
                "-" if share is None else f"{share:.1%}"
                for share in (decoder.greedy_agreement, decoder.beam_agreement)
            ),
        ]
        yield f"{decoder.name:<{width}}" + "".join(f"{cell:>9}" for cell in cells)
    for has_shortlist in (False, True):
        yield from _advantages(speed, width, has_shortlist)
    yield ""
    for setting in settings:
        advantage = speed.advantage(setting)
        shortlisted = speed.advantage(setting, has_shortlist=True)
        line = f"{setting}: {advantage:.2f} x the best other system"
        if not math.isnan(shortlisted):
            line += f", with shortlists {shortlisted:.2f} x"
        if not math.isnan(advantage):
            yield line
    yield from load_warning(speed.load)


def _heads(speed: DecodingSpeed) -> str:
    settings = [each.setting for each in speed.decoders[0].settings]
    heads = [f"b{each.batch_size} k{each.beam_size}" for each in settings]
    return "".join(f"{head:>9}" for head in heads)


def _rates(
    speed: DecodingSpeed, width: int, unit: str, rate: Callable[[SettingSpeed], float]
) -> Iterator[str]:
    """Table of a rate by decoder and setting."""
    yield f"{unit:<{width}}" + _heads(speed)
    for decoder in speed.decoders:
        rates = [f"{rate(each):,.1f}" for each in decoder.settings]
        yield f"{decoder.name:<{width}}" + "".join(f"{each:>9}" for each in rates)


def _advantages(speed: DecodingSpeed, width: int, has_shortlist: bool) -> Iterator[str]:
    """Table of our best speed over the best of each library, by setting."""
    settings = [each.setting for each in speed.decoders[0].settings]
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
    yield " " * width + _heads(speed)
    for library in libraries:
        ratios = [
            speed.advantage(each, library=library, has_shortlist=has_shortlist)
            for each in settings
        ]
        yield f"{library:<{width}}" + "".join(f"{ratio:>8.2f}x" for ratio in ratios)
