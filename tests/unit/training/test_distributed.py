"""How processes find each other, share the work, and tell that one is lost."""

import pytest

from transduce.training.distributed import (
    ALONE,
    Processes,
    ProcessLostError,
)

TWO = Processes(rank=0, count=2)
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
def test_a_lost_connection_is_told_in_our_words(text):
    with pytest.raises(ProcessLostError) as caught, TWO.in_step():
        raise RuntimeError(text)
    assert str(caught.value) == (
        "All processes of a run must go on together, but the connection between two of "
        "them is lost."
    )


@pytest.mark.parametrize(
    "text",
    [
        "NCCL error: unhandled cuda error\nncclUnhandledCudaError: Call to CUDA failed",
        "CUDA out of memory.",
    ],
)
def test_an_error_of_ones_own_is_not_taken_for_anothers(text):
    with pytest.raises(RuntimeError, match=text.splitlines()[0]), TWO.in_step():
        raise RuntimeError(text)


def test_one_process_has_no_connection_to_lose():
    with pytest.raises(RuntimeError, match="Connection closed"), ALONE.in_step():
        raise RuntimeError(CLOSED)
