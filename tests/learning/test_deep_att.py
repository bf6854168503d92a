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
    "training.learning_rate_scale=0.8",
    "training.clip_norm=1.0",
    "training.cooldown_share=0.3",
    "training.checkpoint_steps=50",
    "training.keep_checkpoints=2",
    "evaluation.hold_out=false",
)
TRAINED, LONGER = range(1, 6), range(6, 11)
"""Numbers of words of sentences in training, and of those up to twice as long."""


def sentences(
    random: np.random.Generator, count: int, lengths: range, named: float = 1 / 3
) -> list[list[str]]:
    """Digits, and in a share of the sentences a name that hardly occurs twice."""
    made = []
    for length in random.choice(lengths, size=count):
        words = [str(i) for i in random.integers(10, size=length)]
        if random.random() < named:
            letters = random.integers(ord("a"), ord("z") + 1, size=5)
            words[random.integers(len(words))] = "".join(map(chr, letters))
        made.append(words)
    return made


def write(path: Path, lines: list[list[str]]) -> Path:
    path.write_text("".join(f"{' '.join(line)}\n" for line in lines))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("turn", "least", "most"),
    [(1, 0.02, 0.9), (-1, 0.02, 0.6)],
    ids=["copying", "reversing"],
)
def test_deep_att_puts_digits_and_unknown_names_into_their_places(
    turn: int,
    least: float,
    most: float,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    random = np.random.default_rng(5)
    training = sentences(random, 15_000, TRAINED)
    known = {tuple(line) for line in training}
    drawn = sentences(random, 600, TRAINED)
    unseen = [line for line in drawn if tuple(line) not in known]
    longer = sentences(random, 500, LONGER, named=0)
    source = write(tmp_path / "source", training)
    target = write(tmp_path / "target", [line[::turn] for line in training])
    test = write(tmp_path / "test", unseen + longer)
    run, out = tmp_path / "run", tmp_path / "out"
    files = ["--source", str(source), "--target", str(target), "--out", str(run)]
    main(["train", "--preset", "deep-att-multi30k", *files, "--set", *SETTINGS])
    main(["translate", str(run), "--input", str(test), "--output", str(out)])
    right = [
        translation == " ".join(line[::turn])
        for translation, line in zip(
            out.read_text().splitlines(), unseen + longer, strict=True
        )
    ]
    assert len(unseen) > 200
    assert np.mean(right[: len(unseen)]) >= 0.99
    share = np.mean(right[len(unseen) :])
    with capsys.disabled():
        word = "copied" if turn == 1 else "reversed"
        print(f"\ndeep-att: {share:.1%} of sequences of twice the length {word}")
    assert least <= share <= most
