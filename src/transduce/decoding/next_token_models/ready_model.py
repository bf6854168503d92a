"""A model made ready to decode: by kernels of our own, or by operators of PyTorch."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from transduce.decoding.compiled.compiled_decoder import CompiledDecoder
from transduce.decoding.compiled.compiled_model import CompiledModel, padded_sources
from transduce.decoding.compiled.packed_layers import Pack, has_kernels_for
from transduce.decoding.kernels.library import kernels
from transduce.decoding.kernels.packed_linear import PackedFloats, PackedInt8
from transduce.decoding.search import Coverage, JoinableModel, WatchedModel
from transduce.errors import ConfigError
from transduce.extras import packages_for
from transduce.machine import has_matrix_unit, keep_freed_memory
from transduce.model_folder import ModelAtRest
from transduce.search_config import SearchConfig

if TYPE_CHECKING:
    import transduce.decoding.next_token_models.prepared_model

DecodingPrecision = Literal["fp32", "bf16", "int8"]
"""Of the matrix products of decoding: fp32 is exact."""
PACKS: dict[str, Pack] = {"fp32": PackedFloats, "int8": PackedInt8}
"""In what precisions there are kernels."""
ROWS_OF_ANY_STEP = 4
"""That take as long as what a step takes in any case."""
ROWS_OF_ANY_STEP_BY_UNIT = 16
"""The same where a matrix unit multiplies, for which reading weights takes longer."""


class ReadyModel:
    """A model on a device, to decode in a precision; made ready where it is needed.

    By kernels where there are such, which need no PyTorch: that takes a second to load.
    """

    def __init__(
        self, checkpoint: ModelAtRest, precision: DecodingPrecision, device: str
    ) -> None:
        """`RequestError` if the device cannot."""
        if precision not in get_args(DecodingPrecision):
            raise ConfigError(
                f'`precision` must be "fp32", "bf16" or "int8", but is "{precision}".'
            )
        if device == "cpu":
            keep_freed_memory()  # each step allots the logits of all hypotheses
        self._checkpoint = checkpoint
        self._precision = precision
        self._device = device
        is_known = precision in PACKS and has_kernels_for(checkpoint.config)
        self._has_kernels = device == "cpu" and is_known and kernels() is not None
        if not self._has_kernels:
            _ = self.operators

    def get_ready(self) -> None:
        """Have what translations are made by, which else the first makes ready."""
        if self._has_kernels:
            _ = self.compiled

    @cached_property
    def rows_of_any_step(self) -> int:
        """What a step takes in any case, to read weights and to begin, in rows."""
        is_by_unit = self._has_kernels and self._precision == "int8"
        if is_by_unit and has_matrix_unit("int8"):
            return ROWS_OF_ANY_STEP_BY_UNIT
        return ROWS_OF_ANY_STEP

    @cached_property
    def compiled(self) -> CompiledModel:
        """The model by kernels, where there are such for it."""
        # Unlike the paper: 8 bits, if they are asked for, for speed on processors that
        # multiply them faster.
        return CompiledModel(
            self._checkpoint.config,
            self._checkpoint.arrays(),
            PACKS[self._precision],
        )

    @cached_property
    def operators(
        self,
    ) -> "transduce.decoding.next_token_models.prepared_model.PreparedModel":
        """The model by operators of PyTorch, for who looks into it."""
        # Not before: PyTorch takes a second to load.
        with packages_for(self._task_of_torch):
            from transduce.decoding.next_token_models.prepared_model import prepare
        return prepare(self._checkpoint, self._precision, self._device)

    def encode(self, sources: Sequence[Sequence[int]]) -> Any:
        """The memory of sources, for `start`; the end of each is among its ids."""
        if not self._has_kernels:
            return self.operators.encode(sources)
        return self.compiled.encode(padded_sources(sources))

    def start(self, memory: Any) -> JoinableModel:
        """The model, which reads translations of what the memory is of."""
        if not self._has_kernels:
            return self.operators.start(memory)
        return CompiledDecoder(self.compiled, self.compiled.start(memory))

    def read(self, sources: Sequence[Sequence[int]]) -> JoinableModel:
        """The model, which has read sources, and reads their translations."""
        return self.start(self.encode(sources))

    def read_watched(self, sources: Sequence[Sequence[int]]) -> WatchedModel:
        """Read sources like `read`, and sum the attention of hypotheses to them."""
        memory = self.encode(sources)
        if self._has_kernels:
            state = self.compiled.start(memory, is_watched=True)
            return CompiledDecoder(self.compiled, state)
        from transduce.decoding.next_token_models.coverage import CoverageDecoder

        operators = self.operators
        return CoverageDecoder(operators.model, memory, operators.step)

    def read_for(
        self, config: SearchConfig, sources: Sequence[Sequence[int]]
    ) -> tuple[JoinableModel, Coverage | None]:
        """Read sources for a search; also their coverage if the config penalises it."""
        if config.coverage_penalty == 0:
            return self.read(sources), None
        watched = self.read_watched(sources)
        return watched, watched.coverage

    @property
    def _task_of_torch(self) -> str:
        """What PyTorch is needed for, as the subject of a message."""
        if self._device != "cpu":
            return f"Device {self._device}"
        if self._precision not in PACKS:
            return f"Precision {self._precision}"
        if not has_kernels_for(self._checkpoint.config):
            return f"A model with {self._checkpoint.config.scores} attention scores"
        if self._has_kernels:
            return "A look into the model"
        return "Decoding without the native library, which a C compiler builds,"

    @property
    def needs_torch(self) -> bool:
        """Whether it decodes by PyTorch's operators, as the kernels do not apply."""
        return not self._has_kernels
