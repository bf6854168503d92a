"""The terminal output before the first update, and the options of a training."""

import math
import os
import threading
import tracemalloc
from dataclasses import replace
from functools import partial

import pytest
import torch

from transduce.cli.options import changed_by_options, run_config
from transduce.cli.train import sets_steps, train
from transduce.cli.training_display import TrainingDisplay
from transduce.data.prepared_corpus import PairCounts, PreparedCorpus
from transduce.data.treebank import TreeAugmentationConfig, TreebankConfig
from transduce.device import Hardware
from transduce.experiments.corpus_check import Advice
from transduce.experiments.dev_corpus import DevScore, Quality
from transduce.experiments.pipeline import RunResult, RunStart
from transduce.experiments.presets import PRESETS
from transduce.experiments.run_folder import RUN_CONFIG, TRAINING
from transduce.machine import describe_threads
from transduce.search_config import SearchConfig
from transduce.training.memory import MicroBatchSize

RUN = PRESETS["base"]
START = RunStart(
    config=replace(RUN, training=replace(RUN.training, steps=1_000)),
    corpus=None,
    num_parameters=63_100_000,
    hardware=Hardware(device=torch.device("cpu"), dtype=torch.float32),
    num_processes=1,
    update_tokens=(25_000, 25_000),
    micro_batch=MicroBatchSize(
        max_positions=2_000, was_cut=False, seconds=0.001, peak_bytes=3_250_000_000
    ),
    steps_done=0,
)
"""Task of 50,000 positions per update, at one millisecond per position."""


@pytest.mark.parametrize(
    ("start", "updates", "forecast"),
    [
        (START, "1,000 of about 25,000 source and 25,000 target tokens", "13.9 hours"),
        (
            replace(START, num_processes=4),
            "1,000 of about 25,000 source and 25,000 target tokens on 4 processes",
            "3.5 hours",
        ),
        (
            replace(
                START,
                steps_done=994,
                micro_batch=replace(START.micro_batch, was_cut=True),
            ),
            "6 more, each of about 25,000 source and 25,000 target tokens, cut to "
            "2,000 positions at a time",
            "5 minutes",
        ),
        (
            replace(
                START,
                steps_done=994,
                micro_batch=replace(START.micro_batch, was_cut=True, unit="tokens"),
            ),
            "6 more, each of about 25,000 source and 25,000 target tokens, cut to "
            "2,000 tokens at a time",
            "5 minutes",
        ),
    ],
    ids=["alone", "by several processes", "resumed and cut", "packed and cut"],
)
def test_the_duration_of_a_run_is_forecast(capsys, start, updates, forecast):
    TrainingDisplay().started(start)
    assert capsys.readouterr().out.splitlines()[:3] == [
        "Model: 63,100,000 parameters, vocabulary of "
        f"{RUN.model.vocab_size:,}, on cpu (fp32), {describe_threads()}",
        f"Updates: {updates}",
        f"Forecast: 3.2 GB of memory per process, about {forecast}, "
        "without checkpoints",
    ]


def test_uncompilable_layers_give_a_warning(capsys):
    fit = replace(START.micro_batch, compile_error="Failed to find C compiler.")
    TrainingDisplay().started(replace(START, micro_batch=fit))
    warning = " ".join(capsys.readouterr().out.splitlines())
    assert "PyTorch cannot compile the layers here" in warning
    assert "Failed to find C compiler." in warning


def test_a_short_forecast_is_written_in_words(capsys):
    fit = replace(START.micro_batch, seconds=1e-9)
    TrainingDisplay().started(replace(START, micro_batch=fit))
    assert "process, less than a minute, without checkpoints" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("share", "said"), [(0.0, False), (0.05, False), (0.5, True), (0.9, True)]
)
def test_a_forecast_made_under_load_says_so(capsys, share, said):
    fit = replace(START.micro_batch, waiting_share=share)
    TrainingDisplay().started(replace(START, micro_batch=fit))
    text = capsys.readouterr().out
    assert (
        f"; other programs used the processor for {share:.0%} of the trial, and "
        "are not in the forecast\n" in text
    ) == said


