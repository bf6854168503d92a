"""Sampler of updates by reward: decoding, with the weights that a model has now."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from transduce.architectures.interface import Stepper, TransductionModel
from transduce.data.tensors import pad_rows
from transduce.decoding.sampling import sample
from transduce.decoding.torch_decoder import FusedStep, TorchDecoder
from transduce.model.transformer import Transformer
from transduce.search_config import SamplingConfig
from transduce.text.vocabulary import BOS, EOS, PAD
from transduce.training.config import TrainingConfig
from transduce.training.loss import REWARDS, Refinement


@dataclass(frozen=True, slots=True)
class ModelSampler:
    """Sampler that draws token by token from a model in training, in fp32."""

    config: SamplingConfig

    def __call__(
        self,
        model: TransductionModel,
        sources: Sequence[list[int]],
        max_lengths: Sequence[int],
        names: Sequence[tuple[int, ...]],
    ) -> list[list[tuple[int, ...]]]:
        """Return the samples of each source, which has an end token."""
        device = model.output_weight.device
        stepper: Stepper = model
        with torch.no_grad():
            if isinstance(model, Transformer):
                # Its joint weights are copies, so it serves this call only.
                stepper = FusedStep(model)
            memory = model.encode(pad_rows(list(sources)).to(device))
        found = sample(
            TorchDecoder(stepper, memory),
            max_lengths,
            names,
            self.config,
            bos=BOS,
            eos=EOS,
            excluded=(PAD, BOS),
        )
        return [
            [(*each.ids, EOS) if each.is_finished else each.ids for each in samples]
            for samples in found
        ]


def refinement_of(config: TrainingConfig) -> Refinement:
    """Return how a run's updates by reward sample and reward."""
    sampling = SamplingConfig(number=config.reward_samples, seed=config.seed)
    return Refinement(
        sampler=ModelSampler(sampling),
        reward=REWARDS[config.reward],
        likelihood_weight=config.likelihood_weight,
    )
