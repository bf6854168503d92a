"""`transduce sample`: random translations."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from transduce.cli.files import Files
from transduce.cli.lines import (
    OutputFormat,
    source_lines,
    warn_of_other_language,
    write_translations,
)
from transduce.cli.resumable_output import Destination, Origin, RecordOutput
from transduce.decoding.native_decoder import PrecisionChoice
from transduce.decoding.translations import Pace, Translation
from transduce.decoding.translator import load
from transduce.model_folder import model_sum
from transduce.search_config import SamplingConfig


def sample(
    model: Path,
    /,
    *,
    ensemble: Files = (),
    input: Path | None = None,
    output: Path | None = None,
    force: bool = False,
    resume: bool = False,
    number: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 1,
    extra_length: int = 50,
    target_language: str | None = None,
    tag: str | None = None,
    jsonl: bool = False,
    device: str = "auto",
    precision: PrecisionChoice = "auto",
    processes: int | None = None,
) -> None:
    """Sample translations of each line, token by token from the model's distribution.

    For example:

        transduce sample runs/mine --input test.en --number 5 --temperature 0.8

    Parameters
    ----------
    model
        A model or run folder.
    ensemble
        Further models; tokens are sampled from the mean of all models' probabilities.
    input
        A text file, one sentence per line; - is standard input, the default.
    output
        A file to write; - is standard output, the default. Lines are kept in
        OUTPUT.part until all are done.
    force
        Overwrite the output if it exists.
    resume
        Continue an interrupted output of the same model, input and options.
    number
        Number of translations of each line, likeliest first, one per line. A line that
        is translated in parts has only one: the likeliest sample of each part.
    temperature
        Temperature of the softmax, above 0; below 1, likely tokens become likelier.
    top_k
        Sample from the k likeliest tokens only (Fan et al., 2018).
    top_p
        Sample from the likeliest tokens whose probabilities sum to at least p, above 0
        and at most 1 (Holtzman et al., 2020).
    seed
        Seed of the samples; the same seed gives a line the same translations.
    extra_length
        Maximum length of a translation minus that of its source, in tokens.
    target_language
        Language to translate into, of a model with several target languages: its tag,
        such as >>de<<, is put before each line that does not begin with one. By default
        the model's own.
    tag
        Tag of a corpus of the training, such as bt for <bt>, before each line.
    jsonl
        Write one JSON object per line, with scores and tokens.
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
        model,
        *ensemble,
        device=device,
        precision=precision,
        num_processes=processes,
        target_language=target_language,
        tag=tag,
    )
    if input is not None:
        warn_of_other_language(model, "source", translator.source_language, [input])

    def origin() -> Origin:
        return {
            "command": "sample",
            "models": [model_sum(each) for each in (model, *ensemble)],
            "sampling": asdict(config),
        }

    def found(rest: RecordOutput, pace: Pace) -> Iterator[Translation]:
        return translator.sample_stream(rest.reading(source.lines), config, pace)

    write_translations(
        found,
        source.windows,
        destination,
        origin,
        OutputFormat(num_best=number, jsonl=jsonl),
        translator,
    )
