"""Model and loss together against PyTorch's loss on the model's logits."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from transduce.data.tensors import Batch
from transduce.model.transformer import Transformer
from transduce.training.loss import BatchLoss


@pytest.mark.parametrize("output_bias", [False, True])
def test_the_loss_of_a_batch_equals_pytorchs_on_the_models_logits(
    tiny, cpu, output_bias
):
    model = Transformer(replace(tiny, output_bias=output_bias))
    if output_bias:
        torch.nn.init.normal_(model.embedding.bias)
    batch = Batch(
        source=torch.tensor([[5, 6, 2], [7, 2, 0]]),
        target_in=torch.tensor([[1, 8, 9], [1, 10, 0]]),
        target_out=torch.tensor([[8, 9, 2], [10, 2, 0]]),
    )
    loss = BatchLoss(model, 0.1, cpu)(batch)
    oracle = functional.cross_entropy(
        model(batch.source, batch.target_in).flatten(0, 1),
        batch.target_out.flatten(),
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
