"""A tiny model learns to copy and to reverse digits, using the commands alone."""

from pathlib import Path

import numpy as np
import pytest

from transduce.cli import main

SETTINGS = (
    "model.num_layers=2",
    "model.d_model=64",
    "model.d_ff=128",
    "model.num_heads=4",
    "model.dropout=0.0",
    "tokenizer.vocab_size=270",
    "batching.source_tokens=600",
    "batching.target_tokens=600",
    "batching.batch_tokens=600",
    "training.optimizer=muon",
    "training.label_smoothing=0.0",
    "training.steps=400",
    "training.warmup_steps=50",
    "training.learning_rate_scale=0.3",
    "training.cooldown_share=0.5",
    "training.checkpoint_steps=400",
    "training.keep_checkpoints=1",
    "evaluation.hold_out=false",
)


def sentences(random: np.random.Generator, count: int) -> list[str]:
    lengths = random.integers(1, 6, size=count)
    return [" ".join(map(str, random.integers(10, size=n))) for n in lengths]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("turn", "decoder"),
    [(1, "attention"), (-1, "ssru")],
    ids=["copying", "reversing with recurrent units"],
)
def test_a_tiny_model_learns_sequences_of_digits(
    turn: int, decoder: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(5)
    training = sentences(random, 10_000)
    known = set(training)
    test = [line for line in sentences(random, 600) if line not in known]
    source = write(tmp_path / "source", training)
    target = write(tmp_path / "target", [line[::turn] for line in training])
    unseen = write(tmp_path / "unseen", test)
    run, out = tmp_path / "run", tmp_path / "out"
    files = ["--source", str(source), "--target", str(target)]
    settings = ["--set", *SETTINGS, f"model.decoder_self_attention={decoder}"]
    main(["train", "--preset", "tiny", *files, *settings, "--out", str(run)])
    main(["translate", str(run), "--input", str(unseen), "--output", str(out)])
    translations = out.read_text().splitlines()
    assert len(test) > 100
    right = sum(
        translation == line[::turn]
        for translation, line in zip(translations, test, strict=True)
    )
    assert right / len(test) >= 0.95
