"""Systems of Table 2: their settings, matched to each other, and their results."""

import json
import math
import shutil
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from transduce.analysis.path_lengths import PathLengths
from transduce.architectures.config import architecture_of, num_parameters
from transduce.checkpoint import build
from transduce.data.corpus_files import CorpusFiles
from transduce.data.dataset import EncodedPair, write_dataset
from transduce.data.prepared_corpus import PairEncoder, encode_corpus
from transduce.errors import CheckpointError, ConfigError, DataError
from transduce.experiments.experiment import EvaluationText, with_seed
from transduce.experiments.presets import RunConfig, preset
from transduce.experiments.resuming import Environment
from transduce.experiments.table2 import TrainedTable2, trained_report
from transduce.experiments.table2_training import (
    EXPERIMENT,
    MEAN_LENGTH,
    REFERENCE,
    SYSTEMS,
    Match,
    SystemExperiment,
    SystemRun,
    ensembles_of,
    is_small_corpus,
    path_lengths,
    processors_of,
    read_results,
    require_systems,
    results_of,
    system_config,
    system_runs,
    training_flops,
    with_steps,
)
from transduce.metrics.comparison import Trials
from transduce.metrics.scores import corpus_bleu
from transduce.report.report import Report, Table, as_markdown, plain
from transduce.text.corpus import SentencePair
from transduce.text.tokenizer import learn_tokenizer
from transduce.text.vocabulary import TokenizerConfig
from transduce.training.optimizer import scheduled_rate

REFERENCES = [
    "a dog runs over the green grass",
    "two men sit on a bench in the park",
    "a woman reads a book in the garden",
] * 4
GOOD = [line.replace("the", "a") for line in REFERENCES]
BAD = [line.replace("a ", "the ").replace("on", "at") for line in REFERENCES]
MATCHED = [key for key in SYSTEMS if key not in (REFERENCE, "big")]


KEPT = ("a dog runs", "a woman reads")
DEV_SOURCES = [KEPT[0], KEPT[0], "", KEPT[0], "a dog " * 40, KEPT[0]]
DEV_TARGETS = [KEPT[1], "a dog " * 40, KEPT[1], KEPT[1], KEPT[1], KEPT[1]]


def sized(config: RunConfig) -> int:
    model = replace(config.model, vocab_size=config.tokenizer.vocab_size)
    return num_parameters(model)


@pytest.mark.parametrize("key", SYSTEMS)
def test_without_a_change_a_system_has_the_settings_of_its_preset(key: str) -> None:
    for is_small, name in ((True, SYSTEMS[key].small), (False, SYSTEMS[key].large)):
        found = system_config(key, is_small=is_small, match="none")
        assert found == (name, preset(name))


@pytest.mark.parametrize("key", MATCHED)
def test_small_systems_get_the_number_of_parameters_of_the_transformer(
    key: str,
) -> None:
    _, config = system_config(key, is_small=True)
    _, reference = system_config(REFERENCE, is_small=True)
    assert sized(config) == pytest.approx(sized(reference), rel=0.05)
    assert config.training == preset(SYSTEMS[key].small).training


@pytest.mark.parametrize("key", MATCHED)
def test_small_systems_get_the_flops_of_the_transformer(key: str) -> None:
    name, config = system_config(key, is_small=True, match="flops")
    _, reference = system_config(REFERENCE, is_small=True)
    ratio = training_flops(config) / training_flops(reference)
    assert ratio == pytest.approx(1, rel=0.02)
    assert config.model == preset(name).model


def test_two_passes_over_each_batch_have_twice_the_flops() -> None:
    config = preset("multi30k")
    twice = replace(config, training=replace(config.training, consistency=3.0))
    assert training_flops(twice) == 2 * training_flops(config)


