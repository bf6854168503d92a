"""Helper that encodes sources with a native model."""

from collections.abc import Sequence

from transduce.decoding.native_decoder import NativeDecoder, NativeModel


def after(
    model: NativeModel,
    sources: Sequence[Sequence[int]],
    *,
    sum_attention: bool = False,
) -> NativeDecoder:
    """Return a decoder of sources, which include their end tokens."""
    return model.start(model.encode(sources), sum_attention=sum_attention)
