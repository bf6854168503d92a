"""Settings of training (section 5)."""

from dataclasses import dataclass
from typing import Literal

from transduce.errors import ConfigError
from transduce.settings import convert_and_check, require_between, require_rate, shown

BestBy = Literal["auto", "bleu", "chrf", "f1", "loss"]
OptimizerKind = Literal["adam", "muon", "sgd", "nesterov"]
RewardKind = Literal["none", "gleu"]
Schedule = Literal["inverse-sqrt", "constant", "warm-hold-decay", "halving", "plateau"]
BOUNDS = {
    "steps": (1, 10**9),
    "warmup_steps": (1, 10**9),
    "hold_steps": (0, 10**9),
    "decay_from": (1, 10**9),
    "decay_steps": (1, 10**9),
    "sgd_from_step": (1, 10**9),
    "weight_decay": (0, 1_000),
    "consistency": (0, 1_000),
    "reward_steps": (1, 10**9),
    "reward_samples": (2, 1_000),
    "likelihood_weight": (0, 1_000),
    "checkpoint_steps": (1, 10**9),
    "keep_checkpoints": (1, 10_000),
    "patience": (1, 10**9),
}
"""Smallest and largest values of settings, which may be none if that is the default."""
MAX_OF_POSITIVE = {
    "learning_rate_scale": 10_000,
    "epsilon": 1,
    "checkpoint_minutes": 1_000_000,
    "least_rate": 10_000,
}
"""Largest values of settings that are above 0."""
MAX_OF_OPTIONAL = {
    "learning_rate": 10_000,
    "sgd_learning_rate": 10_000,
    "clip_norm": 1_000_000,
}
"""Largest values of settings that are above 0, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """Settings of training; the defaults are those of the paper's base model."""

    steps: int = 100_000
    """Number of updates of the whole training (section 5.2)."""
    warmup_steps: int = 4_000
    """Number of updates during which the learning rate grows linearly (equation 3)."""
    schedule: Schedule = "inverse-sqrt"
    """Learning rate by update: inverse-sqrt is equation 3. The others grow linearly to
    `learning_rate` during the warm-up. constant keeps it; warm-hold-decay keeps it for
    `hold_steps` and then falls with the inverse square root of the update (Shazeer et
    al., 2017); halving halves it every `decay_steps` updates from `decay_from` on (Wu
    et al., 2016); plateau multiplies it by `decay_factor` at each checkpoint whose dev
    loss is not the lowest so far, and ends the training once it is below `least_rate`
    (Gehring et al., 2017). With a `reward`, halving and plateau lower the rate only
    before the first update by reward, and plateau keeps it above `least_rate`."""
    learning_rate_scale: float = 1.0
    """Factor on the learning rate of equation 3."""
    learning_rate: float | None = None
    """Learning rate after the warm-up, for all schedules but inverse-sqrt."""
    hold_steps: int = 0
    """Number of updates for which warm-hold-decay keeps the rate after the warm-up;
    8,000 in Shazeer et al. (2017)."""
    decay_from: int | None = None
    """Update at which the schedule halving first halves the rate."""
    decay_steps: int | None = None
    """Number of updates from one halving to the next; 200,000 in Wu et al. (2016)."""
    decay_factor: float = 0.1
    """Factor on the rate at each plateau of the dev loss (Gehring et al., 2017)."""
    least_rate: float = 1e-4
    """Learning rate below which the schedule plateau ends the training (Gehring et al.,
    2017)."""
    cooldown_share: float = 0.0
    """Share of the updates, at the end of the training, over which the learning rate is
    also multiplied by a factor that falls linearly from 1 to nearly 0. The paper has no
    such phase. A run that ends by its patience may not reach it."""
    optimizer: OptimizerKind = "adam"
    """Optimizer: adam for all weights (section 5.3); muon for the matrices of layers,
    recurrent gates and experts, with Adam for the other weights; sgd, with or without
    `momentum`; or nesterov, SGD with Nesterov's momentum (Sutskever et al., 2013)."""
    momentum: float = 0.0
    """Momentum of sgd and nesterov; 0.99 with nesterov in Gehring et al. (2017)."""
    sgd_from_step: int | None = None
    """First update by plain SGD, after updates by Adam or Muon: 60,001 in Wu et al.
    (2016). None for no such change."""
    sgd_learning_rate: float | None = None
    """Value of `learning_rate` from `sgd_from_step` on; 0.5 in Wu et al. (2016), whose
    loss is the sum over a sentence: for 27 tokens that is 13.5 here."""
    clip_norm: float | None = None
    """Largest norm of the gradient of an update, of all weights together; a larger
    gradient is scaled down to it (Pascanu et al., 2013). The loss is the mean over the
    target tokens. The paper does not clip: none."""
    beta1: float = 0.9
    """Decay rate of Adam's mean of gradients (section 5.3)."""
    beta2: float = 0.98
    """Decay rate of Adam's mean of squared gradients (section 5.3)."""
    epsilon: float = 1e-9
    """Constant in the denominator of Adam's update (section 5.3)."""
    weight_decay: float = 0.0
    """Decoupled weight decay of the matrices of the layers, per update and unit of
    learning rate. The paper has none."""
    label_smoothing: float = 0.1
    """Label smoothing epsilon_ls (section 5.4)."""
    consistency: float = 0.0
    """Weight alpha of the divergence between two passes over each batch, which differ
    by their dropout (R-Drop; Liang et al., 2021, have 5 for translation). The loss is
    half of theirs: the mean of both passes, and alpha/4 times the sum of both
    divergences. An update takes twice as long. 0, as in the paper, for one pass."""
    reward: RewardKind = "none"
    """Reward of sampled translations whose expectation the last updates of the run
    raise: gleu, as in Wu et al. (2016). These updates have no dropout. The paper trains
    by likelihood alone: none."""
    reward_steps: int | None = None
    """Number of updates by reward, the last ones of the run; about 400,000 in Wu et al.
    (2016). The others are by likelihood alone."""
    reward_samples: int = 15
    """Number of samples of a sentence, whose mean reward is subtracted from the reward
    of each (Wu et al., 2016)."""
    likelihood_weight: float = 0.017
    """Weight of the log-likelihood of the references in updates by reward (Wu et al.,
    2016)."""
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints (section 6.1). Only used if `checkpoint_steps` is
    none."""
    checkpoint_steps: int | None = None
    """Number of updates between checkpoints. The averaged checkpoints then span the
    same part of the training on any hardware. None for `checkpoint_minutes`."""
    keep_checkpoints: int = 5
    """Number of checkpoints that are kept, and averaged at the end (section 6.1). With
    a `reward`, only checkpoints after an update by reward are averaged."""
    best_by: BestBy = "auto"
    """Metric on the dev corpus that chooses the best checkpoint. Among equal scores the
    loss decides. auto is F1 for trees; for text it is BLEU, but chrF while too few
    4-grams match for BLEU, and the loss while chrF is no better than chance. With a
    `reward`, the best checkpoint is one after an update by reward."""
    patience: int | None = None
    """Number of checkpoints without a gain on the dev corpus after which training ends.
    With a `reward`, only checkpoints after an update by reward count. None for no early
    end."""
    seed: int = 1
    """Seed of the weights, the order of the data and dropout."""

    @property
    def num_passes(self) -> int:
        """Number of passes over each batch in updates by likelihood."""
        return 2 if self.consistency > 0 else 1

    @property
    def likelihood_steps(self) -> int:
        """Number of updates by likelihood alone, the first ones of the run."""
        by_reward = 0 if self.reward == "none" else self.reward_steps or 0
        return self.steps - by_reward

    def is_by_reward(self, step: int) -> bool:
        """Return whether an update is by reward; steps count from 1."""
        return self.reward != "none" and step > self.likelihood_steps

    def __post_init__(self) -> None:
        convert_and_check(self, "training.")
        for name, (smallest, largest) in BOUNDS.items():
            value = getattr(self, name)
            require_between(f"training.{name}", value, smallest, largest)
        for name in ("label_smoothing", "beta1", "beta2", "momentum"):
            require_rate(f"training.{name}", getattr(self, name))
        for name, largest in (MAX_OF_POSITIVE | MAX_OF_OPTIONAL).items():
            value = getattr(self, name)
            or_none = ", or none" if name in MAX_OF_OPTIONAL else ""
            bound = f"above 0, and at most {largest:,}{or_none}"
            _require(name, value, bound, is_met=value is None or 0 < value <= largest)
        factor = self.decay_factor
        _require("decay_factor", factor, "above 0 and below 1", is_met=0 < factor < 1)
        share = self.cooldown_share
        _require("cooldown_share", share, "from 0 to 1", is_met=0 <= share <= 1)
        _require("seed", self.seed, "from 0 to 2^63 - 1", is_met=0 <= self.seed < 2**63)


def rate_setting(config: TrainingConfig) -> str:
    """Return the full name of the setting that lowers the learning rate."""
    has_peak = config.schedule != "inverse-sqrt"
    return f"training.{'learning_rate' if has_peak else 'learning_rate_scale'}"


def _require(name: str, value: object, bound: str, *, is_met: bool) -> None:
    if not is_met:
        raise ConfigError(f"`training.{name}` must be {bound}, but is {shown(value)}.")
