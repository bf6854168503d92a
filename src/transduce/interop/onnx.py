"""Export to ONNX: an encoder, and one step of the decoder with its cache.

    encoder.onnx       source [batch, source] -> memory_mask, and of each layer
                       memory_key.N and memory_value.N [batch, heads, source, width]
    decoder_step.onnx  last_ids [batch, 1], the encoder's outputs, and of each layer
                       key.N and value.N [batch, heads, past, width] -> logits
                       [batch, vocab], and next_key.N and next_value.N, one longer

A source ends with id 2 and is padded with 0; a target starts with 1 and an empty past,
and ends with 2.
"""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx  # noqa: F401 # so that it is missed here, not while PyTorch exports
import onnxruntime
import onnxscript  # noqa: F401 # likewise
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.export import Dim

from transduce.checkpoint import Checkpoint
from transduce.files import atomic_directory
from transduce.interop.export import (
    GreedyOutput,
    Proof,
    prove,
    require_short,
    require_text,
    warn_of_lost_shortlist,
)
from transduce.interop.portable_tokenizer import write_portable
from transduce.model.attention import RestrictedSelfAttention
from transduce.model.layers import DecoderLayer, RecurrentDecoderLayer
from transduce.model.transformer import Transformer
from transduce.signals import signals_held
from transduce.text.vocabulary import BOS, EOS, PAD

ENCODER, STEP = "encoder.onnx", "decoder_step.onnx"
TARGET = "ONNX"
MAX_POSITIONS = 2_048
"""Number of positions stored in the graphs."""


def export(
    checkpoint: Checkpoint,
    folder: Path,
    sentences: Sequence[str],
    *,
    overwrite: bool = False,
) -> Proof:
    """Write the folder once the proof on the sentences succeeds.

    Raises `RequestError` for a parser or an unsupported tokenizer, `ProofError` if the
    proof fails.
    """
    require_text(TARGET, checkpoint)
    require_short(sentences, checkpoint.tokenizer, MAX_POSITIONS)

    with atomic_directory(folder, "export --to onnx", overwrite=overwrite) as new:
        tokenizer = write_portable(checkpoint.tokenizer, new)
        model = checkpoint.build_transformer()
        with torch.no_grad():
            _write_encoder(model, new / ENCODER)
            _write_step(model, new / STEP)
        proof = prove(_Exported(new), tokenizer, checkpoint, sentences)
        warn_of_lost_shortlist(TARGET, checkpoint)
        return proof


