"""A small model of each of the Transformer's rivals."""

from transduce.architectures.config import (
    ArchitectureConfig,
    ByteNetConfig,
    ConvolutionalConfig,
    DeepAttConfig,
    ExpertsConfig,
    MixtureRecurrentConfig,
    MixtureTransformerConfig,
    RecurrentConfig,
)

BYTENET = ByteNetConfig(vocab_size=50, num_blocks=1, d_hidden=8, largest_dilation=2)
MIXTURE = MixtureTransformerConfig(
    vocab_size=50,
    num_layers=2,
    d_model=16,
    num_heads=2,
    d_k=8,
    d_v=8,
    experts=ExpertsConfig(num_experts=4, top_k=2, d_ff=8),
)
WITH_ATTENTION: dict[str, ArchitectureConfig] = {
    "GNMT": RecurrentConfig(
        vocab_size=50, encoder_layers=2, decoder_layers=2, d_model=8
    ),
    "attention of the current step": RecurrentConfig(
        vocab_size=50,
        encoder_layers=2,
        decoder_layers=2,
        d_model=8,
        attention_query="current",
        input_feeding=False,
    ),
    "Deep-Att": DeepAttConfig(
        vocab_size=50, embedding_width=8, d_model=8, encoder_layers=2, decoder_layers=2
    ),
    "ConvS2S": ConvolutionalConfig(
        vocab_size=50, encoder_blocks="2x16k3", d_embedding=16
    ),
    "mixture of experts": MixtureRecurrentConfig(
        vocab_size=50,
        d_model=8,
        cells=16,
        experts=ExpertsConfig(num_experts=4, top_k=2, d_ff=8, gating="batchwise"),
    ),
    "Transformer with experts": MIXTURE,
}
"""Models whose decoder attends to the source."""
RIVALS: dict[str, ArchitectureConfig] = {**WITH_ATTENTION, "ByteNet": BYTENET}
