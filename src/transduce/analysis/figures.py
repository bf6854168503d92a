"""Drawings of attention for papers and reports."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from transduce.analysis.attention_maps import KINDS, AttentionKind
from transduce.errors import ConfigError, DataError
from transduce.report.chart import STYLE, new_figure, picture_of
from transduce.report.content import Picture

HEAD_COLOURS = (
    *("#3b76af", "#d1495b", "#2a9134", "#9b3d9b"),
    *("#b07d00", "#008b9a", "#c05a1c", "#6a6fb5"),
)
"""Head by head; a ninth has that of the first."""
DARK = "#1f2329"
"""On light squares in any theme: so not quite the ink, which pages make their own."""
LEAST_SHOWN = 0.01
"""Weights below are not drawn."""
FIGURE_TYPES = ("png", "svg", "pdf")
TOKEN_INCHES = 0.28
"""From one token to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledHeads:
    """Heads of all layers between tokens that have names."""

    weights: Float[Tensor, "layers heads queries keys"]
    queries: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadValues:
    """A number for each head of an attention, by layer and head from 1."""

    kind: AttentionKind
    values: Mapping[tuple[int, int], float]


def draw_lines(
    labelled: LabelledHeads,
    layer: int,
    heads: Sequence[int],
    queries: Collection[int] | None = None,
) -> Figure:
    """Lines from queries, above, to keys, below, as in Figures 3 to 5.

    Each head has its colour, as strong as its weight. Layer and heads count from 1. If
    queries are named by their places, only theirs are drawn. The shorter side is
    spread as wide as the longer.
    """
    num_columns = max(len(labelled.queries), len(labelled.keys))
    with matplotlib.rc_context(STYLE):
        figure = new_figure(max(TOKEN_INCHES * num_columns, 2) + 0.4, 3.4)
        axes = figure.subplots()
        axes.set(xlim=(-0.6, num_columns - 0.4), ylim=(0, 1))
        axes.set_axis_off()
        for place, head in enumerate(heads):
            shift = (place - (len(heads) - 1) / 2) / len(heads)
            _draw_head(axes, labelled, layer, head, queries, shift)
        above, below = (
            list(zip(_places(len(labels), num_columns), labels, strict=True))
            for labels in (labelled.queries, labelled.keys)
        )
        _write_tokens(axes, above, 1.02, "bottom", queries)
        _write_tokens(axes, below, -0.02, "top", None)
    return figure


def _draw_head(
    axes: Axes,
    labelled: LabelledHeads,
    layer: int,
    head: int,
    queries: Collection[int] | None,
    shift: float,
) -> None:
    weights = labelled.weights[layer - 1, head - 1].numpy()
    above, below = (_places(count, max(weights.shape)) for count in weights.shape)
    for i, j in np.argwhere(weights >= LEAST_SHOWN).tolist():
        if queries is None or i in queries:
            axes.plot(
                [above[i] + 0.2 * shift, below[j] + 0.2 * shift],
                [1, 0],
                color=HEAD_COLOURS[(head - 1) % len(HEAD_COLOURS)],
                alpha=float(min(weights[i, j], 1)),
                linewidth=2,
                solid_capstyle="round",
            )


def _write_tokens(
    axes: Axes,
    labels: Sequence[tuple[float, str]],
    y: float,
    side: Literal["bottom", "top"],
    chosen: Collection[int] | None,
) -> None:
    for number, (place, label) in enumerate(labels):
        is_bold = chosen is not None and number in chosen
        axes.text(
            place,
            y,
            _plain(label),
            rotation=90,
            ha="center",
            va=side,
            fontweight="bold" if is_bold else "normal",
        )


def _places(count: int, num_columns: int) -> list[float]:
    """Of so many tokens, evenly among the columns."""
    places: list[float] = np.linspace(0, num_columns - 1, count).tolist()
    return places


def draw_maps(labelled: LabelledHeads, layer: int, heads: Sequence[int]) -> Figure:
    """A heat map of each head, side by side; layer and heads count from 1."""
    width = TOKEN_INCHES * len(labelled.keys) + 1
    height = TOKEN_INCHES * len(labelled.queries) + 1
    with matplotlib.rc_context(STYLE):
        figure = new_figure(width * len(heads), height)
        grid = figure.subplots(1, len(heads), squeeze=False)
        for axes, head in zip(grid.flat, heads, strict=True):
            _draw_map(axes, labelled.weights[layer - 1, head - 1].numpy())
            axes.set_title(f"layer {layer}, head {head}", fontsize="medium")
            axes.set_xticks(
                range(len(labelled.keys)), map(_plain, labelled.keys), rotation=90
            )
            axes.set_yticks(range(len(labelled.queries)), map(_plain, labelled.queries))
    return figure


