"""Figures of attention and of learning curves, as PNG, SVG or PDF."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import ColorType, LineStyleType
from rich.cells import cell_len
from torch import Tensor

from transduce.errors import ConfigError, DataError
from transduce.files import atomic_file
from transduce.model.config import ATTENTION_KINDS, AttentionKind
from transduce.report.chart import (
    COLOURS,
    INK,
    STYLE,
    drawn_in,
    fonts_for,
    literal,
    new_figure,
    picture_of,
)
from transduce.report.report import Picture, xml_text

HEAD_COLOURS = COLOURS
"""Colours of heads 1 to 8, then from the first again, in other dashes."""
DASHES: tuple[LineStyleType, ...] = (
    "solid",
    (0.0, (2.0, 1.0)),
    (0.0, (1.0, 1.0)),
    (0.0, (3.0, 1.0, 1.0, 1.0)),
)
DARK = "#1f2329"
"""Text on light cells. Not `INK`, which pages replace by their own text colour."""
MIN_SHOWN = 0.01
"""Smaller weights are not drawn."""
FIGURE_TYPES = ("png", "svg", "pdf")
TOKEN_INCHES = 0.28
"""Distance between tokens."""
LETTER_INCHES = 0.11
"""Approximate width of a letter; wide ones, such as Han, count twice."""
LONGEST_LABEL = 24
"""Longest label in characters; longer words are shortened in the middle."""
MANY_TOKENS = 40
"""Number of tokens above which a map has smaller cells."""
MAX_INCHES = 60
"""Longest side of a figure; larger figures would take gigabytes."""
DOTS, MAX_DOTS = 200, 8_000
"""Dots per inch, and most dots per side."""
LINES_INCHES = 2.2
"""Height of the lines between the upper and the lower tokens."""
LEGEND_INCHES = 0.9
"""Width of a head in the legend."""
BAR_INCHES = 0.8
"""Width of the colour bar."""
MOST_SIDE_BY_SIDE = 5
"""Most heads of a layer for grids side by side."""
MAX_DIGITS = 4
"""Most decimals of a head's value."""
SMALLEST_SCALE = 1e-9
"""Value of the darkest cell if no head has a larger one."""
HEADS_A_ROW = 4
"""Most maps side by side for long sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledHeads:
    """Attention weights of all layers and heads, with token labels."""

    weights: Float[Tensor, "layers heads queries keys"]
    queries: tuple[str, ...]
    keys: tuple[str, ...]


def draw_lines(
    labelled: LabelledHeads,
    layer: int,
    heads: Sequence[int],
    queries: Collection[int] | None = None,
) -> Figure:
    """Draw lines from queries, above, to keys, below, as in Figures 3 to 5.

    Each head has a colour, shown in the legend; the opacity of a line is its weight.
    Layer and heads count from 1. With `queries`, indices from 0, only their lines are
    drawn. The shorter side is spread to the width of the longer.
    """
    above, below = _labels(labelled.queries), _labels(labelled.keys)
    num_columns = max(len(above), len(below))
    width = max(TOKEN_INCHES * num_columns, 2.5) + 0.4
    top, bottom = _inches(above), _inches(below)
    legend_columns = max(int(width / LEGEND_INCHES), 1)
    legend_rows = -(-len(heads) // legend_columns)
    legend_height = 0.25 * (legend_rows + 1)
    height = legend_height + top + LINES_INCHES + bottom
    with matplotlib.rc_context(STYLE), drawn_in(fonts_for((*above, *below))):
        figure = new_figure(min(width, MAX_INCHES), height)
        figure.set_layout_engine("none")
        axes = figure.add_axes(
            (0.02, bottom / height, 0.96, LINES_INCHES / height),
        )
        axes.set(xlim=(-0.6, max(num_columns, 2) - 0.4), ylim=(0, 1))
        axes.set_axis_off()
        for number, head in enumerate(heads):
            shift = (number - (len(heads) - 1) / 2) / len(heads)
            _draw_head(axes, labelled, layer, head, queries, shift)
        _write_tokens(axes, above, num_columns, 1.02, "bottom", queries or ())
        _write_tokens(axes, below, num_columns, -0.02, "top", ())
        _write_legend(figure, layer, heads, legend_columns)
    return figure


def _write_legend(
    figure: Figure, layer: int, heads: Sequence[int], num_columns: int
) -> None:
    figure.legend(
        handles=[
            Line2D([], [], color=_colour(head), linestyle=_dashes(head), linewidth=2)
            for head in heads
        ],
        labels=[f"head {head}" for head in heads],
        title=f"layer {layer}",
        loc="upper center",
        ncols=num_columns,
        frameon=False,
        fontsize="small",
        title_fontsize="small",
        handlelength=1.2,
    )


def _colour(head: int) -> str:
    return HEAD_COLOURS[(head - 1) % len(HEAD_COLOURS)]


def _dashes(head: int) -> LineStyleType:
    return DASHES[(head - 1) // len(HEAD_COLOURS) % len(DASHES)]


def _labels(texts: Sequence[str]) -> list[str]:
    """Shorten labels, and replace characters without a font by code points.

    Characters that XML lacks become U+FFFD, as in drawings of trees.
    """
    fonts = fonts_for(texts)
    return [shortened_label(fonts.shown(xml_text(text))) for text in texts]


def shortened_label(text: str) -> str:
    """Cut a long label in the middle."""
    if len(text) <= LONGEST_LABEL:
        return text
    half = (LONGEST_LABEL - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def _inches(labels: Sequence[str]) -> float:
    """Length of the longest label in inches."""
    return 0.15 + LETTER_INCHES * max(map(cell_len, labels), default=0)


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
    drawn = [
        (i, j)
        for i, j in np.argwhere(weights >= MIN_SHOWN).tolist()
        if queries is None or i in queries
    ]
    lines = [
        [(above[i] + 0.2 * shift, 1), (below[j] + 0.2 * shift, 0)] for i, j in drawn
    ]
    axes.add_collection(
        LineCollection(
            lines,
            colors=_colour(head),
            alpha=[float(min(weights[i, j], 1)) for i, j in drawn],
            linestyles=_dashes(head),
            linewidths=2,
            capstyle="round" if _dashes(head) == "solid" else "butt",
        ),
        autolim=False,
    )


def _write_tokens(
    axes: Axes,
    labels: Sequence[str],
    num_columns: int,
    y: float,
    side: Literal["bottom", "top"],
    bold: Collection[int],
) -> None:
    places = _places(len(labels), num_columns)
    for number, (place, label) in enumerate(zip(places, labels, strict=True)):
        axes.text(
            place,
            y,
            literal(label),
            rotation=90,
            ha="center",
            va=side,
            fontweight="bold" if number in bold else "normal",
        )


def _places(count: int, num_columns: int) -> list[float]:
    """Horizontal positions of `count` tokens, spread evenly over the columns."""
    places: list[float] = np.linspace(0, num_columns - 1, count).tolist()
    return places


def draw_maps(labelled: LabelledHeads, layer: int, heads: Sequence[int]) -> Figure:
    """Draw heat maps of heads in a grid; layer and heads count from 1."""
    rows, columns = _labels(labelled.queries), _labels(labelled.keys)
    is_dense = max(len(rows), len(columns)) > MANY_TOKENS
    cell = TOKEN_INCHES / 2 if is_dense else TOKEN_INCHES
    width = max(cell * len(columns), 1) + _inches(rows) + 0.3
    height = max(cell * len(rows), 1) + _inches(columns) + 0.5
    in_a_row = min(len(heads), max(int(MAX_INCHES / width), 1))
    if len(heads) * width > MAX_INCHES / 2:
        in_a_row = min(in_a_row, HEADS_A_ROW)
    num_rows = -(-len(heads) // in_a_row)
    with matplotlib.rc_context(STYLE), drawn_in(fonts_for((*rows, *columns))):
        figure = new_figure(width * in_a_row + BAR_INCHES, height * num_rows)
        grid = figure.subplots(num_rows, in_a_row, squeeze=False)
        for axes, head in zip(grid.flat, heads, strict=False):
            _draw_map(axes, labelled.weights[layer - 1, head - 1].numpy())
            axes.set_title(f"layer {layer}, head {head}", fontsize="medium")
            axes.set_xticks(range(len(columns)), map(literal, columns), rotation=90)
            axes.set_yticks(range(len(rows)), map(literal, rows))
            axes.tick_params(labelsize="xx-small" if is_dense else "medium")
        for axes in grid.flat[len(heads) :]:
            axes.set_axis_off()
        _add_bar(figure, grid)
    return figure


def draw_overview(labelled: LabelledHeads) -> Figure:
    """Draw small heat maps of all heads of all layers."""
    num_layers, num_heads = labelled.weights.shape[:2]
    with matplotlib.rc_context(STYLE):
        figure = new_figure(1.3 * num_heads + BAR_INCHES + 0.4, 1.3 * num_layers + 0.7)
        figure.suptitle("each head as layer.head", fontsize="small")
        grid = figure.subplots(num_layers, num_heads, squeeze=False)
        for (layer, head), axes in np.ndenumerate(grid):
            _draw_map(axes, labelled.weights[layer, head].numpy(), "auto")
            axes.set(xticks=[], yticks=[], box_aspect=1)
            axes.set_title(f"{layer + 1}.{head + 1}", fontsize="small")
        _add_bar(figure, grid)
    return figure


def _draw_map(
    axes: Axes,
    weights: Float[np.ndarray, "queries keys"],
    aspect: Literal["equal", "auto"] = "equal",
) -> None:
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect=aspect)
    axes.spines[:].set_visible(True)
    axes.tick_params(length=0)


def _add_bar(figure: Figure, grid: Any) -> None:
    """Add a colour bar."""
    share = 0.3 / figure.get_figwidth()
    colours = ScalarMappable(Normalize(0, 1), "Blues")
    bar = figure.colorbar(colours, ax=grid, label="weight", fraction=share, aspect=15)
    bar.set_ticks([0, 0.5, 1])


def draw_heads(
    name: str,
    title: str,
    grids: Mapping[AttentionKind, Float[np.ndarray, "layers heads"]],
) -> Picture:
    """Draw the values of all heads of each kind of attention; NaN is unknown."""
    values = np.abs(np.concatenate([grid.ravel() for grid in grids.values()]))
    most = max([*values[np.isfinite(values)].tolist(), SMALLEST_SCALE])
    num_layers, num_heads = np.max([grid.shape for grid in grids.values()], axis=0)
    width, height = 0.62 * num_heads + 0.5, 0.5 * num_layers + 0.9
    # Always wide enough for three grids, so that fewer are not drawn larger; but a
    # page would make the digits of many heads side by side too small.
    in_a_row = len(ATTENTION_KINDS) if num_heads <= MOST_SIDE_BY_SIDE else 1
    num_rows = -(-len(grids) // in_a_row)
    with matplotlib.rc_context(STYLE):
        figure = new_figure(in_a_row * width, num_rows * height)
        all_axes = figure.subplots(num_rows, in_a_row, squeeze=False).flat
        for axes, (kind, grid) in zip(all_axes, grids.items(), strict=False):
            _draw_grid(axes, kind, grid, most)
        for axes in all_axes[len(grids) :]:
            axes.set_axis_off()
    return picture_of(figure, name, title)


def _draw_grid(
    axes: Axes,
    kind: AttentionKind,
    grid: Float[np.ndarray, "layers heads"],
    most: float,
) -> None:
    # Small values, such as increases of a loss, have two digits that are not 0.
    small = 1 - math.floor(math.log10(most))
    digits = min(max(2, small), MAX_DIGITS) if most > SMALLEST_SCALE else 2
    colours = matplotlib.colormaps["Blues"]
    for (layer, head), value in np.ndenumerate(grid):
        background = colours(abs(value) / most)
        is_known = not math.isnan(value)
        axes.text(
            head + 1,
            layer + 1,
            f"{value:z.{digits}f}" if is_known else "–",
            ha="center",
            va="center",
            fontsize="small",
            color=_clearer(background, ("white", DARK)) if is_known else INK,
        )
    num_layers, num_heads = grid.shape
    axes.imshow(
        np.abs(grid),
        cmap=colours,
        vmin=0,
        vmax=most,
        aspect="auto",
        extent=(0.5, num_heads + 0.5, num_layers + 0.5, 0.5),
    )
    axes.set(xlabel="head", ylabel="layer", title=kind)
    axes.set_xticks(range(1, num_heads + 1))
    axes.set_yticks(range(1, num_layers + 1))
    axes.tick_params(length=0)


def _clearer(background: ColorType, texts: Sequence[str]) -> str:
    """Colour of text with the greatest contrast to the background."""
    light = _luminance(background)

    def contrast(text: str) -> float:
        lower, upper = sorted((light, _luminance(text)))
        return (upper + 0.05) / (lower + 0.05)

    return max(texts, key=contrast)


def _luminance(colour: ColorType) -> float:
    """Relative luminance of a colour, as the web's rules for contrast define it."""
    shares = np.array(to_rgb(colour))
    linear = np.where(
        shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4
    )
    return float(linear @ (0.2126, 0.7152, 0.0722))


