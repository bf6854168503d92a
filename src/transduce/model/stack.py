"""Layers one upon another (sections 3.1 and 3.3; Figure 1)."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar, cast

from jaxtyping import Bool, Float
from torch import Tensor, nn

from transduce.model.layers import DecoderLayer, EncoderLayer, ResidualConnection
from transduce.model.operators.layer_stack import (
    Attended,
    Layers,
    has_layer_stack,
    layer_stack,
)
from transduce.model.operators.linear import Linear

Layer = TypeVar("Layer", EncoderLayer, DecoderLayer)


class _Stack(nn.ModuleList, Generic[Layer]):
    """What encoder and decoder have in common."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        super().__init__(layers)

    def __iter__(self) -> Iterator[Layer]:
        return cast(Iterator[Layer], super().__iter__())

    def _is_compiled(
        self, x: Float[Tensor, "batch length d_model"], attended: Attended | None
    ) -> bool:
        """Whether there is a kernel for all layers at once, and nobody looks inside."""
        return (
            len(self) > 0
            and all(map(_is_the_papers, self))
            and has_layer_stack(x, attended, self._layers())
            and all(map(self._is_plain, self.modules()))
            and self._is_of_one_kind()
        )

    def _is_plain(self, module: nn.Module) -> bool:
        """Whether it trains if all does, and nothing is hung on it that is to look."""
        return module.training == self.training and not (
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
        )

    def _is_of_one_kind(self) -> bool:
        """Whether all residual connections drop and normalise alike."""
        residuals = [m for m in self.modules() if isinstance(m, ResidualConnection)]
        return len({(r.dropout.rate, r.norm.eps) for r in residuals}) == 1

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
        residual = first.after_feed_forward
        return Layers(
            count=len(self),
            d_ff=first.feed_forward.inner.out_features,
            heads=first.self_attention.heads,
            dropout=residual.dropout.rate if self.training else 0.0,
            norm_epsilon=residual.norm.eps,
        )


class EncoderStack(_Stack[EncoderLayer]):
    """The encoder's layers."""

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


def _is_the_papers(layer: EncoderLayer | DecoderLayer) -> bool:
    """Whether its parts are of the kinds that the paper's has, and not yet packed."""
    return (
        all(isinstance(each, Linear) for each in layer.feed_forward.children())
        and layer.feed_forward.activation == "relu"
        and not layer.after_feed_forward.is_pre_norm
        and layer.self_attention.scores != "additive"
    )
