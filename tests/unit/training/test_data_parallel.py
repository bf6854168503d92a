"""Processes find each other, divide the work, and report a lost one."""

import socket
from datetime import timedelta
from threading import Event

import pytest
import torch
from torch import distributed

from transduce.errors import ConfigError, TransduceWarning
from transduce.training import data_parallel as module
from transduce.training.data_parallel import (
    ALONE,
    ProcessGroup,
    ProcessLostError,
    local_rank,
    process_group,
)

TWO = ProcessGroup(rank=0, world_size=2)
CLOSED = "[/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"


@pytest.mark.parametrize(
    "text",
    [
        CLOSED,
        "[pair.cc:1] Read error: Connection reset by peer",
        "[pair.cc:1] Write error: Broken pipe",
        "NCCL error: remote process exited\nncclRemoteError: A call failed",
    ],
)
def test_a_lost_connection_has_a_plain_message(text):
    with pytest.raises(ProcessLostError) as caught, TWO.detecting_lost():
        raise RuntimeError(text)
    assert str(caught.value) == (
        "All processes of a run must continue together, but the connection between "
        "two of them is lost."
    )
    assert str(caught.value.__cause__) == text


@pytest.mark.parametrize(
    "text",
    [
        "NCCL error: unhandled cuda error\nncclUnhandledCudaError: Call to CUDA failed",
        "CUDA out of memory.",
    ],
)
def test_an_own_error_is_not_taken_for_a_lost_connection(text):
    with (
        pytest.raises(RuntimeError, match=text.splitlines()[0]),
        TWO.detecting_lost(),
    ):
        raise RuntimeError(text)


def test_a_single_process_passes_on_connection_errors():
    with (
        pytest.raises(RuntimeError, match="Connection closed"),
        ALONE.detecting_lost(),
    ):
        raise RuntimeError(CLOSED)


@pytest.fixture
def variables(monkeypatch):
    """Environment variables that torchrun sets for the second of two processes."""
    values = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    values |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    # Afterwards this process must not count as one that has joined others.
    monkeypatch.setattr(module, "HAS_PROCESS_GROUP", Event())
    return monkeypatch


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "RANK",
            None,
            "RANK must be a number below 2 where WORLD_SIZE is set, but is ''",
        ),
        ("RANK", "one", "RANK must be a number below 2 where WORLD_SIZE .* is 'one'"),
        ("RANK", "2", "RANK must be a number below 2 where WORLD_SIZE .*, but is '2'"),
        ("WORLD_SIZE", "", "WORLD_SIZE must be a number of at least 1 where WORLD_SI"),
        ("WORLD_SIZE", "0", "WORLD_SIZE must be a number of at least 1 where .* '0'"),
        ("WORLD_SIZE", "1" + "0" * 5_000, "WORLD_SIZE must be a number of at least 1"),
        (
            "MASTER_ADDR",
            None,
            "MASTER_ADDR must name a machine where WORLD_SIZE is set",
        ),
        ("MASTER_ADDR", "", "MASTER_ADDR must name a machine where WORLD_SIZE is set"),
        ("MASTER_PORT", None, "MASTER_PORT must be a number below 65536 .* but is ''"),
        ("MASTER_PORT", "99999", "MASTER_PORT must be a number below 65536 .*'99999'"),
    ],
)
def test_malformed_environment_variables_are_refused(variables, name, value, message):
    if value is None:
        variables.delenv(name)
    else:
        variables.setenv(name, value)
    with pytest.raises(ConfigError, match=message), process_group(torch.device("cpu")):
        pass


def test_processes_that_cannot_meet_are_told_where(variables):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        for name, value in {"RANK": "0", "MASTER_PORT": str(port)}.items():
            variables.setenv(name, value)
        with (
            pytest.raises(
                ConfigError,
                match=f"must meet at port {port} of 127.0.0.1, but cannot .*in use",
            ),
            process_group(torch.device("cpu")),
        ):
            pass


def test_a_process_does_not_wait_for_ever_where_no_other_one_is(variables):
    with socket.create_server(("127.0.0.1", 0)) as free:
        variables.setenv("MASTER_PORT", str(free.getsockname()[1]))
    variables.setattr(module, "JOIN_TIMEOUT", timedelta(seconds=0.5))
    with (
        pytest.raises(ConfigError, match=r"must meet at port .* but cannot \(.*tim"),
        process_group(torch.device("cpu")),
    ):
        pass


