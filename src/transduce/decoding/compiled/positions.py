"""What positions are told by, as many as there may be (section 3.5)."""

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Float32

from transduce.kernels.loading import room_for
from transduce.model.config import ModelConfig
from transduce.model.sizes.sinusoids import sinusoid_array

FIRST = 128
"""That are worked out at once, at least."""


class Positions:
    """Those of a model, kept once worked out."""

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Float[np.ndarray, "..."]]
    ) -> None:
        self._d_model = config.d_model
        is_learned = config.positions == "learned"
        self._learned = weights["positions.weight"] if is_learned else None
        self._known = self._worked_out(FIRST)

    def __call__(self, count: int) -> Float32[np.ndarray, "{count} d_model"]:
        """The first."""
        known = self._known  # another thread may put fewer in their place
        if count > len(known):
            known = self._known = self._worked_out(max(count, 2 * len(known)))
        return known[:count]

    def _worked_out(self, count: int) -> Float32[np.ndarray, "{count} d_model"]:
        room = room_for(count, self._d_model)
        if self._learned is None:
            room[:] = sinusoid_array(count, self._d_model)
        else:
            # Beyond the table all have its last row, as in `LearnedPositions`.
            rows = np.minimum(np.arange(count), len(self._learned) - 1)
            room[:] = self._learned[rows] * math.sqrt(self._d_model)
        return room
