"""A record of what was run, run again as a GPU does: the same on the same memory."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transduce.decoding.cuda_graphs import Run

Call = tuple[Any, Sequence[Any], dict[str, Any], Any]
"""An operator, what it was given, and what it returned."""


class Recording(TorchDispatchMode):
    """Notes each operator, with the tensors and the numbers that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def run_again(self) -> None:
        """Each with what it was given then; its results where they were then."""
        for func, args, kwargs, result in self.calls:
            given = {_place(each) for each in tensors((args, kwargs))}
            again = tensors(func(*args, **kwargs))
            for then, now in zip(tensors(result), again, strict=True):
                if _place(then) not in given:  # else it was written there
                    then.copy_(now)


class OperatorRecorder:
    """What `CudaGraphs` is, but for where it runs; counts its records."""

    def __init__(self) -> None:
        self.records: list[Recording] = []

    def record(self, run: Run) -> Run:
        """What does the same again, in the same places of memory."""
        recording = Recording()
        with recording:
            result = run()
        self.records.append(recording)

        def again() -> Tensor:
            recording.run_again()
            return result.clone()

        return again


def tensors(tree: Any) -> list[Tensor]:
    """Those in what an operator was given, or has returned."""
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor)]


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