def test_the_flops_of_a_training_include_the_samples_of_updates_by_reward() -> None:
    config, length = preset("multi30k"), np.array([MEAN_LENGTH])
    training = replace(config.training, steps=10, reward="gleu", reward_steps=4)
    ratio = training_flops(replace(config, training=training)) / training_flops(
        replace(config, training=replace(training, reward="none", reward_steps=None))
    )
    with torch.device("meta"):
        model = build(replace(config.model, vocab_size=6_000))
    update = model.update_flops(length, length)
    encoding = model.update_flops(length, 0 * length) / 3
    # 15 samples: a gradient of each, and their drawing with the encoder once.
    samples = 15 * update + 15 * (update / 3 - encoding) + encoding
    assert ratio == pytest.approx(1 + 0.4 * samples / update)


def test_steps_are_those_of_the_transformer_and_others_keep_their_proportion() -> None:
    for key in ("gnmt", REFERENCE):
        name, config = system_config(key, is_small=True, steps=1_100, match="none")
        usual = preset(name).training
        assert config.training.steps == pytest.approx(usual.steps / 10, abs=1)
        warmup = round(usual.warmup_steps / 10)
        assert config.training.warmup_steps == pytest.approx(warmup, abs=1)
        assert config.training.learning_rate == usual.learning_rate


def test_phases_of_a_shorter_training_begin_after_as_large_a_part_of_it() -> None:
    config = with_steps(preset("gnmt-en-de"), Fraction(1, 100))
    training = config.training
    assert (training.steps, training.sgd_from_step) == (20_000, 601)
    assert (training.decay_from, training.decay_steps) == (12_001, 2_000)
    last = scheduled_rate(20_000, config.model.d_model, training)
    assert last == 13.5 / 2**4


def test_a_scale_changes_widths_and_vocabularies() -> None:
    for key in ("gnmt", "convs2s", "deep-att", REFERENCE):
        name, config = system_config(key, is_small=False, scale=0.25, match="none")
        whole = preset(name)
        assert config.model.d_model == whole.model.d_model // 4
        assert config.tokenizer.vocab_size == whole.tokenizer.vocab_size // 4
        assert architecture_of(config.model) == architecture_of(whole.model)


def test_settings_of_all_systems_apply_before_matching() -> None:
    def change(config: RunConfig) -> RunConfig:
        tokenizer = replace(config.tokenizer, vocab_size=1_000)
        return replace(config, tokenizer=tokenizer)

    _, config = system_config("gnmt", is_small=True, change=change)
    _, reference = system_config(REFERENCE, is_small=True, change=change)
    assert config.tokenizer.vocab_size == 1_000
    assert sized(config) == pytest.approx(sized(reference), rel=0.05)


def test_systems_are_in_the_order_of_the_paper() -> None:
    assert require_systems(("base", "bytenet")) == ["bytenet", "base"]
    assert require_systems(()) == list(SYSTEMS)
    with pytest.raises(ConfigError, match="system `gmnt`; did you mean `gnmt`"):
        require_systems(("gmnt",))


@pytest.mark.parametrize(("megabytes", "is_small"), [(2, True), (900, False)])
def test_small_presets_are_for_small_corpora(
    tmp_path: Path, megabytes: int, is_small: bool
) -> None:
    path = tmp_path / "train.de"
    with path.open("wb") as file:
        file.truncate(megabytes * 1_000_000)
    files = CorpusFiles(source=(path,), target=(path,))
    assert is_small_corpus(files) is is_small


@pytest.fixture
def files(tmp_path: Path) -> CorpusFiles:
    text = (tmp_path / "text",)
    text[0].write_text("a dog\n")
    return CorpusFiles(source=text, target=text, dev_source=text, dev_target=text)


@pytest.fixture
def tests(tmp_path: Path) -> tuple[EvaluationText, ...]:
    (tmp_path / "test.en").write_text("\n".join(REFERENCES) + "\n")
    (tmp_path / "test.de").write_text("\n".join(REFERENCES) + "\n")
    text = EvaluationText.of(tmp_path / "test.en", tmp_path / "test.de")
    return (text,)


@pytest.fixture
def runs(tmp_path: Path, tests: tuple[EvaluationText, ...]) -> list[SystemRun]:
    configs = {
        key: system_config(key, is_small=True, steps=110) for key in ("gnmt", "base")
    }
    return system_runs(tmp_path / "out", configs, [1, 2], tests)


MAX_LENGTH = 20


