"""Settings of small rivals of the Transformer, several of each architecture."""

from dataclasses import replace

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

BYTENET = ByteNetConfig(
    vocab_size=30, num_blocks=4, decoder_blocks=3, d_hidden=6, largest_dilation=2
)
BYTENETS = {
    "added": BYTENET,
    "joined": replace(BYTENET, stacking="joined"),
    "two vocabularies": replace(BYTENET, target_vocab_size=23),
    "an even kernel and a longer unfolding": replace(BYTENET, kernel=2, unfolding=2.5),
}

CONVOLUTIONAL = ConvolutionalConfig(
    vocab_size=30,
    encoder_blocks="2x6k3,8k2,5k1",
    decoder_blocks="6k3,7k2,2x7k3",
    d_embedding=10,
    d_output=9,
    max_positions=4,
    dropout=0.0,
)
CONVOLUTIONALS = {
    "widths that change": CONVOLUTIONAL,
    "a shared matrix": replace(CONVOLUTIONAL, d_output=None, shared_embedding=True),
    "two vocabularies": replace(CONVOLUTIONAL, target_vocab_size=23),
    "a decoder as the encoder": replace(CONVOLUTIONAL, decoder_blocks=None),
}

DEEP_ATT = DeepAttConfig(
    vocab_size=20,
    embedding_width=6,
    d_model=8,
    encoder_layers=3,
    decoder_layers=3,
    dropout=0.0,
)
DEEP_ATTS = {
    "interleaved": DEEP_ATT,
    "columns that keep their directions": replace(DEEP_ATT, interleaved=False),
    "two vocabularies": replace(DEEP_ATT, target_vocab_size=13),
    "one column, whole connections": replace(DEEP_ATT, columns=1, fast_forward="full"),
    "no connections": replace(DEEP_ATT, fast_forward="none", encoder_layers=2),
}

RECURRENT = RecurrentConfig(
    vocab_size=30,
    encoder_layers=2,
    decoder_layers=2,
    d_model=12,
    dropout=0.0,
    residual_from=3,
    initial_range=0.4,
)
LUONG = replace(
    RECURRENT,
    attention="general",
    attention_query="current",
    readout="attentional",
    bidirectional=False,
    residual_from=None,
    initial_state="encoder",
)
RNNSEARCH = replace(
    RECURRENT,
    cell="gru",
    encoder_layers=1,
    decoder_layers=1,
    embedding_width=10,
    attention_width=7,
    readout_width=6,
    readout="maxout",
    residual_from=None,
    initial_state="projected",
)
RECURRENTS = {
    "gnmt": RECURRENT,
    "deep": replace(
        RECURRENT,
        encoder_layers=4,
        decoder_layers=4,
        attention="normed-additive",
        forget_bias=1.0,
    ),
    "gnmt-v2": replace(RECURRENT, attention_query="current"),
    "unfed": replace(
        RECURRENT, decoder_layers=3, attention_query="current", input_feeding=False
    ),
    "last-states": replace(RECURRENT, initial_state="encoder"),
    "luong": LUONG,
    "luong-unfed": replace(LUONG, input_feeding=False, readout_width=5),
    "luong-residual": replace(LUONG, residual_from=2, bidirectional=False),
    "rnnsearch": RNNSEARCH,
    "rnnsearch-lstm": replace(RNNSEARCH, cell="lstm", attention_query="current"),
    "projected-gru": replace(RECURRENT, cell="gru", initial_state="projected"),
    "tied": replace(
        RECURRENT, shared_embedding=True, tied_output=True, attention="tanh-product"
    ),
    "own-target": replace(RECURRENT, target_vocab_size=17, shared_embedding=True),
}

EXPERTS = ExpertsConfig(num_experts=8, top_k=2, d_ff=12)
MIXTURE_TRANSFORMER = MixtureTransformerConfig(
    vocab_size=40,
    num_layers=2,
    d_model=16,
    num_heads=2,
    d_k=8,
    d_v=8,
    dropout=0.0,
    experts=EXPERTS,
)
MIXTURE_RECURRENT = MixtureRecurrentConfig(
    vocab_size=40,
    d_model=16,
    cells=24,
    dropout=0.0,
    initial_range=0.3,
    experts=EXPERTS,
)
GATINGS = {
    "batchwise": replace(EXPERTS, gating="batchwise"),
    "batchwise-groups": replace(EXPERTS, gating="batchwise", num_groups=2),
    "noisy-top-k-groups": replace(EXPERTS, num_groups=2),
}
MIXTURES = {
    "recurrent": MIXTURE_RECURRENT,
    "recurrent-deeper": replace(
        MIXTURE_RECURRENT,
        encoder_layers=4,
        decoder_layers=3,
        shared_embedding=True,
        tied_output=True,
    ),
    "recurrent-targets": replace(MIXTURE_RECURRENT, target_vocab_size=30),
    "transformer": MIXTURE_TRANSFORMER,
    "transformer-pre": replace(
        MIXTURE_TRANSFORMER, norm="pre", positions="learned", target_vocab_size=30
    ),
    **{
        f"recurrent-{name}": replace(MIXTURE_RECURRENT, experts=experts)
        for name, experts in GATINGS.items()
    },
    **{
        f"transformer-{name}": replace(MIXTURE_TRANSFORMER, experts=experts)
        for name, experts in GATINGS.items()
    },
}

VARIANTS: dict[str, ArchitectureConfig] = {
    f"{architecture}: {name}": config
    for architecture, variants in {
        "ByteNet": BYTENETS,
        "ConvS2S": CONVOLUTIONALS,
        "Deep-Att": DEEP_ATTS,
        "recurrent": RECURRENTS,
        "experts": MIXTURES,
    }.items()
    for name, config in variants.items()
}
"""All of them, whose vocabularies have at least 13 tokens."""
