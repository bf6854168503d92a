"""A model made ready to decode, by the native library or by PyTorch."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from transduce.architectures.config import require_transformer
from transduce.decoding.native_model import NativeModel
from transduce.decoding.search import Coverage, CoverageDecoder, JoinableDecoder
from transduce.errors import ConfigError, packages_for
from transduce.machine import keep_freed_memory
from transduce.model.config import ModelConfig
from transduce.model_folder import ModelAtRest
from transduce.native import api, has_amx_int8
from transduce.search_config import SearchConfig

if TYPE_CHECKING:
    import transduce.decoding.torch_model

DecodingPrecision = Literal["fp32", "bf16", "int8"]
"""Precision of matrix products in decoding; fp32 is exact."""
ROWS_OF_ANY_STEP = 4
"""Fixed cost of a decoding step, in rows."""
ROWS_OF_ANY_AMX_STEP = 16
"""The same with AMX, for which reading weights is a larger share."""


class ReadyModel:
    """A model for decoding on a device in a precision, made ready when it is needed.

    The native library decodes on CPUs in fp32 and int8 and needs no PyTorch, which
    takes a second to load.
    """

    def __init__(
        self, checkpoint: ModelAtRest, precision: DecodingPrecision, device: str
    ) -> None:
        """Raise `RequestError` if the device cannot decode in this precision."""
        if precision not in get_args(DecodingPrecision):
            raise ConfigError(
                f'`precision` must be "fp32", "bf16" or "int8", but is "{precision}".'
            )
        if device == "cpu":
            keep_freed_memory()  # each step allocates the logits of all hypotheses
        self._checkpoint = checkpoint
        self._precision = precision
        self._device = device
        is_transformer = isinstance(checkpoint.config, ModelConfig)
        is_native = device == "cpu" and precision != "bf16" and api() is not None
        self._is_native = is_native and is_transformer
        if not self._is_native:
            _ = self.operators

    def get_ready(self) -> None:
        """Load the model now; otherwise the first translation loads it."""
        if self._is_native:
            _ = self.native

    @cached_property
    def rows_of_any_step(self) -> int:
        """Fixed cost of a decoding step, to begin and to read weights, in rows."""
        is_int8 = self._is_native and self._precision == "int8"
        if is_int8 and has_amx_int8():
            return ROWS_OF_ANY_AMX_STEP
        return ROWS_OF_ANY_STEP

    @cached_property
    def native(self) -> NativeModel:
        """The model in the native library."""
        # Unlike the paper: 8 bits, if they are asked for, for speed on processors that
        # multiply them faster.
        assert self._precision != "bf16"
        config = require_transformer(self._checkpoint.config)
        return NativeModel(config, self._checkpoint.arrays(), self._precision)

    @cached_property
    def operators(
        self,
    ) -> "transduce.decoding.torch_model.TorchModel":
        """The model in PyTorch, for those who look into it."""
        # Imported here because PyTorch takes a second to load.
        with packages_for(self._task_of_torch):
            from transduce.decoding.torch_model import prepare
        return prepare(self._checkpoint, self._precision, self._device)

    def encode(self, sources: Sequence[Sequence[int]]) -> Any:
        """Encode sources, which include their end tokens, for `start`."""
        if self._is_native:
            return self.native.encode(sources)
        return self.operators.encode(sources)

    def start(self, encoded: Any) -> JoinableDecoder:
        """Return a decoder of encoded sources."""
        if self._is_native:
            return self.native.start(encoded)
        return self.operators.start(encoded)

    def read(self, sources: Sequence[Sequence[int]]) -> JoinableDecoder:
        """Encode sources and return their decoder."""
        return self.start(self.encode(sources))

    def read_watched(self, sources: Sequence[Sequence[int]]) -> CoverageDecoder:
        """Encode sources and return a decoder that sums attention to them."""
        encoded = self.encode(sources)
        if self._is_native:
            return self.native.start(encoded, sum_attention=True)
        return self.operators.watch(encoded)

    def read_for(
        self, config: SearchConfig, sources: Sequence[Sequence[int]]
    ) -> tuple[JoinableDecoder, Coverage | None]:
        """Encode sources for a search, with coverage if the config penalises it."""
        if config.coverage_penalty == 0:
            return self.read(sources), None
        watched = self.read_watched(sources)
        return watched, watched.coverage

    @property
    def _task_of_torch(self) -> str:
        """Subject of the message that PyTorch is missing."""
        if self._device != "cpu":
            return f"Device {self._device}"
        if self._precision == "bf16":
            return f"Precision {self._precision}"
        if self._is_native:
            return "A look into the model"
        return "Decoding without the native library, which a C compiler builds,"

    @property
    def needs_torch(self) -> bool:
        """Whether PyTorch decodes, because the native library cannot."""
        return not self._is_native