class _Graph(nn.Module):
    """Part of a model, which it makes independent of the lengths of sentences."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        _make_static(model)
        self.model = model


class EncoderGraph(_Graph):
    """Part of a model that runs once per sentence."""

    def forward(self, source: Int[Tensor, "batch source"]) -> tuple[Tensor, ...]:
        memory = self.model.encode(source)
        outputs = [memory.mask[:, 0, 0]]
        for layer in self.model.decoder_layers:
            outputs += layer.cross_attention.keys_and_values(memory.states)
        return tuple(outputs)


class StepGraph(_Graph):
    """Part of a model that runs at each step."""

    def forward(
        self,
        last_ids: Int[Tensor, "batch 1"],
        memory_mask: Bool[Tensor, "batch source"],
        memory: list[Tensor],
        past: list[Tensor],
    ) -> tuple[Tensor, ...]:
        model, position = self.model, past[0].size(2)
        x = model.output_embedding(last_ids) + model.positions(
            position, 1, last_ids.device
        )
        grown: list[Tensor] = []
        for i, layer in enumerate(model.decoder_layers):
            assert isinstance(layer, DecoderLayer)
            pair = slice(2 * i, 2 * i + 2)
            own = _SelfAttentionStep(layer, past[pair])
            x = layer.after_self_attention(x, own.attend_to_past)
            x = _read_memory(layer, x, memory[pair], memory_mask)
            grown += own.grown
        return (model.logits(model.decoder_norm(x))[:, 0], *grown)


class RecurrentStepGraph(_Graph):
    """Part of a model with recurrent units that runs at each step."""

    def forward(
        self,
        last_ids: Int[Tensor, "batch 1"],
        memory_mask: Bool[Tensor, "batch source"],
        memory: list[Tensor],
        position: Int[Tensor, " 1"],
        cells: list[Tensor],
    ) -> tuple[Tensor, ...]:
        model = self.model
        table = model.positions.get_buffer("table")
        x = model.output_embedding(last_ids) + table.index_select(0, position)
        new_cells: list[Tensor] = []
        for i, layer in enumerate(model.decoder_layers):
            assert isinstance(layer, RecurrentDecoderLayer)
            own = _RecurrentStep(layer, cells[i])
            x = layer.after_recurrence(x, own.read)
            x = _read_memory(layer, x, memory[2 * i : 2 * i + 2], memory_mask)
            new_cells.append(own.cell)
        logits = model.logits(model.decoder_norm(x))[:, 0]
        return (logits, position + 1, *new_cells)


def _read_memory(
    layer: DecoderLayer | RecurrentDecoderLayer,
    x: Float[Tensor, "batch 1 d_model"],
    memory: list[Tensor],
    memory_mask: Bool[Tensor, "batch source"],
) -> Float[Tensor, "batch 1 d_model"]:
    """Run the second and the third sub-layer of a decoder layer."""
    key, value = memory
    mask = memory_mask[:, None, None]
    x = layer.after_cross_attention(
        x, lambda query: layer.cross_attention.attend(query, key, value, mask)
    )
    return layer.after_feed_forward(x, layer.feed_forward)


class _RecurrentStep:
    """Recurrent unit of a decoder layer at one step."""

    def __init__(
        self, layer: RecurrentDecoderLayer, cell: Float[Tensor, "batch d_model"]
    ) -> None:
        self.cell = cell
        """Cell before the step, and after it once the unit has run."""
        self._unit = layer.recurrence

    def read(self, x: Tensor) -> Tensor:
        unit, row = self._unit, x[:, 0]
        self.cell = unit.step(unit.forget_gate(row), unit.candidate(row), self.cell)
        return self.cell.relu()[:, None]


class _SelfAttentionStep:
    """Self-attention of a decoder layer at one step, with its keys and values."""

    def __init__(self, layer: DecoderLayer, past: list[Tensor]) -> None:
        self.grown: list[Tensor] = []
        """Past keys and values with the new ones appended."""
        self._layer = layer
        self._past = past

    def attend_to_past(self, x: Tensor) -> Tensor:
        attention = self._layer.self_attention
        newest = attention.keys_and_values(x)
        self.grown = [
            torch.cat(both, dim=2) for both in zip(self._past, newest, strict=True)
        ]
        key, value = self.grown
        return attention.attend(x, key, value, None)


class _FixedPositions(nn.Module):
    """Table of all positions."""

    def __init__(self, positions: nn.Module) -> None:
        super().__init__()
        table = positions(0, MAX_POSITIONS, torch.device("cpu")).clone()
        self.register_buffer("table", table)

    def forward(
        self, first: int, length: int, _: torch.device
    ) -> Float[Tensor, "length d_model"]:
        return self.get_buffer("table")[first : first + length]


def _make_static(model: Transformer) -> None:
    """Make graphs of the model independent of the lengths of sentences."""
    if isinstance(model.positions, _FixedPositions):
        return
    model.add_module("positions", _FixedPositions(model.positions))
    for module in model.modules():
        if isinstance(module, RestrictedSelfAttention):
            # With a hook it forms all weights. The number of its blocks depends on the
            # length.
            module.weights_tap.register_forward_hook(lambda *_: None)


def _names(kind: str, model: Transformer) -> list[str]:
    numbers = range(model.config.num_decoder_layers)
    return [f"{kind}{part}.{i}" for i in numbers for part in ("key", "value")]


def _write(
    graph: nn.Module, example: tuple[object, ...], path: Path, **names: Any
) -> None:
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # of packages that are not needed
    try:
        # PyTorch traces in C++, which aborts on an exception that a handler raises.
        with signals_held(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                graph.eval(), example, path, external_data=False, verbose=False, **names
            )
    finally:
        logger.setLevel(level)


def _write_encoder(model: Transformer, path: Path) -> None:
    _write(
        EncoderGraph(model),
        (torch.full((2, 3), EOS),),
        path,
        input_names=["source"],
        output_names=["memory_mask", *_names("memory_", model)],
        dynamic_shapes=({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},),
    )


def _write_step(model: Transformer, path: Path) -> None:
    config, batch = model.config, {0: Dim.DYNAMIC}
    num_layers = config.num_decoder_layers
    of_any_length = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC}
    widths = [config.d_k, config.d_v] * num_layers
    memory = [torch.zeros(2, config.num_heads, 3, width) for width in widths]
    graph: nn.Module
    states: tuple[object, ...]
    shapes: tuple[object, ...]
    if config.decoder_self_attention == "ssru":
        graph = RecurrentStepGraph(model)
        names = ["position", *(f"cell.{i}" for i in range(num_layers))]
        cells = [torch.zeros(2, config.d_model) for _ in range(num_layers)]
        states = torch.zeros(1, dtype=torch.int64), cells
        shapes = None, [batch] * num_layers
    else:
        graph = StepGraph(model)
        names = _names("", model)
        states = ([torch.zeros(2, config.num_heads, 4, width) for width in widths],)
        shapes = ([of_any_length] * len(widths),)
    mask = torch.ones(2, 3, dtype=torch.bool)
    _write(
        graph,
        (torch.full((2, 1), BOS), mask, memory, *states),
        path,
        input_names=["last_ids", "memory_mask", *_names("memory_", model), *names],
        output_names=["logits", *(f"next_{name}" for name in names)],
        dynamic_shapes=(
            batch,
            {0: Dim.DYNAMIC, 1: Dim.DYNAMIC},
            [of_any_length] * len(widths),
            *shapes,
        ),
    )


class _Exported:
    def __init__(self, folder: Path) -> None:
        providers = ["CPUExecutionProvider"]
        self._encoder = onnxruntime.InferenceSession(
            folder / ENCODER, providers=providers
        )
        self._step = onnxruntime.InferenceSession(folder / STEP, providers=providers)

    def greedy(self, source: list[int], max_length: int) -> GreedyOutput:
        names = [each.name for each in self._encoder.get_outputs()]
        read = self._encoder.run(None, {"source": np.array([[*source, EOS]])})
        memory = dict(zip(names, read, strict=True))
        past = {
            each.name: _empty(each)
            for each in self._step.get_inputs()
            if each.name.startswith(("key.", "value.", "cell.", "position"))
        }
        ids: list[int] = []
        logits: list[Tensor] = []
        last = BOS
        while last != EOS and len(ids) < max_length:
            inputs = {"last_ids": np.array([[last]]), **memory, **past}
            outputs = self._step.run(None, inputs)
            past = dict(zip(past, outputs[1:], strict=True))
            row = torch.from_numpy(outputs[0][0])
            row[[PAD, BOS]] = -torch.inf
            last = int(row.argmax())
            ids.append(last)
            logits.append(row)
        return GreedyOutput(ids=ids, logits=torch.stack(logits))


def _empty(each: Any) -> np.ndarray:
    """Return the state of one sentence before the first step, for an input of a state.

    Of the axes with names instead of numbers, the first is the batch; the others have
    size 0.
    """
    shape = [
        size if isinstance(size, int) else int(axis == 0)
        for axis, size in enumerate(each.shape)
    ]
    return np.zeros(shape, np.int64 if each.name == "position" else np.float32)
