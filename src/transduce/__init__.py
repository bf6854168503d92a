"""The system of "Attention Is All You Need" (Vaswani et al., 2017) as a tool."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transduce.decoding.translations import Translation
    from transduce.decoding.translator import Translator, load
    from transduce.search_config import SamplingConfig, SearchConfig

__all__ = [
    "SamplingConfig",
    "SearchConfig",
    "Translation",
    "Translator",
    "__version__",
    "load",
]
__version__ = "0.1.0"


_HOMES = {
    "SamplingConfig": "transduce.search_config",
    "SearchConfig": "transduce.search_config",
    "Translation": "transduce.decoding.translations",
    "Translator": "transduce.decoding.translator",
    "load": "transduce.decoding.translator",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import what translates only when it is asked for."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
