"""Averages of checkpoints are exact and take the checkpoints of one run only."""

from dataclasses import replace

import pytest
import torch

from transduce.checkpoint import Checkpoint, average
from transduce.errors import CheckpointError
from transduce.model.transformer import Transformer
from transduce.trees.linearization import SymbolVocabulary


@pytest.fixture(scope="module")
def make_checkpoint(tiny, tokenizer):
    def make(
        seed: int = 1, step: int = 7, run: str | None = None, **changes: object
    ) -> Checkpoint:
        torch.manual_seed(seed)
        config = replace(tiny, vocab_size=tokenizer.vocab_size, **changes)
        return Checkpoint(
            config=config,
            weights=Transformer(config).state_dict(),
            tokenizer=tokenizer,
            step=step,
            run=run,
        )

    return make


def different(checkpoint: Checkpoint, other: Checkpoint) -> list[str]:
    return [
        name
        for name in checkpoint.weights.keys() | other.weights.keys()
        if not torch.equal(checkpoint.weights[name], other.weights[name])
    ]


def test_an_average_is_the_plain_mean(make_checkpoint):
    members = [make_checkpoint(seed=n) for n in (1, 2, 3)]
    mean = average(members)
    for name, weight in mean.weights.items():
        exact = sum(member.weights[name].double() for member in members) / 3
        torch.testing.assert_close(weight, exact.float(), atol=0, rtol=0)
    assert mean.weights.keys() == members[0].weights.keys()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 20])
def test_the_average_of_equal_checkpoints_is_bit_for_bit_the_same(
    make_checkpoint, count
):
    member = make_checkpoint()
    mean = average([member] * count)
    assert different(mean, member) == []
    assert {weight.dtype for weight in mean.weights.values()} == {torch.float32}


def test_an_average_does_not_change_its_members(make_checkpoint):
    members = [make_checkpoint(seed=1), make_checkpoint(seed=2)]
    average(members)
    assert different(members[0], make_checkpoint(seed=1)) == []
    assert different(members[1], make_checkpoint(seed=2)) == []


@pytest.mark.parametrize("steps", [(10, 20), (20, 10), (10, 30, 20)])
def test_an_average_has_the_step_of_its_newest_member(make_checkpoint, steps):
    mean = average([make_checkpoint(step=step) for step in steps])
    assert mean.step == max(steps)
    assert mean.config == make_checkpoint().config


def test_an_average_of_different_models_is_refused(make_checkpoint):
    members = [make_checkpoint(step=3, dropout=0.5), make_checkpoint(step=4)]
    said = "must be of one model, but {} and {} have different settings or tokenizers"
    steps = ("that of step 3", "that of step 4")
    with pytest.raises(CheckpointError, match=said.format(*steps)):
        average(members)
    with pytest.raises(CheckpointError, match=said.format("one", "other")):
        average(members, ["one", "other"])


def test_an_empty_average_is_refused():
    with pytest.raises(CheckpointError, match="at least one checkpoint, but has 0"):
        average([])


def test_parsers_of_different_symbols_are_not_averaged(make_checkpoint):
    one, other = (
        replace(
            make_checkpoint(target_vocab_size=7),
            symbols=SymbolVocabulary(style, ("S", "/S", "XX")),
        )
        for style in ("xx", "pos")
    )
    with pytest.raises(CheckpointError, match="must be of one model"):
        average([one, other])


@pytest.mark.parametrize("runs", [("3f", "a0"), ("3f", None, "a0")], ids=str)
def test_checkpoints_of_different_runs_are_not_averaged(make_checkpoint, runs):
    members = [make_checkpoint(run=run) for run in runs]
    names = [f"member-{i}" for i in range(len(runs))]
    message = (
        "^Averaged checkpoints must be of one run, but member-0 and "
        f"{names[-1]} are of two; weights"
    )
    with pytest.raises(CheckpointError, match=message):
        average(members, names)


def test_a_checkpoint_of_a_version_that_noted_no_run_is_averaged(make_checkpoint):
    members = [make_checkpoint(seed=1), make_checkpoint(seed=2, run="3f")]
    assert average(members).run == "3f"
