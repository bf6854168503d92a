"""A small Deep-Att learns to copy and to reverse words, also unknown ones."""

from pathlib import Path

import numpy as np
import pytest

from transduce.cli import main

SETTINGS = (
    "model.d_model=48",
    "model.embedding_width=32",
    "model.encoder_layers=2",
    "model.decoder_layers=2",
    "model.dropout=0.0",
    "tokenizer.vocab_size=15",  # the digits alone
    "batching.source_tokens=600",
    "batching.target_tokens=600",
    "batching.batch_tokens=600",
    "training.optimizer=muon",
    "training.label_smoothing=0.0",
    "training.steps=450",
    "training.warmup_steps=60",
    "training.learning_rate_scale=0.5",
    "training.clip_norm=1.0",
    "training.cooldown_share=0.3",
    "training.checkpoint_steps=50",
    "training.keep_checkpoints=2",
    "evaluation.hold_out=false",
)


def sentences(random: np.random.Generator, count: int) -> list[list[str]]:
    """Digits, and in a third of the sentences a name that hardly occurs twice."""
    made = []
    for _ in range(count):
        words = [str(i) for i in random.integers(10, size=random.integers(1, 6))]
        if random.random() < 1 / 3:
            letters = random.integers(ord("a"), ord("z") + 1, size=5)
            words[random.integers(len(words))] = "".join(map(chr, letters))
        made.append(words)
    return made


def write(path: Path, lines: list[list[str]]) -> Path:
    path.write_text("".join(f"{' '.join(line)}\n" for line in lines))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("turn", [1, -1], ids=["copying", "reversing"])
def test_deep_att_puts_digits_and_unknown_names_into_their_places(
    turn: int, tmp_path: Path
) -> None:
    random = np.random.default_rng(5)
    training, test = sentences(random, 15_000), sentences(random, 300)
    source = write(tmp_path / "source", training)
    target = write(tmp_path / "target", [line[::turn] for line in training])
    unseen = write(tmp_path / "unseen", test)
    run, out = tmp_path / "run", tmp_path / "out"
    files = ["--source", str(source), "--target", str(target), "--out", str(run)]
    main(["train", "--preset", "deep-att-multi30k", *files, "--set", *SETTINGS])
    main(["translate", str(run), "--input", str(unseen), "--output", str(out)])
    translations = out.read_text().splitlines()
    right = sum(
        translation == " ".join(line[::turn])
        for translation, line in zip(translations, test, strict=True)
    )
    assert right / len(test) >= 0.99
