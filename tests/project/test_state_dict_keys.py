"""The names of the weights are a file format: a changed name breaks old models."""

from dataclasses import replace

import pytest

from transduce.model.transformer import Transformer

ATTENTION = [
    "project_query.weight",
    "project_query.bias",
    "project_key_value.weight",
    "project_key_value.bias",
    "project_output.weight",
    "project_output.bias",
]
FEED_FORWARD = [
    "feed_forward.inner.weight",
    "feed_forward.inner.bias",
    "feed_forward.outer.weight",
    "feed_forward.outer.bias",
]


def attention(name: str, keys: list[str] = ATTENTION) -> set[str]:
    return {f"{name}.{key}" for key in keys}


def norm(name: str) -> set[str]:
    return {f"{name}.weight", f"{name}.bias"}


ENCODER_LAYER = (
    attention("self_attention")
    | set(FEED_FORWARD)
    | norm("after_self_attention.norm")
    | norm("after_feed_forward.norm")
)
DECODER_LAYER = (
    ENCODER_LAYER | attention("cross_attention") | norm("after_cross_attention.norm")
)
PAPER = (
    {"embedding.weight"}
    | {f"encoder_layers.{n}.{key}" for n in (0, 1) for key in ENCODER_LAYER}
    | {f"decoder_layers.{n}.{key}" for n in (0, 1) for key in DECODER_LAYER}
)
ADDITIVE = {
    f"{layer}.additive_weight"
    for n in (0, 1)
    for layer in (
        f"encoder_layers.{n}.self_attention",
        f"decoder_layers.{n}.self_attention",
        f"decoder_layers.{n}.cross_attention",
    )
}


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, set()),
        ({"scores": "unscaled"}, set()),
        ({"neighbourhood": 3}, set()),
        ({"scores": "additive"}, ADDITIVE),
        ({"positions": "learned"}, {"positions.weight"}),
        ({"norm": "pre"}, norm("encoder_norm") | norm("decoder_norm")),
        ({"target_vocab_size": 9}, {"target_embedding.weight"}),
        ({"activation": "silu", "norm_epsilon": 1e-5}, set()),
        ({"output_bias": True}, {"embedding.bias"}),
        (
            {"decoder_layers": 3},
            {f"decoder_layers.2.{key}" for key in DECODER_LAYER},
        ),
    ],
    ids=lambda given: str(sorted(given)),
)
def test_the_weights_have_these_names(tiny, changes, more):
    model = Transformer(replace(tiny, **changes))
    assert set(model.state_dict()) == PAPER | more


def test_the_weights_have_these_shapes(tiny):
    config = replace(tiny, num_layers=1, num_heads=3, d_k=6, d_v=7)
    shapes = {
        name: tuple(weight.shape)
        for name, weight in Transformer(config).state_dict().items()
        if name.startswith(("embedding", "encoder_layers"))
    }
    layer = "encoder_layers.0"
    assert shapes == {
        "embedding.weight": (23, 16),
        f"{layer}.self_attention.project_query.weight": (18, 16),
        f"{layer}.self_attention.project_query.bias": (18,),
        f"{layer}.self_attention.project_key_value.weight": (39, 16),
        f"{layer}.self_attention.project_key_value.bias": (39,),
        f"{layer}.self_attention.project_output.weight": (16, 21),
        f"{layer}.self_attention.project_output.bias": (16,),
        f"{layer}.feed_forward.inner.weight": (20, 16),
        f"{layer}.feed_forward.inner.bias": (20,),
        f"{layer}.feed_forward.outer.weight": (16, 20),
        f"{layer}.feed_forward.outer.bias": (16,),
        f"{layer}.after_self_attention.norm.weight": (16,),
        f"{layer}.after_self_attention.norm.bias": (16,),
        f"{layer}.after_feed_forward.norm.weight": (16,),
        f"{layer}.after_feed_forward.norm.bias": (16,),
    }
