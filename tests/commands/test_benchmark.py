import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from transduce.benchmark import training as training_peers
from transduce.benchmark.measurement import describe_machine
from transduce.benchmark.training import (
    HUGGING_FACE,
    TORCH,
    TrainingSpeed,
    training_table,
)

TINY = ("--preset", "tiny", "--device", "cpu", "--precision", "fp32", "--rounds", "1")


@pytest.fixture(autouse=True)
def _idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.0, 0.0))


@pytest.fixture
def without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_peers, "find_spec", lambda name: None)


@pytest.mark.usefixtures("without_transformers")
def test_json_has_all_measurements(succeeds: Callable[..., str]) -> None:
    # The peers do not support this model, so ours is measured alone.
    settings = ("--set", "model.d_k=8")
    found = json.loads(succeeds("benchmark", "training", *TINY, *settings, "--json"))
    assert found["rounds"] == 1
    assert found["hardware"] == "cpu (fp32)"
    assert found["machine"]["versions"]["torch"]
    assert [sentence.split(" is left")[0] for sentence in found["left_out"]] == [
        HUGGING_FACE,
        TORCH,
    ]
    assert found["load"] == 0.1
    [ours] = found["systems"]
    assert found["contestants"] == found["systems"]
    assert ours["name"] == "transduce"
    assert ours["our_advantage"] == 1
    [seconds], [tokens], [flops] = (
        ours["seconds"],
        found["target_tokens"],
        found["update_flops"],
    )
    assert ours["tokens_per_second"] == pytest.approx(tokens / seconds)
    share = flops / seconds / found["matrix_rate"]
    assert ours["matrix_share"] == pytest.approx(share)
    assert 0 < share < 1
    assert ours["peak_bytes"] > 50e6
    assert 4 < ours["losses"][0] < 7


@pytest.mark.parametrize(
    ("load", "sentence"),
    [(0.4, None), (3.04, "Other programs were running (load 3.0): the speeds are")],
)
def test_a_busy_machine_is_reported(load: float, sentence: str | None) -> None:
    speed = TrainingSpeed(
        machine=describe_machine((), torch.device("cpu")),
        hardware="cpu (fp32)",
        num_parameters=1,
        rounds=1,
        target_tokens=(1,),
        update_flops=(1,),
        matrix_rate=1.0,
        systems=(),
        load=load,
    )
    told = [line for line in training_table(speed) if line.startswith("Other programs")]
    assert len(told) == (sentence is not None)
    assert all(line.startswith(sentence) for line in told)


HUGE = ("model.num_layers=1000", "model.d_model=65536")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("training", "--rounds", str(10**12)), "`rounds` must be at most 10,000, but"),
        (("training", "--rounds", "0"), "`rounds` must be at least 1, but is 0."),
        (("training", "--preset", "tinny"), "did you mean `tiny`?"),
        (("training", "--set", "model.d_mode=1"), "did you mean `model.d_model`?"),
        (("training", "--set", "model.vocab_size=9"), "left to the tokenizer"),
        (
            ("training", "--preset", "tiny", "--set", *HUGE),
            "Training must fit in the ",
        ),
        (
            ("decoding", "--preset", "tiny", "--length", "3", "--set", *HUGE),
            "Decoding must fit in the ",
        ),
        (
            ("decoding", "m", "--beam-sizes", "4", "1", "4"),
            "--beam-sizes must have no value twice, but 4 is given more than once",
        ),
        (
            ("decoding", "m", "--batch-sizes", "8", "8"),
            "--batch-sizes must have no value twice, but 8 is given more than once",
        ),
        (("training", "--rounds", "two"), 'must be a whole number, but is "two".'),
        (("training", "--device", "tpu"), '`device` must be "auto", "cpu" or "cuda"'),
        (("trainign",), 'Unknown command "trainign"'),
    ],
    ids=str,
)
def test_a_mistake_ends_with_one_sentence(
    refuses: Callable[..., str], arguments: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refuses("benchmark", *arguments)


def test_parts_of_the_command_are_listed(succeeds: Callable[..., str]) -> None:
    assert "Measure the speed and memory of training." in succeeds("benchmark")


def test_decoding_is_measured_beside_the_peers(
    succeeds: Callable[..., str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.interop.marian_program.DECODER", "no-such-program")
    options = ["--batch-sizes", "2", "--beam-sizes", "1", "2", "--rounds", "1"]
    # Each system takes a process that loads its library: tests of `measure_decoding`
    # run all of them.
    options += ["--systems", "CTranslate2 float32", "no such"]
    lines = succeeds("benchmark", "decoding", model, *options).splitlines()
    assert lines[0].startswith("Machine: ")
    assert "vocabulary of" in lines[1]
    assert any(line.startswith("Marian takes part if `marian-dec") for line in lines)
    assert any(line.startswith("There is no system 'no such' here;") for line in lines)
    head = next(line for line in lines if line.startswith("tokens/s"))
    assert head.split() == ["tokens/s", "b2", "k1", "b2", "k2"]
    place = next(i for i, line in enumerate(lines) if line.startswith("sentences/s"))
    assert lines[place].split()[1:] == head.split()[1:]
    ours = lines[place + 1].split()
    assert ours[:2] == ["transduce", "fp32"]
    assert lines[place + 2].split()[:2] == ["CTranslate2", "float32"]
    assert not lines[place + 3]
    assert all(float(rate.replace(",", "")) > 0 for rate in ours[2:])
    for i, end in ((-2, "beam 1"), (-1, "beam 2")):
        assert re.fullmatch(
            rf"batch 2, {end}: [0-9.]+ x the best other system", lines[i]
        ), lines[i]


def test_names_of_no_system_are_refused(
    refuses: Callable[..., str], model: Path
) -> None:
    said = refuses("benchmark", "decoding", model, "--systems", "CTranslate2 fp64")
    assert "There is no system 'CTranslate2 fp64' here; there are 'transduce " in said


def test_a_model_has_its_own_sizes(refuses: Callable[..., str], model: Path) -> None:
    for options in (("--preset", "tiny"), ("--set", "model.num_layers=1")):
        said = refuses("benchmark", "decoding", model, *options)
        assert said.startswith("--preset and --set have no effect with a model, which")


def test_a_parser_is_refused(refuses: Callable[..., str], parsing_model: Path) -> None:
    assert refuses("benchmark", "decoding", parsing_model) == (
        f"{parsing_model}: the benchmark of decoding needs a model that translates, "
        "but this one parses; choose another."
    )


def test_random_weights_must_have_a_length(refuses: Callable[..., str]) -> None:
    assert "--length must be given" in refuses("benchmark", "decoding")
