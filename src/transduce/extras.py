"""Packages that only an extra of transduce installs, such as PyTorch by `[train]`."""

from collections.abc import Iterator
from contextlib import contextmanager

from transduce.errors import RequestError

OWN_PACKAGE = "transduce"


def missing_package(task: str, package: str, extra: str) -> str:
    """Return the sentence for a missing package, with the command to install it."""
    return (
        f"{task} needs the package `{package}`, which is not installed; install it by "
        f"pip install '.[{extra}]' in the folder of transduce's source."
    )


@contextmanager
def packages_for(task: str, extra: str = "train") -> Iterator[None]:
    """Raise `RequestError` for a package that is missing for a task.

    The message names the package and the extra that installs it.
    """
    try:
        yield
    except ImportError as error:
        package = missing_in(error)
        if package is None:
            raise
        raise RequestError(missing_package(task, package, extra)) from None


def missing_in(error: BaseException | None) -> str | None:
    """Package of others whose absence caused an error; None if there is none such."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            package = error.name.partition(".")[0]
            return None if package == OWN_PACKAGE else package
        error = error.__cause__
    return None
