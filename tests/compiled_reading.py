"""A compiled model that has read sources, as tests ask it for their translations."""

from collections.abc import Sequence

from transduce.decoding.compiled.compiled_decoder import CompiledDecoder
from transduce.decoding.compiled.compiled_model import CompiledModel, padded_sources


def after(
    model: CompiledModel,
    sources: Sequence[Sequence[int]],
    *,
    is_watched: bool = False,
) -> CompiledDecoder:
    """One that has read these, the end of each included."""
    memory = model.encode(padded_sources(sources))
    return CompiledDecoder(model, model.start(memory, is_watched=is_watched))
