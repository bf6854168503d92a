"""A model that saw ALL CAPS in training alone by augmentation translates them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import transduce
from conftest import NUMBERS
from transduce.data.batches import BatchingConfig
from transduce.data.corpus_files import CorpusFiles
from transduce.device import Hardware
from transduce.experiments.pipeline import train
from transduce.experiments.presets import PRESETS, RunConfig
from transduce.text.pair_changes import TextAugmentationConfig

TINY = PRESETS["tiny"]
CONFIG = RunConfig(
    tokenizer=replace(TINY.tokenizer, vocab_size=400),
    model=replace(TINY.model, d_model=64, d_ff=128, d_k=32, d_v=32, dropout=0.0),
    batching=BatchingConfig(source_tokens=300, target_tokens=300, batch_tokens=300),
    training=replace(
        TINY.training,
        steps=250,
        warmup_steps=50,
        learning_rate_scale=1.5,
        cooldown_share=0.4,
        optimizer="muon",
        checkpoint_steps=250,
        keep_checkpoints=1,
    ),
    evaluation=replace(TINY.evaluation, hold_out=False),
    augmentation=TextAugmentationConfig(upper=0.6),
)


@pytest.mark.slow
def test_a_model_learns_to_translate_capitals_from_augmentation(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    words = list(NUMBERS)
    sources = [
        " ".join(words[i] for i in random.integers(8, size=random.integers(1, 4)))
        for _ in range(200)
    ]
    targets = [" ".join(NUMBERS[word] for word in text.split()) for text in sources]
    paths = (tmp_path / "a.en", tmp_path / "a.de")
    for path, lines in zip(paths, (sources, targets), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = CorpusFiles(source=paths[:1], target=paths[1:])
    cpu = Hardware(device=torch.device("cpu"), dtype=torch.float32)
    train(files, CONFIG, tmp_path / "run", cpu)
    translator = transduce.load(tmp_path / "run", device="cpu")
    for change, least in ((str.lower, 45), (str.upper, 25)):
        found = translator.translate([change(text) for text in sources[:50]])
        expected = [change(text) for text in targets[:50]]
        right = [one.text == other for one, other in zip(found, expected, strict=True)]
        assert sum(right) >= least
