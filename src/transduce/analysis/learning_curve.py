"""The learning curve of a run as a picture."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

TRAINING, DEV = "#4477aa", "#ee6677"
TOKENIZER = re.compile(r"\|tok:([^|]*)")
"""Pattern of the tokenizer in sacreBLEU's signature."""


def draw_learning_curve(log: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Draw loss and, if there is a dev corpus, its score over the steps, as PNG."""
    entries = list(log)
    steps = [e for e in entries if e["kind"] == "step"]
    scores = [e for e in entries if e["kind"] == "dev"]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    loss_axes, quality_axes = figure.subplots(1, 2)
    _line(loss_axes, steps, "loss", "training (with dropout)", TRAINING)
    _line(loss_axes, scores, "loss", "dev", DEV, marker="o")
    loss_axes.set(xlabel="step", ylabel="smoothed loss, nats per target token")
    final = [e for e in entries if e["kind"] == "final"]
    key = "f1" if any("f1" in e for e in scores) else "bleu"
    _line(quality_axes, scores, key, "dev, greedy", DEV, marker="o")
    _line(quality_axes, final, key, "final model, beam search", TRAINING, marker="D")
    label = "labelled bracket F1" if key == "f1" else _bleu_label(scores)
    quality_axes.set(xlabel="step", ylabel=label)
    for axes in (loss_axes, quality_axes):
        axes.grid(visible=True, alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
    figure.savefig(path, dpi=110)


def _bleu_label(scores: Sequence[Mapping[str, Any]]) -> str:
    """Label of BLEU, with the tokenizer if the log has it."""
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
        axes.plot(
            [e["step"] for e in entries],
            [e.get(key, math.nan) for e in entries],
            color=color,
            label=label,
            marker=marker,
            markersize=4,
        )