def check_figure_path(path: Path) -> None:
    """Raise `ConfigError` if the path ends in no known figure type."""
    if path.suffix.removeprefix(".").lower() not in FIGURE_TYPES:
        raise ConfigError(
            f"{path}: a figure must end in .{', .'.join(FIGURE_TYPES)}, but ends in "
            f'"{path.suffix}".'
        )


def write_figure(figure: Figure, path: Path, *, overwrite: bool) -> None:
    """Write PNG, SVG or PDF atomically.

    Raises `DataError` if that fails, and `ConfigError` if the file has any content and
    `overwrite` is false.
    """
    kind = path.suffix.removeprefix(".").lower()
    is_replaceable = path.is_file() or not path.exists()  # unlike pipes and devices
    # Without the date, the same figure always gives the same file.
    dates = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    try:
        with (
            (
                atomic_file(path, overwrite=overwrite)
                if is_replaceable
                else nullcontext(path)
            ) as new,
            matplotlib.rc_context(STYLE),
        ):
            dots = min(DOTS, int(MAX_DOTS / max(figure.get_size_inches())))
            figure.savefig(
                new, format=kind, dpi=dots, facecolor="white", metadata=dates[kind]
            )
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}).") from None


TRAINING, DEV, REWARD, *OTHERS = COLOURS
MARKERS = "^vPX"
"""Markers of further dev sets: with five colours, 20 that differ."""
CURVE_INCHES, ABOVE_INCHES, BELOW_INCHES = 3.6, 0.36, 0.5
"""Height of learning curves, and of the margins in it above and below the charts."""
ENTRY_INCHES = 0.2
"""Height of an entry of a legend below the charts."""
LEGEND_BELOW: dict[str, Any] = {
    "loc": "upper left",
    "bbox_to_anchor": (0, BELOW_INCHES / (ABOVE_INCHES + BELOW_INCHES - CURVE_INCHES)),
    "fontsize": 8,
    "handlelength": 1.5,
    "borderpad": 0,
    "borderaxespad": 0,
}
"""Place and size of such a legend."""
TOKENIZER = re.compile(r"\|tok:([^|]*)")
"""Pattern of the tokenizer in sacreBLEU's signature."""


