"""ConvS2S reverses digits, and ByteNet characters, by the commands alone."""

from pathlib import Path

import numpy as np
import pytest

from transduce.cli import main

CONVS2S = (
    "model.encoder_blocks=3x64k3",
    "model.decoder_blocks=3x64k3",
    "model.d_embedding=64",
    "tokenizer.vocab_size=270",
    "batching.source_tokens=600",
    "batching.target_tokens=600",
    "batching.batch_tokens=600",
    "training.steps=500",
    "training.cooldown_share=0.3",
)
BYTENET = (
    "model.num_blocks=5",
    "model.d_hidden=32",
    "tokenizer.vocab_size=275",
    "batching.source_tokens=1000",
    "batching.target_tokens=1000",
    "batching.batch_tokens=1000",
    "training.steps=750",
    "training.cooldown_share=0.3",
)
BOTH = (
    "model.dropout=0.0",
    "training.optimizer=muon",
    "training.label_smoothing=0.0",
    "training.warmup_steps=100",
    "training.learning_rate_scale=0.5",
    "training.checkpoint_steps=250",
    "training.keep_checkpoints=1",
    "search.beam_size=2",
)


def sentences(random: np.random.Generator, count: int) -> list[str]:
    lengths = random.integers(1, 7, size=count)
    return [" ".join(map(str, random.integers(10, size=n))) for n in lengths]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "settings"),
    [("convs2s-multi30k", CONVS2S), ("bytenet-multi30k", BYTENET)],
    ids=["convs2s", "bytenet"],
)
def test_a_small_model_learns_to_reverse_digits(
    preset: str, settings: tuple[str, ...], tmp_path: Path
) -> None:
    random = np.random.default_rng(5)
    training = sentences(random, 20_000)
    known = set(training)
    test = [line for line in sentences(random, 600) if line not in known]
    source = write(tmp_path / "source", training)
    target = write(tmp_path / "target", [line[::-1] for line in training])
    unseen = write(tmp_path / "unseen", test)
    run, out = tmp_path / "run", tmp_path / "out"
    files = ["--source", str(source), "--target", str(target), "--out", str(run)]
    main(["train", "--preset", preset, *files, "--set", *settings, *BOTH])
    main(["translate", str(run), "--input", str(unseen), "--output", str(out)])
    translations = out.read_text().splitlines()
    assert len(test) > 200
    right = sum(
        translation == line[::-1]
        for translation, line in zip(translations, test, strict=True)
    )
    assert right / len(test) >= 0.99
