"""The interface that all architectures share, and the function that builds a model.

Training, PyTorch decoding, scoring, averaging and checkpoints use a model only through
`TransductionModel`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from transduce.architectures.config import (
    ArchitectureConfig,
)
from transduce.model.config import ModelConfig
from transduce.model.transformer import Memory, Transformer


@runtime_checkable
class DecoderState(Protocol):
    """State of a batch of hypotheses between two steps of a decoder.

    Each sentence has a group of hypotheses; all groups are equally large.
    """

    @property
    def memory_mask(self) -> Bool[Tensor, "sentences 1 1 source"]:
        """True at the tokens of the sources, not at their padding."""
        ...

    def reorder(self, rows: Int[Tensor, "kept group"]) -> None:
        """Keep these hypotheses, in this order; those of a group are of one sentence.

        Hypotheses are numbered through all groups.
        """
        ...

    def join(self, other: Any) -> None:
        """Append the sentences of another state with groups of the same size."""
        ...


@runtime_checkable
class Stepper(Protocol):
    """A decoder that reads and predicts token by token."""

    def start(self, memory: Memory) -> DecoderState:
        """Return the state before the first step, with one hypothesis a sentence."""
        ...

    def step(
        self, last_ids: Int[Tensor, "sentences group"], state: Any
    ) -> Float[Tensor, "sentences group vocab"]:
        """Read one more token of each hypothesis; return the logits of the next."""
        ...


@runtime_checkable
class TransductionModel(Stepper, Protocol):
    """A model that maps a source sequence to a target sequence.

    It is also an `nn.Module`; the last members below are that class's.
    """

    @property
    def config(self) -> ArchitectureConfig:
        """Settings that the model was built from."""
        ...

    def encode(self, source: Int[Tensor, "batch source"]) -> Memory:
        """Encode sources, padded with id 0."""
        ...

    def decode(
        self, target_in: Int[Tensor, "batch target"], memory: Memory
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's states at all positions of the targets."""
        ...

    def logits(
        self, states: Float[Tensor, "*rows d_model"]
    ) -> Float[Tensor, "*rows vocab"]:
        """Return the logits of the next token for decoder states."""
        ...

    @property
    def output_weight(self) -> Float[Tensor, "vocab d_model"]:
        """Matrix of the logits."""
        ...

    @property
    def output_bias(self) -> Float[Tensor, " vocab"] | None:
        """Bias of the logits, if they have one."""
        ...

    @property
    def cross_attention_taps(self) -> Sequence[nn.Module]:
        """Modules that the weights of cross-attention pass through, one a layer.

        The weights are [batch, heads, target, source]. Forward hooks read them.
        """
        ...

    def num_parameters(self) -> int:
        """Number of parameters, each counted once."""
        ...

    def update_flops(
        self,
        source_lengths: Integer[np.ndarray, " pairs"],
        target_lengths: Integer[np.ndarray, " pairs"],
    ) -> int:
        """FLOPs of a training update on pairs of these lengths, without padding."""
        ...

    training: bool

    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...
    def to(self, *args: Any, **kwargs: Any) -> Any: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any: ...


def build(config: ArchitectureConfig) -> TransductionModel:
    """Build a model with random first weights."""
    match config:
        case ModelConfig():
            return Transformer(config)
        case _:
            raise TypeError(f"There is no architecture of {type(config).__name__}.")
