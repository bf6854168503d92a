"""Layers one upon another (sections 3.1 and 3.3; Figure 1)."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar, cast

from jaxtyping import Bool, Float
from torch import Tensor, nn

from transduce.model.attention import MultiHeadAttention
from transduce.model.layers import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    ResidualConnection,
)
from transduce.nn.layer_stack import (
    Attended,
    Layers,
    has_layer_stack,
    layer_stack,
)
from transduce.nn.linear import Linear

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
        """Whether all layers have the same dropout rates and the same epsilon."""
        modules = list(self.modules())
        residuals = [m for m in modules if isinstance(m, ResidualConnection)]
        attentions = [m for m in modules if isinstance(m, MultiHeadAttention)]
        networks = [m for m in modules if isinstance(m, FeedForward)]
        return (
            len({(each.dropout.rate, each.norm.eps) for each in residuals}) == 1
            and len({each.dropout.rate for each in attentions}) == 1
            and len({each.dropout.rate for each in networks}) == 1
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
        attention, network = first.self_attention, first.feed_forward
        residual = first.after_feed_forward
        return Layers(
            count=len(self),
            d_ff=network.inner.out_features,
            heads=attention.heads,
            dropout=residual.dropout.rate_in_use,
            attention_dropout=attention.dropout.rate_in_use,
            relu_dropout=network.dropout.rate_in_use,
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
    network = layer.feed_forward
    return (
        all(isinstance(each, Linear) for each in (network.inner, network.outer))
        and network.activation == "relu"
        and not layer.after_feed_forward.is_pre_norm
        and layer.self_attention.scores != "additive"
    )
