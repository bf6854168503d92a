"""Settings of a distillation: wrong ones, and those of an earlier command."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import transduce
from transduce.checkpoint import Checkpoint, save_model
from transduce.data.prepared_corpus import TRAINING
from transduce.errors import ConfigError
from transduce.experiments.distillation import (
    Vocabulary,
    _discard,
    student_settings,
    students_hardware,
)
from transduce.experiments.run_folder import RUN_CONFIG, RunFolder
from transduce.experiments.train import with_settings
from transduce.machine import Precision
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import learn_tokenizer
from transduce.text.vocabulary import TokenizerConfig


@pytest.mark.parametrize(
    ("requested", "precision"), [("auto", "fp32"), ("bf16", "bf16")]
)
def test_a_student_keeps_its_precision_unless_another_is_requested(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    requested: Precision,
    precision: str,
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert students_hardware(tmp_path, "cpu", "auto", 64).precision == "bf16"
    record = {"begun by": {"format": 1}, "student": {"precision": "fp32"}}
    (tmp_path / "settings.json").write_text(json.dumps(record))
    chosen = students_hardware(tmp_path, "cpu", requested, 64)
    assert chosen.precision == precision


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": "x"}, '`vocabulary` must be "teacher" or "new", but is "x".'),
        (
            {"search": {"beam_size": 2}},
            "`search` must be a SearchConfig, but is {'beam",
        ),
        ({"tests": ("t.en", "t.de")}, "list of pairs of files, each a source and its"),
        ({"tests": [("t.en", 3)]}, "but one is ('t.en', 3)."),
        ({"run_observers": print}, "Observers must be given as a list"),
        ({"observer": print}, "all methods of `DistillationObserver`, but <built-in"),
        ({"observer": dict}, "must be an object, but is the class dict;"),
        ({"overwrite": "no"}, "`overwrite` must be true or false, but is 'no'."),
        ({"preset": 3}, "`preset` must be a string, but is 3."),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked_types")
def test_a_wrong_argument_is_a_config_error(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        transduce.distill("teacher", "my.en", tmp_path / "out", device="cpu", **changes)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("preset", "vocabulary", "settings", "longest"),
    [
        ("student-tiny", "teacher", {}, 601),
        ("student-tiny", "new", {}, 256),
        ("bytenet-multi30k", "teacher", {}, 400),
        ("convs2s-multi30k", "teacher", {}, 256),
        ("convs2s-multi30k", "teacher", {"model.max_positions": 601}, 601),
        ("convs2s-multi30k", "teacher", {"model.max_positions": 100}, 256),
        ("convs2s-multi30k", "teacher", {"batching.max_length": 300}, 300),
        ("student-tiny", "teacher", {"batching.max_length": 256}, 256),
    ],
)
def test_a_student_of_characters_learns_lines_as_long_as_the_teacher_translates(
    trained_checkpoint: Checkpoint,
    tmp_path: Path,
    preset: str,
    vocabulary: Vocabulary,
    settings: dict[str, int],
    longest: int,
) -> None:
    characters = TokenizerConfig(kind="character", vocab_size=290)
    tokenizer = learn_tokenizer(["a dog sleeps"], characters)
    config = replace(trained_checkpoint.config, vocab_size=tokenizer.vocab_size)
    teacher = replace(
        trained_checkpoint,
        config=config,
        tokenizer=tokenizer,
        weights=Transformer(config).state_dict(),
    )
    save_model(teacher, tmp_path / "teacher")
    student = student_settings(
        preset,
        [tmp_path / "teacher"],
        vocabulary,
        lambda base: with_settings(base, settings),
    )
    assert student.batching.max_length == longest


def test_a_student_that_cannot_learn_the_language_is_refused_before_translation(
    trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    teacher = replace(trained_checkpoint, target_language="zh")
    save_model(teacher, tmp_path / "teacher")
    (tmp_path / "mono.en").write_text("one two\n")
    with pytest.raises(ConfigError, match="the target language is Chinese, which has"):
        transduce.distill(
            tmp_path / "teacher",
            tmp_path / "mono.en",
            tmp_path / "out",
            preset="deep-att-multi30k",
            vocabulary="new",
            device="cpu",
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows locks no folder")
def test_a_student_that_is_being_trained_is_not_removed(tmp_path: Path) -> None:
    student, pairs = tmp_path / "student", (tmp_path / "a", tmp_path / "b")
    (student / TRAINING).mkdir(parents=True)
    (student / RUN_CONFIG).write_text("{}", encoding="utf-8")
    with (
        RunFolder(student).locked(),
        pytest.raises(ConfigError, match="another one is training it"),
    ):
        _discard(tmp_path, pairs, "student")
    assert (student / RUN_CONFIG).is_file()
    _discard(tmp_path, pairs, "student")
    assert not student.exists()