def write(run: SystemRun, texts: list[str], perplexity: float, flops: int) -> None:
    """Write the files of a finished run; some pairs of its dev text are dropped."""
    pair = EncodedPair(source=[5, 6], target=[7, 8, 9])
    write_dataset([pair] * 3, run.path / "corpus" / "training")
    pairs = [
        SentencePair(source=source, target=target)
        for source, target in zip(DEV_SOURCES, DEV_TARGETS, strict=True)
    ]
    tokenizer = learn_tokenizer(REFERENCES, TokenizerConfig(vocab_size=280))
    tokenizer.save(run.path / "tokenizer.json")
    counts = encode_corpus(
        pairs, PairEncoder(tokenizer=tokenizer), MAX_LENGTH, run.path / "corpus" / "dev"
    )
    assert (counts.kept, counts.empty, counts.overlong) == (3, 1, 2)
    record = {
        "format": 1,
        "architecture": architecture_of(run.config.model),
        "settings": asdict(
            replace(
                run.config, batching=replace(run.config.batching, max_length=MAX_LENGTH)
            )
        ),
    }
    (run.path / "config.json").write_text(json.dumps(record))
    entries = (
        {"kind": "step", "step": 10, "flops": flops, "seconds": 0.5},
        {"kind": "dev", "step": 10, "perplexity": 4 * perplexity, "bleu": 3.0},
        {"kind": "dev", "step": 15, "perplexity": 2 * perplexity, "bleu": 4.0},
        {"kind": "step", "step": 20, "flops": 2 * flops, "seconds": 1.5},
        {"kind": "dev", "step": 20, "perplexity": perplexity, "bleu": 5.0},
        {"kind": "final", "step": 20, "perplexity": perplexity},
    )
    (run.path / "log.jsonl").write_text("\n".join(map(json.dumps, entries)) + "\n")
    for name, lines in (("source", DEV_SOURCES), ("target", DEV_TARGETS)):
        path = run.path / "corpus" / "dev" / f"{name}.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
    (run.path / "averaged").mkdir()
    (run.path / "averaged" / "model.safetensors").write_bytes(run.name.encode())
    (run.path / "averaged" / "config.json").write_text('{"format": 5}')
    for test in run.tests:
        run.translations(test).write_text("\n".join(texts) + "\n")


@pytest.fixture
def table(runs: list[SystemRun]) -> TrainedTable2:
    for run in runs:
        is_base = run.row == "base"
        write(run, GOOD if is_base else BAD, 4.0, 10**9 if is_base else 3 * 10**9)
    ensembles = ensembles_of(runs)
    for ensemble in ensembles:
        ensemble.log.parent.mkdir(parents=True, exist_ok=True)
        for test in ensemble.tests:
            ensemble.translations(test).write_text("\n".join(GOOD) + "\n")
    results = results_of(runs, ensembles, Trials(resamples=50, shuffles=50))
    return TrainedTable2(
        processors=("Abacus",),
        files={"source": ["a.en"]},
        precision="fp32",
        match="parameters",
        results=tuple(results),
        recipes={"gnmt": {"preset": "gnmt-multi30k"}, "base": {"preset": "multi30k"}},
        paths={
            "gnmt": (PathLengths(n=8, encoder=None, between=3, decoder=9),),
            "base": (PathLengths(n=8, encoder=1, between=1, decoder=1),),
        },
        failures={},
    )


def test_results_are_scores_and_costs(table: TrainedTable2) -> None:
    gnmt, base, *_ = table.results
    assert (gnmt.system, base.system) == ("gnmt", "base")
    assert base.seeds == (1, 2)
    [score] = base.scores
    assert score.bleu == pytest.approx(corpus_bleu(GOOD, REFERENCES).score)
    assert score.by_seed == (score.bleu, score.bleu)
    assert score.interval > 0
    assert (base.steps, base.flops, base.seconds) == (20, 2e9, 20.0)
    assert gnmt.flops == 6e9


