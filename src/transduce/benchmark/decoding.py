"""The speed and memory of decoding, ours and that of others, on the same sentences.

All take turns, one setting at a time, each in a process of its own.
"""

import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np
import torch

from transduce.benchmark.decoding_systems import (
    DecodingOutcome,
    DecodingTask,
    Prepare,
    Setting,
    contestant,
    ctranslate2,
    fitting,
    marian,
    ours,
)
from transduce.benchmark.measurement import (
    MOST_ROUNDS,
    Machine,
    Turn,
    Worker,
    describe_machine,
    order_of_turns,
)
from transduce.checkpoint import Checkpoint, save_model
from transduce.decoding.processes import default_processes
from transduce.decoding.torch_model import available
from transduce.errors import ConfigError, RequestError, missing_package
from transduce.experiments.presets import RunConfig
from transduce.interop.proof import Proof
from transduce.model.transformer import Transformer
from transduce.settings import require_between
from transduce.text.tokenizer import learn_tokenizer

WARM_UP_ROUNDS = 1
SEED = 1
OURS = "transduce"
REFERENCE = f"{OURS} fp32"
CTRANSLATE2, MARIAN = "CTranslate2", "Hugging Face"
CT2_LIBRARY, HF_LIBRARY = "ctranslate2", "transformers.models.marian.modeling_marian"
CT2_TYPES = (
    "float32", "int8", "bfloat16", "float16", "int8_bfloat16", "int8_float16",
)  # fmt: skip
"""As that library calls them; which of them a device knows, it says."""
NUM_PROVEN = 4
"""Sentences."""
PACKAGES = ("torch", "ctranslate2", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSpeed:
    """How one contestant did by one setting; medians are over the rounds."""

    setting: Setting
    tokens_per_second: float
    sentences_per_second: float
    batch_seconds: tuple[float, float, float]
    """Of a batch: the median, the 90th percentile and the longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpeed:
    """How one contestant did."""

    name: str
    is_ours: bool
    load_seconds: float
    peak_bytes: int
    """Resident, PyTorch included with all; on a GPU, by what its use has grown."""
    settings: tuple[SettingSpeed, ...]
    greedy_agreement: float | None
    """Share of greedy translations that are those of our fp32. Of a forced length the
    last token is not compared: only ours may be an end."""
    beam_agreement: float | None
    """The same of beam search, where no length is forced. Where one repeats itself
    without end, it may differ: the peers' limit is that of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingSpeed:
    """What came of a comparison."""

    machine: Machine
    num_parameters: int
    vocab_size: int
    rounds: int
    proofs: tuple[str, ...]
    """That the peers have the same model."""
    left_out: tuple[str, ...]
    """Why some did not take part, one sentence each."""
    decoders: tuple[DecoderSpeed, ...]
    load: float
    """Programs that wanted to run in the minute before it, on average."""

    def advantage(self, setting: Setting) -> float:
        """Our best tokens per second over the best peer's."""
        rates: dict[bool, list[float]] = {True: [], False: []}
        for decoder in self.decoders:
            for speed in decoder.settings:
                if speed.setting == setting:
                    rates[decoder.is_ours].append(speed.tokens_per_second)
        return max(rates[True]) / max(rates[False])


def random_checkpoint(run: RunConfig, sentences: Sequence[str]) -> Checkpoint:
    """A model of a preset's sizes, as fast as a trained one.

    Its vocabulary is learned from the sentences, and is of the preset's size if they
    have so many words.
    """
    tokenizer = learn_tokenizer(sentences, run.tokenizer)
    config = replace(run.model, vocab_size=tokenizer.vocab_size)
    torch.manual_seed(SEED)
    model = Transformer(config)
    return Checkpoint(
        config=config, weights=model.state_dict(), tokenizer=tokenizer, step=0
    )


def measure_decoding(
    checkpoint: Checkpoint,
    sentences: Sequence[str],
    settings: Sequence[Setting],
    rounds: int,
    device: torch.device,
    on_turn: Callable[[str], None],
    names: Collection[str] | None = None,
) -> DecodingSpeed:
    """Let all translate by turns; `on_turn` is told of each step before it.

    `names` restricts the contestants, such as "CTranslate2 float16"; our fp32, with
    which translations are compared, always takes part.
    """
    require_between("rounds", rounds, 1, MOST_ROUNDS)
    if not settings:
        raise ConfigError("There must be a batch size and a beam size, but is none.")
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
        contestants = {
            name: each
            for name, each in _contestants(device, set(proofs)).items()
            if names is None or name in {REFERENCE, *names}
        }
        turns = _play(task, contestants, on_turn)
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
            _decoder_speed(name, task, turns[name][first:], reference[first:])
            for name in contestants
        ),
        load=load,
    )


