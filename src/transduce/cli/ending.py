"""How the process of a command ends."""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

OUTPUT_LOST = 2
"""Exit code if what was said could not be written."""


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
        code = code if _is_written() else code or OUTPUT_LOST
        try:
            atexit._run_exitfuncs()
        except Exception as error:
            code = code or _told(error)
        os._exit(code if _is_written() else code or OUTPUT_LOST)


def _is_written() -> bool:
    """Whether all that was said has been taken, or nobody wants it any more."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        return True  # the reader has gone, as `head` does
    except OSError as error:
        said = f"transduce: The output: cannot be written ({error.strerror})."
        print(said, file=sys.stderr)
        discard_output()
        return False
    return True


def discard_output() -> None:
    """Keep Python from trying to write the rest when it ends, and failing again."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


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
