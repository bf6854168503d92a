"""The interface that all architectures share.

Training, PyTorch decoding, scoring, averaging and checkpoints use a model only through
`TransductionModel`. Most decoders keep a `CachedState` between steps, and several count
their operations by `num_matrix_elements`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from transduce.architectures.config import ArchitectureConfig
from transduce.model.transformer import resized


@runtime_checkable
class EncodedSource(Protocol):
    """Output of an encoder: a dataclass of the architecture's own tensors."""

    @property
    def mask(self) -> Bool[Tensor, "batch 1 1 source"]:
        """True at the tokens of the source, not at its padding."""
        ...


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
        """Keep `rows` of the flattened [sentences, group] of hypotheses, in this order.

        Each new group must come from one sentence.
        """
        ...

    def join(self, other: Any) -> None:
        """Append the sentences of another state with groups of the same size."""
        ...


@dataclass(slots=True, kw_only=True)
class CachedState:
    """A `DecoderState` of named tensors: per sentence, and per hypothesis."""

    memory_mask: Bool[Tensor, "sentences 1 1 source"]
    """True at the tokens of the sources, not at their padding."""
    memory: dict[str, Float[Tensor, "sentences source _"]] = field(default_factory=dict)
    """Tensors of each source; `join` pads them along the source."""
    hypotheses: dict[str, Tensor] = field(default_factory=dict)
    """Tensors of each hypothesis, [sentences, group, ...]; a name's tensors have one
    size for all hypotheses."""

    def reorder(self, rows: Int[Tensor, "kept group"]) -> None:
        """Keep these hypotheses in this order, as `DecoderState.reorder`."""
        group = next(iter(self.hypotheses.values())).size(1)
        self.hypotheses = {
            name: each.flatten(0, 1)[rows] for name, each in self.hypotheses.items()
        }
        sentences = rows[:, 0] // group
        every = torch.arange(len(self.memory_mask), device=sentences.device)
        if torch.equal(sentences, every):
            return
        self.memory_mask = self.memory_mask[sentences]
        self.memory = {name: each[sentences] for name, each in self.memory.items()}

    def join(self, other: "CachedState") -> None:
        """Append the sentences of another state with groups of the same size."""
        both = (self, other)
        width = max(each.memory_mask.size(3) for each in both)
        masks = [resized(each.memory_mask, width, dim=3) for each in both]
        self.memory = {
            name: torch.cat([resized(e.memory[name], width, dim=1) for e in both])
            for name in self.memory
        }
        self.memory_mask = torch.cat(masks)
        self.hypotheses = {
            name: torch.cat([each.hypotheses[name] for each in both])
            for name in self.hypotheses
        }


@runtime_checkable
class Stepper(Protocol):
    """A decoder that reads and predicts token by token."""

    def start(self, memory: Any) -> DecoderState:
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

    def encode(self, source: Int[Tensor, "batch source"]) -> EncodedSource:
        """Encode sources, padded with id 0."""
        ...

    def decode(
        self, target_in: Int[Tensor, "batch target"], memory: Any
    ) -> Float[Tensor, "batch target d_model"]:
        """Return the decoder's states at all positions of the targets.

        `memory` is the result of `encode`.
        """
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

        The weights are [batch, heads, target, source], in `step` [sentences, heads,
        group, source]. Forward hooks read them.
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


@runtime_checkable
class AuxiliaryLoss(Protocol):
    """A model with a second loss, which training adds to the cross-entropy."""

    def auxiliary_loss(self) -> Float[Tensor, ""]:
        """Return the loss of this thread's last `encode` and `decode`.

        It is in nats a target token.
        """
        ...


def num_matrix_elements(module: nn.Module | None) -> int:
    """Number of elements of a module's matrices, without its vectors.

    It is the number of multiplications for one position if there are no embeddings.
    """
    parameters = () if module is None else module.parameters()
    return sum(each.numel() for each in parameters if each.dim() > 1)
