"""Named dev sets: each is scored at each checkpoint, and the first chooses the best."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

import transduce
from transduce.analysis import figures
from transduce.analysis.figures import draw_learning_curve
from transduce.checkpoint import load_model
from transduce.errors import ConfigError

pytestmark = pytest.mark.usefixtures("no_trials")

CPU = ("--device", "cpu", "--precision", "fp32")
SHORT = (
    "training.steps=4", "training.checkpoint_steps=2", "training.warmup_steps=1",
    "batching.source_tokens=100", "batching.target_tokens=100",
    "batching.batch_tokens=50",
)  # fmt: skip


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Draw learning curves but no pictures; the list has the labels of their lines."""
    labels: list[str] = []
    monkeypatch.setattr(figures, "draw_learning_curve", draw_learning_curve)
    monkeypatch.setattr(figures.Figure, "savefig", lambda *_, **__: None)
    plot = Axes.plot

    def labelled(axes: Axes, *values: Any, label: str, **options: Any) -> None:
        labels.append(label)
        plot(axes, *values, label=label, **options)

    monkeypatch.setattr(Axes, "plot", labelled)
    return labels


@pytest.fixture
def news(tmp_path: Path) -> tuple[Path, Path]:
    files = tmp_path / "news.en", tmp_path / "news.de"
    for path, text in zip(
        files, ("two one\nthree\n", "zwei eins\ndrei\n"), strict=True
    ):
        path.write_text(text)
    return files


@pytest.fixture
def options(corpus_files: tuple[Path, Path], tmp_path: Path) -> tuple[object, ...]:
    source, target = corpus_files
    files = ("--source", source, "--target", target, "--preset", "tiny")
    return (*files, *CPU, "--set", *SHORT, "--out", tmp_path / "run")


def logged(run: Path, kind: str) -> list[tuple[str, int]]:
    entries = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [(e.get("name", "dev"), e["step"]) for e in entries if e["kind"] == kind]


def test_each_dev_set_is_scored_at_each_checkpoint(
    succeeds, curves, options, corpus_files, news
) -> None:
    sets = ("--dev", "home", *corpus_files, "--dev", "news", *news)
    printed = succeeds("train", *options, *sets)
    run = options[-1]
    assert logged(run, "dev") == [("home", 2), ("home", 4)]
    assert logged(run, "dev set") == [("news", 2), ("news", 4)]
    assert logged(run, "final") == [("home", 4)]
    assert logged(run, "final dev set") == [("news", 4)]
    for line in (
        "Dev pairs of home: ",
        "Dev pairs of news: 2 of 2",
        "step 2: home: loss",
        "step 2: news: ",
    ):
        assert line in printed
    assert {"home", "news", "home, greedy", "news, greedy"} <= set(curves)


def test_a_given_dev_corpus_chooses_before_the_named_ones(
    succeeds, curves, options, corpus_files, news
) -> None:
    source, target = corpus_files
    dev = ("--dev-source", source, "--dev-target", target)
    succeeds("train", *options, "--dev", "news", *news, *dev)
    assert logged(options[-1], "dev") == [("dev", 2), ("dev", 4)]
    assert logged(options[-1], "dev set") == [("news", 2), ("news", 4)]


def test_a_start_is_scored_beside_the_new_model(
    succeeds, curves, run: Path, options, corpus_files, news
) -> None:
    options = (*options[:4], *options[6:])  # without the preset
    sets = ("--dev", "home", *corpus_files, "--dev", "news", *news)
    printed = succeeds("train", "--from", run, *options, *sets)
    out = options[-1]
    assert logged(out, "dev") == [("home", 0), ("home", 2), ("home", 4)]
    assert logged(out, "start model") == [("home", 0), ("news", 0)]
    table = printed[printed.index("dev set") :].splitlines()
    assert table[0].split() == ["dev", "set", "metric", "start", "model", "change"]
    assert [line.split()[0] for line in table[2:8]] == ["home"] * 3 + ["news"] * 3


