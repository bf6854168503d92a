"""Device and precision of PyTorch's computations."""

import gc
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial, wraps
from threading import Lock
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor

from transduce.errors import NO_GPU_MEMORY, RequestError, warn_caller
from transduce.machine import (
    PROC,
    Precision,
    free_memory,
    memory_groups,
    proc_bytes,
    processor_flags,
    respect_cpu_quota,
)
from transduce.settings import require_one_of

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

DeviceChoice = Literal["auto", "cpu", "cuda"]

WIDE = 128
"""Smallest d_model for which bf16 is faster on a CPU with AVX-512 bf16 but no AMX. For
smaller models, rounding and packing cost more than the products gain."""

EMULATED = (
    "The {device} has no instructions for bf16, so that PyTorch emulates it, up to "
    "forty times slower than fp32 on a CPU; choose precision fp32 for speed."
)


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Compute in fp32 and with gradients inside the block, as PyTorch does by default.

    A caller may have set another default dtype, which all threads of the process share,
    another default device, or have turned autocast on or gradients off.
    """
    with (
        _default_dtype(),
        thread_defaults(),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
    ):
        yield


class _CallersDtype:
    """Default dtype of the program, while blocks of the package compute in fp32."""

    lock = Lock()
    num_blocks = 0
    dtype = torch.float32


@contextmanager
def _default_dtype() -> Iterator[None]:
    """Make fp32 the default; the last of several threads sets the caller's again."""
    with _CallersDtype.lock:
        if _CallersDtype.num_blocks == 0:
            _CallersDtype.dtype = torch.get_default_dtype()
            torch.set_default_dtype(torch.float32)
        _CallersDtype.num_blocks += 1
    try:
        yield
    finally:
        with _CallersDtype.lock:
            _CallersDtype.num_blocks -= 1
            if _CallersDtype.num_blocks == 0:
                torch.set_default_dtype(_CallersDtype.dtype)


