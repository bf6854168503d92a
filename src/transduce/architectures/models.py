"""Models of all architectures, built from their settings."""

from transduce.architectures.bytenet import ByteNet
from transduce.architectures.config import (
    ArchitectureConfig,
    ByteNetConfig,
    ConvolutionalConfig,
    DeepAttConfig,
    MixtureRecurrentConfig,
    MixtureTransformerConfig,
    RecurrentConfig,
)
from transduce.architectures.convolutional import Convolutional
from transduce.architectures.deep_att import DeepAtt
from transduce.architectures.interface import TransductionModel
from transduce.architectures.mixture_of_experts import (
    MixtureRecurrent,
    MixtureTransformer,
)
from transduce.architectures.recurrent import RecurrentModel
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer


def build(config: ArchitectureConfig) -> TransductionModel:  # noqa: PLR0911 # one for each
    """Build a model with random first weights."""
    match config:
        case ModelConfig():
            return Transformer(config)
        case RecurrentConfig():
            return RecurrentModel(config)
        case DeepAttConfig():
            return DeepAtt(config)
        case ConvolutionalConfig():
            return Convolutional(config)
        case ByteNetConfig():
            return ByteNet(config)
        case MixtureRecurrentConfig():
            return MixtureRecurrent(config)
        case MixtureTransformerConfig():
            return MixtureTransformer(config)
        case _:
            raise TypeError(f"There is no architecture of {type(config).__name__}.")
