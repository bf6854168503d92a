"""A limit on the size of files, which simulates a full disk."""

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def limited_file_size(size_bytes: int) -> Iterator[None]:
    """Writing more than `size_bytes` to a file fails in this process and its children.

    Python 3.11 does not notice that it writes a cut bytecode file, which would break
    every later import of that module; so it writes none.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (
        patch.object(sys, "dont_write_bytecode", new=True),
        patch.dict(os.environ, {"PYTHONDONTWRITEBYTECODE": "1"}),
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