def test_the_learning_curve_is_in_bits_per_character(table: TrainedTable2) -> None:
    curve = table.results[1].curve
    # Three lines have a likelihood, whose tokens and characters each have an end.
    kept = [KEPT[1], KEPT[1], KEPT[1]]
    tokenizer = learn_tokenizer(REFERENCES, TokenizerConfig(vocab_size=280))
    num_tokens = sum(len(ids) + 1 for ids in tokenizer.encode_targets(kept))
    rate = num_tokens / sum(len(line) + 1 for line in kept)
    bits = [math.log2(perplexity) * rate for perplexity in (16.0, 8.0, 4.0)]
    assert [point.bits for point in curve] == pytest.approx(bits)
    assert [point.flops for point in curve] == [1e9, 1.5e9, 2e9]
    reached = table.results[1].reached(bits[1])
    assert reached is not None
    assert reached.step == 15
    assert table.results[1].reached(0.1) is None


@pytest.mark.usefixtures("undrawn")
def test_the_cost_of_a_checkpoint_is_between_those_of_the_logged_updates(
    runs: list[SystemRun],
) -> None:
    for run in runs[:2]:
        write(run, GOOD, 4.0, 10**9)
    log = runs[0].path / "log.jsonl"
    # Ten updates by reward follow ten by likelihood.
    log.write_text(log.read_text().replace("2000000000", "9000000000"))
    result, _ = results_of(runs[:2], [], Trials(resamples=50, shuffles=50))
    assert [point.step for point in result.curve] == [10, 15, 20]
    assert [point.flops for point in result.curve] == [1e9, 5e9, 9e9]


@pytest.mark.usefixtures("undrawn")
def test_the_cost_of_a_run_that_ended_early_includes_its_last_updates(
    runs: list[SystemRun],
) -> None:
    write(runs[0], GOOD, 4.0, 10**9)
    log = runs[0].path / "log.jsonl"
    [*_, line] = [each for each in log.read_text().splitlines() if '"dev"' in each]
    with log.open("a") as file:
        file.write(json.dumps({**json.loads(line), "step": 25}) + "\n")
    [result] = results_of(runs[:1], [], Trials(resamples=50, shuffles=50))
    assert (result.steps, result.flops) == (25, 2.5e9)


@pytest.mark.usefixtures("undrawn")
def test_a_vocabulary_of_words_has_no_bits_per_character(
    tmp_path: Path, tests: tuple[EvaluationText, ...], table: TrainedTable2
) -> None:
    config = system_config("deep-att", is_small=True)
    [run] = system_runs(tmp_path / "words", {"deep-att": config}, [1], tests)
    write(run, GOOD, 1.5, 10**9)
    [result] = results_of([run], [], Trials(resamples=50, shuffles=50))
    assert [point.bits for point in result.curve] == [None, None, None]
    assert [point.bleu for point in result.curve] == [3.0, 4.0, 5.0]
    assert result.reached(99.0) is None
    with_words = replace(table, results=(result, *table.results))
    before, after = tables(trained_report(table)), tables(trained_report(with_words))
    assert after[1:3] == before[1:3]  # levels and costs of the others
    alone = trained_report(replace(table, results=(result,), paths={}))
    assert {picture.name for picture in alone.pictures()} == {"table2-bleu"}
    assert not any((each.title or "").startswith("Cost") for each in tables(alone))
    assert "bits per character" not in as_markdown(alone)
    points = tuple(replace(point, bleu=None) for point in result.curve)
    result = replace(result, curve=points)
    alone = trained_report(replace(table, results=(result,), paths={}))
    assert "Learning curves" not in {section.title for section in alone.sections}


def test_costs_are_not_compared_with_a_transformer_that_was_not_trained(
    table: TrainedTable2,
) -> None:
    gnmt, *_ = table.results
    report = trained_report(replace(table, results=(gnmt,)))
    [costs] = [each for each in tables(report) if (each.title or "").startswith("Cost")]
    assert [column.name for column in costs.columns] == ["system", "updates", "FLOPs"]
    assert {len(row) for row in costs.rows} == {3}
    text = as_markdown(report)
    assert "the least that all these systems reach." in " ".join(text.split())
    assert "that the base Transformer reaches" not in text