@pytest.mark.parametrize(
    ("training", "text"),
    [
        ({"steps": 300}, "average is of the last 2, from the last 100% of the"),
        ({"steps": 250}, "every 250 updates; the average is of the last one alone"),
        ({"steps": 3_000}, "average is of the last 5, from the last 42% of the"),
        ({"steps": 3_010}, "average is of the last 5, from the last 34% of the"),
        ({"steps": 900_000}, "average is of the last 5, from the last 0.1% of the"),
        (
            {"steps": 3_000, "keep_checkpoints": 1},
            "updates; the average is of the last one alone",
        ),
        # Those at 1,500 and 1,510.
        (
            {"steps": 1_510, "reward": "gleu", "reward_steps": 100},
            "average is of the last 2, from the last 17% of the",
        ),
    ],
)
def test_the_average_is_described_by_the_checkpoints_that_it_will_have(
    capsys, training, text
):
    changed = replace(RUN.training, checkpoint_steps=250, **training)
    TrainingDisplay().started(replace(START, config=replace(RUN, training=changed)))
    [line] = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("Checkpoints: every 250 updates")
    ]
    assert text in line


def test_many_checkpoints_are_not_listed_to_describe_their_average():
    changed = replace(RUN.training, checkpoint_steps=1_000, steps=10**9)
    start = replace(START, config=replace(RUN, training=changed))
    tracemalloc.start()
    TrainingDisplay().started(start)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000  # bytes: the list of a million would take 40 million


def test_warnings_come_before_the_first_step(capsys):
    advice = Advice(problem="pairs too long: 7", remedy="split them")
    TrainingDisplay().started(replace(START, advice=(advice,)))
    assert capsys.readouterr().out.splitlines()[4:] == [
        "Warning: pairs too long: 7; split them.",
        "`transduce check` shows the details and the lines.",
    ]


def test_a_line_is_printed_before_the_trial(capsys):
    TrainingDisplay().trying()
    assert capsys.readouterr().out.startswith("Trying an update, to forecast")


@pytest.mark.parametrize(
    ("settings", "content", "said"),
    [
        ((), None, False),
        (("model.dropout=0.2",), "[training]\nwarmup_steps = 9\n", False),
        (("training.steps=100000",), None, True),
        ((" training.steps = 100_000 ", "model.dropout=0.2"), None, True),
        ((), "[training]\nsteps = 100_000\n", True),
    ],
)
def test_given_steps_choose_the_length(tmp_path, settings, content, said):
    config = None
    if content is not None:
        config = tmp_path / "my.toml"
        config.write_text(content)
    run = run_config("base", config, settings)
    assert run.training.steps == 100_000
    change = partial(changed_by_options, config_file=config, assignments=settings)
    assert sets_steps(change, run) == said


@pytest.mark.parametrize(
    ("options", "weeks"),
    [
        ({}, 1),
        ({"settings": ("training.steps=100000",)}, 1),
        ({"preset": "base"}, 2),
        ({"preset": "base", "settings": ("model.dropout=0.2",)}, 2),
        ({"preset": "base", "settings": ("training.steps=100000",)}, math.inf),
        ({"preset": "base", "however_long": True}, math.inf),
        ({"preset": "base", "force": True}, 2),
        ({"however_long": True}, math.inf),
    ],
)
def test_options_choose_the_longest_training(tmp_path, monkeypatch, options, weeks):
    consents = []

    def record(*_, consent, **__):
        consents.append(consent)

    monkeypatch.setattr("transduce.cli.train.train_run", record)
    files = {"source": (tmp_path / "a.en",), "target": (tmp_path / "a.de",)}
    train(out=tmp_path / "run", **files, **options)
    assert [each.max_weeks for each in consents] == [weeks]


