"""Results of Table 3 for runs that are written by hand."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from transduce.data.corpus_files import CorpusFiles
from transduce.data.dataset import EncodedPair, write_dataset
from transduce.errors import CheckpointError, DataError
from transduce.experiments.experiment import settings
from transduce.experiments.table3 import (
    RowResult,
    Table3,
    Table3Experiment,
    collect,
    read_row,
    row_runs,
    scaled_base,
)
from transduce.metrics.comparison import SystemScore, Trials
from transduce.metrics.scores import corpus_bleu

REFERENCES = [
    "a dog runs over the green grass",
    "two men sit on a bench in the park",
    "a woman reads a book in the garden",
] * 4
GOOD = [line.replace("the", "a") for line in REFERENCES]
BAD = [line.replace("a ", "the ").replace("on", "at") for line in REFERENCES]
TRIALS = Trials(resamples=100, shuffles=100)
WriteRun = Callable[..., None]


@pytest.fixture
def experiment(tmp_path: Path) -> Table3Experiment:
    files = CorpusFiles(
        source=(Path("/a.en"),),
        target=(Path("/a.de"),),
        dev_source=(Path("/d.en"),),
        dev_target=(Path("/d.de"),),
    )
    return Table3Experiment(folder=tmp_path, files=files, base=scaled_base(0.125, 40))


@pytest.fixture
def write_run(experiment: Table3Experiment) -> WriteRun:
    """Write the files of a finished run."""

    def write(
        row: str,
        seed: int,
        texts: list[str],
        perplexity: float | None = 8.0,
        last_step: int = 40,
        *more: dict[str, object],
    ) -> None:
        [run] = row_runs(experiment.folder, experiment.base, [row], [seed])
        model = replace(run.config.model, vocab_size=321)
        record = {"format": 1, "settings": asdict(replace(run.config, model=model))}
        pair = EncodedPair(source=[5, 2], target=[7, 2])
        write_dataset([pair] * 3, run.path / "corpus" / "training")
        (run.path / "corpus" / "dev").mkdir()
        (run.path / "config.json").write_text(json.dumps(record))
        step = last_step
        entries = (
            *more,
            {"kind": "step", "step": step, "learning_rate": 1e-5, "epoch": 13},
            {"kind": "dev", "step": 20, "perplexity": 99.0},
            {"kind": "dev", "step": step, "perplexity": perplexity},
            {"kind": "final", "step": step, "perplexity": 7.0},
        )
        (run.path / "log.jsonl").write_text("\n".join(map(json.dumps, entries)))
        for path in (run.sources, run.references):
            path.write_text("\n".join(REFERENCES) + "\n")
        run.translations.write_text("\n".join(texts) + "\n")

    return write


def collected(experiment: Table3Experiment, seeds: list[int]) -> Table3:
    runs = row_runs(
        experiment.folder, experiment.base, ["base", "A-h1", "C-d256"], seeds
    )
    return collect(experiment, runs, {"big-seed1": "It is too big."}, TRIALS)


def test_rows_are_compared_with_base(
    experiment: Table3Experiment, write_run: WriteRun
) -> None:
    write_run("base", 1, GOOD)
    write_run("A-h1", 1, BAD, perplexity=9.0)
    table = collected(experiment, [1])
    base, row = table.rows
    assert base.bleu.score == corpus_bleu(GOOD, REFERENCES).score
    assert (base.p, base.direction, base.is_significant) == (None, None, False)
    assert row.bleu.score == corpus_bleu(BAD, REFERENCES).score
    assert row.bleu.difference == row.bleu.score - base.bleu.score
    assert row.direction == "agrees"
    assert row.bleu.bootstrap_p is not None
    assert row.p is not None
    assert row.p >= row.bleu.bootstrap_p
    assert (base.perplexity, row.perplexity) == (pytest.approx(8), pytest.approx(9))
    assert row.changes == {
        "model.num_heads": 1, "model.d_k": 64, "model.d_v": 64,
    }  # fmt: skip
    assert (row.steps, row.passes, row.slowed_seeds) == (40, 13, ())
    assert (table.num_pairs, table.precision) == (3, "fp32")
    assert base.parameters == row.parameters
    assert table.num_sentences == 12
    assert table.settings == settings(experiment.base)
    assert table.failures == {"big-seed1": "It is too big."}
    assert [signature.split("|")[1] for signature in table.signatures] == [
        "bs:100", "ar:100",
    ]  # fmt: skip


def test_parameters_include_the_learned_vocabulary(
    experiment: Table3Experiment, write_run: WriteRun
) -> None:
    write_run("base", 1, GOOD)
    write_run("C-d256", 1, BAD)
    base, row = collected(experiment, [1]).rows
    # 6 layers of encoder and decoder, 18 attentions, 30 norms; and the embedding.
    assert base.parameters == 321 * 64 + 18 * 4 * 65 * 64 + 12 * (
        65 * 256 + 257 * 64
    ) + 30 * 128  # fmt: skip
    assert row.parameters < base.parameters / 2


def test_seeds_are_pooled(experiment: Table3Experiment, write_run: WriteRun) -> None:
    for seed, texts, perplexity in ((1, GOOD, 4.0), (2, BAD, 9.0)):
        write_run("base", seed, texts, perplexity)
    [base] = collected(experiment, [1, 2]).rows
    both = corpus_bleu([*GOOD, *BAD], [*REFERENCES, *REFERENCES])
    assert base.bleu.score == both.score
    assert base.perplexity == pytest.approx(6)
    assert base.seeds == (1, 2)
    assert base.bleu_by_seed == (
        corpus_bleu(GOOD, REFERENCES).score, corpus_bleu(BAD, REFERENCES).score,
    )  # fmt: skip


def test_only_seeds_that_base_has_are_compared(
    experiment: Table3Experiment, write_run: WriteRun
) -> None:
    write_run("base", 1, GOOD)
    write_run("base", 3, BAD)
    write_run("A-h1", 1, BAD)
    write_run("A-h1", 2, GOOD)
    _, row = collected(experiment, [1, 2, 3]).rows
    assert row.seeds == (1,)
    assert row.bleu.score == corpus_bleu(BAD, REFERENCES).score
    good = corpus_bleu(GOOD, REFERENCES).score
    assert row.bleu.difference == row.bleu.score - good


def test_a_row_without_base_has_no_comparison(
    experiment: Table3Experiment, write_run: WriteRun
) -> None:
    write_run("A-h1", 2, BAD)
    [row] = collected(experiment, [1, 2]).rows
    assert row.p is None
    assert row.direction is None
    assert row.bleu.interval > 0


def test_runs_that_diverged_are_those_whose_log_says_so(
    experiment: Table3Experiment, write_run: WriteRun
) -> None:
    went_back = {"kind": "went back", "step": 20, "rate_factor": 0.5}
    write_run("base", 1, GOOD)  # at a low rate, as the schedules of some settings end
    write_run("base", 2, GOOD, 8.0, 40, went_back)
    [base] = collected(experiment, [1, 2]).rows
    assert base.slowed_seeds == (2,)


def test_steps_are_those_that_were_made(
    experiment: Table3Experiment, write_run: WriteRun
) -> None:
    write_run("base", 1, GOOD, last_step=30)
    write_run("base", 2, GOOD, last_step=20)
    [base] = collected(experiment, [1, 2]).rows
    assert base.steps == 25


def test_an_infinite_perplexity_stays_infinite(
    experiment: Table3Experiment, write_run: WriteRun
) -> None:
    write_run("base", 1, GOOD, perplexity=None)
    [base] = collected(experiment, [1]).rows
    assert base.perplexity == float("inf")


def test_an_experiment_without_runs_has_no_rows(experiment: Table3Experiment) -> None:
    table = collected(experiment, [1])
    assert table.rows == ()
    assert table.num_sentences == 0


def test_truncated_translations_are_refused(
    experiment: Table3Experiment, write_run: WriteRun
) -> None:
    write_run("base", 1, GOOD[:-1])
    with pytest.raises(DataError, match="must have 12 translations, .* but has 11; "):
        collected(experiment, [1])


def test_truncated_references_of_any_run_are_named(
    experiment: Table3Experiment, write_run: WriteRun
) -> None:
    for seed in (1, 2):
        write_run("base", seed, GOOD)
    [_, run] = row_runs(experiment.folder, experiment.base, ["base"], [1, 2])
    run.references.write_text("\n".join(REFERENCES[:-1]) + "\n")
    message = f"^{run.references}:12: source and references must have equally many"
    with pytest.raises(DataError, match=message):
        collected(experiment, [1, 2])


def test_damaged_results_of_a_run_are_refused(
    experiment: Table3Experiment, write_run: WriteRun
) -> None:
    [run] = row_runs(experiment.folder, experiment.base, ["A-h1"], [2])
    write_run("A-h1", 2, GOOD)
    read_row(experiment, run)
    for name, content in (
        ("dev_translations.txt", "a dog\n"),
        ("corpus/dev/target.txt", "a dog\n"),
        ("config.json", "{}"),
        ("log.jsonl", '{"kind": "step", "step": 40, "epoch": 13}\n'),
        ("log.jsonl", '{"kind": "dev", "step": 40, "perplexity": 8.0}\n'),
    ):
        path = run.path / name
        before = path.read_text()
        path.write_text(content)
        with pytest.raises((CheckpointError, DataError), match=str(run.path)):
            read_row(experiment, run)
        path.write_text(before)


def test_a_run_that_has_failed_is_in_no_row(
    experiment: Table3Experiment, write_run: WriteRun
) -> None:
    write_run("base", 1, GOOD)
    write_run("base", 2, GOOD[:-1])
    runs = row_runs(experiment.folder, experiment.base, ["base"], [1, 2])
    table = collect(experiment, runs, {"base-seed2": "It is damaged."}, TRIALS)
    assert [row.seeds for row in table.rows] == [(1,)]


def result(row: str, difference: float, *ps: float | None) -> RowResult:
    bootstrap_p, randomisation_p = ps
    return RowResult(
        row=row,
        changes={},
        seeds=(1,),
        parameters=1,
        steps=1,
        passes=1,
        slowed_seeds=(),
        perplexity=1.0,
        bleu=SystemScore(
            score=30.0,
            interval=1.0,
            difference=difference,
            bootstrap_p=bootstrap_p,
            randomisation_p=randomisation_p,
        ),
        bleu_by_seed=(30.0,),
    )


@pytest.mark.parametrize(
    ("row", "difference", "direction"),
    [
        ("A-h1", -0.1, "agrees"),
        ("A-h1", 0.1, "opposes"),
        ("A-h1", 0.0, None),
        ("C-d1024", 2.0, "agrees"),
        ("A-h16", 2.0, None),
    ],
)
def test_the_direction_agrees_with_the_papers_or_opposes_it(
    row: str, difference: float, direction: str | None
) -> None:
    assert result(row, difference, 0.01, 0.01).direction == direction


@pytest.mark.parametrize(
    ("ps", "is_significant"),
    [
        ((0.01, 0.04), True),
        ((0.01, 0.05), False),
        ((0.06, 0.01), False),
        ((None, None), False),
    ],
)
def test_a_change_is_significant_by_both_tests(
    ps: tuple[float | None, float | None], is_significant: bool
) -> None:
    assert result("A-h1", -1.0, *ps).is_significant == is_significant