@contextmanager
def thread_defaults() -> Iterator[None]:
    """Compute without autocast, and on the CPU by default, inside the block.

    A caller may have set both for its thread.
    """
    autocast = {kind: torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")}
    # PyTorch drops rounded weights only at the end of the outermost context, so the
    # caller's contexts must not count here, and none may surround the block.
    depth = torch.autocast_increment_nesting()
    for kind in autocast:
        torch.set_autocast_enabled(kind, False)
    for _ in range(depth):
        torch.autocast_decrement_nesting()
    try:
        with torch.device("cpu") if _has_function_modes() else nullcontext():
            yield
    finally:
        for _ in range(depth - 1):
            torch.autocast_increment_nesting()
        for kind, is_enabled in autocast.items():
            torch.set_autocast_enabled(kind, is_enabled)


def _has_function_modes() -> bool:
    """Return whether the thread has a default device, or another mode of functions."""
    # A hundred times as fast as `torch.get_default_device`.
    return torch._C._len_torch_function_stack() > 0


def for_inference(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a function that decodes: without gradients and the caller's modes.

    Otherwise a translation would depend on autocast of the program that requests it.
    """
    infer = torch.inference_mode()(function)

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        is_plain = not (
            torch.is_autocast_enabled("cpu")
            or torch.is_autocast_enabled("cuda")
            or _has_function_modes()
        )
        with nullcontext() if is_plain else thread_defaults():
            return infer(*args, **kwargs)

    return call


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A device and the precision of its matrix products; weights are always fp32."""

    device: torch.device
    dtype: torch.dtype

    def autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context for `dtype`; it does nothing in fp32."""
        # Unlike the paper: training has products in bf16, several times faster. On by
        # default where the processor is good at it; `--precision fp32` turns it off.
        if self.dtype == torch.float32:
            return nullcontext()
        # All threads share the cache of rounded weights, and each clears it at its end,
        # so that sums of gradients would differ if batches are computed at once.
        is_cached = self.device.type != "cpu"
        return torch.autocast(
            self.device.type, dtype=self.dtype, cache_enabled=is_cached
        )

    def seed(self, number: int) -> None:
        """Seed the device's random number generator."""
        if self.device.type == "cpu":
            # torch.manual_seed would also keep a traceback for GPUs initialized later.
            torch.default_generator.manual_seed(number)
        else:
            torch.manual_seed(number)

    @contextmanager
    def kept_generators(self) -> Iterator[None]:
        """Set the generators that `seed` changes back at the end of the block.

        On a CPU there are none to set back: a training draws from generators of its
        own.
        """
        if self.device.type == "cpu":
            yield
            return
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield

    def read_later(self, values: Tensor) -> Callable[[], list[float]]:
        """Begin to copy values to the CPU; return a function that waits for them.

        The function does not wait for work that a GPU gets after this call.
        """
        if self.device.type != "cuda":
            return values.tolist
        copy = values.to("cpu", non_blocking=True)
        copied = torch.cuda.Event()
        copied.record(torch.cuda.current_stream(values.device))

        def read() -> list[float]:
            copied.synchronize()
            return copy.tolist()

        return read

    def memory_bytes(self) -> int:
        """Return the device's total memory in bytes, or this container's limit."""
        if self.device.type == "cuda":
            return torch.cuda.mem_get_info(self.device)[1]
        present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min([present, *(group.limit for group in memory_groups())])

    def free_bytes(self, num_processes: int) -> float:
        """Return the free memory in bytes; on a CPU, the share of this process.

        There, `num_processes` processes of this machine share the memory; a GPU has one
        process. The result is infinite where the system does not say.
        """
        if self.device.type == "cuda":
            return float(torch.cuda.mem_get_info(self.device)[0])
        return free_memory(num_processes)

    @property
    def precision(self) -> Precision:
        """Name of `dtype`."""
        return "fp32" if self.dtype == torch.float32 else "bf16"

    def __str__(self) -> str:
        return f"{self.device.type} ({self.precision})"


def choose_hardware(
    device: str = "auto",
    precision: Precision = "auto",
    number: int = 0,
    width: int = WIDE,
) -> Hardware:
    """Choose device and precision; "auto" prefers CUDA.

    `number` selects one of several GPUs. Precision "auto" is bf16 where a model of
    `width` d_model trains faster than in fp32. Raises `ConfigError` for an unknown
    name, `RequestError` for a missing device. Warns (`TransduceWarning`) if the device
    emulates the precision. Choosing CUDA turns off cuDNN's attention in this process;
    choosing a CPU applies a CPU quota to the number of threads.
    """
    require_one_of("device", device, DeviceChoice)
    require_one_of("precision", precision, Precision)
    if device == "cuda" and not torch.cuda.is_available():
        raise RequestError(
            "The device must be present, but this machine (or this build of PyTorch) "
            "has no CUDA; choose the device `cpu`."
        )
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if precision == "auto":
        is_faster = is_good_at_bf16(device) and (
            width >= WIDE or device == "cuda" or torch.cpu._is_amx_tile_supported()
        )
        precision = "bf16" if is_faster else "fp32"
    warn_if_emulated(device, precision)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    if device == "cpu":
        respect_cpu_quota()
        return Hardware(device=torch.device(device), dtype=dtype)
    if number >= torch.cuda.device_count():
        raise RequestError(
            f"There must be a GPU for each process, but this machine has "
            f"{torch.cuda.device_count()} and this is process {number + 1}; start "
            "fewer by `transduce train --devices`."
        )
    torch.cuda.set_device(number)
    # cuDNN builds a new attention plan for every pair of lengths, 7 to 10 ms of CPU
    # each: nine tenths of an update on an H200. PyTorch's own kernels need no plan.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return Hardware(device=torch.device(device, number), dtype=dtype)


def peak_memory(device: torch.device) -> int:
    """Return this process's peak memory on the device in bytes; on a CPU, resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Prefer /proc: `getrusage` may report the parent's peak.
    if (peak := proc_bytes("self/status", "VmHWM")) is not None:
        return peak
    import resource  # missing on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def forget_peak_memory(device: torch.device) -> None:
    """Reset the peak to current memory; on a CPU, on Linux only."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        (PROC / "self" / "clear_refs").write_text("5", encoding="ascii")


def used_memory(device: torch.device) -> int:
    """Return the bytes in use on a GPU by all programs; 0 for a CPU."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether PyTorch, CUDA or one of its libraries lacked memory of a GPU.

    PyTorch raises its own error where it allocates a tensor itself, and a plain
    `RuntimeError` where a library allocates, or CUDA for a graph.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    is_plain = isinstance(error, RuntimeError)
    return is_plain and re.search(NO_GPU_MEMORY, str(error)) is not None


RECORDING = Lock()
"""Held while a CUDA graph is recorded: PyTorch records one at a time in a process."""


@contextmanager
def recorded_graph(
    stream: torch.cuda.Stream, pool: Any = None, *, frees_cache: bool = False
) -> Iterator[torch.cuda.CUDAGraph]:
    """Record the block's work on the current GPU as a CUDA graph.

    The graph is complete at the end of the block. Graphs with the same `pool`, which
    `CUDAGraph.pool` returns, share their memory; they need the same stream, which
    nothing else should use. A new pool has no memory of PyTorch's cache, unless
    `frees_cache` returns that to the GPU before.

    After any error, the caller's stream is current again and nothing is recorded any
    more. The error is that of the block, if there is one, rather than its consequence
    at the end of the recording. Neither holds for `torch.cuda.graph`.
    """
    graph = torch.cuda.CUDAGraph()
    if pool is None:
        pool = torch.cuda.graph_pool_handle()
    with RECORDING, _no_garbage_collection():
        if frees_cache:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            try:
                # Other threads may go on, and allocate memory.
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                yield graph
            except BaseException:
                with suppress(RuntimeError):  # a consequence of the first error
                    _end_recording(graph, pool)
                raise
            else:
                _end_recording(graph, pool)
            finally:
                # Only a replay would compute weights that autocast has rounded here.
                torch.clear_autocast_cache()


def _end_recording(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    """End a recording; if that fails, do the rest of PyTorch's work at the end.

    Otherwise PyTorch's allocator would count the recording as unfinished, and free no
    cached memory where memory is short. Before version 2.13, its generator of random
    numbers would do so, too, and draw no more numbers; the end of another recording, of
    nothing, corrects that.
    """
    try:
        graph.capture_end()
    except RuntimeError:
        _release(pool)
        empty, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the graph is empty
                empty.capture_begin(pool=pool, capture_error_mode="thread_local")
                empty.capture_end()
        except RuntimeError:
            _release(pool)
        raise


def _release(pool: Any) -> None:
    """Release the memory of a failed recording, unless PyTorch has done so."""
    device = torch.cuda.current_device()
    with suppress(RuntimeError):  # nothing is being recorded in this memory
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection while a CUDA graph is recorded.

    Freeing an older graph would end the recording.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def warn_if_emulated(device: str, precision: str) -> None:
    """Warn (`TransduceWarning`) if a device type emulates a precision."""
    if precision != "bf16" or is_good_at_bf16(device):
        return
    # ARM processors that have such instructions list them as bf16.
    if device == "cuda" or "bf16" not in processor_flags():
        name = "GPU" if device == "cuda" else "processor"
        warn_caller(EMULATED.format(device=name))


def is_good_at_bf16(device: str) -> bool:
    """Return whether a device type multiplies bf16 matrices faster than fp32."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Without these instructions bf16 is emulated, several times slower than fp32.
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


@cache
def keep_forks_usable() -> None:
    """Let PyTorch compute in each later fork of this process, there in one thread.

    Threads do not survive a fork, but GCC's OpenMP, with which PyTorch computes under
    Linux, would wait for them in the new process forever.
    """
    if hasattr(os, "register_at_fork"):  # missing on Windows
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))
