"""Scores at growing d_k: their statistics, the trainings' settings, and the report."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from transduce.data.corpus_files import CorpusFiles
from transduce.data.dataset import EncodedPair, write_dataset
from transduce.data.prepared_corpus import TRAINING
from transduce.errors import ConfigError
from transduce.experiments.experiment import refuse_other_contents
from transduce.experiments.scaling import (
    EXPERIMENT,
    KINDS,
    Scaling,
    ScalingExperiment,
    ScoresRun,
    as_report,
    base_config,
    collect,
    measure_scores,
    scores_runs,
    statistics_of,
)
from transduce.model.config import count_parameters
from transduce.report.report import Table, plain

VOCABULARY = 321
"""Size of the vocabulary that runs have learned."""


def files_in(folder: Path) -> CorpusFiles:
    text = (folder / "text",)
    text[0].write_text("a dog\n")
    return CorpusFiles(source=text, target=text, dev_source=text, dev_target=text)


@pytest.fixture(scope="module")
def statistics():
    return measure_scores((4, 64, 512), lambda _: None)


def test_dot_products_have_the_variance_of_footnote_4(statistics):
    for each in statistics:
        expected = {"scaled": 1, "unscaled": each.d_k}.get(each.kind)
        if expected is not None:
            assert each.variance == pytest.approx(expected, rel=0.1)


def test_without_scaling_the_softmax_saturates_and_its_gradient_vanishes(statistics):
    scaled, unscaled, additive = (
        [each for each in statistics if each.kind == kind] for kind in KINDS
    )
    assert unscaled[0].gradient > unscaled[1].gradient > unscaled[2].gradient
    assert unscaled[-1].gradient < 0.1
    assert unscaled[-1].entropy < 0.2
    assert unscaled[-1].largest_weight > 0.9
    for kept in (scaled, additive):
        assert kept[-1].gradient == pytest.approx(kept[0].gradient, rel=0.3)
        assert kept[-1].entropy > 2.9


def test_statistics_are_those_of_the_softmax():
    scores = torch.tensor([[0.0, math.log(3.0)]])
    found = statistics_of("scaled", 7, scores)
    assert (found.kind, found.d_k) == ("scaled", 7)
    assert found.largest_weight == pytest.approx(3 / 4)
    entropy = -(3 / 4 * math.log(3 / 4) + 1 / 4 * math.log(1 / 4))
    assert found.entropy == pytest.approx(entropy)
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores[0])
    assert found.gradient == pytest.approx(float(jacobian.norm()))


def test_measuring_leaves_the_random_numbers_of_others_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    measure_scores((4,), lambda _: None)
    assert torch.equal(torch.rand(1), expected)


def runs_in(folder: Path, **changes) -> list[ScoresRun]:
    options = {"widths": (16, 4), "heads": 2, "seeds": (1, 2)} | changes
    return scores_runs(folder, base_config(90), **options)


def test_runs_differ_in_scores_width_and_seed_only(tmp_path):
    runs = runs_in(tmp_path)
    assert [run.name for run in runs[:4]] == [
        "scaled-dk4-seed1", "unscaled-dk4-seed1", "additive-dk4-seed1",
        "scaled-dk16-seed1",
    ]  # fmt: skip
    assert len(runs) == 2 * 2 * 3
    for run in runs:
        model = run.config.model
        assert (model.scores, model.d_k, model.d_v) == (run.kind, run.d_k, run.d_k)
        assert (model.num_heads, model.d_model) == (2, 2 * run.d_k)
        assert run.config.training.seed == run.seed
        same = replace(run.config.training, seed=1)
        assert replace(run.config, training=same, model=runs[0].config.model) == (
            runs[0].config
        )


def test_an_impossible_width_is_refused(tmp_path):
    sentence = "`model.d_model` must be even for sinusoidal positions, but is 3."
    with pytest.raises(ConfigError, match=sentence):
        runs_in(tmp_path, widths=(3,), heads=1)


def experiment(folder: Path, steps: int = 90):
    return ScalingExperiment(
        folder=folder,
        files=files_in(folder),
        base=base_config(steps),
        heads=2,
        device="cpu",
        precision="fp32",
    )


def end(run: ScoresRun, perplexity: float | None) -> None:
    """Write the log of a run that has made its last update, and its settings."""
    write_dataset([EncodedPair(source=[5], target=[7])], run.path / TRAINING)
    model = replace(run.config.model, vocab_size=VOCABULARY)
    record = {"format": 1, "settings": asdict(replace(run.config, model=model))}
    (run.path / "config.json").write_text(json.dumps(record))
    entries = [
        {"kind": "dev", "step": 90, "loss": 1.0, "perplexity": perplexity},
        {"kind": "final", "step": 90, "loss": 1.0, "perplexity": perplexity},
    ]
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    (run.path / "log.jsonl").write_text(lines)


def test_the_same_command_continues_and_skips_what_is_done(tmp_path):
    ours, [first, second, *_] = experiment(tmp_path), runs_in(tmp_path)
    ours.begin()
    ours.begin()
    end(first, 3.5)
    assert ours.next_command(first) is None
    command = ours.next_command(second)
    assert command is not None
    assert command[4:6] == ["train", "--out"]
    assert 'model.scores="unscaled"' in command
    assert command[-2:] == ["--device", "cpu"]


def test_a_folder_with_other_settings_is_refused(tmp_path):
    experiment(tmp_path).begin()
    with pytest.raises(ConfigError, match=r"`training\.steps` of the experiment in"):
        experiment(tmp_path, steps=91).begin()
    with pytest.raises(
        ConfigError, match="`heads` of the experiment in this folder is"
    ):
        replace(experiment(tmp_path), heads=3).begin()
    ours = experiment(tmp_path)
    (tmp_path / "text").write_text("a cat\n")
    with pytest.raises(ConfigError, match="the training text must be the one that the"):
        ours.begin()


def test_an_experiment_with_a_setting_that_no_longer_exists_continues(tmp_path):
    experiment(tmp_path).begin()
    path = tmp_path / EXPERIMENT
    record = json.loads(path.read_text())
    record["settings"]["model.former"] = 3
    path.write_text(json.dumps(record))
    experiment(tmp_path).begin()


def test_a_folder_with_other_contents_is_refused(tmp_path):
    refuse_other_contents(
        tmp_path / "new", EXPERIMENT, "an experiment of `reproduce scaling`"
    )
    (tmp_path / "corpus").mkdir()
    refuse_other_contents(tmp_path, EXPERIMENT, "an experiment of `reproduce scaling`")
    (tmp_path / "mine").touch()
    with pytest.raises(ConfigError, match="must be new or an experiment of"):
        refuse_other_contents(
            tmp_path, EXPERIMENT, "an experiment of `reproduce scaling`"
        )


def collected(folder: Path, statistics) -> Scaling:
    runs = runs_in(folder)
    for number, run in enumerate(runs[:-1]):
        end(run, 2.0 + number)
    failures = {runs[-1].name: "It was killed (SIGKILL)."}
    return collect(experiment(folder), statistics, runs, failures, "1 x Abacus")


def test_parameters_include_the_learned_vocabulary(tmp_path, statistics):
    for row, run in zip(
        collected(tmp_path, statistics).rows, runs_in(tmp_path), strict=False
    ):
        model = replace(run.config.model, vocab_size=VOCABULARY)
        assert row.parameters == count_parameters(model).total


@pytest.mark.usefixtures("undrawn")
def test_an_infinite_perplexity_stays_infinite(tmp_path, statistics):
    runs = runs_in(tmp_path, widths=(4,), seeds=(1,))
    for run in runs:
        end(run, None)
    scaling = collect(experiment(tmp_path), statistics, runs, {}, "1 x Abacus")
    assert {row.perplexity for row in scaling.rows} == {math.inf}
    names = [picture.name for picture in as_report(scaling).pictures()]
    assert names == ["scaling-variance", "scaling-gradient"]


@pytest.mark.usefixtures("undrawn")
def test_the_report_tells_means_if_the_first_row_has_one_seed(tmp_path, statistics):
    scaling = collected(tmp_path, statistics)
    first, *others = scaling.rows
    alone = replace(first, seeds=first.seeds[:1], perplexities=first.perplexities[:1])
    for rows, sentence in (
        (
            [alone, *others],
            "Geometric means of 1 to 2 seeds, since some trainings have failed; ",
        ),
        ([first], "Geometric means of 2 seeds; "),
        ([alone], None),
    ):
        parts = as_report(replace(scaling, rows=tuple(rows))).sections[1].parts
        found = [part for part in parts if str(part).startswith("Geometric means of")]
        expected = (
            []
            if sentence is None
            else [f"{sentence}in brackets the lowest and the highest."]
        )
        assert found == expected


def test_the_report_has_a_row_for_each_width_and_the_mean_of_seeds(
    tmp_path, statistics
):
    scaling = collected(tmp_path, statistics)
    report = as_report(scaling)
    tables = [
        part
        for section in report.sections
        for part in section.parts
        if isinstance(part, Table)
    ]
    scores, trainings, failed = tables
    assert [plain(cell) for cell in scores.rows[0][:4]] == [
        "scaled", "4", f"{statistics[0].variance:.4g}", "1",
    ]  # fmt: skip
    assert [column.name for column in trainings.columns][3:] == list(KINDS)
    [narrow, wide] = [[plain(cell) for cell in row] for row in trainings.rows]
    assert narrow[:2] == ["4", "8"]
    assert wide[:2] == ["16", "32"]
    assert narrow[3] == f"{math.sqrt(2 * 8):.2f} (2.00 to 8.00)"
    assert wide[5] == "7.00"  # one of its seeds has failed
    text = json.dumps([part for s in report.sections for part in s.parts], default=str)
    assert "Geometric means of 1 to 2 seeds, since some trainings have failed" in text
    assert failed.rows == (("additive-dk16-seed2", "It was killed (SIGKILL)."),)
    assert "training.steps = 90" in text
    assert "1 x Abacus" in text
    assert [picture.name for picture in report.pictures()] == [
        "scaling-variance", "scaling-gradient", "scaling-perplexity",
    ]  # fmt: skip
