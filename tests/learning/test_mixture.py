"""Small models with experts learn to copy digits and to reverse them, by a sign."""

from pathlib import Path

import numpy as np
import pytest

from transduce.cli import main

SETTINGS = {
    # Balanced by batches in training, and decoded by thresholds.
    "moe-multi30k": (
        "model.d_model=48",
        "model.cells=64",
        "model.initial_range=0.3",
        "model.experts.num_experts=8",
        "model.experts.d_ff=32",
        "training.steps=400",
        "training.learning_rate=5e-3",
        "training.warmup_steps=50",
        "training.hold_steps=200",
    ),
    # Two levels of gates, with noise in training.
    "moe-ffn-multi30k": (
        "model.num_layers=2",
        "model.d_model=48",
        "model.num_heads=4",
        "model.d_k=12",
        "model.d_v=12",
        "model.experts.num_experts=8",
        "model.experts.num_groups=4",
        "model.experts.d_ff=32",
        "training.steps=400",
        "training.learning_rate_scale=0.6",
        "training.warmup_steps=100",
    ),
}
COMMON = (
    "model.dropout=0.0",
    "tokenizer.kind=word",
    "tokenizer.vocab_size=17",  # ten digits and two signs
    "batching.source_tokens=600",
    "batching.target_tokens=600",
    "batching.batch_tokens=1200",
    "training.label_smoothing=0.0",
    "training.cooldown_share=0.3",
    "training.checkpoint_steps=50",
    "training.keep_checkpoints=2",
    "evaluation.hold_out=false",
)


def pairs(random: np.random.Generator, count: int) -> list[tuple[str, str]]:
    """Digits after + to be copied, after - to be reversed."""
    made = []
    for _ in range(count):
        digits = [str(i) for i in random.integers(10, size=random.integers(1, 6))]
        sign, turn = ("+", 1) if random.random() < 0.5 else ("-", -1)
        made.append((" ".join([sign, *digits]), " ".join(digits[::turn])))
    return made


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("preset", SETTINGS)
def test_a_small_model_with_experts_copies_and_reverses(
    preset: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(5)
    training = pairs(random, 15_000)
    known = set(training)
    test = [pair for pair in pairs(random, 600) if pair not in known]
    source = write(tmp_path / "source", [pair[0] for pair in training])
    target = write(tmp_path / "target", [pair[1] for pair in training])
    unseen = write(tmp_path / "unseen", [pair[0] for pair in test])
    run, out = tmp_path / "run", tmp_path / "out"
    files = ["--source", str(source), "--target", str(target), "--out", str(run)]
    settings = ["--set", *COMMON, *SETTINGS[preset]]
    main(["train", "--preset", preset, *files, *settings])
    main(["translate", str(run), "--input", str(unseen), "--output", str(out)])
    translations = out.read_text().splitlines()
    right = sum(
        translation == expected
        for translation, (_, expected) in zip(translations, test, strict=True)
    )
    assert len(test) > 100
    assert right / len(test) >= 0.99
