"""A small Transformer and small models of its rivals copy and reverse digits.

A sign before the digits says which. Deep-Att has a test of its own, with unknown words.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from transduce.architectures.config import (
    ArchitectureConfig,
    ByteNetConfig,
    ConvolutionalConfig,
    ExpertsConfig,
    MixtureRecurrentConfig,
    MixtureTransformerConfig,
    RecurrentConfig,
)
from transduce.architectures.interface import TransductionModel
from transduce.checkpoint import build
from transduce.data.tensors import Batch
from transduce.device import Hardware
from transduce.model.config import ModelConfig
from transduce.nn.fuse import fuse
from transduce.text.vocabulary import BOS, EOS, PAD
from transduce.training.config import OptimizerKind, TrainingConfig
from transduce.training.loss import BatchLoss
from transduce.training.optimizer import WeightOptimizer

COPY, REVERSE, FIRST_DIGIT = 3, 4, 5
VOCABULARY = FIRST_DIGIT + 10
LONGEST = 5
"""Number of digits of the longest sequences in training."""
GNMT = RecurrentConfig(
    vocab_size=VOCABULARY,
    encoder_layers=2,
    decoder_layers=2,
    d_model=32,
    attention="normed-additive",
    attention_query="current",
    dropout=0.0,
    initial_range=0.3,
)
LUONG = replace(
    GNMT,
    bidirectional=False,
    attention="general",
    readout="attentional",
    initial_state="encoder",
)
RNNSEARCH = replace(
    GNMT,
    cell="gru",
    encoder_layers=1,
    decoder_layers=1,
    attention="additive",
    attention_query="previous",
    readout="maxout",
    initial_state="projected",
)
CONVS2S = ConvolutionalConfig(
    vocab_size=VOCABULARY,
    encoder_blocks="3x48k3",
    d_embedding=48,
    shared_embedding=True,
    max_positions=32,
    dropout=0.0,
)
BYTENET = ByteNetConfig(vocab_size=VOCABULARY, num_blocks=4, d_hidden=48)
MOE = MixtureRecurrentConfig(
    vocab_size=VOCABULARY,
    d_model=32,
    cells=48,
    dropout=0.0,
    shared_embedding=True,
    tied_output=True,
    initial_range=0.3,
    # Balanced by batches in training, and decoded by thresholds.
    experts=ExpertsConfig(num_experts=8, d_ff=32, gating="batchwise"),
)
TRANSFORMER = ModelConfig(
    vocab_size=VOCABULARY,
    num_layers=2,
    d_model=48,
    num_heads=4,
    d_k=12,
    d_v=12,
    d_ff=96,
    dropout=0.0,
)
MOE_FFN = MixtureTransformerConfig(
    vocab_size=VOCABULARY,
    num_layers=1,
    d_model=48,
    num_heads=4,
    d_k=12,
    d_v=12,
    dropout=0.0,
    # Two levels of gates, with noise in training.
    experts=ExpertsConfig(num_experts=8, num_groups=4, top_k=2, d_ff=32),
)


@dataclass(frozen=True, kw_only=True)
class System:
    """A small model and its training."""

    model: ArchitectureConfig
    steps: int
    rate: float
    optimizer: OptimizerKind = "adam"
    copied: tuple[float, float]
    """Least and greatest share of sequences of up to twice the length that are copied
    without error, wide enough for any seed."""
    reversed: tuple[float, float]
    """Least and greatest share of those that are reversed without error."""


SYSTEMS = {
    "rnnsearch": System(
        model=RNNSEARCH, steps=200, rate=0.01, copied=(0.02, 0.5), reversed=(0.02, 0.5)
    ),
    "luong": System(
        model=LUONG, steps=400, rate=0.015, copied=(0.02, 0.5), reversed=(0.02, 0.5)
    ),
    "gnmt-v1": System(
        model=replace(GNMT, attention_query="previous"),
        steps=600,
        rate=0.012,
        copied=(0.02, 0.5),
        reversed=(0.02, 0.5),
    ),
    "gnmt-v2": System(
        model=GNMT, steps=550, rate=0.012, copied=(0.02, 0.5), reversed=(0.02, 0.5)
    ),
    "convs2s": System(
        model=CONVS2S, steps=200, rate=0.005, copied=(0, 0.05), reversed=(0, 0.05)
    ),
    "bytenet": System(
        model=BYTENET,
        steps=650,
        rate=0.007,
        optimizer="muon",
        copied=(0.5, 1),
        reversed=(0, 0.05),
    ),
    "moe": System(model=MOE, steps=350, rate=0.01, copied=(0, 0.5), reversed=(0, 0.5)),
    "moe-ffn": System(
        model=MOE_FFN, steps=500, rate=0.01, copied=(0, 0.2), reversed=(0, 0.2)
    ),
    "transformer": System(
        model=TRANSFORMER, steps=450, rate=0.007, copied=(0, 0.2), reversed=(0, 0.1)
    ),
}


def random_batch(count: int, shortest: int, longest: int) -> Batch:
    """Sequences of digits after a sign, and the same or their reversals."""
    digits = torch.randint(FIRST_DIGIT, VOCABULARY, (count, longest))
    lengths = torch.randint(shortest, longest + 1, (count, 1))
    signs = torch.randint(COPY, REVERSE + 1, (count, 1))
    place = torch.arange(longest).expand(count, longest)
    turned = (lengths - 1 - place) % longest
    target = digits.gather(1, torch.where(signs == REVERSE, turned, place))
    out = ended(target, lengths)
    begin = torch.full((count, 1), BOS)
    target_in = torch.cat([begin, out[:, :-1]], dim=1)
    target_in = target_in.masked_fill(target_in == EOS, PAD)
    source = ended(torch.cat([signs, digits], dim=1), lengths + 1)
    return Batch(source=source, target_in=target_in, target_out=out)


def ended(rows: Tensor, lengths: Tensor) -> Tensor:
    """Put an end token and padding after the lengths."""
    rows = torch.cat([rows, rows.new_zeros(len(rows), 1)], dim=1)
    after = torch.arange(rows.size(1)) - lengths
    return rows.masked_fill(after == 0, EOS).masked_fill(after > 0, PAD)


def trained(system: System, cpu: Hardware) -> tuple[TransductionModel, set[bytes]]:
    """Train a model; also return its training sources."""
    model, seen = build(system.model), set[bytes]()
    loss = BatchLoss(fuse(model), 0.0, cpu)
    training = TrainingConfig(optimizer=system.optimizer)
    optimizer = WeightOptimizer(model, training)
    loss.train()
    for step in range(system.steps):
        progress = (step + 1) / system.steps
        batch = random_batch(64, 1, LONGEST)
        seen.update(row.numpy().tobytes() for row in batch.source)
        optimizer.zero_grad()
        smoothed = loss(batch).smoothed / (batch.target_out != PAD).sum()
        smoothed.backward()
        optimizer.clip(5.0)
        optimizer.step(system.rate * min(10 * progress, (1.01 - progress) / 0.7, 1))
    return model.eval(), seen


@torch.no_grad()
def is_right(model: TransductionModel, batch: Batch) -> Tensor:
    """Whether the greedy output for each source is its whole target."""
    state = model.start(model.encode(batch.source))
    last, found = torch.full((len(batch.source), 1), BOS), []
    for _ in range(batch.target_out.size(1)):
        last = model.step(last, state).argmax(dim=-1)
        found.append(last)
    is_token = batch.target_out != PAD
    same = torch.cat(found, dim=1) == batch.target_out
    return (same | ~is_token).all(dim=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_small_model_learns_to_copy_and_to_reverse(
    name: str, cpu: Hardware, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(5)
    system = SYSTEMS[name]
    model, seen = trained(system, cpu)
    batch = random_batch(3_000, 1, LONGEST)
    right, sign = is_right(model, batch), batch.source[:, 0]
    is_new = torch.tensor([row.numpy().tobytes() not in seen for row in batch.source])
    longer = random_batch(1_000, LONGEST + 1, 2 * LONGEST)
    right_longer, sign_longer = is_right(model, longer), longer.source[:, 0]
    for task, (least, most) in ((COPY, system.copied), (REVERSE, system.reversed)):
        assert (is_new & (sign == task)).sum() > 200
        assert right[is_new & (sign == task)].float().mean() >= 0.99
        share = right_longer[sign_longer == task].float().mean().item()
        with capsys.disabled():
            word = "copied" if task == COPY else "reversed"
            print(f"\n{name}: {share:.1%} of sequences of twice the length {word}")
        assert least <= share <= most
