import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from transduce.analysis.cost import LayerSizes
from transduce.checkpoint import Checkpoint, save_model
from transduce.cli.table2 import MachineOptions
from transduce.decoding.translator import Translator
from transduce.experiments import table1
from transduce.search_config import SearchConfig


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use tiny layers, whose times are measured fast and are meaningless."""
    others = LayerSizes(n=16, d=8, k=2, r=4)
    sweeps = [
        replace(sweep, values=(4, 8), others=others, batch=1) for sweep in table1.SWEEPS
    ]
    monkeypatch.setattr(table1, "SWEEPS", tuple(sweeps))
    monkeypatch.setattr(table1, "LENGTHS", (4, 8))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.0, 0.0))


@pytest.mark.usefixtures("small")
def test_table_1_is_measured_and_written(
    succeeds: Callable[..., str], tmp_path: Path
) -> None:
    out = tmp_path / "new" / "table1"
    printed = succeeds("reproduce", "table1", "--out", out, "--max-rounds", 2)
    assert printed.startswith("Table 1: complexity of layer types\n")
    assert "O(log_k(n))" in printed
    assert "1 thread" in printed
    joined = "".join(printed.split())
    assert joined.endswith(f"Thereportisin{out}:table1.md,table1.html,table1.json.")
    assert {path.name for path in out.iterdir()} == {
        ".made-by", "table1.md", "table1.html", "table1.json", "table1-paths.png",
        "table1-time-n.png", "table1-time-d.png", "table1-time-kr.png",
    }  # fmt: skip
    figures = json.loads((out / "table1.json").read_text())
    assert figures["scaling"]["rounds"] == 2
    assert figures["load"] == 0.1
    assert [each["measured"] for each in figures["paths"][:4]] == [1, 1, 4, 8]
    assert "<svg" in (out / "table1.html").read_text(encoding="utf-8")


def test_runs_are_placed_in_table_2(
    succeeds: Callable[..., str],
    run: Path,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    source, reference = corpus_files
    text = ("--source", source, "--reference", reference)
    out = tmp_path / "table2"
    options = ("--hardware", "K80", "--devices", 2, "--presets", "base", "tiny")
    printed = succeeds("reproduce", "table2", run, *text, "--out", out, *options)
    assert "2 x K80 of 2.8 TFLOPS" in " ".join(printed.split())
    assert "Transformer (base model)" in printed
    figures = json.loads((out / "table2.json").read_text())
    [ours] = figures["ours"]
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    last = [entry for entry in log if entry["kind"] == "step"][-1]
    assert ours["flops"] == last["flops"]
    assert ours["seconds"] > 0
    scores = json.loads(succeeds("evaluate", run, *text, "--json"))
    assert ours["bleu"] == scores[0]
    assert ours["paper_bleu"] == scores[1]
    assert [cost["preset"] for cost in figures["costs"]] == ["base", "tiny"]


def test_a_run_in_table_2_translates_with_its_tuned_search(
    succeeds: Callable[..., str],
    run: Path,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / "averaged" / "config.json"
    content = json.loads(path.read_text())
    content["search"] = {"beam_size": 3, "length_penalty": 0.2, "num_best": 2}
    path.write_text(json.dumps(content))
    used: list[SearchConfig] = []
    translate_stream = Translator.translate_stream

    def watched(self: Translator, sources: Any, search: SearchConfig) -> Any:
        used.append(search)
        return translate_stream(self, sources, search)

    monkeypatch.setattr(Translator, "translate_stream", watched)
    source, reference = corpus_files
    succeeds(
        *("reproduce", "table2", tmp_path / "run", "--out", tmp_path / "t"),
        *("--source", source, "--reference", reference),
        *("--hardware", "K80", "--presets", "tiny", "--device", "cpu"),
    )
    assert used == [SearchConfig(beam_size=3, length_penalty=0.2, num_best=1)]


def copy_with_model(run: Path, model: Checkpoint, folder: Path) -> Path:
    """Copy a run, and put another model in the place of its average."""
    copy = shutil.copytree(run, folder / "run")
    shutil.rmtree(copy / "averaged")
    save_model(model, copy / "averaged")
    return copy


def test_a_run_in_table_2_translates_into_the_language_of_the_references(
    succeeds: Callable[..., str],
    refuses: Callable[..., str],
    run: Path,
    tagged_checkpoint: Checkpoint,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = copy_with_model(run, tagged_checkpoint, tmp_path)
    source, reference = corpus_files
    french = shutil.copy(reference, tmp_path / "reference.fr")
    used: list[str] = []
    translate_stream = Translator.translate_stream

    def watched(self: Translator, sources: Any, search: SearchConfig) -> Any:
        used.append(self.language_tag)
        return translate_stream(self, sources, search)

    monkeypatch.setattr(Translator, "translate_stream", watched)
    options = ("--hardware", "K80", "--presets", "tiny", "--device", "cpu")
    command = ("reproduce", "table2", copy, "--source", source, *options)
    succeeds(*command, "--reference", french, "--out", tmp_path / "t")
    assert used == [">>fr<<"]
    spanish = shutil.copy(reference, tmp_path / "reference.es")
    refusal = refuses(*command, "--reference", spanish, "--out", tmp_path / "u")
    assert refusal.startswith(
        f"{copy}: the target language must be one of the model's, but is 'es'"
    )
    assert used == [">>fr<<"]


def test_a_parser_in_table_2_is_refused_before_any_translation(
    refuses: Callable[..., str],
    run: Path,
    parsing_checkpoint: Checkpoint,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = copy_with_model(run, parsing_checkpoint, tmp_path)
    monkeypatch.delattr("transduce.cli.table2.our_row")
    source, reference = corpus_files
    refusal = refuses(
        *("reproduce", "table2", run, copy, "--hardware", "K80"),
        *("--source", source, "--reference", reference, "--out", tmp_path / "t"),
    )
    assert refusal.startswith(f"{copy}: the runs of Table 2 must translate, but this")


def test_the_speed_of_this_machine_is_measured(
    succeeds: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.cli.table2.matrix_rate", lambda hardware: 3e11)
    monkeypatch.setattr(os, "getloadavg", lambda: (4.0, 0.0, 0.0))
    options = ("--device", "cpu", "--presets", "tiny")
    printed = succeeds("reproduce", "table2", "--out", tmp_path / "t", *options)
    assert "of 0.3 TFLOPS" in " ".join(printed.split())
    assert "Other programs were running (load 4.0)" in " ".join(printed.split())


def test_the_speed_of_unknown_hardware_is_given_by_an_option(
    succeeds: Callable[..., str], tmp_path: Path
) -> None:
    options = ("--hardware", "Abacus", "--tflops", "0.5", "--presets", "tiny")
    succeeds("reproduce", "table2", "--out", tmp_path / "t", *options)
    figures = json.loads((tmp_path / "t" / "table2.json").read_text())
    assert figures["cluster"] == {"name": "Abacus", "tflops": 0.5, "num_devices": 1}


def test_a_speed_without_a_name_is_that_of_this_machine() -> None:
    options = MachineOptions(hardware="this", tflops=5.0, num_devices=2, device="cpu")
    assert str(options.cluster()) == "2 x this machine of 5 TFLOPS"


def test_a_run_without_its_log_is_refused(
    refuses: Callable[..., str],
    run: Path,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "log.jsonl").unlink()
    source, reference = corpus_files
    text = ("--source", source, "--reference", reference, "--hardware", "P100")
    refusal = refuses(
        *("reproduce", "table2", tmp_path / "run", *text), "--out", tmp_path / "t"
    )
    sentence = f"{tmp_path}/run: must have a log of its updates, but has none."
    assert refusal == sentence
    assert not (tmp_path / "t").exists()
    # Found before another run has translated.
    monkeypatch.delattr("transduce.cli.table2.our_row")
    assert sentence == refuses(
        *("reproduce", "table2", run, tmp_path / "run", *text), "--out", tmp_path / "t"
    )
    model = tmp_path / "run" / "averaged"
    assert refuses("reproduce", "table2", model, *text, "--out", tmp_path / "t") == (
        f"{model}: must be the folder of a run, whose log has the cost of its "
        "training, but is not; give the run's folder, not a model's."
    )


@pytest.mark.parametrize("content", ["", " \n\n"], ids=repr)
def test_a_blank_test_text_is_refused(
    refuses: Callable[..., str], run: Path, tmp_path: Path, content: str
) -> None:
    blank = tmp_path / "blank"
    blank.write_text(content)
    refusal = refuses(
        *("reproduce", "table2", run, "--source", blank, "--reference", blank),
        *("--out", tmp_path / "t"),
    )
    assert refusal == f"{blank}: at least one line must have text, but none has."


def test_a_folder_that_holds_something_is_left_alone(
    refuses: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "mine").touch()
    remedies = {
        tmp_path: "is not; choose another.",
        tmp_path / "mine": "is a file; choose another name.",
    }
    for out, remedy in remedies.items():
        refusal = refuses("reproduce", "table1", "--out", out)
        assert refusal == (
            f"{out}: the output folder must be new or empty, but {remedy}"
        )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("table1", "--max-rounds", "0", "--out", "o"),
            "--max-rounds must be at least",
        ),
        (("table1",), "--out must be given."),
        (("table2",), "--out must be given."),
        (("table2", "r", "--out", "o"), "Runs and --source must be given together"),
        (
            ("table2", "--out", "o", "--source", "s"),
            "Runs and --source must be given together",
        ),
        (("table2", "--out", "o", "--devices", "0"), "`--devices` must be at least 1"),
        (
            ("table2", "--out", "o", "--hardware", "H100"),
            "--hardware must be this, K80, K40, M40, P100, or come with --tflops, but",
        ),
        (("table2", "--out", "o", "--tflops", "0"), "--tflops must be above 0 and at"),
        (
            ("table2", "--out", "o", "--hardware", "P100", "--devices", str(10**20)),
            "`--devices` must be at most 1,000,000, but is",
        ),
        (("table2", "--out", "o", "--tflops", "1e308"), "at most 1,000,000, but is"),
        (("table2", "--out", "o", "--tflops", "nan"), "at most 1,000,000, but is nan."),
        (("table2", "--out", "o", "--tflops", "inf"), "at most 1,000,000, but is inf."),
        (("table2", "--out", "o", "--presets", "bsae"), "did you mean `base`?"),
        (
            ("table2", "--out", "o", "--presets", "big", "big"),
            "--presets must have no value twice, but big is given more than once",
        ),
        (
            ("table2", "r", "r", "--source", "s", "--out", "o"),
            "RUNS must have no value twice, but r is given more than once",
        ),
        (
            ("scaling", "--out", "o", "--d-k", "0"),
            "`--d-k` must be at least 1, but is 0.",
        ),
        (
            ("scaling", "--out", "o", "--d-k", "64", "5000"),
            "`--d-k` must be at most 4,096, but is 5000.",
        ),
        (
            ("scaling", "--out", "o", "--heads", "0"),
            "`--heads` must be at least 1, but is 0.",
        ),
        (
            ("scaling", "--out", "o", "--set", "training.seed=3"),
            "`training.seed` must not be changed by --set in this experiment; use --se",
        ),
        (
            ("scaling", "--out", "o", "--set", "model={num_heads=3}"),
            "`model.num_heads` must not be changed by --set in this experiment; use --",
        ),
        (
            ("scaling", "--out", "o", "--set", "model.scores=additive"),
            "`model.scores` must not be changed by --set in this experiment; all kinds",
        ),
        (
            ("scaling", "--out", "o", "--set", "model.d_ff=64"),
            "`model.d_ff` must not be changed by --set in this experiment; it is twice",
        ),
        (
            ("table3", "--out", "o", "--set", "training.seed=3"),
            "`training.seed` must not be changed by --set in this experiment; use --se",
        ),
        (("table5",), 'Unknown command "table5"'),
    ],
    ids=str,
)
def test_a_mistake_ends_with_one_sentence(
    refuses: Callable[..., str], arguments: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refuses("reproduce", *arguments)


def test_parts_of_the_command_are_listed(succeeds: Callable[..., str]) -> None:
    assert "Measure what layers cost" in succeeds("reproduce")


class TestTable4:
    GOLD = "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .)))\n"
    PARSES = "(TOP (S (NP (XX the)) (VP (XX dog) (XX barks)) (XX .)))\n"

    @pytest.fixture
    def trees(self, tmp_path: Path) -> tuple[Path, Path]:
        (tmp_path / "gold").write_text(self.GOLD, encoding="utf-8")
        (tmp_path / "parses").write_text(self.PARSES, encoding="utf-8")
        return tmp_path / "gold", tmp_path / "parses"

    def test_parses_are_placed_in_table_4(
        self, succeeds: Callable[..., str], trees: tuple[Path, Path], tmp_path: Path
    ) -> None:
        out = tmp_path / "table4"
        told = ("--treebank", "Small Bank", "--split", "its end")
        printed = succeeds(
            *("reproduce", "table4", "--out", out, *told),
            *("--wsj-only", *trees, *trees, "--semi-supervised", *trees),
        )
        assert "Treebank: Small Bank; split: its end." in " ".join(printed.split())
        assert {path.name for path in out.iterdir()} == {
            ".made-by",
            "table4.md", "table4.html", "table4.json",
        }  # fmt: skip
        figures = json.loads((out / "table4.json").read_text())
        found = json.loads(
            succeeds("evaluate-parses", *trees, "--normalize", "--gold-tags", "--json")
        )
        assert [row["setting"] for row in figures["ours"]] == [
            "WSJ only", "WSJ only", "semi-supervised",
        ]  # fmt: skip
        assert [row["figures"] for row in figures["ours"]] == [found["all"]] * 3

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ((), "Trees must be given: --wsj-only or --semi-supervised, each with"),
            (
                ("--wsj-only", "g", "p"),
                "F1 is meaningless without its test set",
            ),
            (
                ("--wsj-only", "g", "p", "--treebank", "T"),
                "F1 is meaningless without its test set",
            ),
            (
                ("--wsj-only", "g", "p", "--treebank", "T", "--split", "S"),
                "g: the file cannot be read",
            ),
        ],
        ids=str,
    )
    def test_a_mistake_ends_with_one_sentence(
        self,
        refuses: Callable[..., str],
        tmp_path: Path,
        options: tuple[str, ...],
        sentence: str,
    ) -> None:
        out = tmp_path / "table4"
        assert sentence in refuses("reproduce", "table4", "--out", out, *options)
        assert not out.exists()


def text_options(files: tuple[Path, Path]) -> tuple[object, ...]:
    source, target = files
    dev = ("--dev-source", source, "--dev-target", target)
    return ("--source", source, "--target", target, *dev)


def test_an_interrupted_reproduction_says_how_it_continues(
    refuses: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    text = text_options(corpus_files)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transduce.experiments.scaling.measure_scores", interrupt)
    for _ in range(2):
        message = refuses("reproduce", "scaling", *text, "--out", "scaling")
        assert message == (
            "Interrupted. All finished work is in scaling: the same command continues "
            "the reproduction."
        )
    found = {path.name for path in Path("scaling").iterdir()}
    assert found == {"logs", "runs", "scaling.json"}


OF_WSJ = ("--wsj-only", "gold", "own", "--treebank", "WSJ", "--split", "23")


@pytest.mark.parametrize(
    ("function", "command"),
    [
        ("measure_table1", ("table1",)),
        ("place_runs", ("table2",)),
        ("our_rows", ("table4", *OF_WSJ)),
    ],
)
def test_an_interrupted_report_says_that_its_work_starts_anew(
    refuses: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    function: str,
    command: tuple[str, ...],
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"transduce.cli.reproduce.{function}", interrupt)
    assert refuses("reproduce", *command, "--out", "report") == (
        "Interrupted. Nothing was written to report: the same command starts from the "
        "beginning."
    )
    assert not Path("report").exists()


@pytest.mark.usefixtures("forked_runs")
def test_scaling_is_measured_trained_and_written(
    succeeds: Callable[..., str],
    refuses: Callable[..., str],
    command: Callable[..., Any],
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    text = text_options(corpus_files)
    small = ("--set", "tokenizer.vocab_size=400", "batching.target_tokens=60")
    options = (*text, *small, "--d-k", 4, "--steps", 2, "--device", "cpu")
    out = tmp_path / "scaling"
    printed = succeeds("reproduce", "scaling", *options, "--out", out)
    report = printed[printed.index("Scaled, unscaled and additive attention") :]
    runs = [f"{kind}-dk4-seed1" for kind in ("additive", "scaled", "unscaled")]
    assert sorted(path.name for path in (out / "runs").iterdir()) == runs
    figures = json.loads((out / "report" / "scaling.json").read_text())
    assert [row["kind"] for row in figures["rows"]] == [
        "scaled", "unscaled", "additive",
    ]  # fmt: skip
    assert all(1 < row["perplexity"] < 10_000 for row in figures["rows"])
    assert len({row["perplexity"] for row in figures["rows"]}) == 3
    assert {path.suffix for path in (out / "report").iterdir()} == {
        ".md", ".html", ".json", ".png", "",  # .made-by
    }  # fmt: skip
    logs = {path: path.stat().st_mtime_ns for path in (out / "logs").iterdir()}
    # Nothing is left to train.
    assert succeeds("reproduce", "scaling", *options, "--out", out) == report
    assert logs == {path: path.stat().st_mtime_ns for path in (out / "logs").iterdir()}
    refusal = refuses("reproduce", "scaling", *options, "--heads", 2, "--out", out)
    assert "`heads` of the experiment in this folder is 1, but 2 is requ" in refusal
    # A run whose results are damaged does not keep the others from the report.
    log = out / "runs" / runs[0] / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if '"dev"' not in line))
    outcome = command("reproduce", "scaling", *options, "--out", out)
    assert outcome.code == 2
    assert outcome.err.startswith(
        f"transduce: All runs must be done, but 1 of 3 failed; the first is {runs[0]}: "
        f"{log.parent}: the log of the run must have lines of kind 'dev'"
    )
    figures = json.loads((out / "report" / "scaling.json").read_text())
    assert [row["kind"] for row in figures["rows"]] == ["scaled", "unscaled"]
    assert list(figures["failures"]) == runs[:1]
