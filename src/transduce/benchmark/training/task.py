"""What every contestant trains on: the same settings and the same updates."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from jaxtyping import Float

from transduce.data.batches import Batcher, Update
from transduce.data.dataset import ID_TYPE, OFFSET_TYPE, Dataset, EncodedSide
from transduce.device import Hardware
from transduce.experiments.presets import RunConfig
from transduce.model.config import ModelConfig
from transduce.model.cost import update_flops
from transduce.special_ids import EOS
from transduce.training.config import TrainingConfig

MEAN_LENGTH, LENGTH_SPREAD, LONGEST = 25, 0.6, 100
"""Of a source in tokens, log-normal: about what pieces of news text have."""
RATIO_SPREAD = 0.2
"""Of a target's length over its source's, log-normal around one."""
MIN_PAIRS = 10_000
"""Enough for batches of similar lengths, as a real corpus has them."""
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask:
    """So many updates of a run, on random ids in sentences of real-looking lengths."""

    run: RunConfig
    hardware: Hardware
    steps: int
    are_peers_plain: bool = False
    """Whether they are as they come, without our settings of memory."""

    @property
    def model(self) -> ModelConfig:
        """With the vocabulary that the run's tokenizer is to have."""
        return replace(self.run.model, vocab_size=self.run.tokenizer.vocab_size)

    @property
    def training(self) -> TrainingConfig:
        """The regime that all have: what the peers lack is not ours either."""
        return replace(
            self.run.training,
            steps=self.steps,
            optimizer="adam",
            cooldown_share=0.0,
            weight_decay=0.0,
        )

    def dataset(self) -> Dataset:
        """Always the same for the same task."""
        random = np.random.default_rng(SEED)
        mu = np.log(MEAN_LENGTH) - LENGTH_SPREAD**2 / 2
        source = random.lognormal(mu, LENGTH_SPREAD, self._num_pairs())
        target = source * random.lognormal(0.0, RATIO_SPREAD, len(source))
        return Dataset(
            source=self._side(source, random), target=self._side(target, random)
        )

    def batcher(self, dataset: Dataset) -> Batcher:
        return Batcher(dataset, self.run.batching, SEED)

    def updates(self, dataset: Dataset) -> Iterator[Update]:
        """Those that a trainer draws from the batcher by itself."""
        return islice(self.batcher(dataset).epoch(0), self.steps)

    def update_flops(self) -> list[int]:
        """What each update costs, padding not counted."""
        dataset = self.dataset()
        # The end of a sentence counts.
        source = np.diff(dataset.source.offsets) + 1
        target = np.diff(dataset.target.offsets) + 1
        pairs = [np.concatenate(each.batches) for each in self.updates(dataset)]
        return [update_flops(self.model, source[p], target[p]) for p in pairs]

    @property
    def _longest(self) -> int:
        return max(min(LONGEST, self.run.batching.max_length - 1), 1)

    def _num_pairs(self) -> int:
        """Twice what all steps need, so that one epoch has enough."""
        tokens = max(self.run.batching.source_tokens, self.run.batching.target_tokens)
        mean_length = min(MEAN_LENGTH, self._longest)
        return max(MIN_PAIRS, 2 * self.steps * tokens // mean_length)

    def _side(
        self, lengths: Float[np.ndarray, " pairs"], random: np.random.Generator
    ) -> EncodedSide:
        whole = lengths.round().clip(1, self._longest).astype(OFFSET_TYPE)
        offsets = np.concatenate([np.zeros(1, OFFSET_TYPE), np.cumsum(whole)])
        ids = random.integers(EOS + 1, self.model.vocab_size, offsets[-1])
        return EncodedSide(ids=ids.astype(ID_TYPE), offsets=offsets)
