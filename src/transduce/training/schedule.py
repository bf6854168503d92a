"""The learning rate of each update (section 5.3).

To add a schedule, write a function of the step and choose it in `scheduled_rate`: as a
factor on equation 3, or in its place.
"""

from transduce.training.config import TrainingConfig


def learning_rate(step: int, d_model: int, warmup_steps: int) -> float:
    """Return the learning rate of equation 3; steps count from 1.

    lrate = d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)
    """
    rate: float = d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
    return rate


def cooldown_factor(step: int, steps: int, cooldown_share: float) -> float:
    """Return a factor that falls linearly from 1 to nearly 0 over the last updates."""
    # Unlike the paper: an optional cooldown in the last steps (Hägele et al., 2024).
    cooldown = cooldown_share * steps
    return min((steps + 1 - step) / (cooldown + 1), 1.0) if cooldown else 1.0


def scheduled_rate(step: int, d_model: int, config: TrainingConfig) -> float:
    """Return the learning rate of a run's update; steps count from 1."""
    rate = learning_rate(step, d_model, config.warmup_steps)
    cooldown = cooldown_factor(step, config.steps, config.cooldown_share)
    return config.learning_rate_scale * rate * cooldown
