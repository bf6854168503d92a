"""Models of every architecture and variant are trained further."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import marian_npz
import transduce
from transduce.architectures.config import (
    ArchitectureConfig,
    ByteNetConfig,
    ConvolutionalConfig,
    DeepAttConfig,
    ExpertsConfig,
    MixtureRecurrentConfig,
    MixtureTransformerConfig,
    RecurrentConfig,
)
from transduce.checkpoint import Checkpoint, build, load_model, save_model
from transduce.experiments.run_folder import RunFolder
from transduce.interop.marian_npz_export import export
from transduce.interop.marian_npz_import import import_marian
from transduce.model.config import ModelConfig
from transduce.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("quick_runs")

TRANSFORMER = ModelConfig(
    num_layers=1, d_model=16, d_ff=20, num_heads=2, d_k=8, d_v=8, dropout=0.1
)
MODELS: dict[str, ArchitectureConfig] = {
    "pre-norm, silu": replace(TRANSFORMER, norm="pre", activation="silu"),
    "learned positions": replace(TRANSFORMER, positions="learned", max_positions=40),
    "additive scores": replace(TRANSFORMER, scores="additive"),
    "output biases, two decoder layers": replace(
        TRANSFORMER, output_bias=True, decoder_layers=2
    ),
    "an output matrix of its own": replace(
        TRANSFORMER, tied_output=False, output_bias=True, position_base=20_000.0
    ),
    "a neighbourhood": replace(TRANSFORMER, neighbourhood=4),
    "mixtures of experts": MixtureTransformerConfig(
        num_layers=1, d_model=16, num_heads=2, d_k=8, d_v=8,
        experts=ExpertsConfig(num_experts=2, top_k=1, d_ff=8),
    ),
    "recurrent": RecurrentConfig(encoder_layers=1, decoder_layers=1, d_model=16),
    "recurrent mixtures": MixtureRecurrentConfig(
        d_model=16, cells=24,
        experts=ExpertsConfig(num_experts=2, top_k=1, d_ff=8),
    ),
    "Deep-Att": DeepAttConfig(
        embedding_width=8, d_model=8, encoder_layers=2, decoder_layers=2
    ),
    "convolutional": ConvolutionalConfig(
        encoder_blocks="1x8k3", d_embedding=8, d_output=8, max_positions=40
    ),
    "ByteNet": ByteNetConfig(num_blocks=1, d_hidden=6, largest_dilation=1),
}  # fmt: skip


SHARED, TWO = ["vocab.spm"] * 2, ["source.spm", "target.spm"]
UNTIED = {"tied-embeddings-all": "false"}
MARIAN: dict[str, tuple[list[str], dict[str, str]]] = {
    "tied, norms first": (SHARED, marian_npz.PRE_NORM),
    "sources tied": (SHARED, {**UNTIED, "tied-embeddings-src": "true"}),
    "targets tied": (TWO, {**UNTIED, "tied-embeddings": "true"}),
    "nothing tied": (TWO, UNTIED),
}
"""Vocabularies and options of Marian's own models."""


def train_further(
    start: Path, corpus_files: tuple[Path, Path], out: Path
) -> tuple[Checkpoint, Checkpoint]:
    """Make two updates; return the model before and after them."""
    settings = {
        "training.steps": 2,
        "training.warmup_steps": 1,
        "evaluation.hold_out": False,
        "batching.max_length": 40,
    }
    result = transduce.train(
        *corpus_files, out, start=start, settings=settings, device="cpu",
        precision="fp32",
    )  # fmt: skip
    [entry] = RunFolder(out).log.entries("step", "loss")
    assert math.isfinite(entry["loss"])
    assert isinstance(transduce.load(result.model).translate("one two").text, str)
    return load_model(start), load_model(result.model)


def assert_trained(before: Checkpoint, after: Checkpoint) -> None:
    assert after.config == before.config
    assert after.tokenizer == before.tokenizer
    same = [n for n, w in after.weights.items() if torch.equal(w, before.weights[n])]
    assert len(same) < len(before.weights) / 2


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_trained_further(
    name: str, tokenizer: Tokenizer, corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    config = replace(MODELS[name], vocab_size=tokenizer.vocab_size)
    weights = dict(build(config).state_dict())
    model = Checkpoint(config=config, weights=weights, tokenizer=tokenizer, step=0)
    save_model(model, tmp_path / "start")
    assert_trained(*train_further(tmp_path / "start", corpus_files, tmp_path / "new"))


@pytest.mark.filterwarnings("ignore:Marian has only a beam size")
@pytest.mark.parametrize("name", MARIAN)
def test_a_model_of_marian_is_trained_further(
    name: str, corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    vocabularies, options = MARIAN[name]
    marian_npz.write_folder(tmp_path / "marian", vocabularies, **options)
    import_marian(tmp_path / "marian", tmp_path / "start", ["The dog runs."])
    before, after = train_further(tmp_path / "start", corpus_files, tmp_path / "new")
    assert_trained(before, after)
    # The start token is not learned there, so that the model can go back.
    export(after, tmp_path / "out", ["The dog runs."])
    assert (tmp_path / "out" / "model.npz").is_file()
