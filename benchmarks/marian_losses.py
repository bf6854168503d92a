"""Compare the training of an imported model with that of its own library.

    python benchmarks/marian_losses.py FOLDER --source FILE --target FILE
        [--updates 20] [--rate 1e-4]

FOLDER holds a `MarianMTModel` of Hugging Face. If it does not exist, it is written with
random weights and SentencePiece models of the text. The model is imported and trained
on the text by Adam in fp32, without dropout, and so is the library's model of the same
folder, on the same batches. Prints the losses of each update as a Markdown table: of
the imported model, of the library's as it is, and of the library's where it trains what
Marian trains (`without_peculiarities`).
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from machine import describe_machine
from torch.nn import functional
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from transduce.data.batches import Batcher
from transduce.data.corpus_files import CorpusFiles
from transduce.data.dataset import open_dataset
from transduce.data.tensors import Batch
from transduce.device import Hardware
from transduce.experiments.pipeline import train
from transduce.experiments.presets import RunConfig
from transduce.experiments.start_model import StartModel, open_start, settings_from
from transduce.interop.marian_import import import_model, read_settings
from transduce.text.vocabulary import PAD

CPU = Hardware(device=torch.device("cpu"), dtype=torch.float32)
NUM_PIECES = 4_000
"""Pieces of each language in a new folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Loss of each update in nats a target token."""

    ours: list[float]
    """Losses of the imported model."""
    library: list[float]
    """Losses of the library's model as it is."""
    plain: list[float]
    """Losses of the library's model without its peculiarities."""


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


def write_random_model(folder: Path, sides: Mapping[str, Path]) -> None:
    """Write a folder like those of OPUS-MT, with random weights."""
    folder.mkdir(parents=True)
    pieces = {"</s>": 0, "<unk>": 1}
    for side, text in sides.items():
        prefix = folder / side
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(prefix), vocab_size=NUM_PIECES,
            minloglevel=2,
        )  # fmt: skip
        prefix.with_suffix(".model").rename(prefix.with_suffix(".spm"))
        prefix.with_suffix(".vocab").unlink()
        processor = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.spm")
        for number in range(processor.get_piece_size()):
            pieces.setdefault(processor.id_to_piece(number), len(pieces))
    pad = pieces.setdefault("<pad>", len(pieces))
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps(pieces), encoding="utf-8")
    spm = [str(folder / f"{side}.spm") for side in sides]
    MarianTokenizer(*spm, str(vocabulary)).save_pretrained(folder)
    torch.manual_seed(1)
    config = MarianConfig(
        vocab_size=len(pieces), d_model=128, encoder_layers=3, decoder_layers=3,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=512,
        decoder_ffn_dim=512, activation_function="swish", scale_embedding=True,
        pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0, bos_token_id=0,
    )  # fmt: skip
    MarianMTModel(config).save_pretrained(folder)


def settings(start: StartModel, num_updates: int, rate: float) -> RunConfig:
    """Settings of updates by Adam at a constant rate, without dropout or smoothing."""
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
            base.training, steps=num_updates, warmup_steps=1, learning_rate=rate,
            label_smoothing=0.0, clip_norm=None, patience=None,
        ),
        evaluation=replace(base.evaluation, hold_out=False),
    )  # fmt: skip


def batches_of(run: Path, config: RunConfig) -> Iterator[list[Batch]]:
    """Batches of each update, as the run has them."""
    dataset = open_dataset(run / "corpus/training")
    batcher = Batcher(dataset, config.batching, config.training.seed)
    epochs = (batcher.epoch(epoch, first=0) for epoch in count())
    for update in islice(chain.from_iterable(epochs), config.training.steps):
        yield [update.dataset.load(indices) for indices in update.batches]


def their_losses(
    model: MarianMTModel,
    batches: Iterator[list[Batch]],
    ids: tuple[int, ...],
    rate: float,
) -> list[float]:
    """Loss of each update of the library's model by the same Adam."""
    theirs = torch.tensor(ids)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=rate, betas=(0.9, 0.98), eps=1e-9
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


def compare(folder: Path, files: CorpusFiles, num_updates: int, rate: float) -> Curves:
    """Train the imported model and the library's on the same batches."""
    with tempfile.TemporaryDirectory() as name:
        model, run, losses = Path(name) / "model", Path(name) / "run", Losses()
        import_model(folder, model, ["A dog runs."])
        start = open_start(model)
        theirs = read_settings(folder)
        config = settings(start, num_updates, rate)
        # The library's table of sinusoids ends there.
        most = min(config.batching.max_length, theirs.max_positions)
        config = replace(config, batching=replace(config.batching, max_length=most))
        train(files, config, run, CPU, losses, start=start)
        library, plain = (
            their_losses(their_model, batches_of(run, config), theirs.source_ids, rate)
            for their_model in (
                without_dropout(MarianMTModel.from_pretrained(folder)),
                without_dropout(without_peculiarities(folder)),
            )
        )
    return Curves(ours=losses.values, library=library, plain=plain)


def without_dropout(model: MarianMTModel) -> MarianMTModel:
    """Return the library's model with all its rates of dropout set to 0."""
    for module in model.modules():
        for name in ("dropout", "activation_dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def main() -> None:
    """Print the losses."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--rate", type=float, default=1e-4)
    options = parser.parse_args()
    if not options.folder.exists():
        sides = {"source": options.source, "target": options.target}
        write_random_model(options.folder, sides)
    files = CorpusFiles(source=(options.source,), target=(options.target,))
    curves = compare(options.folder, files, options.updates, options.rate)
    print(f"{describe_machine()}\n")
    print("| update | imported model | library without peculiarities | as it is |")
    print("|---:|---:|---:|---:|")
    rows = zip(curves.ours, curves.plain, curves.library, strict=True)
    for number, row in enumerate(rows, start=1):
        print(f"| {number} | {' | '.join(f'{loss:.6f}' for loss in row)} |")


if __name__ == "__main__":
    main()