def test_a_start_that_is_better_stays_the_model(
    succeeds, curves, model: Path, options, corpus_files
) -> None:
    options = (*options[:4], *options[6:])
    ruinous = ("--set", "training.learning_rate=0.02")
    dev = ("--dev", "home", *corpus_files)
    printed = succeeds("train", "--from", model, *options, *dev, *ruinous)
    assert "The start is the run's model." in " ".join(printed.split())
    ours, start = load_model(options[-1]).weights, load_model(model).weights
    assert all(ours[name].equal(weight) for name, weight in start.items())
    assert load_model(options[-1]).step == 0


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("share", "news.en", "news.de"), "A dev set cannot be named share"),
        (("news", "news.en"), "--dev must have NAME SOURCE TARGET, but one has only"),
        (("../news", "news.en", "news.de"), "The name of a dev set must be 1 to 40"),
        (("news", "nowhere", "news.de"), "nowhere: the file"),
        (("news", "news.en", "empty"), "empty:1: source and target"),
        (("news", "news.en", "blank"), "news.en: a dev set must have a pair with text"),
        (
            ("news", "news.en", "news.de", "news", "news.en", "news.de"),
            "Each dev set must have a name of its own, but two are news",
        ),
    ],
)
@pytest.mark.usefixtures("news")
def test_a_faulty_dev_set_is_refused(
    refuses, options, monkeypatch, tmp_path, words: tuple[str, ...], refusal: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    lines = len(Path("news.en").read_text().splitlines())
    Path("blank").write_text(" \n" * lines)
    assert refusal in refuses("train", *options, "--dev", *words)
    assert not options[-1].exists()


def test_dev_sets_of_text_do_not_go_with_trees_or_a_resumed_run(
    refuses, run: Path, news, tmp_path
) -> None:
    trees = tmp_path / "trees"
    trees.write_text("(S (DT the) (NN dog))\n")
    dev = ("--dev", "news", *news)
    new = ("--out", tmp_path / "new", "--preset", "tiny")
    refusal = refuses("train", "--trees", trees, *dev, *new)
    assert refusal.startswith("--dev names text and its translation")
    refusal = refuses("train", "--resume", "--out", run, *dev)
    assert refusal.startswith("--dev needs text to train on; a resumed run has")
    refusal = refuses("train", "--from", run, "--out", tmp_path / "new", *dev)
    assert refusal.startswith("A corpus must be given: --source FILE")


def test_a_resumed_run_keeps_its_dev_sets(
    succeeds, curves, options, corpus_files, news
) -> None:
    sets = ("--dev", "home", *corpus_files, "--dev", "news", *news)
    succeeds("train", *options, *sets)
    longer = ("--set", "training.steps=6")
    succeeds("train", "--resume", "--out", options[-1], *longer)
    assert logged(options[-1], "dev set") == [("news", 2), ("news", 4), ("news", 6)]


def test_python_names_dev_sets(
    curves, corpus_files, news, tmp_path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {name: int(value) for name, value in (s.split("=") for s in SHORT)}
    with caplog.at_level("INFO", logger="transduce"):
        result = transduce.train(
            *corpus_files, tmp_path / "run", preset="tiny", settings=settings,
            dev_sets={"home": corpus_files, "news": news}, device="cpu",
        )  # fmt: skip
    assert result.dev is not None
    assert [score.name for score in (result.dev, *result.dev_sets)] == ["home", "news"]
    assert any(
        record.getMessage().startswith("step 2: news: ") for record in caplog.records
    )


@pytest.mark.parametrize("pair", ["dev.en", ("dev.en",), ("dev.en", None), None])
def test_python_refuses_a_dev_set_that_is_no_pair_of_files(
    corpus_files, tmp_path, pair, unchecked_types: None
) -> None:
    with pytest.raises(ConfigError, match="The dev set 'home' must be a pair of files"):
        transduce.train(
            *corpus_files, tmp_path / "run", preset="tiny", dev_sets={"home": pair}
        )
    assert not (tmp_path / "run").exists()


def test_the_help_names_the_option(command: Callable[..., Any]) -> None:
    assert re.search(r"--dev(?![\w-])", command("train", "--help").out)
