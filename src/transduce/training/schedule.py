"""The learning rate (section 5.3)."""


def learning_rate(
    step: int, d_model: int, warmup_steps: int, scale: float = 1.0
) -> float:
    """Equation 3; steps count from 1. The paper's scale is 1."""
    return scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
