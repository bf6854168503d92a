"""Training from Python equals training by the command."""

import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import transduce
from transduce.checkpoint import load_model
from transduce.cli import main
from transduce.errors import ConfigError, DataError, OverwriteError
from transduce.experiments.dev_corpus import Quality
from transduce.experiments.presets import PRESETS
from transduce.experiments.train import with_settings
from transduce.grammar.corpus import training_trees

pytestmark = pytest.mark.usefixtures("quick_runs")

SETTINGS = {
    "training.steps": 6,
    "training.checkpoint_steps": 3,
    "training.warmup_steps": 2,
}


@pytest.fixture
def train(corpus_files: tuple[Path, Path], tmp_path: Path) -> Callable[..., Any]:
    """Function that trains the tiny preset on the corpus for six updates."""

    def run(out: str = "run", **changes: Any) -> Any:
        options: dict[str, Any] = {"preset": "tiny", "settings": SETTINGS}
        options |= {"device": "cpu", "precision": "fp32", **changes}
        return transduce.train(*corpus_files, tmp_path / out, **options)

    return run


def test_python_trains_the_same_weights_as_the_command(train, corpus_files, tmp_path):
    result = train()
    source, target = corpus_files
    command = ["train", "--source", source, "--target", target, "--preset", "tiny"]
    command += ["--set", *(f"{name}={value}" for name, value in SETTINGS.items())]
    command += ["--device", "cpu", "--precision", "fp32", "--out", tmp_path / "other"]
    main([str(each) for each in command])
    assert result.model == tmp_path / "run" / "averaged"
    ours = load_model(tmp_path / "run" / "averaged").weights
    theirs = load_model(tmp_path / "other" / "averaged").weights
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


@pytest.fixture
def treebanks(tmp_path: Path) -> tuple[Path, Path]:
    """Trees to train on and dev trees of the built-in grammar."""
    paths = tmp_path / "train.trees", tmp_path / "dev.trees"
    for seed, path in enumerate(paths):
        lines = (f"{tree}\n" for tree in islice(training_trees(seed), 30))
        path.write_text("".join(lines))
    return paths


def test_python_trains_the_same_parser_as_the_command(treebanks, tmp_path):
    trees, dev_trees = treebanks
    options: dict[str, Any] = {"preset": "tiny", "device": "cpu", "precision": "fp32"}
    result = transduce.train(
        trees=trees,
        dev_trees=[dev_trees],
        out=tmp_path / "run",
        settings=SETTINGS,
        **options,
    )
    command = ["train", "--trees", trees, "--dev-trees", dev_trees, "--preset", "tiny"]
    command += ["--set", *(f"{name}={value}" for name, value in SETTINGS.items())]
    command += ["--device", "cpu", "--precision", "fp32", "--out", tmp_path / "other"]
    main([str(each) for each in command])
    ours = load_model(result.model).weights
    theirs = load_model(tmp_path / "other" / result.model.name).weights
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())
    assert transduce.load(result.model).parse("The dog sleeps.").tree.leaves
    again = transduce.resume(tmp_path / "run", steps=7, device="cpu")
    assert load_model(again.model).step == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "my.en"}, "Either text or trees must be given"),
        ({"dev_source": "my.en"}, "Either text or trees must be given"),
        ({"dev_sets": {"a": ("a.en", "a.de")}}, "Either text or trees must be given"),
        ({"trees": ()}, "but only `dev_trees` are; add `trees`"),
        ({"preset": "multi30k"}, "is for text, but the corpus has trees"),
        (
            {"settings": {"corpora": [{"name": "a", "source": "b", "target": "c"}]}},
            "Either `trees` or `corpora` must be given",
        ),
        ({"trees": 3}, "a list of paths, but is 3"),
    ],
)
def test_wrong_arguments_beside_trees_are_config_errors(
    treebanks, tmp_path, changes, message
):
    trees, dev_trees = treebanks
    given: dict[str, Any] = {"trees": trees, "dev_trees": dev_trees, "preset": "tiny"}
    with pytest.raises(ConfigError, match=message):
        transduce.train(out=tmp_path / "run", **{**given, **changes})
    assert not (tmp_path / "run").exists()


