import math

import pytest

from transduce.metrics.scores import perplexity


@pytest.mark.parametrize(
    ("log_probability", "num_tokens", "expected"),
    [(0.0, 3, 1.0), (-3 * math.log(4), 3, 4.0), (-2000.0, 2, math.inf)],
)
def test_perplexity_is_the_inverse_geometric_mean_of_token_probabilities(
    log_probability: float, num_tokens: int, expected: float
) -> None:
    assert perplexity(log_probability, num_tokens) == pytest.approx(expected)
