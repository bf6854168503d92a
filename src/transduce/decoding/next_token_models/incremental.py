"""A model and its cache as what search needs."""

from collections.abc import Callable

from jaxtyping import Float, Int
from torch import Tensor

from transduce.model.cache import DecodingState
from transduce.model.transformer import Memory, Transformer

Step = Callable[[Tensor, DecodingState], Tensor]
"""`Transformer.step`, or what does the same."""
NewState = Callable[[Memory], DecodingState]
"""`Transformer.start`, or what does the same."""


class IncrementalDecoder:
    """A model that has read sources, and reads their translations token by token."""

    def __init__(
        self,
        model: Transformer,
        memory: Memory,
        step: Step | None = None,
        start: NewState | None = None,
    ) -> None:
        """`step` and `start` do what the model's own do, if they are given."""
        self._step = step or model.step
        self._state = (start or model.start)(memory)

    def step(
        self, last_ids: Int[Tensor, "sentences group"]
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; the logits of the next."""
        device = self._state.memory_mask.device
        return self._step(last_ids.to(device), self._state)

    def reorder(self, rows: Int[Tensor, "kept group"]) -> None:
        """Keep these hypotheses, in this order."""
        self._state.reorder(rows)

    def join(self, other: "IncrementalDecoder") -> None:
        """Put the sentences of another behind one's own."""
        self._state.join(other._state)
