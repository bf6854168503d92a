"""The choice of device and precision, and memory figures."""

import gc
import os
import resource
import signal
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Event

import pytest
import torch

from cuda_stand_in import CudaStandIn, Graph, Stream, needs_no_cuda
from transduce.decoding.torch_model import prepare_model
from transduce.device import (
    RECORDING,
    Hardware,
    choose_hardware,
    forget_peak_memory,
    keep_forks_usable,
    peak_memory,
    recorded_graph,
    torch_defaults,
    used_memory,
    warn_if_emulated,
)
from transduce.errors import ConfigError, RequestError, TransduceWarning
from transduce.machine import return_freed_memory
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def with_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)


@pytest.fixture
def without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("device", ["gpu", "tpu", "cuda:1", ""])
def test_an_unknown_device_is_refused(device):
    message = f'`device` must be "auto", "cpu" or "cuda", but is "{device}"\\.'
    with pytest.raises(ConfigError, match=message):
        choose_hardware(device)


def test_a_device_that_is_no_name_is_shown_as_it_is(unchecked_types):
    with pytest.raises(ConfigError, match=r"but is device\(type='cpu'\)\."):
        choose_hardware(torch.device("cpu"))


@pytest.mark.usefixtures("without_cuda")
def test_a_missing_device_is_refused():
    with pytest.raises(RequestError, match="has no CUDA; choose the device `cpu`"):
        choose_hardware("cuda")


@pytest.mark.usefixtures("without_cuda")
def test_auto_is_the_cpu_without_cuda():
    assert choose_hardware("auto", "fp32") == Hardware(device=CPU, dtype=torch.float32)


@pytest.mark.usefixtures("with_cuda")
def test_auto_is_cuda_if_available(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    assert choose_hardware("auto", "bf16") == Hardware(
        device=CUDA, dtype=torch.bfloat16
    )


@pytest.mark.usefixtures("with_cuda")
def test_the_cpu_may_be_chosen_despite_cuda():
    assert choose_hardware("cpu", "fp32").device == CPU


@pytest.mark.parametrize(
    ("amx", "avx512", "dtype"),
    [
        (True, False, torch.bfloat16),
        (False, True, torch.bfloat16),
        (False, False, torch.float32),
    ],
)
def test_a_cpu_with_bf16_instructions_computes_in_bf16(monkeypatch, amx, avx512, dtype):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    assert choose_hardware("cpu").dtype == dtype


@pytest.mark.parametrize(
    ("amx", "dtype"), [(True, torch.bfloat16), (False, torch.float32)]
)
def test_a_narrow_model_computes_in_bf16_only_with_amx(monkeypatch, amx, dtype):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert choose_hardware("cpu", width=64).dtype == dtype


@pytest.mark.usefixtures("with_cuda")
@pytest.mark.parametrize(
    ("is_supported", "dtype"), [(True, torch.bfloat16), (False, torch.float32)]
)
def test_cuda_computes_in_bf16_if_it_is_not_emulated(monkeypatch, is_supported, dtype):
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation: is_supported and not including_emulation,
    )
    assert choose_hardware("cuda").dtype == dtype


