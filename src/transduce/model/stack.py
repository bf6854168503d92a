"""Layers one upon another (sections 3.1 and 3.3; Figure 1)."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transduce.model.config import ModelConfig
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.operators.layer_stack import (
    Attended,
    Layers,
    has_layer_stack,
    layer_stack,
)

Layer = TypeVar("Layer", EncoderLayer, DecoderLayer)


class _Stack(nn.ModuleList, Generic[Layer]):
    """What encoder and decoder have in common."""

    def __init__(self, layers: Iterable[Layer], config: ModelConfig) -> None:
        super().__init__(layers)
        self._config = config

    def __iter__(self) -> Iterator[Layer]:
        return cast(Iterator[Layer], super().__iter__())

    def _is_compiled(
        self, x: Float[Tensor, "batch length d_model"], attended: Attended | None
    ) -> bool:
        """Whether there is a kernel for all layers at once, and nobody looks inside."""
        return (
            self.training
            and torch.is_grad_enabled()
            and self._config.norm == "post"
            and self._config.activation == "relu"
            and not any(
                each.forms_weights for layer in self for each in layer.attentions
            )
            and has_layer_stack(x, attended, self._layers())
        )

    def _compiled(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: Bool[Tensor, "#batch 1 #length length"],
        attended: Attended | None,
    ) -> Float[Tensor, "batch length d_model"]:
        weights = [weight for layer in self for weight in layer.weights()]
        return layer_stack(x, mask, attended, self._layers(), weights)

    def _layers(self) -> Layers:
        [first, *_] = self
        return Layers(
            count=len(self),
            d_ff=self._config.d_ff,
            heads=first.self_attention.heads,
            dropout=self._config.dropout,
            norm_epsilon=self._config.norm_epsilon,
        )


class EncoderStack(_Stack[EncoderLayer]):
    """The encoder's layers."""

    def __init__(self, config: ModelConfig) -> None:
        layers = (EncoderLayer(config) for _ in range(config.num_layers))
        super().__init__(layers, config)

    def forward(
        self,
        x: Float[Tensor, "batch source d_model"],
        mask: Bool[Tensor, "#batch 1 #queries source"],
    ) -> Float[Tensor, "batch source d_model"]:
        if self._is_compiled(x, None):
            return self._compiled(x, mask, None)
        for layer in self:
            x = layer(x, mask)
        return x


class DecoderStack(_Stack[DecoderLayer]):
    """The decoder's layers."""

    def __init__(self, config: ModelConfig) -> None:
        layers = (DecoderLayer(config) for _ in range(config.num_decoder_layers))
        super().__init__(layers, config)

    def forward(
        self,
        x: Float[Tensor, "batch target d_model"],
        memory: Float[Tensor, "batch source d_model"],
        self_mask: Bool[Tensor, "1 1 target target"],
        memory_mask: Bool[Tensor, "batch 1 1 source"],
    ) -> Float[Tensor, "batch target d_model"]:
        attended = Attended(memory=memory, mask=memory_mask)
        if self._is_compiled(x, attended):
            return self._compiled(x, self_mask, attended)
        for layer in self:
            x = layer(x, memory, self_mask, memory_mask)
        return x
