"""The learning rate (section 5.3)."""

from transduce.training.config import TrainingConfig


def learning_rate(step: int, d_model: int, warmup_steps: int) -> float:
    """Equation 3; steps count from 1."""
    rate: float = d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
    return rate


def scheduled_rate(step: int, d_model: int, config: TrainingConfig) -> float:
    """What a run has at that step: by default equation 3."""
    rate = learning_rate(step, d_model, config.warmup_steps)
    # Unlike the paper: in the last steps, if that is asked for, the rate also falls to
    # nothing in a straight line (Hägele et al., 2024).
    cooldown = config.cooldown_share * config.steps
    left = min((config.steps + 1 - step) / (cooldown + 1), 1.0) if cooldown else 1.0
    return config.learning_rate_scale * rate * left