def test_a_cpu_without_bf16_instructions_warns_that_bf16_is_slow(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    with pytest.warns(TransduceWarning, match="The processor has no instructions for "):
        assert choose_hardware("cpu", "bf16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("cpuinfo", "has_instructions"),
    [
        (
            "processor\t: 0\nFeatures\t: fp asimd i8mm bf16 dgh\nCPU part\t: 0xd40\n",
            True,
        ),
        ("processor\t: 0\nFeatures\t: fp asimd asimddp\nCPU part\t: 0xd0c\n", False),
    ],
)
def test_an_arm_processor_with_bf16_instructions_gets_no_warning(
    monkeypatch, tmp_path, cpuinfo, has_instructions
):
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr("transduce.machine.PROC", tmp_path)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_if_emulated("cpu", "bf16")
    assert (not caught) == has_instructions


@pytest.mark.usefixtures("with_cuda")
def test_a_gpu_without_bf16_instructions_warns_that_bf16_is_slow(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    with pytest.warns(TransduceWarning, match="The GPU has no instructions for bf16"):
        assert choose_hardware("cuda", "bf16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("dtype", "text"), [(torch.float32, "cpu (fp32)"), (torch.bfloat16, "cpu (bf16)")]
)
def test_hardware_is_described_in_words(dtype, text):
    assert str(Hardware(device=CPU, dtype=dtype)) == text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_matrix_products_are_computed_in_the_chosen_precision(dtype):
    matrix = torch.ones(2, 2)
    with Hardware(device=CPU, dtype=dtype).autocast():
        assert (matrix @ matrix).dtype == dtype
    assert (matrix @ matrix).dtype == torch.float32


@pytest.mark.parametrize("is_nested", [False, True], ids=["plain", "nested"])
def test_defaults_drop_rounded_weights_and_come_back(is_nested):
    caller = torch.autocast("cpu", dtype=torch.bfloat16)
    weight, x = torch.nn.Parameter(torch.ones(1, 1)), torch.ones(1, 1)
    with caller if is_nested else nullcontext():
        with torch_defaults():
            assert not torch.is_autocast_enabled("cpu")
            found = []
            for factor in (3, 1):
                # As on a GPU, where rounded weights are kept within a context.
                with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
                    found.append(torch.nn.functional.linear(x, weight).item())
                with torch.no_grad():
                    weight.mul_(factor)
            assert found == [1.0, 3.0]
        assert torch.is_autocast_enabled("cpu") == is_nested
        depth = torch.autocast_increment_nesting()
        torch.autocast_decrement_nesting()
        assert depth == 1 + is_nested


def test_defaults_are_on_the_cpu_whatever_the_callers_device():
    with torch.device("meta"):
        with torch_defaults():
            assert torch.ones(1).device == CPU
        assert torch.ones(1).device.type == "meta"


def test_the_last_of_several_threads_restores_the_callers_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        entered, left = Event(), Event()

        def train():
            with torch_defaults():
                entered.set()
                left.wait(60)
                return torch.get_default_dtype()

        with ThreadPoolExecutor(1) as thread:
            with torch_defaults():
                training = thread.submit(train)
                entered.wait(60)
            left.set()
            assert training.result() == torch.float32
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("with_cuda")
def test_each_process_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    assert choose_hardware("cuda", number=1).device == torch.device("cuda", 1)
    message = "has 2 and this is process 3; start fewer by `transduce train --devices`"
    with pytest.raises(RequestError, match=message):
        choose_hardware("cuda", number=2)


def test_the_peak_memory_includes_allocated_tensors():
    held = torch.ones(2**24)  # 64 MiB
    assert peak_memory(CPU) >= held.nbytes
    assert held.sum() == 2**24


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_the_peak_memory_outside_linux_is_from_getrusage(monkeypatch, platform, unit):
    monkeypatch.setattr("transduce.device.proc_bytes", lambda *_: None)
    monkeypatch.setattr(sys, "platform", platform)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert unit * peak <= peak_memory(CPU) < 1.1 * unit * peak


def test_used_memory_of_a_gpu_is_total_minus_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (30, 100))
    assert used_memory(CUDA) == 70
    assert used_memory(CPU) == 0


def test_the_peak_memory_of_a_gpu_is_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 123)
    assert peak_memory(CUDA) == 123


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets")
def test_the_peak_memory_can_be_reset():
    held = torch.ones(2**26)  # 256 MiB
    before = peak_memory(CPU)
    assert held.sum() == 2**26
    del held
    return_freed_memory()
    forget_peak_memory(CPU)
    assert peak_memory(CPU) < before - 2**27


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.usefixtures("two_threads")
def test_pytorch_computes_in_a_fork_of_a_process_with_threads() -> None:
    keep_forks_usable()
    numbers = torch.ones(2**20)
    numbers.exp()  # starts a thread, which the fork will lack
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        numbers.exp()
        os._exit(torch.get_num_threads())
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_forks_stay_usable_once_a_model_is_prepared_for_pytorch(
    tiny: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []
    name = "transduce.decoding.torch_model.keep_forks_usable"
    monkeypatch.setattr(name, lambda: kept.append("decoding"))
    prepare_model(Transformer(tiny), "fp32", CPU)
    assert kept == ["decoding"]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaStandIn:
    return CudaStandIn(monkeypatch)


def assert_nothing_is_recorded(cuda: CudaStandIn) -> None:
    """Assert that stream, lock and garbage collection are as before a recording."""
    assert cuda.current_stream.name == "the rest"
    assert not RECORDING.locked()
    assert gc.isenabled()


@needs_no_cuda
def test_one_graph_is_recorded_at_a_time_and_no_garbage_is_collected(
    cuda: CudaStandIn,
):
    stream = Stream("the record", cuda.asked)
    with recorded_graph(stream, "some memory") as graph:
        assert cuda.current_stream is stream
        assert RECORDING.locked()
        assert not gc.isenabled()
    graph.replay()
    assert cuda.asked == [
        "the record waits for the rest",
        "graph 1 begins in some memory, thread_local",
        "graph 1 ends",
        "graph 1 again",
    ]
    assert_nothing_is_recorded(cuda)


@needs_no_cuda
@pytest.mark.parametrize("name", ["capture_begin", "capture_end"])
@pytest.mark.parametrize("is_end_known", [False, True])
def test_a_recording_that_fails_at_its_begin_or_its_end_leaves_nothing_behind(
    cuda: CudaStandIn, monkeypatch: pytest.MonkeyPatch, name: str, *, is_end_known: bool
):
    def fail(graph: Graph, **_: object) -> None:
        cuda.asked.append(f"{graph.name} fails")
        raise RuntimeError("CUDA error: out of memory")

    stream = Stream("the record", cuda.asked)
    cuda.is_end_known = is_end_known
    with monkeypatch.context() as patched:
        patched.setattr(Graph, name, fail)
        if name == "capture_begin":  # then there is nothing to end
            patched.setattr(Graph, "capture_end", fail)
        with pytest.raises(RuntimeError, match="memory"), recorded_graph(stream):
            pass
    assert_nothing_is_recorded(cuda)
    assert ("memory 1 is released" in cuda.asked) is not is_end_known
    cuda.asked.clear()
    with recorded_graph(stream):
        pass
    assert cuda.asked[-1] == "graph 3 ends"


@needs_no_cuda
def test_an_error_while_recording_is_raised_and_not_its_consequence(
    cuda: CudaStandIn, monkeypatch: pytest.MonkeyPatch
):
    failing = iter([True])

    def end(graph: Graph) -> None:
        if next(failing, False):
            raise RuntimeError("operation failed due to a previous error")
        cuda.asked.append(f"{graph.name} ends")

    monkeypatch.setattr(Graph, "capture_end", end)
    stream = Stream("the record", cuda.asked)
    with pytest.raises(KeyboardInterrupt), recorded_graph(stream):
        raise KeyboardInterrupt
    assert_nothing_is_recorded(cuda)
    assert cuda.asked[2:] == [
        "memory 1 is released",
        "graph 2 begins in memory 2, thread_local",
        "graph 2 ends",
    ]
