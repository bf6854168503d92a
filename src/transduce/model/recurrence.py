"""Simpler simple recurrent unit (SSRU), a recurrence in place of self-attention."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class SSRU(nn.Module):
    """Simpler simple recurrent unit (Kim et al., 2019).

        f_t = sigmoid(W_f x_t + b_f)
        c_t = f_t * c_(t-1) + (1 - f_t) * W x_t,    c_0 = 0
        o_t = max(0, c_t)

    Both matrices read the input alone, so in training each is one product over all
    positions; only the sum of cells goes from position to position. A step of decoding
    reads and writes the d_model numbers of one cell, however many tokens came before.
    Cells are computed in fp32 at least.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.forget_gate = nn.Linear(d_model, d_model)
        self.candidate = nn.Linear(d_model, d_model, bias=False)
        for layer in (self.forget_gate, self.candidate):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.forget_gate.bias)

    def forward(
        self, x: Float[Tensor, "batch length d_model"]
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the outputs of all positions; none depends on a later one."""
        return self.outputs(self.forget_gate(x), self.candidate(x)).to(x.dtype)

    def outputs(
        self,
        gate: Float[Tensor, "batch length d_model"],
        candidate: Float[Tensor, "batch length d_model"],
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the outputs, given W_f x + b_f and W x of all positions."""
        if gate.size(1) == 0:
            return gate
        cell = initial_cell(gate[:, 0])
        cells = []
        for position in range(gate.size(1)):
            cell = self.step(gate[:, position], candidate[:, position], cell)
            cells.append(cell)
        return torch.stack(cells, dim=1).relu()

    def step(
        self,
        gate: Float[Tensor, "*rows d_model"],
        candidate: Float[Tensor, "*rows d_model"],
        cell: Float[Tensor, "*rows d_model"],
    ) -> Float[Tensor, "*rows d_model"]:
        """Return the cell of the next position."""
        forget = gate.to(cell.dtype).sigmoid()
        return forget * cell + (1 - forget) * candidate.to(cell.dtype)


def initial_cell(
    gate: Float[Tensor, "*rows d_model"],
) -> Float[Tensor, "*rows d_model"]:
    """Return the cell before the first position: zeros, in fp32 at least."""
    dtype = torch.promote_types(gate.dtype, torch.float32)
    return torch.zeros_like(gate, dtype=dtype)
