"""A server with two directions, for all tests of a module."""

from collections.abc import Iterator

import pytest

from serving_client import RunningServer, running, served
from transduce.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def http(trained_checkpoint: Checkpoint) -> Iterator[RunningServer]:
    models = [served(trained_checkpoint, name) for name in ("en-de", "de-en")]
    with running(models) as server:
        yield server
