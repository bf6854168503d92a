"""Tables of text for the figures of a comparison."""

from collections.abc import Callable, Iterator
from statistics import mean

from transduce.benchmark.decoding import DecodingSpeed, SettingSpeed
from transduce.benchmark.training import TrainingSpeed
from transduce.machine import BUSY_LOAD

NAME_WIDTH = 34
"""Columns for the name of a contestant."""


def decoding_table(speed: DecodingSpeed) -> Iterator[str]:
    """Figures of a comparison of decoding as lines of text, the ratios last."""
    yield f"Machine: {speed.machine}"
    yield (
        f"Model: {speed.num_parameters:,} parameters, vocabulary of "
        f"{speed.vocab_size:,}; rounds: {speed.rounds}"
    )
    for proof in speed.proofs:
        yield f"The same model: {proof}"
    yield from speed.left_out
    settings = [each.setting for each in speed.decoders[0].settings]
    yield ""
    yield from _rates(speed, "tokens/s", lambda each: each.tokens_per_second)
    yield ""
    yield from _rates(speed, "sentences/s", lambda each: each.sentences_per_second)
    yield ""
    # The setting of a user who waits for one sentence, if it was measured.
    shown = max(settings, key=lambda each: (-each.batch_size, each.beam_size))
    yield f"Milliseconds of {shown}; share of translations equal to our fp32's"
    names = ("load", "memory", "median", "90 %", "longest", "greedy", "by beam")
    yield f"{'':<{NAME_WIDTH}}" + "".join(f"{name:>9}" for name in names)
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
        yield f"{decoder.name:<{NAME_WIDTH}}" + "".join(f"{cell:>9}" for cell in cells)
    yield ""
    for setting in settings:
        yield f"{setting}: {speed.advantage(setting):.2f} x the best peer"
    if speed.load > BUSY_LOAD:
        yield ""
        yield (
            f"Other programs were running (load {speed.load:.1f}): the figures are too "
            "low, and the ratios rough."
        )


def _rates(
    speed: DecodingSpeed, unit: str, rate: Callable[[SettingSpeed], float]
) -> Iterator[str]:
    """Table of one rate by decoder and setting."""
    settings = [each.setting for each in speed.decoders[0].settings]
    heads = [f"b{each.batch_size} k{each.beam_size}" for each in settings]
    yield f"{unit:<{NAME_WIDTH}}" + "".join(f"{head:>9}" for head in heads)
    for decoder in speed.decoders:
        rates = [f"{rate(each):,.1f}" for each in decoder.settings]
        yield f"{decoder.name:<{NAME_WIDTH}}" + "".join(f"{each:>9}" for each in rates)


def training_table(speed: TrainingSpeed) -> Iterator[str]:
    """Figures of a comparison of training as lines of text."""
    yield f"Machine: {speed.machine}"
    yield f"Matrix products: {speed.matrix_rate / 1e9:,.0f} GFLOP/s on {speed.hardware}"
    yield (
        f"Model: {speed.num_parameters:,} parameters; an update is about "
        f"{mean(speed.target_tokens):,.0f} target tokens and "
        f"{mean(speed.update_flops) / 1e9:,.1f} GFLOP"
    )
    yield from speed.left_out
    yield ""
    heads = ("target tokens/s", "ours / this", "of matrix rate", "peak memory")
    yield f"{f'Rounds: {speed.rounds}':<{NAME_WIDTH}}" + "".join(
        f"{h:>16}" for h in heads
    )
    for each in speed.contestants:
        cells = (
            f"{each.tokens_per_second:,.0f}",
            f"{each.our_advantage:.2f} x",
            f"{each.matrix_share:.1%}",
            f"{each.peak_bytes / 1e6:,.0f} MB",
        )
        yield f"{each.name:<{NAME_WIDTH}}" + "".join(f"{cell:>16}" for cell in cells)
    if speed.load > BUSY_LOAD:
        yield ""
        yield (
            f"Other programs were running (load {speed.load:.1f}): the figures are too "
            "low, and the ratios rough."
        )