def draw_learning_curve(log: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Draw loss and dev score of a run's log over its steps, as PNG."""
    entries = list(log)
    steps = [e for e in entries if e["kind"] == "step"]
    scores = [e for e in entries if e["kind"] == "dev"]
    others = _dev_sets(entries)
    # The curves and legends of further dev sets would cover each other.
    has_legend_below = len(others) > 0
    figure = _wide_figure(len(others) + 4 if has_legend_below else 0)
    loss_axes, quality_axes = figure.subplots(1, 2)
    _line(loss_axes, steps, "loss", "training (with dropout)", TRAINING)
    name = next((e["name"] for e in scores if "name" in e), "dev")
    styles = list(zip(others, cycle(OTHERS), cycle(MARKERS)))
    _line(loss_axes, scores, "loss", name, DEV, marker="o")
    for other, color, marker in styles:
        _line(loss_axes, others[other], "loss", other, color, marker)
    loss_axes.set_title(
        "smoothed loss, nats per target token", loc="left", fontsize="medium"
    )
    final = [e for e in entries if e["kind"] == "final"]
    key = "f1" if any("f1" in e for e in scores) else "bleu"
    _line(quality_axes, scores, key, f"{name}, greedy", DEV, marker="o")
    for other, color, marker in styles:
        _line(quality_axes, others[other], key, f"{other}, greedy", color, marker)
    _line(quality_axes, final, key, "final model, beam search", TRAINING, marker="D")
    label = "labelled bracket F1" if key == "f1" else _bleu_label(scores)
    quality_axes.set_title(label, loc="left", fontsize="medium")
    _draw_rewards(quality_axes, steps, scores)
    # The search for the best place takes long for many points, with a warning.
    for axes, place in ((loss_axes, "upper right"), (quality_axes, "lower right")):
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(visible=True, alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            shown = LEGEND_BELOW if has_legend_below else {"loc": place}
            axes.legend(frameon=False, **shown)
    figure.savefig(path, format="png", dpi=110)


def _wide_figure(num_entries: int) -> Figure:
    """Make a figure for two charts with room for legends below them."""
    below = ENTRY_INCHES * num_entries
    height = CURVE_INCHES + below
    figure = Figure(figsize=(9, height))
    FigureCanvasAgg(figure)
    # Fixed margins, because a layout engine draws everything twice.
    figure.subplots_adjust(
        left=0.08,
        right=0.965,
        bottom=(BELOW_INCHES + below) / height,
        top=1 - ABOVE_INCHES / height,
        wspace=0.22,
    )
    return figure


def _dev_sets(
    entries: Iterable[Mapping[str, Any]],
) -> dict[str, list[Mapping[str, Any]]]:
    """Scores of checkpoints on further dev sets, by name."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        if entry["kind"] == "dev set":
            found.setdefault(str(entry.get("name", "dev")), []).append(entry)
    return found


def _draw_rewards(
    axes: Axes,
    steps: Sequence[Mapping[str, Any]],
    scores: Sequence[Mapping[str, Any]],
) -> None:
    """Draw the reward of samples and of dev translations in percent, if logged."""
    sampled = [
        {**e, "reward": 100 * e["reward"]} for e in steps if e.get("reward") is not None
    ]
    _line(axes, sampled, "reward", "reward of samples", TRAINING)
    rewarded = [e for e in scores if "gleu" in e]
    _line(axes, rewarded, "gleu", "dev GLEU, greedy", REWARD, marker="s")


def _bleu_label(scores: Sequence[Mapping[str, Any]]) -> str:
    """Axis label of BLEU, with the tokenizer if the log has it."""
    found = TOKENIZER.search(scores[-1].get("signature", "")) if scores else None
    return f"sacreBLEU ({found[1]})" if found else "sacreBLEU"


def _line(
    axes: Axes,
    entries: Sequence[Mapping[str, Any]],
    key: str,
    label: str,
    color: str,
    marker: str = "",
) -> None:
    if entries:
        values = [e.get(key) for e in entries]
        around = [None, *values, None]
        # Without a neighbour, a value has no line.
        alone = [
            i for i in range(len(values)) if around[i] is None and around[i + 2] is None
        ]
        axes.plot(
            [e["step"] for e in entries],
            [math.nan if value is None else value for value in values],
            color=color,
            label=literal(label),
            marker=marker or ("." if alone else ""),
            markevery=None if marker else alone,
            markersize=4 if marker else 6,
        )
