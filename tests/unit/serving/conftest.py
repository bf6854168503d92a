"""Server of two directions and a parser, for all tests of a module."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from serving_client import RunningServer, running, served
from transduce.checkpoint import Checkpoint
from transduce.search_config import SearchConfig


@pytest.fixture(scope="module")
def http(
    trained_checkpoint: Checkpoint, parsing_checkpoint: Checkpoint
) -> Iterator[RunningServer]:
    models = [served(trained_checkpoint, name) for name in ("en-de", "de-en")]
    # With a model that never ends, the paper's search would take long.
    narrow = SearchConfig(beam_size=2, extra_length=5)
    parser = replace(parsing_checkpoint, search=narrow)
    with running([*models, served(parser, "trees")]) as server:
        yield server
