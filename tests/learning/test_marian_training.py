"""An imported model learns as Hugging Face's own training of the same folder does."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import MarianMTModel

from marian_folder import write_marian_folder
from transduce.data.batches import Batcher, open_dataset
from transduce.data.corpus_files import CorpusFiles
from transduce.data.tensors import Batch
from transduce.device import Hardware
from transduce.experiments.pipeline import train
from transduce.experiments.presets import RunConfig
from transduce.experiments.start_model import StartModel, open_start, settings_from
from transduce.grammar.corpus import Grammar
from transduce.interop.marian_import import import_model, read_settings
from transduce.text.vocabulary import PAD

pytestmark = pytest.mark.filterwarnings("ignore")  # raised by the libraries

UPDATES, RATE = 20, 1e-4
CPU = Hardware(device=torch.device("cpu"), dtype=torch.float32)


class Losses:
    """Observer that keeps the loss of each update."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def started(self, start: object) -> None: ...
    def stepped(self, report: Any) -> None:
        self.values.append(report.loss)

    def scored(self, score: object) -> None: ...
    def warned(self, message: str) -> None: ...
    def went_back(self, step: int) -> None: ...
    def finished(self, result: object) -> None: ...


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CorpusFiles:
    folder = tmp_path_factory.mktemp("text")
    pairs = list(islice(Grammar.built_in().training_sentences(seed=5), 200))
    for side in ("source", "target"):
        lines = "".join(f"{getattr(pair, side)}\n" for pair in pairs)
        (folder / side).write_text(lines, encoding="utf-8")
    return CorpusFiles(source=(folder / "source",), target=(folder / "target",))


def settings(start: StartModel) -> RunConfig:
    """Settings of 20 updates by Adam at 1e-4, without dropout or label smoothing."""
    base = settings_from(start)
    return replace(
        base,
        model=replace(
            base.model, dropout=0.0, attention_dropout=0.0, relu_dropout=0.0
        ),
        batching=replace(
            base.batching, source_tokens=400, target_tokens=400, batch_tokens=300
        ),
        training=replace(
            base.training, steps=UPDATES, warmup_steps=1, learning_rate=RATE,
            label_smoothing=0.0, clip_norm=None, patience=None,
        ),
        evaluation=replace(base.evaluation, hold_out=False),
    )  # fmt: skip


def updates(run: Path, config: RunConfig) -> Iterator[list[Batch]]:
    """Batches of each update, as the run has them."""
    dataset = open_dataset(run / "corpus/training")
    batcher = Batcher(dataset, config.batching, config.training.seed)
    epochs = (batcher.epoch(epoch, first=0) for epoch in count())
    for update in islice(chain.from_iterable(epochs), UPDATES):
        yield [update.dataset.load(indices) for indices in update.batches]


def their_losses(
    model: MarianMTModel, batches: Iterator[list[Batch]], ids: tuple[int, ...]
) -> list[float]:
    """Loss of each update of the library's model by the same Adam."""
    theirs = torch.tensor(ids)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9
    )
    model.train()
    losses = []
    for update in batches:
        optimizer.zero_grad()
        tokens = sum(int((batch.target_out != PAD).sum()) for batch in update)
        total = 0.0
        for batch in update:
            logits = model(
                input_ids=theirs[batch.source.long()],
                attention_mask=(batch.source != PAD).long(),
                decoder_input_ids=theirs[batch.target_in.long()],
            ).logits
            labels = theirs[batch.target_out.long()].clone()
            labels[batch.target_out == PAD] = -100
            loss = functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), reduction="sum"
            )
            (loss / tokens).backward()
            total += loss.item()
        optimizer.step()
        losses.append(total / tokens)
    return losses


def without_peculiarities(folder: Path) -> MarianMTModel:
    """Load the library's model so that it trains what Marian itself trains.

    As it is, the library trains no output biases and not the embedding of the first
    token of the target, which is also that of padding. It trains the sinusoids, and
    gives padding a share of the probability.
    """
    model = MarianMTModel.from_pretrained(folder)
    bias = model.final_logits_bias
    bias[:, model.config.pad_token_id] = -1e4
    del model.final_logits_bias
    model.final_logits_bias = torch.nn.Parameter(bias)
    stacks = (model.model.encoder, model.model.decoder)
    for stack in stacks:
        stack.embed_positions.weight.requires_grad_(False)
        stack.embed_tokens.padding_idx = None
    return model


@pytest.mark.parametrize("activation", ["swish", "relu"])
def test_an_imported_model_learns_as_in_its_own_library(
    files: CorpusFiles, tmp_path: Path, activation: str
) -> None:
    folder = write_marian_folder(
        tmp_path / "theirs", activation_function=activation, dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0,
    )  # fmt: skip
    import_model(folder, tmp_path / "ours", ["The dog runs."])
    start = open_start(tmp_path / "ours")
    config, losses, run = settings(start), Losses(), tmp_path / "run"
    train(files, config, run, CPU, losses, start=start)
    ids = read_settings(folder).ids
    theirs = without_peculiarities(folder)
    expected = their_losses(theirs, updates(run, config), ids)
    assert losses.values == pytest.approx(expected, rel=1e-6)
    as_it_is = MarianMTModel.from_pretrained(folder)
    expected = their_losses(as_it_is, updates(run, config), ids)
    assert losses.values == pytest.approx(expected, rel=1e-3)