def draw_overview(labelled: LabelledHeads) -> Figure:
    """All heads of all layers, small."""
    num_layers, num_heads = labelled.weights.shape[:2]
    with matplotlib.rc_context(STYLE):
        figure = new_figure(1.3 * num_heads + 0.4, 1.3 * num_layers + 0.4)
        grid = figure.subplots(num_layers, num_heads, squeeze=False)
        for (layer, head), axes in np.ndenumerate(grid):
            _draw_map(axes, labelled.weights[layer, head].numpy())
            axes.set(xticks=[], yticks=[])
            axes.set_title(f"{layer + 1}.{head + 1}", fontsize="small")
    return figure


def _draw_map(axes: Axes, weights: Float[np.ndarray, "queries keys"]) -> None:
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    axes.spines[:].set_visible(True)
    axes.tick_params(length=0)


def draw_heads(name: str, title: str, grids: Sequence[HeadValues]) -> Picture:
    """A number for each head in a field of its own, a grid for each attention."""
    values = [value for grid in grids for value in grid.values.values()]
    most = max(*map(abs, values), 1e-9)
    sizes = [tuple(map(max, zip(*grid.values, strict=True))) for grid in grids]
    with matplotlib.rc_context(STYLE):
        # As wide as all three, so that pictures of fewer are not drawn larger.
        figure = new_figure(
            len(KINDS) * (0.62 * max(heads for _, heads in sizes) + 0.5),
            0.5 * max(layers for layers, _ in sizes) + 0.9,
        )
        all_axes = figure.subplots(1, len(KINDS), squeeze=False)[0]
        for axes, grid, size in zip(all_axes, grids, sizes, strict=False):
            _draw_grid(axes, grid, size, most)
        for axes in all_axes[len(grids) :]:
            axes.set_axis_off()
    return picture_of(figure, name, title)


def _draw_grid(
    axes: Axes, grid: HeadValues, size: tuple[int, ...], most: float
) -> None:
    values = np.zeros(size)
    for (layer, head), value in grid.values.items():
        values[layer - 1, head - 1] = value
        is_dark = abs(value) > 0.6 * most
        axes.text(
            head,
            layer,
            f"{value:.2f}",
            ha="center",
            va="center",
            fontsize="small",
            color="white" if is_dark else DARK,
        )
    num_layers, num_heads = size
    axes.imshow(
        np.abs(values),
        cmap="Blues",
        vmin=0,
        vmax=most,
        aspect="auto",
        extent=(0.5, num_heads + 0.5, num_layers + 0.5, 0.5),
    )
    axes.set(xlabel="head", ylabel="layer", title=grid.kind)
    axes.set_xticks(range(1, num_heads + 1))
    axes.set_yticks(range(1, num_layers + 1))
    axes.tick_params(length=0)


def check_figure_path(path: Path) -> None:
    """`ConfigError` if no figure can be written under such a name."""
    if path.suffix.removeprefix(".").lower() not in FIGURE_TYPES:
        raise ConfigError(
            f"{path}: a figure must end in .{', .'.join(FIGURE_TYPES)}, but ends in "
            f'"{path.suffix}".'
        )


def write_figure(figure: Figure, path: Path) -> None:
    """Write PNG, SVG or PDF, whole or not at all; `DataError` if that fails."""
    kind = path.suffix.removeprefix(".").lower()
    if path.exists() and not path.is_file():
        new = path  # a pipe or a device, which cannot be put in place of another
    else:
        path = Path(os.path.realpath(path)) if path.is_symlink() else path
        new = path.with_name(f".{path.name}.transduce-new")
    facts = {} if kind == "png" else {"Date" if kind == "svg" else "CreationDate": None}
    try:
        with matplotlib.rc_context(STYLE):
            figure.savefig(new, format=kind, dpi=200, facecolor="white", metadata=facts)
        if new != path:
            new.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}).") from None
    finally:
        if new != path:
            new.unlink(missing_ok=True)


def _plain(label: str) -> str:
    """Matplotlib would take what stands between dollar signs for a formula."""
    return label.replace("$", r"\$")
