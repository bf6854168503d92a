"""`transduce back-translate`: training pairs from text of the target language alone."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from transduce.cli.files import Files
from transduce.cli.help import option_name
from transduce.cli.resumable_output import OutputKeptError
from transduce.cli.terminal import (
    ProgressDisplay,
    plain_console,
    print_message,
    program,
)
from transduce.decoding.native_decoder import PrecisionChoice
from transduce.errors import ConfigError, DataError, counted
from transduce.experiments.synthetic_text import (
    MAX_RATIO,
    SETTINGS,
    BackTranslation,
    InputFigures,
)
from transduce.experiments.synthetic_text import (
    back_translate as write_back_translation,
)
from transduce.files import is_disk_full
from transduce.model_folder import open_model
from transduce.search_config import SamplingConfig, SearchConfig


def back_translate(
    model: Path,
    /,
    *,
    ensemble: Files = (),
    target_language: str | None = None,
    input: Files,
    out: Path,
    force: bool = False,
    sampling: bool = False,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    beam_size: int | None = None,
    length_penalty: float | None = None,
    max_ratio: float = MAX_RATIO,
    drop_worst: float = 0.0,
    device: str = "auto",
    precision: PrecisionChoice = "auto",
    processes: int | None = None,
) -> None:
    """Translate text of the target language back, as pairs to train on.

    The model translates from the target language to the source language (Sennrich et
    al., 2016). The input is the true target side of the pairs, the translations are
    their synthetic source side. The same command continues where it was interrupted.

    For example:

        transduce back-translate runs/de-en --input mono.de --out back-translated
        transduce back-translate runs/de-en --input mono.de --out sampled --sampling

    Parameters
    ----------
    model
        A model or run folder that translates from the target language.
    ensemble
        Further models; each token is chosen by the mean of all models' probabilities.
    target_language
        Language to translate into, of a model with several target languages. By default
        the model's own.
    input
        Text files, one sentence per line, plain or compressed. Every different line is
        translated once.
    out
        Folder of the pairs; new, or begun by the same command.
    force
        Start over if the folder was begun with other settings.
    sampling
        Sample the translations in place of beam search (Edunov et al., 2018).
    temperature
        With --sampling: temperature of the softmax; by default 1.
    top_k
        With --sampling: sample from the k likeliest tokens only.
    top_p
        With --sampling: sample from the likeliest tokens whose probabilities sum to at
        least p.
    seed
        With --sampling: seed; a line's sample depends on it and on the line's number.
    beam_size
        Beam size of the search; by default the model's, 1 is greedy search.
    length_penalty
        Alpha of the length penalty; by default the model's.
    max_ratio
        Drop pairs in which one side has more than this many times the other's tokens.
    drop_worst
        Share of the pairs to drop: those with the lowest log-probability per token.
    device
        auto, cpu or cuda.
    precision
        Precision of matrix products: auto, which is fp32, and int8 for a quantized
        model on a CPU; fp32, which is exact; or bf16 or int8, which can be several
        times faster on a processor that supports them.
    processes
        Number of processes that share the sentences, each on one core; by default one
        for each core within affinity and CPU quota, at most OMP_NUM_THREADS and 16.
    """
    sampled = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    searched = {"beam_size": beam_size, "length_penalty": length_penalty}
    _require_none(searched if sampling else sampled, is_sampling=sampling)
    own = open_model(model).search or SearchConfig()
    with kept_if_interrupted(out), ProgressDisplay() as display:
        result = write_back_translation(
            model,
            input,
            out,
            ensemble=ensemble,
            target_language=target_language,
            sampling=SamplingConfig(**_given(sampled)) if sampling else None,
            search=None if sampling else replace(own, num_best=1).given(searched),
            max_ratio=max_ratio,
            drop_worst=drop_worst,
            device=device,
            precision=precision,
            num_processes=processes,
            overwrite=force,
            on_progress=LineProgress(display),
        )
    _print_result(result)


def _require_none(options: Mapping[str, Any], *, is_sampling: bool) -> None:
    """Raise `ConfigError` if an option of the other kind of decoding is given."""
    for name in _given(options):
        option = option_name(name)
        if is_sampling:
            raise ConfigError(f"{option} has no effect with --sampling; leave it out.")
        raise ConfigError(f"{option} needs --sampling, which is not given; add it.")


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


class LineProgress:
    """Display of the number of translated lines."""

    def __init__(self, display: ProgressDisplay) -> None:
        self._display = display
        self._has_begun = False

    def __call__(self, done: int, total: int) -> None:
        """Show the number of lines that are done, earlier commands included."""
        if not self._has_begun:
            self._display.begin(done, total)
            self._has_begun = True
        self._display.show("lines", (f"{done:,}/{total:,}",), done)


@contextmanager
def kept_if_interrupted(folder: Path) -> Iterator[None]:
    """Report that the same command continues, after a signal or an error of the system.

    Nothing is kept, and nothing said, before the folder has its settings.
    """
    kept = f"What is done is kept in {folder}: the same command continues."
    try:
        yield
    except (KeyboardInterrupt, SystemExit, OSError) as error:
        if not (folder / SETTINGS).is_file():
            raise
        match error:
            case KeyboardInterrupt():
                raise OutputKeptError(f"Interrupted. {kept}") from None
            case SystemExit():
                print_message(f"transduce: {kept}")
                raise
            case OSError():
                remedy = "; free some space" if is_disk_full(error) else ""
                raise DataError(
                    f"{error.filename or folder}: cannot be read or written "
                    f"({error.strerror or error}){remedy}. {kept}"
                ) from None


def describe_input(figures: InputFigures) -> str:
    """Describe the number of lines of the input, and those that are not translated."""
    return (
        f"Input: {counted(figures.lines, 'line')}, {figures.blank:,} of them blank and "
        f"{figures.repeated:,} repeated"
    )


def describe_pairs(pairs: Mapping[str, int]) -> str:
    """Describe the number of kept pairs, and of those dropped for each reason."""
    dropped = {k: n for k, n in pairs.items() if k != "kept" and n}
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in dropped.items())
    total = sum(pairs.values())
    dropped_ones = f"; dropped: {reasons}" if reasons else ""
    return f"Pairs: {pairs['kept']:,} of {total:,} kept{dropped_ones}"


def _print_result(result: BackTranslation) -> None:
    console = plain_console()
    console.print(describe_input(result.figures))
    console.print(describe_pairs(result.pairs))
    console.print(f"Synthetic source: {result.source}")
    console.print(f"True target: {result.target}")
    files = shlex.join((str(result.source), str(result.target)))
    console.print(
        "Train on them together with true pairs; a tag marks the synthetic ones:\n"
        f"  {program()} train --corpus true SOURCE TARGET "
        f"--corpus back {files} tag=bt --out RUN"
    )
