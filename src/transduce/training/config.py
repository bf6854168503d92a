"""The settings of the training regime (section 5)."""

from dataclasses import dataclass
from typing import Literal, get_args

from transduce.errors import ConfigError
from transduce.settings import require_between, shown

BestBy = Literal["auto", "bleu", "chrf", "f1", "loss"]
OptimizerKind = Literal["adam", "muon"]
MOST = {
    "steps": 10**9,
    "warmup_steps": 10**9,
    "keep_checkpoints": 10_000,
    "checkpoint_steps": 10**9,
    "patience": 10**9,
}
"""Largest values of settings that are at least 1, beyond any training."""
MOST_ABOVE_ZERO = {
    "learning_rate_scale": 10_000,
    "epsilon": 1,
    "checkpoint_minutes": 1_000_000,
}
MOST_DECAY = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The paper's training regime (section 5); the defaults are its base model's."""

    steps: int = 100_000
    """Updates in all."""
    warmup_steps: int = 4_000
    """Updates during which the learning rate grows (equation 3)."""
    learning_rate_scale: float = 1.0
    """Factor on equation 3."""
    cooldown_share: float = 0.0
    """What part of all updates, the last, has it also fall to zero in a line. A run
    whose patience is spent may end before."""
    optimizer: OptimizerKind = "adam"
    """Adam for all weights, or Muon for the matrices of the layers."""
    beta1: float = 0.9
    """Adam's decay of the gradients' mean."""
    beta2: float = 0.98
    """Adam's decay of the gradients' square."""
    epsilon: float = 1e-9
    """Adam's guard against division by zero."""
    weight_decay: float = 0.0
    """What share of itself a matrix of the layers loses in an update, at a learning
    rate of one."""
    label_smoothing: float = 0.1
    """Epsilon_ls (section 5.4)."""
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints (section 6.1), if `checkpoint_steps` is None."""
    checkpoint_steps: int | None = None
    """Updates between checkpoints, instead of minutes; then the averaged checkpoints
    span the same part of the training on any hardware."""
    keep_checkpoints: int = 5
    """Checkpoints kept, and averaged at the end (section 6.1)."""
    best_by: BestBy = "auto"
    """Score on the dev corpus that chooses the best checkpoint; among equal scores the
    loss decides. auto is F1 for trees; for text it is BLEU, but chrF while too few
    4-grams match to compare checkpoints by BLEU, and the loss while chrF cannot."""
    patience: int | None = None
    """Checkpoints after the best one at which training ends early; none: never."""
    seed: int = 1
    """Of the weights, the order of the data and dropout."""

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.optimizer not in get_args(OptimizerKind):
            raise ConfigError(
                '`training.optimizer` must be "adam" or "muon", but is '
                f'"{self.optimizer}".'
            )

    def _check_numbers(self) -> None:
        for name, most in MOST.items():
            require_between(f"training.{name}", getattr(self, name), 1, most)
        for name in ("label_smoothing", "beta1", "beta2"):
            value = getattr(self, name)
            _require(name, value, "at least 0 and below 1", is_so=0 <= value < 1)
        for name, most in MOST_ABOVE_ZERO.items():
            value = getattr(self, name)
            bound = f"above 0, and at most {most:,}"
            _require(name, value, bound, is_so=0 < value <= most)
        require_between("training.weight_decay", self.weight_decay, 0, MOST_DECAY)
        share = self.cooldown_share
        _require("cooldown_share", share, "from 0 to 1", is_so=0 <= share <= 1)
        _require("seed", self.seed, "from 0 to 2^63 - 1", is_so=0 <= self.seed < 2**63)


def _require(name: str, value: object, bound: str, *, is_so: bool) -> None:
    if not is_so:
        raise ConfigError(f"`training.{name}` must be {bound}, but is {shown(value)}.")