def test_text_without_spaces_has_no_bleu_of_the_paper(
    tmp_path: Path, runs: list[SystemRun]
) -> None:
    lines = ["一只狗在花园里跑。", "一个女人坐在长椅上。"]
    for name in ("source", "reference"):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    test = EvaluationText.of(tmp_path / "source", tmp_path / "reference")
    run = replace(runs[0], tests=(test,))
    write(run, lines, 4.0, 10**9)
    [result] = results_of([run], [], Trials(resamples=50, shuffles=50))
    [score] = result.scores
    assert score.bleu == pytest.approx(100)
    assert score.paper_bleu is None


def test_an_ensemble_costs_all_its_trainings(table: TrainedTable2) -> None:
    _, base, _, ensemble = table.results
    assert ensemble.is_ensemble
    assert ensemble.system == "base"
    assert ensemble.flops == 2 * base.flops
    assert ensemble.parameters == 2 * base.parameters
    assert ensemble.curve == ()


def heads(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def tables(report: Report) -> list[Table]:
    parts = (part for section in report.sections for part in section.parts)
    return [part for part in parts if isinstance(part, Table)]


def test_the_report_has_the_papers_figures_beside_ours(table: TrainedTable2) -> None:
    report = trained_report(table)
    rows = {plain(row[0]): list(map(plain, row)) for row in tables(report)[0].rows}
    assert set(rows) == {
        "GNMT", "Transformer (base model)", "GNMT Ensemble",
        "Transformer (base model) Ensemble",
    }  # fmt: skip
    base = rows["Transformer (base model)"]
    assert base[-2:] == ["27.30", "3.3e18"]
    assert "2.0e09" in base
    assert {p.name for p in report.pictures()} == {"table2-bits", "table2-bleu"}
    reached = tables(report)[1]
    assert [plain(cell) for cell in reached.rows[0]][-1] == "3.00"
    paths = next(each for each in tables(report) if "encoder, n = 8" in heads(each))
    assert [plain(cell) for cell in paths.rows[0]] == ["GNMT", "–", "3", "9"]


@pytest.mark.usefixtures("undrawn")
def test_the_report_says_that_sizes_are_not_matched(table: TrainedTable2) -> None:
    for match in ("parameters", "flops"):
        assert "not matched" not in str(trained_report(replace(table, match=match)))
    assert "not matched" in str(trained_report(replace(table, match="none")))


@pytest.mark.usefixtures("undrawn")
def test_the_report_names_systems_whose_sizes_are_not_matched(
    table: TrainedTable2,
) -> None:
    gnmt, base, *_ = table.results

    def text(parameters: int, match: Match = "parameters") -> str:
        results = (replace(gnmt, parameters=parameters), base)
        changed = replace(table, results=results, match=match)
        return str(trained_report(changed))

    fewer = base.parameters // 2
    assert (
        f"Parameters differ by more than 20% from the {base.parameters:,} of the base "
        f"Transformer: GNMT has {fewer:,}. Widths are"
    ) in text(fewer)
    assert "differ by" not in text(fewer, "flops")
    assert "differ by" not in text(round(1.1 * base.parameters))


@pytest.mark.usefixtures("undrawn")
def test_the_report_names_runs_at_a_reduced_learning_rate(
    runs: list[SystemRun], table: TrainedTable2
) -> None:
    assert "diverged" not in str(trained_report(table))
    [run] = [each for each in runs if (each.row, each.seed) == ("gnmt", 2)]
    with (run.path / "log.jsonl").open("a") as log:
        log.write('{"kind": "went back", "step": 0, "rate_factor": 0.5}\n')
    results = results_of(runs, ensembles_of(runs), Trials(resamples=50, shuffles=50))
    assert {each.diverged for each in results} == {(2,), ()}
    report = trained_report(replace(table, results=tuple(results)))
    [sentence] = [
        part
        for section in report.sections
        for part in section.parts
        if isinstance(part, str) and "diverged" in part
    ]
    assert sentence.startswith("The loss of GNMT diverged with seed 2: such a run")


@pytest.mark.usefixtures("undrawn")
def test_the_report_names_the_processors_that_trained(
    runs: list[SystemRun], table: TrainedTable2
) -> None:
    assert processors_of(runs) == ()  # logs of an older version
    for run in runs:
        here = Environment(
            device="cpu", processor="Abacus" if run.seed == 1 else "Slide rule",
            precision="fp32", num_processes=1, num_threads=2, instructions="avx2",
            torch="2", transduce="1",
        )  # fmt: skip
        with (run.path / "log.jsonl").open("a") as log:
            start = {"kind": "start", "step": 0, "computing": asdict(here)}
            log.write(json.dumps(start) + "\n")
    processors = processors_of(runs)
    assert processors == ("Abacus", "Slide rule")
    assert "fp32, on Abacus." in str(trained_report(table))
    report = str(trained_report(replace(table, processors=processors)))
    assert "on Abacus and Slide rule. Times on different processors cannot" in report


def test_another_experiment_in_its_folder_is_refused(
    runs: list[SystemRun], files: CorpusFiles, tmp_path: Path
) -> None:
    experiment = SystemExperiment(folder=tmp_path / "out", files=files)
    experiment.begin(runs[:1])
    experiment.begin(runs)  # another system
    [changed] = [run for run in runs if run.row == "base" and run.seed == 1]
    training = replace(changed.config.training, label_smoothing=0.2)
    other = replace(changed, config=replace(changed.config, training=training))
    with pytest.raises(ConfigError, match=r"`training.label_smoothing` of base in"):
        experiment.begin([other])
    files.dev_target[0].write_text("a cat\n")
    with pytest.raises(ConfigError, match="the training text must be the one that the"):
        experiment.begin(runs)


def test_a_damaged_record_of_a_system_is_refused(
    runs: list[SystemRun], files: CorpusFiles, tmp_path: Path
) -> None:
    experiment = SystemExperiment(folder=tmp_path / "out", files=files)
    experiment.begin(runs)
    path = experiment.folder / EXPERIMENT
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "systems": {"base": 5}}))
    with pytest.raises(ConfigError, match="the record of the experiment is damaged"):
        experiment.begin(runs)