def test_a_run_that_is_to_be_replaced_has_no_limit(tmp_path, monkeypatch):
    consents = []
    monkeypatch.setattr(
        "transduce.cli.train.train_run",
        lambda *_, consent, **__: consents.append(consent),
    )
    out = tmp_path / "run"
    (out / TRAINING).mkdir(parents=True)
    (out / RUN_CONFIG).touch()
    files = {"source": (tmp_path / "a.en",), "target": (tmp_path / "a.de",)}
    train(out=out, **files, preset="base", force=True)
    assert consents[0].max_weeks == math.inf


def test_the_length_in_settings_from_a_pipe_counts(tmp_path):
    pipe = tmp_path / "settings"
    os.mkfifo(pipe)
    content = b"[training]\nsteps = 1_000_000_000\n"  # the largest number
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    run = run_config("base", pipe, ())
    writer.join()
    change = partial(changed_by_options, config_file=pipe, assignments=())
    assert sets_steps(change, run)


@pytest.mark.parametrize(("beam_size", "search"), [(4, "beam"), (1, "greedy")])
def test_the_final_score_names_its_search(capsys, tmp_path, beam_size, search):
    quality = Quality(metric="bleu", name="BLEU", score=9.0, details="", log={})
    score = DevScore(step=9, loss=1.0, perplexity=2.0, quality=quality)
    config = replace(START.config, search=SearchConfig(beam_size=beam_size))
    display = TrainingDisplay()
    display.started(replace(START, config=config))
    display.finished(
        RunResult(model=tmp_path, num_averaged=1, dev=score, picture=tmp_path)
    )
    assert f", by {search} search\n" in capsys.readouterr().out


def test_a_change_is_the_difference_of_the_scores_beside_it(capsys, tmp_path):
    def score(bleu: float, chrf: float, perplexity: float) -> DevScore:
        quality = Quality(
            metric="bleu", name="BLEU", score=bleu, details="", log={"chrf": chrf}
        )
        return DevScore(step=9, loss=1.0, perplexity=perplexity, quality=quality)

    before, after = score(9.0, 95.136, 1.004), score(9.004, 84.054, math.inf)
    display = TrainingDisplay()
    display.started(START)
    display.finished(
        RunResult(
            model=tmp_path,
            num_averaged=1,
            dev=after,
            before=(before,),
            picture=tmp_path,
        )
    )
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["dev", "BLEU", "9.00", "9.00", "+0.00"] in lines
    assert ["dev", "chrF2", "95.14", "84.05", "-11.09"] in lines
    assert ["dev", "perplexity", "1.00", "inf", "+inf"] in lines


def test_weeks_of_training_give_a_warning(capsys):
    TrainingDisplay().started(
        replace(START, micro_batch=replace(START.micro_batch, seconds=1.0))
    )
    text = capsys.readouterr().out
    assert "Warning: training takes about 83 weeks here; choose a smaller pre" in text


@pytest.mark.parametrize(
    ("copies", "said"),
    [
        (0, "Variants of trees: none (treebank.augmentation.copies)"),
        (
            8,
            "Variants of trees: 8 of each of the 100 trees, 800 in all "
            "(treebank.augmentation): 30% are a constituent alone, 50% of the others "
            "have one of another tree, and 10% of the words are replaced",
        ),
    ],
)
def test_augmentation_is_described_with_the_corpus(capsys, copies, said):
    treebank = TreebankConfig(augmentation=TreeAugmentationConfig(copies=copies))
    total = 100 * (copies + 1)
    corpus = PreparedCorpus(
        key="",
        training=PairCounts(kept=total, empty=0, overlong=0),
        dev=None,
        vocab_size=300,
        target_vocab_size=30,
    )
    config = replace(START.config, treebank=treebank)
    TrainingDisplay().started(replace(START, config=config, corpus=corpus))
    assert capsys.readouterr().out.splitlines()[1] == said
