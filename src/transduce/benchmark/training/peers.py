"""The same model in other libraries, trained as their users would at their best.

Each is built as the paper's: no dropout but on sub-layers and embeddings, one matrix
for source, target and output. Each gets what makes it fast: fused Adam, bf16 where ours
has it, and PyTorch's fused attention. The loss is in fp32, as ours is.
"""

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.nn import functional

from transduce.benchmark.training.task import TrainingTask
from transduce.data.batches import Update
from transduce.extras import missing_package
from transduce.model.config import ModelConfig
from transduce.model.embedding import sinusoids
from transduce.special_ids import PAD
from transduce.training.schedule import scheduled_rate

MARIAN, TORCH = "Hugging Face Marian", "torch.nn.Transformer"
COMPILED = "torch.nn.Transformer, compiled"


class TorchPeer(nn.Module):
    """`torch.nn.Transformer` between the embeddings that it leaves to its user."""

    def __init__(self, config: ModelConfig, max_length: int) -> None:
        super().__init__()
        self.scale = math.sqrt(config.d_model)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.dropout = nn.Dropout(config.dropout)
        positions = sinusoids(max_length, config.d_model)
        self.register_buffer("positions", positions, persistent=False)
        self.transformer = _torch_transformer(config)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target_in: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocab"]:
        is_padding = source == PAD
        states = self.transformer(
            self._embed(source),
            self._embed(target_in),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(
                target_in.size(1), device=source.device
            ),
            tgt_is_causal=True,
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
        )
        return functional.linear(states, self.embedding.weight)

    def _embed(
        self, ids: Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length d_model"]:
        positions = self.get_buffer("positions")[: ids.size(1)]
        return self.dropout(self.embedding(ids) * self.scale + positions)


class MarianPeer(nn.Module):
    """`MarianMTModel` of the package `transformers`."""

    def __init__(self, config: ModelConfig, max_length: int) -> None:
        super().__init__()
        from transformers import MarianMTModel

        from transduce.export.marian import marian_config

        self.marian = MarianMTModel(marian_config(config, max_length))

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target_in: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target vocab"]:
        return self.marian(
            input_ids=source,
            attention_mask=source != PAD,
            decoder_input_ids=target_in,
            use_cache=False,
        ).logits


def compiled_torch_peer(config: ModelConfig, max_length: int) -> nn.Module:
    """The same by `torch.compile`, once for all lengths."""
    peer = TorchPeer(config, max_length)
    peer.compile(dynamic=True)
    return peer


PEERS: dict[str, Callable[[ModelConfig, int], nn.Module]] = {
    MARIAN: MarianPeer,
    TORCH: TorchPeer,
    COMPILED: compiled_torch_peer,
}
"""What makes each of a model's configuration and the longest sentence."""


def peers_on(device: torch.device) -> list[str]:
    """Those worth their time: compiled by PyTorch, a model gains little on a CPU."""
    return [name for name in PEERS if name != COMPILED or device.type == "cuda"]


def obstacle(name: str, config: ModelConfig) -> str | None:
    """Why a peer cannot take part, as one sentence; none if it can."""
    if name == MARIAN and find_spec("transformers") is None:
        return (
            f"{name} is left out. {missing_package('It', 'transformers', 'benchmark')}"
        )
    if name == COMPILED and find_spec("triton") is None:
        return f"{name} is left out, as PyTorch compiles for GPUs by Triton, not here."
    width = config.d_model / config.num_heads
    known = {
        "d_k": width, "d_v": width, "positions": "sinusoidal", "scores": "scaled",
        "neighbourhood": None, "output_bias": False,
    }  # fmt: skip
    if name == MARIAN:
        known["norm"] = "post"
    else:
        known["activation"] = "relu"
    for setting, value in known.items():
        if (asked := getattr(config, setting)) != value:
            return f"{name} is left out, as it cannot have `model.{setting}` = {asked}."
    return None


class PeerTrainer:
    """A plain training loop: the same updates, optimizer and schedule as ours."""

    def __init__(self, model: nn.Module, task: TrainingTask) -> None:
        self._task = task
        self._config = task.training
        self._dataset = task.dataset()
        self._batcher = task.batcher(self._dataset)
        self._model = model.to(task.hardware.device).train()
        self._optimizer = torch.optim.Adam(
            [p for p in model.parameters() if p.requires_grad],
            lr=0.0,  # set before each step
            betas=(self._config.beta1, self._config.beta2),
            eps=self._config.epsilon,
            fused=True,
        )

    def train(self, on_step: Callable[[Update, float], None]) -> None:
        """Make the task's updates; tell each, and its loss in nats a target token."""
        for step, update in enumerate(self._task.updates(self._dataset), start=1):
            on_step(update, self._step(step, update))

    def _step(self, step: int, update: Update) -> float:
        rate = scheduled_rate(step, self._task.model.d_model, self._config)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad()
        losses = [self._accumulate(batch, update) for batch in update.batches]
        self._optimizer.step()
        return torch.stack(losses).sum().item()

    def _accumulate(
        self, indices: Integer[np.ndarray, " batch"], update: Update
    ) -> Float[Tensor, ""]:
        """Add a batch's part of the gradient of the update's mean loss a token."""
        hardware = self._task.hardware
        batch = self._batcher.load(indices).to(hardware.device)
        with hardware.autocast():
            logits = self._model(batch.source, batch.target_in)
        loss = functional.cross_entropy(
            logits.flatten(0, 1).float(),
            batch.target_out.flatten(),
            ignore_index=PAD,
            label_smoothing=self._config.label_smoothing,
            reduction="sum",
        )
        loss = loss / update.num_target_tokens
        loss.backward()
        return loss.detach()


def _torch_transformer(config: ModelConfig) -> nn.Transformer:
    """Without what PyTorch has more than the paper: norms and dropouts."""
    choices: dict[str, Any] = {
        "d_model": config.d_model,
        "nhead": config.num_heads,
        "dim_feedforward": config.d_ff,
        "dropout": config.dropout,
        "layer_norm_eps": config.norm_epsilon,
        "norm_first": config.norm == "pre",
        "batch_first": True,
    }
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**choices),
        config.num_layers,
        _final_norm(config),
        enable_nested_tensor=False,
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(**choices),
        config.num_decoder_layers,
        _final_norm(config),
    )
    for layer in (*encoder.layers, *decoder.layers):
        layer.dropout = nn.Identity()
    for module in (*encoder.modules(), *decoder.modules()):
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return nn.Transformer(
        config.d_model,
        config.num_heads,
        batch_first=True,
        custom_encoder=encoder,
        custom_decoder=decoder,
    )


def _final_norm(config: ModelConfig) -> nn.LayerNorm | None:
    if config.norm == "pre":
        return nn.LayerNorm(config.d_model, eps=config.norm_epsilon)
    return None
