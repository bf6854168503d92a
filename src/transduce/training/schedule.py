"""The learning rate of each update (section 5.3).

To add a schedule, add its name to `Schedule` in `training/config.py`, and its formula
to `schedule_factor`.
"""

from typing import assert_never

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


def schedule_factor(step: int, config: TrainingConfig) -> float:
    """Return the factor of a schedule on its peak rate; steps count from 1.

    All schedules but equation 3 have a peak. That of plateau depends on the dev loss
    too, so the trainer multiplies it by a second factor.
    """
    # Unlike the paper: optional schedules of the systems that Table 2 compares with.
    warmup = min(step / config.warmup_steps, 1.0)
    match config.schedule:
        case "constant" | "plateau":
            return warmup
        case "warm-hold-decay":
            held: float = (config.warmup_steps + config.hold_steps) / step
            return min(warmup, held**0.5)
        case "halving":
            factor: float = warmup * 0.5 ** _num_halvings(step, config)
            return factor
        case "inverse-sqrt":
            raise ValueError("Equation 3 has no peak rate.")
        case _:
            assert_never(config.schedule)


def _num_halvings(step: int, config: TrainingConfig) -> int:
    assert config.decay_from is not None
    assert config.decay_steps is not None
    step = min(step, config.likelihood_steps)  # updates by reward have the last rate
    return max((step - config.decay_from) // config.decay_steps + 1, 0)


def uses_sgd(step: int, config: TrainingConfig) -> bool:
    """Return whether an update is by plain SGD after updates by another optimizer."""
    return config.sgd_from_step is not None and step >= config.sgd_from_step


def scheduled_rate(step: int, d_model: int, config: TrainingConfig) -> float:
    """Return the learning rate of a run's update; steps count from 1.

    The configuration must have the settings that its schedule needs, as
    `refuse_contradictions` ensures.
    """
    cooldown = cooldown_factor(step, config.steps, config.cooldown_share)
    if config.schedule == "inverse-sqrt":
        rate = learning_rate(step, d_model, config.warmup_steps)
        return config.learning_rate_scale * rate * cooldown
    is_sgd = uses_sgd(step, config)
    peak = config.sgd_learning_rate if is_sgd else config.learning_rate
    assert peak is not None
    return peak * schedule_factor(step, config) * cooldown
