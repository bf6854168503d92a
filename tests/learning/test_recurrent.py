"""Recurrent models learn to copy and to reverse digits of any order."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from transduce.architectures.config import RecurrentConfig
from transduce.architectures.interface import TransductionModel
from transduce.architectures.models import build
from transduce.data.tensors import Batch
from transduce.device import Hardware
from transduce.nn.fuse import fuse
from transduce.text.vocabulary import BOS, EOS, PAD
from transduce.training.loss import BatchLoss

FIRST_DIGIT, LONGEST = 3, 8
STEPS, RATE = 400, 0.01
GNMT = RecurrentConfig(
    vocab_size=FIRST_DIGIT + 10,
    encoder_layers=2,
    decoder_layers=2,
    d_model=32,
    attention="normed-additive",
    attention_query="current",
    dropout=0.0,
    initial_range=0.3,
)
CONFIGS = {
    "gnmt-v2": GNMT,
    "rnnsearch": replace(
        GNMT,
        cell="gru",
        encoder_layers=1,
        decoder_layers=1,
        attention="additive",
        attention_query="previous",
        readout="maxout",
        initial_state="projected",
    ),
}


def random_batch(count: int, turn: int) -> Batch:
    """Sequences of 1 to 8 digits, and the same or their reversals."""
    digits = torch.randint(FIRST_DIGIT, FIRST_DIGIT + 10, (count, LONGEST))
    lengths = torch.randint(1, LONGEST + 1, (count,))
    place = torch.arange(LONGEST)
    turned = (lengths[:, None] - 1 - place) % LONGEST if turn < 0 else place
    target = digits.gather(1, turned.expand(count, LONGEST))

    def ended(rows: Tensor) -> Tensor:
        rows = torch.cat([rows, rows.new_zeros(count, 1)], dim=1)
        after = torch.arange(LONGEST + 1) - lengths[:, None]
        return rows.masked_fill(after == 0, EOS).masked_fill(after > 0, PAD)

    out = ended(target)
    begin = torch.full((count, 1), BOS)
    target_in = torch.cat([begin, out[:, :-1]], dim=1)
    target_in = target_in.masked_fill(target_in == EOS, PAD)
    return Batch(source=ended(digits), target_in=target_in, target_out=out)


@torch.no_grad()
def greedily(model: TransductionModel, source: Tensor) -> Tensor:
    state = model.start(model.encode(source))
    last, found = torch.full((len(source), 1), BOS), []
    for _ in range(LONGEST + 1):
        last = model.step(last, state).argmax(dim=-1)
        found.append(last)
    return torch.cat(found, dim=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "turn"),
    [("rnnsearch", 1), ("gnmt-v2", -1)],
    ids=["rnnsearch-copying", "gnmt-reversing"],
)
def test_a_recurrent_model_learns_sequences_of_digits(
    name: str, turn: int, cpu: Hardware
) -> None:
    model = build(CONFIGS[name])
    loss = BatchLoss(fuse(model), 0.0, cpu)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    loss.train()
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - step / STEPS)
        batch = random_batch(64, turn)
        optimizer.zero_grad()
        smoothed = loss(batch).smoothed / (batch.target_out != PAD).sum()
        smoothed.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    batch = random_batch(1_000, turn)
    found = greedily(model.eval(), batch.source)
    is_token = batch.target_out != PAD
    is_right = ((found == batch.target_out) | ~is_token).all(dim=1)
    assert is_right.float().mean() >= 0.99
