"""Table 1: complexity of layer types, by formula and by measurement (section 4)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from transduce.analysis.cost import (
    Growth,
    LayerSizes,
    LayerType,
    PathLength,
    Scaling,
    SequentialOperations,
    Sweep,
    count_sequential_operations,
    layer_cost,
    maximum_path_length,
    measure_scaling,
    share_of_term,
)
from transduce.machine import BUSY_LOAD
from transduce.report.chart import Chart, Series, draw
from transduce.report.report import (
    Column,
    Part,
    Picture,
    Report,
    Section,
    Table,
    columns,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Row of the table as the paper prints it."""

    complexity: str
    sequential_operations: str
    maximum_path_length: str


ROWS: dict[LayerType, Row] = {
    "self-attention": Row(
        complexity="O(n²·d)",
        sequential_operations="O(1)",
        maximum_path_length="O(1)",
    ),
    "recurrent": Row(
        complexity="O(n·d²)",
        sequential_operations="O(n)",
        maximum_path_length="O(n)",
    ),
    "convolutional": Row(
        complexity="O(k·n·d²)",
        sequential_operations="O(1)",
        maximum_path_length="O(log_k(n))",
    ),
    "convolutional, contiguous": Row(
        complexity="O(k·n·d²)",
        sequential_operations="O(1)",
        maximum_path_length="O(n/k)",
    ),
    # From the text of section 4; the table has no such row.
    "separable convolutional": Row(
        complexity="O(k·n·d + n·d²)",
        sequential_operations="O(1)",
        maximum_path_length="O(log_k(n))",
    ),
    "restricted self-attention": Row(
        complexity="O(r·n·d)",
        sequential_operations="O(1)",
        maximum_path_length="O(n/r)",
    ),
}

