"""Products of fp32 matrices beside PyTorch's and numpy's, one core.

    OMP_NUM_THREADS=1 python benchmarks/products.py [--rounds 41]

They have the sizes of linear maps in a training of `base` and of `multi30k`: forward
(x W^T), gradients of inputs (g W) and gradients of weights (g^T x). All libraries take
turns. Prints the rates, in billions of multiplications and additions a second, of the
median times as a Markdown table.
"""

import argparse
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from machine import describe_machine, seconds_of

from transduce.nn.kernels import has_fp32_products
from transduce.nn.operators import matrix_product

SIZES = (
    ("base, attention", 1536, 512, 512),
    ("base, feed-forward", 1536, 512, 2048),
    ("base, logits", 512, 512, 37000),
    ("multi30k, attention", 1024, 128, 128),
    ("multi30k, feed-forward", 1024, 128, 512),
    ("multi30k, logits", 1024, 128, 6000),
)
"""Names of linear maps, rows, inputs and outputs."""
SYSTEMS = ("transduce", "PyTorch", "numpy")


def factors(
    rows: int, inputs: int, outputs: int
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the factors of the three products of a linear map."""
    torch.manual_seed(1)
    x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    gradient = torch.randn(rows, outputs)
    return {
        "forward": (x, weight.T),
        "gradient of inputs": (gradient, weight),
        "gradient of weights": (gradient.T, x),
    }


def measure(a: torch.Tensor, b: torch.Tensor, rounds: int) -> list[float]:
    """Return the rate of each system in GFLOP/s."""
    arrays = a.numpy(), b.numpy()
    calls: list[Callable[[], object]] = [
        lambda: matrix_product(a, b),
        lambda: a @ b,
        lambda: arrays[0] @ arrays[1],
    ]
    torch.testing.assert_close(matrix_product(a, b), a @ b, rtol=1e-4, atol=1e-3)
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds + 1):  # the first is a warm-up
        for call, seconds in zip(calls, times, strict=True):
            seconds.append(seconds_of(call))
    operations = 2 * a.size(0) * a.size(1) * b.size(1)
    return [operations / median(each[1:]) / 1e9 for each in times]


def main() -> None:
    """Measure all products and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    if not has_fp32_products():
        raise SystemExit("This processor or build has no native products in fp32.")
    print(f"| GFLOP/s | product | {' | '.join(SYSTEMS)} | ours / PyTorch's |")
    print("|---|---|--:|--:|--:|--:|")
    ratios = []
    for name, *sizes in SIZES:
        for product, (a, b) in factors(*sizes).items():
            rates = measure(a, b, rounds)
            ratios.append(rates[0] / rates[1])
            shown = " | ".join(f"{rate:.1f}" for rate in rates)
            print(f"| {name} | {product} | {shown} | {ratios[-1]:.2f} |", flush=True)
    geometric = np.exp(np.mean(np.log(ratios)))
    print(f"| geometric mean | | | | | {geometric:.2f} |\n\n{describe_machine()}")


if __name__ == "__main__":
    main()
