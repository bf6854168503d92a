"""Settings of training (section 5)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from transduce.settings import Bounds, Rate, Seed, Share, convert_and_check

BestBy = Literal["auto", "bleu", "chrf", "f1", "loss"]
OptimizerKind = Literal["adam", "muon", "sgd", "nesterov"]
RewardKind = Literal["none", "gleu"]
Schedule = Literal["inverse-sqrt", "constant", "warm-hold-decay", "halving", "plateau"]
Count = Annotated[int, Bounds(1, 10**9)]
Weight = Annotated[float, Bounds(0, 1_000)]
Positive = Annotated[float, Bounds(0, 10_000, above=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """Settings of training; the defaults are those of the paper's base model."""

    steps: Count = 100_000
    """Number of updates of the whole training (section 5.2)."""
    warmup_steps: Count = 4_000
    """Number of updates during which the learning rate grows linearly (equation 3)."""
    schedule: Schedule = "inverse-sqrt"
    """Learning rate by update: inverse-sqrt is equation 3. The others grow linearly to
    `learning_rate` during the warm-up. constant keeps it; warm-hold-decay keeps it for
    `hold_steps` and then falls with the inverse square root of the update (Shazeer et
    al., 2017); halving halves it every `decay_steps` updates from `decay_from` on (Wu
    et al., 2016); plateau multiplies it by `decay_factor` at each checkpoint whose dev
    loss is not the lowest so far, and ends the training once it is below
    `min_learning_rate` (Gehring et al., 2017). With a `reward`, halving and plateau
    lower the rate only before the first update by reward, and plateau keeps it above
    `min_learning_rate`."""
    learning_rate_scale: Positive = 1.0
    """Factor on the learning rate of equation 3."""
    learning_rate: Positive | None = None
    """Learning rate after the warm-up, for all schedules but inverse-sqrt."""
    hold_steps: Annotated[int, Bounds(0, 10**9)] = 0
    """Number of updates for which warm-hold-decay keeps the rate after the warm-up;
    8,000 in Shazeer et al. (2017)."""
    decay_from: Count | None = None
    """Update at which the schedule halving first halves the rate."""
    decay_steps: Count | None = None
    """Number of updates from one halving to the next; 200,000 in Wu et al. (2016)."""
    decay_factor: Annotated[float, Bounds(0, 1, above=True, below=True)] = 0.1
    """Factor on the rate at each plateau of the dev loss (Gehring et al., 2017)."""
    min_learning_rate: Positive = 1e-4
    """Learning rate below which the schedule plateau ends the training (Gehring et al.,
    2017)."""
    cooldown_share: Share = 0.0
    """Share of the updates, at the end of the training, over which the learning rate is
    also multiplied by a factor that falls linearly from 1 to nearly 0. The paper has no
    such phase. A run that ends by its patience may not reach it."""
    optimizer: OptimizerKind = "adam"
    """Optimizer: adam for all weights (section 5.3); muon for the matrices of layers,
    recurrent gates and experts, with Adam for the other weights; sgd, with or without
    `momentum`; or nesterov, SGD with Nesterov's momentum (Sutskever et al., 2013)."""
    momentum: Rate = 0.0
    """Momentum of sgd and nesterov; 0.99 with nesterov in Gehring et al. (2017)."""
    sgd_from_step: Count | None = None
    """First update by plain SGD, after updates by Adam or Muon: 60,001 in Wu et al.
    (2016). None for no such change."""
    sgd_learning_rate: Positive | None = None
    """Value of `learning_rate` from `sgd_from_step` on; 0.5 in Wu et al. (2016), whose
    loss is the sum over a sentence: for 27 tokens that is 13.5 here."""
    clip_norm: Annotated[float, Bounds(0, 10**6, above=True)] | None = None
    """Largest norm of the gradient of an update, of all weights together; a larger
    gradient is scaled down to it (Pascanu et al., 2013). The loss is the mean over the
    target tokens. The paper does not clip: none."""
    beta1: Rate = 0.9
    """Decay rate of Adam's mean of gradients (section 5.3)."""
    beta2: Rate = 0.98
    """Decay rate of Adam's mean of squared gradients (section 5.3)."""
    epsilon: Annotated[float, Bounds(0, 1, above=True)] = 1e-9
    """Constant in the denominator of Adam's update (section 5.3)."""
    weight_decay: Weight = 0.0
    """Decoupled weight decay of the matrices of the layers, per update and unit of
    learning rate. The paper has none."""
    label_smoothing: Rate = 0.1
    """Label smoothing epsilon_ls (section 5.4)."""
    consistency: Weight = 0.0
    """Weight alpha of the divergence between two passes over each batch, which differ
    by their dropout (R-Drop; Liang et al., 2021, have 5 for translation). The loss is
    half of theirs: the mean of both passes, and alpha/4 times the sum of both
    divergences. An update takes twice as long. 0, as in the paper, for one pass."""
    reward: RewardKind = "none"
    """Reward of sampled translations whose expectation the last updates of the run
    raise: gleu, as in Wu et al. (2016). These updates have no dropout. The paper trains
    by likelihood alone: none."""
    reward_steps: Count | None = None
    """Number of updates by reward, the last ones of the run; about 400,000 in Wu et al.
    (2016). The others are by likelihood alone."""
    reward_samples: Annotated[int, Bounds(2, 1_000)] = 15
    """Number of samples of a sentence, whose mean reward is subtracted from the reward
    of each (Wu et al., 2016)."""
    likelihood_weight: Weight = 0.017
    """Weight of the log-likelihood of the references in updates by reward (Wu et al.,
    2016)."""
    checkpoint_minutes: Annotated[float, Bounds(0, 10**6, above=True)] = 10.0
    """Minutes between checkpoints (section 6.1). Only used if `checkpoint_steps` is
    none."""
    checkpoint_steps: Count | None = None
    """Number of updates between checkpoints. The averaged checkpoints then span the
    same part of the training on any hardware. None for `checkpoint_minutes`."""
    keep_checkpoints: Annotated[int, Bounds(1, 10_000)] = 5
    """Number of checkpoints that are kept, and averaged at the end (section 6.1). With
    a `reward`, only checkpoints after an update by reward are averaged."""
    best_by: BestBy = "auto"
    """Metric on the dev corpus that chooses the best checkpoint, by greedy search.
    Among equal scores the loss decides. auto is F1 for trees; for text it is BLEU, but
    chrF while too few 4-grams match for BLEU, and the loss while chrF is no better than
    chance. With a `reward`, the best checkpoint is one after an update by reward."""
    patience: Count | None = None
    """Number of checkpoints without a gain on the dev corpus after which training ends.
    With a `reward`, only checkpoints after an update by reward count. None for no early
    end."""
    seed: Seed = 1
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


def rate_setting(config: TrainingConfig) -> str:
    """Return the full name of the setting that lowers the learning rate."""
    has_peak = config.schedule != "inverse-sqrt"
    return f"training.{'learning_rate' if has_peak else 'learning_rate_scale'}"
