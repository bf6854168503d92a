"""`transduce benchmark`: speed beside other libraries, by turns in one run."""

from dataclasses import asdict
from itertools import islice
from pathlib import Path

from transduce.benchmark.training import (
    WARM_UP_ROUNDS,
    measure_training,
    training_table,
)
from transduce.checkpoint import load_model
from transduce.cli.options import Assignments, require_distinct, run_config
from transduce.cli.terminal import Json, error_console, print_json
from transduce.device import choose_hardware
from transduce.errors import ConfigError, RequestError
from transduce.grammar.corpus import Grammar
from transduce.machine import Precision
from transduce.text.corpus import read_text

PRESET = "base"
NUM_SENTENCES = 2_000
"""Number of sentences of the built-in corpus."""


def training(
    *,
    preset: str = "base",
    settings: Assignments = (),
    device: str = "auto",
    precision: Precision = "auto",
    rounds: int = 5,
    plain_peers: bool = False,
    json_output: Json = False,
) -> None:
    """Measure speed and memory of training beside other libraries.

    Hugging Face Marian and torch.nn.Transformer train the same model on the same
    batches in the same precision. Each runs in its own process; they take turns, one
    update each.

    For example:

        transduce benchmark training --preset multi30k

    Parameters
    ----------
    preset
        Settings of model, batches and training: base, big, multi30k, ...
    settings
        Single settings, such as model.num_layers=2.
    device
        auto, cpu or cuda.
    precision
        Precision of matrix products; by default bf16 where it is faster.
    rounds
        Number of updates measured for each library, after two warm-up updates.
    plain_peers
        Measure the other libraries as they come. By default they too keep freed memory,
        which made them up to 1.8 times as fast on a CPU.
    json_output
        Print one JSON object.
    """
    run = run_config(preset, None, settings)
    hardware = choose_hardware(device, precision, width=run.model.d_model)
    with error_console().status("Starting...") as status:
        speed = measure_training(
            run,
            hardware,
            rounds,
            on_round=lambda number: status.update(
                f"Round {number} of {WARM_UP_ROUNDS + rounds}..."
            ),
            are_peers_plain=plain_peers,
        )
    if json_output:
        content = asdict(speed)
        content["contestants"] = content["systems"]  # the key of older versions
        print_json(content)
    else:
        for line in training_table(speed):
            print(line)


def decoding(
    model: Path | None = None,
    /,
    *,
    preset: str = PRESET,
    settings: Assignments = (),
    input: Path | None = None,
    batch_sizes: tuple[int, ...] = (1, 32, 128),
    beam_sizes: tuple[int, ...] = (1, 4),
    length: int | None = None,
    systems: tuple[str, ...] = (),
    rounds: int = 3,
    device: str = "auto",
    json_output: Json = False,
) -> None:
    """Measure speed and memory of decoding beside other libraries.

    CTranslate2, Hugging Face's `generate` and Marian translate the same sentences with
    the same model, whose export is proven equal, in each precision that the machine
    supports. Marian takes part if `marian-decoder` and `marian-conv`, built for this
    machine, are on the PATH. A model with a shortlist is measured with and without it;
    for CTranslate2 the shortlist is a vmap. Each runs in its own process; they take
    turns, one setting each.

    For example:

        transduce benchmark decoding runs/mine --input test.en

    Parameters
    ----------
    model
        A model or run folder; by default a model of the preset's sizes with random
        weights, for which --length is required, since its translations never end.
    preset
        Preset of the model's sizes if no model is given.
    settings
        Single settings of the preset, such as model.num_layers=2.
    input
        A text file, one sentence per line; - is standard input. By default sentences of
        the built-in corpus, whose words hardly cover a preset's large vocabulary.
    batch_sizes
        Batch sizes in sentences.
    beam_sizes
        Beam sizes.
    length
        Fixed length of translations in tokens; by default each ends by itself.
    systems
        Names of systems as in the table, such as "CTranslate2 int8": only these, and
        transduce in fp32, with which translations are compared. By default all.
    rounds
        Number of measured turns of each setting, after one warm-up turn.
    device
        auto, cpu or cuda.
    json_output
        Print one JSON object.
    """
    # Imported late: unlike training, it needs all packages of the other libraries.
    from transduce.benchmark.decoding import (
        decoding_table,
        measure_decoding,
        random_checkpoint,
    )
    from transduce.benchmark.peers import Setting

    if model is None and length is None:
        raise ConfigError(
            "--length must be given without a model, as random weights end no "
            "translation; add it, or a model."
        )
    if model is not None and (settings or preset != PRESET):
        raise ConfigError(
            "--preset and --set have no effect with a model, which has its own sizes; "
            "leave them out, or the model."
        )
    require_distinct("--batch-sizes", batch_sizes)
    require_distinct("--beam-sizes", beam_sizes)
    sentences = _sentences(input)
    if model is None:
        checkpoint = random_checkpoint(run_config(preset, None, settings), sentences)
    else:
        checkpoint = load_model(model)
        if checkpoint.symbols is not None:
            raise RequestError(
                f"{model}: the benchmark of decoding needs a model that translates, "
                "but this one parses; choose another."
            )
    with error_console().status("Starting...") as status:
        speed = measure_decoding(
            checkpoint,
            sentences,
            [
                Setting(batch_size=batch, beam_size=beam, forced_length=length)
                for batch in batch_sizes
                for beam in beam_sizes
            ],
            rounds,
            choose_hardware(device).device,
            on_turn=status.update,
            names=systems or None,
        )
    if json_output:
        print_json(asdict(speed))
    else:
        for line in decoding_table(speed):
            print(line)


def _sentences(input: Path | None) -> list[str]:
    if input is not None:
        return [line for line in read_text([input]) if line.strip()]
    grammar = Grammar.built_in().training_sentences(seed=1)
    return [each.source for each in islice(grammar, NUM_SENTENCES)]