def test_a_truncated_test_text_is_named(
    table: TrainedTable2, runs: list[SystemRun]
) -> None:
    assert table.results
    reference = runs[0].tests[0].reference
    reference.write_text("\n".join(REFERENCES[:-1]) + "\n")
    message = f"^{reference}:[0-9]+: source and references must have equally many"
    with pytest.raises(DataError, match=message):
        results_of(runs, ensembles_of(runs), Trials(resamples=5, shuffles=5))


def test_an_ensemble_translates_again_after_a_member_was_trained_again(
    runs: list[SystemRun], table: TrainedTable2
) -> None:
    assert table.results
    gnmt, base = ensembles_of(runs)
    for ensemble in (gnmt, base):
        ensemble.discard_stale()  # without a record of its members
        assert not ensemble.is_done
        ensemble.translations(ensemble.tests[0]).write_text("\n".join(GOOD) + "\n")
        ensemble.discard_stale()
        assert ensemble.is_done
    record = base.translations(base.tests[0]).with_suffix(".json")
    record.write_text("{", encoding="utf-8")
    base.discard_stale()
    assert not base.is_done
    base.translations(base.tests[0]).write_text("\n".join(GOOD) + "\n")
    base.discard_stale()
    assert base.is_done
    [member] = [run for run in runs if (run.row, run.seed) == ("base", 2)]
    (member.path / "averaged" / "model.safetensors").write_bytes(b"other weights")
    for ensemble in (gnmt, base):
        ensemble.discard_stale()
    assert gnmt.is_done
    assert not base.is_done
    shutil.rmtree(gnmt.members[0].path / "averaged")  # its text is all that is needed
    gnmt.discard_stale()
    assert gnmt.is_done


