"""Recorded operators that are replayed on the same memory, as a CUDA graph does."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transduce.decoding.graphed_decoder import Run

Call = tuple[Any, Sequence[Any], dict[str, Any], Any]
"""An operator, its arguments, and its result."""


class Recording(TorchDispatchMode):
    """Record each operator with its arguments and its result."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._before: dict[int, tuple[UntypedStorage, UntypedStorage]] = {}
        """Memory that operators changed in place, and its content before."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func._schema.is_mutable:
            for each in tensors((args, kwargs or {})):
                storage = each.untyped_storage()
                if _place(each) not in self._before:
                    self._before[_place(each)] = storage, storage.clone()
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def undo(self) -> None:
        """Undo all changes in place, as the capture of a CUDA graph makes none."""
        for storage, before in self._before.values():
            storage.copy_(before)

    def run_again(self) -> None:
        """Run all operators on their old arguments and write to their old results."""
        for func, args, kwargs, result in self.calls:
            given = {_place(each) for each in tensors((args, kwargs))}
            again = tensors(func(*args, **kwargs))
            for then, now in zip(tensors(result), again, strict=True):
                if _place(then) not in given:  # else it was written in place
                    then.copy_(now)


class OperatorRecorder:
    """Stand-in for `CudaGraphs` that runs anywhere and keeps its records."""

    def __init__(self) -> None:
        self.records: list[Recording] = []

    def record(self, run: Run) -> Run:
        """Record a run; return a function that replays it on the same memory."""
        recording = Recording()
        with recording:
            result = run()
        recording.undo()
        self.records.append(recording)

        def again() -> Tensor:
            recording.run_again()
            return result.clone()

        return again


def tensors(tree: Any) -> list[Tensor]:
    """Tensors among the arguments or results of an operator."""
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor)]


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