@pytest.mark.parametrize(
    "text", [CLOSED, "Gloo connectFullMesh failed with: Connection refused"]
)
def test_a_process_that_is_lost_while_all_join_has_a_plain_message(variables, text):
    def init(*_: object, **__: object) -> None:
        raise RuntimeError(text)

    variables.setattr(distributed, "init_process_group", init)
    with (
        pytest.raises(ConfigError, match="must meet at port 29500 of .* but cannot"),
        process_group(torch.device("cpu")),
    ):
        pass


def test_a_fault_of_the_gpu_is_not_taken_for_one_of_joining(variables):
    def init(*_: object, **__: object) -> None:
        raise RuntimeError("NCCL error: unhandled cuda error\nCall to CUDA failed")

    variables.setattr(distributed, "init_process_group", init)
    with (
        pytest.raises(RuntimeError, match="Call to CUDA failed"),
        process_group(torch.device("cpu")),
    ):
        pass


@pytest.fixture
def lookups(variables):
    """Names that are looked up: in place of the system, which knows none of them.

    The name `pod` is known at the third time.
    """
    names = []

    def lookup(name: str, _port: None) -> None:
        names.append(name)
        if name != "pod" or len(names) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    variables.setenv("LOCAL_RANK", "0")
    variables.setattr(module, "LOOKUP_PAUSE_S", 0.01)
    variables.setattr(socket, "getaddrinfo", lookup)
    return names


def test_processes_wait_for_a_machine_that_has_no_name_yet(variables, lookups):
    joined = []
    variables.setenv("MASTER_ADDR", "pod")
    variables.setattr(module, "WARN_AFTER_S", 0.0)
    variables.setattr(module, "_join", lambda _, timeout: joined.append(timeout))
    variables.setattr(distributed, "destroy_process_group", lambda: None)
    with (
        pytest.warns(
            TransduceWarning, match="'pod' of .* not known here yet"
        ) as caught,
        process_group(torch.device("cpu")),
    ):
        pass
    assert (len(lookups), len(caught)) == (3, 1)
    assert module.JOIN_TIMEOUT / 2 < joined[0] < module.JOIN_TIMEOUT


@pytest.mark.filterwarnings("error")
def test_an_unknown_machine_is_looked_up_until_the_limit(variables, lookups):
    variables.setenv("MASTER_ADDR", "mistyped")
    variables.setattr(module, "JOIN_TIMEOUT", timedelta(seconds=0.05))
    with (
        pytest.raises(
            ConfigError, match=r"MASTER_ADDR .* but 'mistyped' is not \(Name or serv"
        ),
        process_group(torch.device("cpu")),
    ):
        pass
    assert len(lookups) > 1


def test_collectives_wait_longer_than_joining(variables):
    with socket.create_server(("127.0.0.1", 0)) as free:
        variables.setenv("MASTER_PORT", str(free.getsockname()[1]))
    variables.setenv("RANK", "0")
    variables.setenv("WORLD_SIZE", "1")
    with process_group(torch.device("cpu")):
        # The timeout shows in no result before it is over.
        backend = distributed.group.WORLD._get_backend(torch.device("cpu"))  # noqa: SLF001
        timeout = backend.options._timeout  # noqa: SLF001
    assert timeout == module.TIMEOUT > module.JOIN_TIMEOUT


@pytest.mark.parametrize(("told", "expected"), [("1", 1), (None, 2)])
def test_a_machine_runs_all_processes_unless_local_world_size_is_set(
    variables, monkeypatch, told, expected
):
    monkeypatch.setattr(module, "_join", lambda *_: None)
    monkeypatch.setattr(distributed, "destroy_process_group", lambda: None)
    variables.delenv("LOCAL_WORLD_SIZE", raising=False)
    if told is not None:
        variables.setenv("LOCAL_WORLD_SIZE", told)
    with process_group(torch.device("cpu")) as processes:
        assert (processes.world_size, processes.local_world_size) == (2, expected)


def test_a_missing_local_rank_is_refused(variables):
    assert local_rank() == 1
    variables.delenv("LOCAL_RANK")
    with pytest.raises(
        ConfigError, match="LOCAL_RANK must be a number where WORLD_SIZE"
    ):
        local_rank()