# Ranges in which the term of Table 1 is nearly all of the matrix products, and these
# take nearly all of the time.
SWEEPS = (
    Sweep(
        layer="self-attention", letter="n", values=(2048, 3072, 4096, 6144),
        others=LayerSizes(n=1, d=64), theory=2,
    ),
    Sweep(
        layer="self-attention", letter="d", values=(64, 128, 192, 256),
        others=LayerSizes(n=4096, d=1), theory=1,
    ),
    Sweep(
        layer="recurrent", letter="n", values=(128, 256, 512, 1024),
        others=LayerSizes(n=1, d=256), theory=1, batch=8,
    ),
    Sweep(
        layer="recurrent", letter="d", values=(256, 384, 512, 768),
        others=LayerSizes(n=16, d=1), theory=2, batch=64,
    ),
    Sweep(
        layer="convolutional", letter="k", values=(5, 9, 15, 25),
        others=LayerSizes(n=512, d=384), theory=1,
    ),
    Sweep(
        layer="convolutional", letter="n", values=(1024, 2048, 4096, 8192),
        others=LayerSizes(n=1, d=256, k=3), theory=1,
    ),
    Sweep(
        layer="convolutional", letter="d", values=(256, 384, 512, 768),
        others=LayerSizes(n=512, d=1, k=9), theory=2,
    ),
    Sweep(
        layer="separable convolutional", letter="k", values=(384, 768, 1152),
        others=LayerSizes(n=4096, d=64), theory=1,
    ),
    Sweep(
        layer="separable convolutional", letter="n", values=(1024, 2048, 4096, 8192),
        others=LayerSizes(n=1, d=512, k=3), theory=1,
    ),
    Sweep(
        layer="separable convolutional", letter="d", values=(384, 512, 768, 1024),
        others=LayerSizes(n=1024, d=1, k=3), theory=2,
    ),
    Sweep(
        layer="restricted self-attention", letter="r", values=(256, 512, 1024),
        others=LayerSizes(n=16_384, d=64), theory=1,
    ),
    Sweep(
        layer="restricted self-attention", letter="n",
        values=(2048, 4096, 8192, 16_384), others=LayerSizes(n=1, d=64, r=256),
        theory=1,
    ),
    Sweep(
        layer="restricted self-attention", letter="d", values=(64, 128, 192, 256),
        others=LayerSizes(n=4096, d=1, r=1024), theory=1,
    ),
)  # fmt: skip
SMALL = LayerSizes(n=1, d=8, k=3, r=4)
"""Sizes of the layers whose dependencies are traced."""
LENGTHS = (8, 16, 32, 64)
"""Lengths of the sequences in which dependencies are traced."""
LETTERS = (
    "n: length of the sequence; d: dimension of a representation; k: kernel width of "
    "a convolution; r: neighbourhood of restricted self-attention, in positions to "
    "either side."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table1:
    """Measurements of all layer types."""

    machine: str
    load: float
    """Load average of the minute before the measurement."""
    scaling: Scaling
    sequential: tuple[SequentialOperations, ...]
    paths: tuple[PathLength, ...]


def measure_table1(
    machine: str, load: float, max_rounds: int, on_progress: Callable[[str], None]
) -> Table1:
    """Trace the dependencies of each layer type, then measure running times.

    Calls `on_progress` with the name of each step before it.
    """
    sequential, paths = [], []
    for layer in ROWS:
        on_progress(f"Tracing dependencies: {layer}...")
        sizes = [replace(SMALL, n=n) for n in LENGTHS]
        counts = [count_sequential_operations(layer, each) for each in sizes]
        sequential.append(
            SequentialOperations(layer=layer, n=LENGTHS, counts=tuple(counts))
        )
        paths += [
            PathLength(
                layer=layer,
                sizes=each,
                measured=maximum_path_length(layer, each),
                theory=layer_cost(layer, each).maximum_path_length,
            )
            for each in sizes
        ]
    scaling = measure_scaling(
        SWEEPS,
        max_rounds,
        lambda number: on_progress(f"Round {number} of at most {max_rounds}..."),
    )
    return Table1(
        machine=machine,
        load=load,
        scaling=scaling,
        sequential=tuple(sequential),
        paths=tuple(paths),
    )


def as_report(table: Table1) -> Report:
    """Report with the paper's rows, the measurements beside them, and the method."""
    return Report(
        title="Table 1: complexity of layer types",
        sections=(
            Section(
                title="The table", parts=(LETTERS, _summary(table), *_warnings(table))
            ),
            Section(title="Time", parts=tuple(_time_parts(table.scaling))),
            Section(
                title="Sequential operations", parts=tuple(_sequential_parts(table))
            ),
            Section(title="Path length", parts=tuple(_path_parts(table))),
            Section(title="Machine", parts=(table.machine,)),
        ),
    )


def _warnings(table: Table1) -> Iterator[str]:
    if not table.scaling.is_steady:
        yield (
            f"The exponents had not converged after {table.scaling.rounds} rounds and "
            "are approximate."
        )
    if table.load > BUSY_LOAD:
        yield (
            f"Other programs were running (load {table.load:.1f}); the times are less "
            "exact."
        )


def _summary(table: Table1) -> Table:
    heads = (
        "layer type",
        "complexity",
        "time, fitted",
        "sequential operations",
        f"path length at n = {LENGTHS[-1]}",
    )
    rows = []
    for layer, row in ROWS.items():
        growths = [g for g in table.scaling.growths if g.sweep.layer == layer]
        powers = [f"{g.sweep.letter}^{g.exponent:.2f}" for g in growths]
        [counted] = [each for each in table.sequential if each.layer == layer]
        path = [each for each in table.paths if each.layer == layer][-1]
        rows.append(
            (
                layer,
                row.complexity,
                " · ".join(powers) or "as above",
                f"{row.sequential_operations}: {_line(counted)}",
                f"{row.maximum_path_length}: {path.measured}",
            )
        )
    # All columns are text or formulas.
    return Table(
        columns=tuple(Column(name=head, is_text=True) for head in heads),
        rows=tuple(rows),
    )


def _line(counted: SequentialOperations) -> str:
    """Format counts as a linear function of n, if they are one."""
    steps = [
        (second - first) / (n - m)
        for (first, second), (m, n) in zip(
            pairwise(counted.counts), pairwise(counted.n), strict=True
        )
    ]
    if len(set(steps)) > 1:
        return "not linear in n"
    if steps[0] == 0:
        return f"{counted.counts[0]}"
    return f"{steps[0]:g} n + {counted.counts[0] - steps[0] * counted.n[0]:g}"


def _time_parts(scaling: Scaling) -> Iterator[Part]:
    yield (
        "Processor time of forward passes in one thread: medians of "
        f"{scaling.rounds} rounds, in which all layers take turns. The exponent is the "
        "slope of a straight line through the logarithms. Attention also has four "
        "projections, which the formula of the table does not count, and a separable "
        "convolution has two terms; share is the smallest share of the term that grows "
        "with the size in all products. Restricted self-attention computes bands of "
        "blocks, not all scores."
    )
    rows = tuple(_growth_row(growth) for growth in scaling.growths)
    heads = ("from", "to", "others", "share", "theory", "fitted")
    yield Table(columns=columns("layer type", "", *heads), rows=rows)
    for letters, title in (
        ("n", "Time against the length n"),
        ("d", "Time against the dimension d"),
        ("kr", "Time against the kernel width k and the neighbourhood r"),
    ):
        growths = [each for each in scaling.growths if each.sweep.letter in letters]
        yield _time_picture(letters, title, growths)


def _growth_row(growth: Growth) -> tuple[str, ...]:
    sweep = growth.sweep
    ends = sweep.sizes[0], sweep.sizes[-1]
    used = [c for c in "ndkr" if c in ROWS[sweep.layer].complexity.replace("O", "")]
    others = [f"{c}={getattr(sweep.others, c):,}" for c in used if c != sweep.letter]
    first, last = (share_of_term(sweep.layer, sizes, sweep.letter) for sizes in ends)
    return (
        sweep.layer,
        sweep.letter,
        f"{sweep.values[0]:,}",
        f"{sweep.values[-1]:,}",
        ", ".join(others),
        f"{min(first, last):.0%}",
        str(sweep.theory),
        f"{growth.exponent:.2f}",
    )


def _time_picture(letters: str, title: str, growths: Sequence[Growth]) -> Picture:
    series: list[Series] = []
    for growth in growths:
        sweep = growth.sweep
        colour = list(ROWS).index(sweep.layer)
        milliseconds = [1000 * seconds for seconds in growth.seconds]
        fitted = [1000 * seconds for seconds in growth.fitted()]
        label = f"{sweep.layer}: {sweep.letter}^{growth.exponent:.2f}"
        series += [
            Series(label=label, x=sweep.values, y=milliseconds, colour=colour),
            Series(label="", x=sweep.values, y=fitted, colour=colour, drawn="line"),
        ]
    return draw(
        Chart(
            name=f"table1-time-{letters}",
            title=f"{title}; dashed: fit",
            x_label=" or ".join(letters),
            y_label="milliseconds",
            series=tuple(series),
            scale="log",
        )
    )


def _sequential_parts(table: Table1) -> Iterator[Part]:
    yield (
        "Longest chain of dependent operations in PyTorch's autograd graph of one "
        "layer. Fused kernels, which would hide such chains, are not used."
    )
    rows = tuple(
        (each.layer, *(f"{count:,}" for count in each.counts))
        for each in table.sequential
    )
    heads = [f"n = {n}" for n in LENGTHS]
    yield Table(columns=columns("layer type", *heads), rows=rows)


def _path_parts(table: Table1) -> Iterator[Part]:
    yield (
        "Fewest steps (layers of a stack, or positions of a recurrence) after which "
        "each output depends on all inputs that it may depend on, by the non-zeros of "
        "the Jacobian. The formulas, rounded up, are 1, n, the logarithm of n to the "
        f"base k = {SMALL.k}, (n - 1) / (k - 1), and (n - 1) / r with r = {SMALL.r}. "
        "Recurrences and convolutions are causal. A separable convolution reaches as "
        "far as a convolution."
    )
    heads = [f"n = {n}" for n in LENGTHS]
    rows = []
    for layer in ROWS:
        found = [each for each in table.paths if each.layer == layer]
        agrees = all(each.measured == each.theory for each in found)
        cells = [f"{each.measured}" for each in found]
        rows.append((layer, *cells, "equal" if agrees else "different"))
    yield Table(
        columns=columns("layer type", *heads, "to the formula"), rows=tuple(rows)
    )
    yield _path_picture(table.paths)


def _path_picture(paths: Sequence[PathLength]) -> Picture:
    series: list[Series] = []
    for colour, layer in enumerate(ROWS):
        found = [each for each in paths if each.layer == layer]
        n = [each.sizes.n for each in found]
        measured, theory = [e.measured for e in found], [e.theory for e in found]
        series += [
            Series(label=layer, x=n, y=measured, colour=colour),
            Series(label="", x=n, y=theory, colour=colour, drawn="line"),
        ]
    return draw(
        Chart(
            name="table1-paths",
            title="Path length against the length n; dashed: formula",
            x_label="n",
            y_label="steps",
            series=tuple(series),
            scale="log",
        )
    )
