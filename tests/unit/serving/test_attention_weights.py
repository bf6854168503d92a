import math
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce.checkpoint import Checkpoint
from transduce.decoding.translator import Translator
from transduce.errors import TooLongError
from transduce.serving.attention_weights import Kind, attention_weights
from transduce.special_ids import BOS, EOS

SOURCE, TARGET = "one two three", "eins zwei"


@pytest.fixture
def translator(trained_checkpoint: Checkpoint) -> Translator:
    return Translator(trained_checkpoint, torch.device("cpu"))


def by_hand(attention: Any, query: Tensor, memory: Tensor, is_causal: bool) -> Tensor:
    """Equation 1, head by head, from the parameters alone."""
    d_k, heads = attention.d_k, []
    q = query @ attention.project_query.weight.T + attention.project_query.bias
    kv = memory @ attention.project_key_value.weight.T
    k = kv + attention.project_key_value.bias
    for h in range(attention.num_heads):
        columns = slice(h * d_k, (h + 1) * d_k)
        scores = q[:, columns] @ k[:, columns].T / math.sqrt(d_k)
        if is_causal:
            later = torch.ones_like(scores).triu(1).bool()
            scores[later] = -math.inf
        heads.append(scores.softmax(-1))
    return torch.stack(heads)


@pytest.mark.parametrize(
    ("kind", "side", "name"),
    [
        ("encoder", "encoder_layers", "self_attention"),
        ("decoder", "decoder_layers", "self_attention"),
        ("cross", "decoder_layers", "memory_attention"),
    ],
)
@torch.no_grad()
def test_weights_are_those_of_the_parameters(
    translator: Translator, kind: Kind, side: str, name: str
) -> None:
    found = attention_weights(translator, SOURCE, TARGET, kind)
    model: Any = translator.models[0].model
    attention = getattr(getattr(model, side)[0], name)
    seen: list[tuple[Tensor, ...]] = []
    handle = attention.register_forward_pre_hook(
        lambda _, given: seen.append((given[0][0], given[1][0]))
    )
    encode = translator.tokenizer.encode
    model(
        torch.tensor([[*encode(SOURCE), EOS]]), torch.tensor([[BOS, *encode(TARGET)]])
    )
    handle.remove()
    expected = by_hand(attention, *seen[0], is_causal=kind == "decoder")
    [weights] = found.weights
    assert torch.tensor(weights) == pytest.approx(expected, abs=1e-5)
    assert expected.shape[1:] == (len(found.queries), len(found.keys))


def test_tokens_are_named_by_what_is_read_and_what_is_put_out(
    translator: Translator,
) -> None:
    found = {
        kind: attention_weights(translator, "one", "eins", kind)
        for kind in ("encoder", "decoder", "cross")
    }
    assert found["encoder"].queries == found["encoder"].keys == [" one", " </s>"]
    assert found["decoder"].queries == found["decoder"].keys == [" <s>", " eins"]
    assert found["cross"].queries == [" eins", " </s>"]
    assert found["cross"].keys == [" one", " </s>"]


def test_nothing_listens_afterwards(translator: Translator) -> None:
    attention_weights(translator, SOURCE, TARGET, "cross")
    hooks = [module._forward_hooks for module in translator.models[0].model.modules()]
    assert not any(hooks)


@pytest.mark.parametrize("side", ["source", "target"])
def test_what_is_too_long_is_refused(translator: Translator, side: str) -> None:
    texts = {"source": "one", "target": "one", side: "x " * 101}
    with pytest.raises(TooLongError, match=f"`{side}` must have at most 100 tokens"):
        attention_weights(translator, texts["source"], texts["target"], "cross")
