"""The system of "Attention Is All You Need" (Vaswani et al., 2017) as a tool."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transduce.decoding.translations import Translation
    from transduce.decoding.translator import Translator, load
    from transduce.errors import TransduceError, TransduceWarning
    from transduce.experiments.cleaning import clean
    from transduce.experiments.distillation import distill
    from transduce.experiments.synthetic_text import back_translate
    from transduce.experiments.train import resume, train
    from transduce.model_folder import quantize
    from transduce.search_config import SamplingConfig, SearchConfig

    __version__: str


def _is_openmp_loaded() -> bool:
    """Return whether GCC's OpenMP, which other packages use too, has its settings."""
    if "torch" in sys.modules:
        return True
    try:
        with open("/proc/self/maps", "rb") as maps:
            return b"/libgomp" in maps.read()
    except OSError:  # not Linux
        return False


SHORTENS_SPINS = (
    not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys()
    and not _is_openmp_loaded()
)
"""Whether this process has set the time that threads of OpenMP spin."""
if SHORTENS_SPINS:
    # Threads of GCC's OpenMP wait for the next operator in a loop, by default for some
    # milliseconds, in which neither another program nor another thread has their cores.
    # OpenMP reads the variable when it is loaded, usually with PyTorch.
    os.environ["GOMP_SPINCOUNT"] = "1000"

__all__ = [
    "SamplingConfig",
    "SearchConfig",
    "TransduceError",
    "TransduceWarning",
    "Translation",
    "Translator",
    "__version__",
    "back_translate",
    "clean",
    "distill",
    "load",
    "quantize",
    "resume",
    "train",
]

_HOMES = {
    "SamplingConfig": "transduce.search_config",
    "SearchConfig": "transduce.search_config",
    "TransduceError": "transduce.errors",
    "TransduceWarning": "transduce.errors",
    "Translation": "transduce.decoding.translations",
    "Translator": "transduce.decoding.translator",
    "back_translate": "transduce.experiments.synthetic_text",
    "clean": "transduce.experiments.cleaning",
    "distill": "transduce.experiments.distillation",
    "load": "transduce.decoding.translator",
    "quantize": "transduce.model_folder",
    "resume": "transduce.experiments.train",
    "train": "transduce.experiments.train",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    """Version of the installed package, which `pyproject.toml` states."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("transduce")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0+unknown"


if not TYPE_CHECKING:  # a type checker would take any name for one of the module

    def __getattr__(name: str) -> object:
        """Import a public name at its first use, so that `import transduce` stays
        fast."""
        if name == "__version__":
            return _version()
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