def test_a_test_text_that_changes_is_refused(
    runs: list[SystemRun],
    files: CorpusFiles,
    tmp_path: Path,
    tests: tuple[EvaluationText, ...],
) -> None:
    experiment = SystemExperiment(folder=tmp_path / "out", files=files)
    experiment.begin(runs)
    other = EvaluationText(
        name="other", source=tests[0].source, reference=tests[0].reference
    )
    experiment.begin([replace(runs[0], tests=(other,))])  # one more
    tests[0].reference.write_text("\n".join(GOOD) + "\n")
    with pytest.raises(ConfigError, match="the test text test has changed since"):
        experiment.begin(runs)


@pytest.mark.usefixtures("undrawn")
def test_damaged_results_of_a_run_are_refused(runs: list[SystemRun]) -> None:
    pair = [run for run in runs if run.row == "base"]
    for run in pair:
        write(run, GOOD, 4.0, 10**9)
        read_results(run)
    [ensemble] = ensembles_of(pair)
    [test] = ensemble.tests
    ensemble.translations(test).write_text("\n".join(GOOD) + "\n")
    read_results(ensemble)
    ensemble.translations(test).write_text("a dog\n")
    with pytest.raises(DataError, match=f"^{ensemble.translations(test)}: must have"):
        read_results(ensemble)
    run = pair[0]
    for path, content in (
        (run.translations(test), "a dog\n"),
        (run.path / "config.json", "{}"),
        (run.path / "log.jsonl", "{}\n"),
        (run.path / "corpus" / "dev" / "target.txt", "a dog\n"),
    ):
        before = path.read_text()
        path.write_text(content)
        with pytest.raises((CheckpointError, DataError), match=str(run.path)):
            read_results(run)
        path.write_text(before)


def test_commands_train_then_translate(
    runs: list[SystemRun],
    files: CorpusFiles,
    tmp_path: Path,
    tests: tuple[EvaluationText, ...],
) -> None:
    experiment = SystemExperiment(folder=tmp_path / "out", files=files, device="cpu")
    run = runs[0]
    train = experiment.next_command(run)
    assert train is not None
    assert train[4:8] == ["train", "--out", str(run.path), "--precision"]
    assert train[train.index("--preset") + 1] == "gnmt-multi30k"
    assert "--however-long" in train  # the paper's systems take weeks
    write(run, GOOD, 4.0, 10)
    assert experiment.next_command(run) is None
    run.translations(tests[0]).unlink()
    translate = experiment.next_command(run)
    assert translate is not None
    assert translate[4:6] == ["translate", str(run.path)]


def test_paths_are_measured_in_each_system() -> None:
    configs = {key: system_config(key, is_small=True) for key in ("gnmt", "base")}
    found = path_lengths(configs, lengths=(4, 8))
    assert [each.encoder for each in found["base"]] == [1, 1]
    # A recurrence in one direction at least, and the layers above it at one position.
    assert [each.encoder for each in found["gnmt"]] == [5, 9]
    # A layer of the encoder, attention, and two layers of the decoder.
    assert {each.between for each in found["gnmt"]} == {4}


@pytest.mark.parametrize("is_small", [True, False])
def test_all_systems_connect_source_and_target(is_small: bool) -> None:
    configs = {
        key: system_config(key, is_small=is_small, match="none") for key in SYSTEMS
    }
    found = path_lengths(configs, lengths=(3,))
    assert list(found) == list(SYSTEMS)
    for [measured] in found.values():
        assert measured.between is not None
        assert measured.decoder is not None


def test_convolutions_connect_far_positions_in_several_steps() -> None:
    configs = {key: system_config(key, is_small=True) for key in ("bytenet", "convs2s")}
    found = path_lengths(configs, lengths=(4, 12))
    [[bytenet, far], [convs2s, _]] = found["bytenet"], found["convs2s"]
    # ConvS2S: kernels of 3 reach one position to either side, and two back.
    assert (convs2s.encoder, convs2s.between, convs2s.decoder) == (3, 1, 2)
    assert far.encoder is not None
    assert bytenet.encoder is not None
    assert bytenet.encoder < far.encoder < 12


def test_the_seed_is_the_only_difference_between_runs(runs: list[SystemRun]) -> None:
    one, two = (run for run in runs if run.row == "gnmt")
    assert with_seed(one.config, 2) == two.config
