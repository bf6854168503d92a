"""A tiny parser memorizes its own treebank, using the commands alone."""

import json
from itertools import islice
from pathlib import Path

import pytest

from transduce.cli import main
from transduce.grammar.corpus import training_trees

SETTINGS = (
    "model.num_layers=2",
    "model.d_model=64",
    "model.d_ff=128",
    "model.d_k=16",
    "model.d_v=16",
    "model.dropout=0.0",
    "tokenizer.vocab_size=500",
    "treebank.guidance=0.0",
    "treebank.augmentation.copies=0",
    "training.label_smoothing=0.0",
    "training.warmup_steps=30",
    "training.learning_rate_scale=1.0",
    "training.steps=160",
    "training.cooldown_share=0.5",
    "training.checkpoint_steps=160",
    "training.keep_checkpoints=1",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "style", ["xx", "in-order-pos"]
)  # both orders, with and without tags
def test_a_tiny_parser_memorises_its_treebank(
    style: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees, run = tmp_path / "trees", tmp_path / "run"
    trees.write_text("".join(f"{tree}\n" for tree in islice(training_trees(7), 50)))
    settings = ["--set", *SETTINGS, f"treebank.style={style}"]
    preset = ["--preset", "parsing-small", "--trees", str(trees)]
    main(["train", *preset, *settings, "--out", str(run)])
    capsys.readouterr()
    main(["evaluate-parses", str(trees), "--model", str(run), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["all"]["f1"] > 99
    assert found["mended"] < 2