def _convert(
    checkpoint: Checkpoint, folder: Path, sentences: Sequence[str]
) -> tuple[dict[str, Proof], tuple[str, ...]]:
    """The proofs of the peers that can have the model, and why others cannot."""
    save_model(checkpoint, folder / "ours")
    setting = Setting(batch_size=1, beam_size=1)
    sample = fitting(sentences, setting, checkpoint.tokenizer)[:NUM_PROVEN]
    proofs: dict[str, Proof] = {}
    left_out: list[str] = []
    for peer, target, package, module in (
        (CTRANSLATE2, "ctranslate2", "ctranslate2", "ctranslate2"),
        (MARIAN, "marian", "transformers", "marian"),
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


def _contestants(
    device: torch.device, peers: Collection[str]
) -> dict[str, tuple[Prepare, str]]:
    """What prepares each, and the library that it imports."""
    ready = available(device)
    found: dict[str, tuple[Prepare, str]] = {
        f"{OURS} {precision}": (partial(ours, precision), "transduce")
        for precision in ready
    }
    if CTRANSLATE2 in peers:
        library = import_module("ctranslate2")
        known = library.get_supported_compute_types(device.type)
        for kind in CT2_TYPES:
            if kind in known:
                name = f"{CTRANSLATE2} {kind}"
                found[name] = partial(ctranslate2, kind, 1), CT2_LIBRARY
                if (workers := default_processes(str(device))) > 1:
                    several = partial(ctranslate2, kind, workers)
                    found[f"{name}, {workers} workers"] = several, CT2_LIBRARY
    if MARIAN in peers:
        for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            if precision in ready:
                found[f"{MARIAN} {precision}"] = partial(marian, dtype), HF_LIBRARY
    return found


def _play(
    task: DecodingTask,
    contestants: Mapping[str, tuple[Prepare, str]],
    on_turn: Callable[[str], None],
) -> dict[str, list[Turn[DecodingOutcome]]]:
    played: dict[str, list[Turn[DecodingOutcome]]] = {name: [] for name in contestants}
    with ExitStack() as stack:
        workers: dict[str, Worker[DecodingOutcome]] = {}
        for name, (prepare, library) in contestants.items():
            on_turn(f"{name}: loading the model")
            work = contestant(prepare, library, task)
            workers[name] = stack.enter_context(Worker(name, work, task.device))
        for number, setting in enumerate(task.jobs()):
            for name in order_of_turns(list(workers), number):
                on_turn(f"{name}: {setting}")
                played[name].append(workers[name].take_turn())
    return played


def _decoder_speed(
    name: str,
    task: DecodingTask,
    turns: Sequence[Turn[DecodingOutcome]],
    reference: Sequence[Turn[DecodingOutcome]],
) -> DecoderSpeed:
    compared = list(zip(_repeated(task), turns, reference, strict=True))
    return DecoderSpeed(
        name=name,
        is_ours=name.startswith(OURS),
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
    """Share of the translations of two contestants' turns that are alike."""
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
    middle, high, highest = np.percentile(seconds, (50, 90, 100)).tolist()
    return SettingSpeed(
        setting=setting,
        tokens_per_second=median(
            t.outcome.num_tokens / sum(t.outcome.batch_seconds) for t in turns
        ),
        sentences_per_second=median(
            setting.num_sentences / sum(t.outcome.batch_seconds) for t in turns
        ),
        batch_seconds=(middle, high, highest),
    )
