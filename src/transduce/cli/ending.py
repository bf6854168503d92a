"""How the process of a command ends."""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def ended_at_once_if_joined() -> Iterator[None]:
    """End with what is in here, if it made this process one of several.

    PyTorch keeps gloo's threads as long as the process; one that is still at something
    while the interpreter goes down may abort it, and so make a failure of a success.
    """
    if _has_joined():
        yield
        return
    code = 0
    try:
        yield
    except BaseException as error:
        if not _has_joined():
            raise
        code = _told(error)
    if _has_joined():
        with suppress(Exception):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(code)


def _has_joined() -> bool:
    """What has not been imported has joined nothing, and importing it takes long."""
    module = sys.modules.get("transduce.training.distributed")
    return module is not None and module.HAS_JOINED.is_set()


def _told(error: BaseException) -> int:
    """The exit code, after what Python tells of such an end."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1
