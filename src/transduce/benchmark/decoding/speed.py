"""The speed and memory of decoding, ours and that of others, on the same sentences.

All take turns, one setting at a time, each in a process of its own.
"""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np
import torch

from transduce.benchmark.decoding.contestants import (
    DecodingOutcome,
    Translate,
    contestant,
    ctranslate2,
    marian,
    ours,
)
from transduce.benchmark.decoding.task import DecodingTask, Setting
from transduce.benchmark.machine import Machine, describe_machine
from transduce.benchmark.turns import Turn, Worker
from transduce.checkpoint import Checkpoint, save_model
from transduce.decoding.quantization import available
from transduce.errors import ConfigError, RequestError
from transduce.experiments.presets import RunConfig
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import learn_tokenizer

WARM_UP_ROUNDS = 1
SEED = 1
OURS = "transduce"
PACKAGES = ("torch", "ctranslate2", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSpeed:
    """How one contestant did by one setting; medians are over the rounds."""

    setting: Setting
    tokens_per_second: float
    sentences_per_second: float
    batch_seconds: tuple[float, float, float]
    """The 50th, 90th and 99th percentile of a batch's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpeed:
    """How one contestant did."""

    name: str
    is_ours: bool
    load_seconds: float
    peak_bytes: int
    settings: tuple[SettingSpeed, ...]
    agreement: float
    """Share of greedy translations that are those of our fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingSpeed:
    """What came of a comparison."""

    machine: Machine
    num_parameters: int
    vocab_size: int
    rounds: int
    proofs: tuple[str, ...]
    """That the peers have the same model."""
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

    Its vocabulary is of the full size, learned from the sentences as far as that goes.
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
) -> DecodingSpeed:
    """Let all translate by turns; `on_turn` is told of each before it."""
    if rounds < 1:
        raise ConfigError(f"`rounds` must be at least 1, but is {rounds}.")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        proofs = _convert(checkpoint, Path(folder), sentences[:4])
        task = DecodingTask(
            models=Path(folder),
            sentences=tuple(sentences),
            settings=tuple(settings),
            rounds=WARM_UP_ROUNDS + rounds,
            device=device,
        )
        contestants = _contestants(device)
        turns = _play(task, contestants, on_turn)
    first = len(settings) * WARM_UP_ROUNDS
    reference = turns[f"{OURS} fp32"]
    return DecodingSpeed(
        machine=describe_machine(PACKAGES, device),
        num_parameters=checkpoint.build().num_parameters(),
        vocab_size=checkpoint.config.vocab_size,
        rounds=rounds,
        proofs=proofs,
        decoders=tuple(
            _decoder_speed(name, task, turns[name][first:], reference[first:])
            for name in contestants
        ),
        load=load,
    )


def _convert(
    checkpoint: Checkpoint, folder: Path, sentences: Sequence[str]
) -> tuple[str, ...]:
    for package in ("ctranslate2", "transformers"):
        if find_spec(package) is None:
            raise RequestError(
                f"The peers must be installed, but `{package}` is not; install it "
                "with: pip install 'transduce[benchmark]'"
            )
    from transduce.export import ctranslate2 as to_ctranslate2
    from transduce.export import marian as to_marian

    save_model(checkpoint, folder / "ours")
    proofs = {
        "CTranslate2": to_ctranslate2.export(
            checkpoint, folder / "ctranslate2", sentences
        ),
        "Hugging Face": to_marian.export(checkpoint, folder / "marian", sentences),
    }
    return tuple(f"{name}: {proof}" for name, proof in proofs.items())


def _contestants(
    device: torch.device,
) -> dict[str, Callable[[DecodingTask], Translate]]:
    import ctranslate2 as library

    known = library.get_supported_compute_types(device.type)
    types = [t for t in ("float32", "int8", "bfloat16", "float16") if t in known]
    return {
        **{f"{OURS} {p}": partial(ours, p) for p in available(device)},
        **{f"CTranslate2 {t}": partial(ctranslate2, t) for t in types},
        "Hugging Face fp32": partial(marian, torch.float32),
        "Hugging Face bf16": partial(marian, torch.bfloat16),
    }


def _play(
    task: DecodingTask,
    contestants: Mapping[str, Callable[[DecodingTask], Translate]],
    on_turn: Callable[[str], None],
) -> dict[str, list[Turn[DecodingOutcome]]]:
    played: dict[str, list[Turn[DecodingOutcome]]] = {name: [] for name in contestants}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                Worker(name, contestant(prepare, task), task.device)
            )
            for name, prepare in contestants.items()
        }
        for number, setting in enumerate(task.jobs()):
            names = list(workers)
            first = number % len(names)
            for name in [*names[first:], *names[:first]]:
                on_turn(f"{name}: {setting}")
                played[name].append(workers[name].take_turn())
    return played


def _decoder_speed(
    name: str,
    task: DecodingTask,
    turns: Sequence[Turn[DecodingOutcome]],
    reference: Sequence[Turn[DecodingOutcome]],
) -> DecoderSpeed:
    greedy = [
        mine == theirs
        for setting, turn, ours in zip(_repeated(task), turns, reference, strict=True)
        if setting.beam_size == 1 and setting.forced_length is None
        for mine, theirs in zip(
            turn.outcome.translations, ours.outcome.translations, strict=True
        )
    ]
    return DecoderSpeed(
        name=name,
        is_ours=name.startswith(OURS),
        load_seconds=turns[0].outcome.load_seconds,
        peak_bytes=turns[-1].peak_bytes,
        settings=tuple(
            _setting_speed(setting, turns[i :: len(task.settings)])
            for i, setting in enumerate(task.settings)
        ),
        agreement=float(np.mean(greedy)) if greedy else float("nan"),
    )


def _repeated(task: DecodingTask) -> list[Setting]:
    return list(task.jobs())[len(task.settings) * WARM_UP_ROUNDS :]


def _setting_speed(
    setting: Setting, turns: Sequence[Turn[DecodingOutcome]]
) -> SettingSpeed:
    seconds = [second for turn in turns for second in turn.outcome.batch_seconds]
    middle, high, highest = np.percentile(seconds, (50, 90, 99)).tolist()
    return SettingSpeed(
        setting=setting,
        tokens_per_second=median(t.outcome.num_tokens / t.seconds for t in turns),
        sentences_per_second=median(setting.num_sentences / t.seconds for t in turns),
        batch_seconds=(middle, high, highest),
    )