@pytest.fixture
def doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        partial(torch.device, "meta"),
        partial(torch.autocast, "cpu", dtype=torch.bfloat16),
    ],
    ids=["no gradients", "inference", "default device", "autocast"],
)
def test_modes_of_the_caller_do_not_change_the_training(train, mode):
    with mode():
        modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
        result = train()
        again = transduce.resume(result.model.parent, steps=7, device="cpu")
        assert modes == (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
    assert torch.get_default_dtype() == torch.float64
    weights = load_model(again.model).weights
    torch.set_default_dtype(torch.float32)
    train("other")
    other = transduce.resume(result.model.parent.parent / "other", steps=7)
    expected = load_model(other.model).weights
    assert all(torch.equal(weight, expected[name]) for name, weight in weights.items())


def test_training_leaves_the_callers_random_numbers_as_they_are(train):
    before = torch.get_rng_state()
    train()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_result_can_be_loaded(train):
    translator = transduce.load(train().model)
    assert isinstance(translator.translate("one two").text, str)


def test_a_score_is_shown_without_its_signature():
    details, log = "BLEU = 4.00\n(nrefs:1)", {"signature": "nrefs:1"}
    quality = Quality(metric="bleu", name="BLEU", score=4.0, details=details, log=log)
    assert repr(quality) == "Quality(metric='bleu', name='BLEU', score=4.0)"


def test_a_finished_run_resumes_to_the_same_result(train, tmp_path):
    result = train()
    assert transduce.resume(tmp_path / "run", device="cpu").model == result.model


def test_scores_are_logged(train, caplog):
    with caplog.at_level(logging.INFO, logger="transduce"):
        train()
    messages = [record.getMessage() for record in caplog.records]
    assert any(message.startswith("training from step 0 of 6") for message in messages)
    assert any(message.startswith("the model is in ") for message in messages)


def test_observers_see_each_update(train):
    class Steps:
        def __init__(self) -> None:
            self.steps: list[int] = []

        def started(self, start: object) -> None: ...
        def stepped(self, report: Any) -> None:
            self.steps.append(report.step)

        def scored(self, score: object) -> None: ...
        def warned(self, message: str) -> None: ...
        def went_back(self, step: int) -> None: ...
        def finished(self, result: object) -> None: ...

    observer = Steps()
    train(observers=(each for each in [observer]))
    assert observer.steps == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": "huge"}, "huge"),
        ({"settings": {"training.step": 3}}, "did you mean `training.steps`"),
        ({"settings": {"model.vocab_size": 3}}, "set `tokenizer.vocab_size`"),
        ({"settings": {"training": 3}}, "`training` must be a table"),
        ({"settings": ["training.steps=3"]}, "must be values by their names"),
        ({"settings": {3: 4}}, "must be values by their names"),
        ({"observers": [print]}, r"`RunObserver`, but <built.* lacks `started`"),
        ({"observers": print}, "must be given as a list, but are given as <built-in"),
        ({"observers": [dict]}, r"is the class dict; make an object of it: dict\(\)"),
        ({"preset": "parsing-wsj"}, "is for trees"),
        ({"preset": 3}, "`preset` must be a string, but is 3"),
        ({"preset": ""}, "There is no preset ``"),
        ({"source_language": 3}, "`source_language` must be a string, but is 3"),
        ({"overwrite": "no"}, "`overwrite` must be true or false, but is 'no'"),
        ({"keep_optimizer": 1}, "`keep_optimizer` must be true or false, but is 1"),
        (
            {"dev_source": {"dev.en"}},
            r"a list of paths, but is {'dev.en'}",
        ),
        ({"dev_source": b"dev.en"}, "a list of paths, but is b'dev.en'"),
        ({"dev_source": 3}, "a list of paths, but is 3"),
        ({"dev_source": ["dev.en", 3]}, r"a list of paths, but is \['dev.en', 3\]"),
        ({"dev_sets": {3: ("a.en", "a.de")}}, "must be pairs of files by their names"),
        ({"dev_source": "dev.en"}, "must be given together"),
        ({"device": "tpu"}, "`device` must be"),
        ({"dev_sets": [("dev.en", "dev.de")]}, "must be pairs of files by their names"),
    ],
)
def test_a_wrong_argument_is_a_config_error(train, changes, message):
    with pytest.raises(ConfigError, match=message):
        train(**changes)


def test_settings_that_depend_on_each_other_can_be_given_in_any_order():
    # With one of them alone, embeddings and readout are not equally wide.
    config = PRESETS["rnnsearch-multi30k"]
    both = {"model.embedding_width": 16, "model": {"readout_width": 16}}
    for order in (both, dict(reversed(both.items()))):
        changed = with_settings(config, order).model
        assert changed.embedding_width == changed.readout_width == 16


def test_languages_are_arguments_or_settings(train, tmp_path):
    train(settings={"languages.target": "de-AT"}, source_language="en-GB")
    record = json.loads((tmp_path / "run" / "config.json").read_text("utf-8"))
    assert record["settings"]["languages"] == {"source": "en-GB", "target": "de-AT"}


def test_minutes_between_checkpoints_replace_the_presets_steps(train, tmp_path):
    settings = {"training.steps": 2, "training": {"checkpoint_minutes": 5.0}}
    train(settings=settings)
    assert settings["training"] == {"checkpoint_minutes": 5.0}  # left as it was
    record = json.loads((tmp_path / "run" / "config.json").read_text("utf-8"))
    training = record["settings"]["training"]
    assert training["checkpoint_minutes"] == 5.0
    assert training["checkpoint_steps"] is None


def test_a_missing_file_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match=r"no\.en"):
        transduce.train(
            tmp_path / "no.en", tmp_path / "no.de", tmp_path / "run", preset="tiny"
        )
    assert not (tmp_path / "run").exists()


def test_a_run_is_replaced_only_if_allowed(train):
    train()
    with pytest.raises(OverwriteError, match="is not; resume .*, or overwrite it\\.$"):
        train()
    train(overwrite=True)
