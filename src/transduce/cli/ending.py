"""How the process of a command ends."""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_at_once_if_joined() -> Iterator[None]:
    """End with what is in here if this was one of several processes.

    PyTorch keeps gloo's threads as long as the process; one that is still at something
    while the interpreter goes down may abort it, and so make a failure of a success.
    """
    code = 0
    try:
        yield
    except SystemExit as end:
        if not _was_joined():
            raise
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    if _was_joined():
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _was_joined() -> bool:
    """What has not been imported has joined nothing, and importing it takes long."""
    module = sys.modules.get("transduce.training.distributed")
    return module is not None and module.HAS_JOINED.is_set()
