"""Model and loss together against PyTorch's loss on the model's logits."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from transduce.data.tensors import Batch
from transduce.model.transformer import Transformer
from transduce.training.loss import BatchLoss

BATCH = Batch(
    source=torch.tensor([[5, 6, 2], [7, 2, 0]]),
    target_in=torch.tensor([[1, 8, 9], [1, 10, 0]]),
    target_out=torch.tensor([[8, 9, 2], [10, 2, 0]]),
)


@pytest.mark.parametrize("output_bias", [False, True])
def test_the_loss_of_a_batch_equals_pytorchs_on_the_models_logits(
    tiny, cpu, output_bias
):
    model = Transformer(replace(tiny, output_bias=output_bias))
    if output_bias:
        torch.nn.init.normal_(model.embedding.bias)
    loss = BatchLoss(model, 0.1, cpu)(BATCH)
    oracle = functional.cross_entropy(
        model(BATCH.source, BATCH.target_in).flatten(0, 1),
        BATCH.target_out.flatten(),
        ignore_index=0,
        label_smoothing=0.1,
        reduction="sum",
    )
    torch.testing.assert_close(loss.smoothed, oracle)
    weights = list(model.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(loss.smoothed, weights),
        torch.autograd.grad(oracle, weights),
        atol=1e-5,
        rtol=1e-4,
    )


def divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return functional.kl_div(q, p, log_target=True, reduction="sum")


def test_two_passes_with_dropout_have_the_loss_of_liang_et_al(tiny, cpu):
    """Equation 4 of their paper, halved: a mean of the passes instead of their sum."""
    model = Transformer(replace(tiny, dropout=0.3))
    torch.manual_seed(2)
    loss = BatchLoss(model, 0.1, cpu, consistency=5.0)(BATCH)
    torch.manual_seed(2)
    twice = BATCH.repeated(2)
    is_token = twice.target_out != 0
    logits = model(twice.source, twice.target_in)[is_token]
    p, q = logits.log_softmax(-1).chunk(2)
    assert (p - q).abs().max() > 0.1
    cross_entropy = functional.cross_entropy(
        logits, twice.target_out[is_token], label_smoothing=0.1, reduction="sum"
    )
    oracle = cross_entropy + 5.0 / 2 * (divergence(p, q) + divergence(q, p))
    torch.testing.assert_close(loss.smoothed, oracle / 2)
    weights = list(model.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(loss.smoothed, weights),
        torch.autograd.grad(oracle / 2, weights),
        atol=1e-5,
        rtol=1e-4,
    )


def test_a_model_that_is_evaluated_passes_once(tiny, cpu):
    model = Transformer(tiny).eval()
    plain, found = (
        BatchLoss(model, 0.1, cpu, consistency=alpha)(BATCH) for alpha in (0.0, 5.0)
    )
    torch.testing.assert_close(found.smoothed, plain.smoothed)
