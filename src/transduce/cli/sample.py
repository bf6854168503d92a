"""`transduce sample`: translations drawn at random."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from transduce.cli.files import Files
from transduce.cli.lines import (
    Form,
    lines_found_together,
    source_lines,
    write_translations,
)
from transduce.cli.output import Force
from transduce.cli.partial_output import (
    Destination,
    Origin,
    RecordOutput,
    Resume,
    model_sum,
)
from transduce.decoding.ready_model import DecodingPrecision
from transduce.decoding.streaming import Pace
from transduce.decoding.translations import Translation
from transduce.decoding.translator import load
from transduce.search_config import SamplingConfig


def sample(
    model: Path,
    /,
    *,
    ensemble: Files = (),
    input: Path | None = None,
    output: Path | None = None,
    force: Force = False,
    resume: Resume = False,
    number: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 1,
    extra_length: int = 50,
    jsonl: Annotated[bool, Parameter(negative="")] = False,
    device: str = "auto",
    precision: DecodingPrecision = "fp32",
    processes: int | None = None,
) -> None:
    """Draw translations of each line at random, each token by its probability.

    For example:

        transduce sample runs/mine --input test.en --number 5 --temperature 0.8

    Parameters
    ----------
    model
        A model or run folder.
    ensemble
        Further models; tokens are drawn by the mean of all models' probabilities.
    input
        A text file, one sentence a line; - is standard input, the default.
    output
        A file to write; - is standard output, the default. Lines are kept in
        OUTPUT.part until all are done.
    force
        Overwrite the output if it exists.
    resume
        Go on with an output that was cut short, of the same model, input and options.
    number
        Number of translations of each line, likeliest first, one a line. An over-long
        line has only one: the likeliest draw of each of its parts.
    temperature
        Temperature of the softmax, above 0; below 1, likely tokens become likelier.
    top_k
        Draw only from this number of likeliest tokens (Fan et al., 2018).
    top_p
        Draw only from the likeliest tokens that together have this probability, above
        0 and at most 1 (Holtzman et al., 2020).
    seed
        Seed of the draws; the same seed gives a line the same translations.
    extra_length
        The most tokens of a translation beyond the number of its source's tokens.
    jsonl
        Write a JSON object a line, with scores and tokens.
    device
        auto, cpu or cuda.
    precision
        Precision of matrix products: fp32 is exact; bf16 and int8 are up to several
        times as fast on a processor that supports them.
    processes
        Processes that share many sentences, each on one core; by default one for each
        core, or as many as OMP_NUM_THREADS says, and at most 16.
    """
    config = SamplingConfig(
        number=number,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        extra_length=extra_length,
        seed=seed,
    )
    destination = Destination(output=output, force=force, resume=resume)
    destination.require_usable(input)
    source = source_lines(input)
    translator = load(
        model, *ensemble, device=device, precision=precision, num_processes=processes
    )

    def origin() -> Origin:
        return {
            "command": "sample",
            "models": [model_sum(each) for each in (model, *ensemble)],
            "sampling": asdict(config),
            "device": translator.device,
            "precision": precision,
        }

    def found(rest: RecordOutput, pace: Pace) -> Iterator[Translation]:
        return translator.sample_stream(rest.reading(source.lines), config, pace)

    write_translations(
        found,
        source.windows,
        destination,
        origin,
        Form(num_best=number, jsonl=jsonl),
        lines_found_together(translator, precision, told=jsonl),
    )
