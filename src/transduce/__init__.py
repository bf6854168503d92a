"""The system of "Attention Is All You Need" (Vaswani et al., 2017) as a tool."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transduce.decoding.translator import Translation, Translator, load

__all__ = ["Translation", "Translator", "__version__", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import what translates only when it is asked for: torch takes a second."""
    if name in ("Translation", "Translator", "load"):
        from transduce.decoding import translator

        return getattr(translator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
