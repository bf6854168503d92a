"""Sinusoids, which tell positions (section 3.5)."""

import numpy as np
from jaxtyping import Float


def sinusoid_array(
    length: int, d_model: int
) -> Float[np.ndarray, "{length} {d_model}"]:
    """The encodings of the positions 0, 1, 2, ... (section 3.5).

    The even dimension 2i holds sin(pos / 10000^(2i / d_model)), the odd one after it
    the cosine. Worked out in double precision: far positions stay exact.
    """
    even = np.arange(0, d_model, 2, dtype=np.float64)
    position = np.arange(length, dtype=np.float64)
    angle = position[:, None] / 10_000 ** (even / d_model)
    pairs = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    return pairs.reshape(length, d_model).astype(np.float32)
