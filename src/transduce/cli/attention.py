"""`transduce attention`: what a model attends to in a sentence."""

import sys
from pathlib import Path
from typing import Literal

from matplotlib.figure import Figure

from transduce.analysis.figures import (
    LabelledHeads,
    check_figure_path,
    draw_lines,
    draw_maps,
    draw_overview,
    write_figure,
)
from transduce.analysis.sentence_attention import (
    Granularity,
    as_page,
    as_record,
    look_into,
)
from transduce.cli.files import (
    STANDARD_OUTPUT,
    require_new,
    require_one_standard_output,
    writer,
)
from transduce.cli.lines import search_of
from transduce.cli.options import require_distinct
from transduce.cli.terminal import print_json
from transduce.decoding.translator import load
from transduce.errors import ConfigError, shortened
from transduce.files import is_utf8
from transduce.model.config import AttentionKind
from transduce.report.chart import advice, fonts_for

View = Literal["lines", "maps", "overview"]


def attention(
    model: Path,
    /,
    *,
    source: str,
    target: str | None = None,
    out: Path | None = None,
    figure: Path | None = None,
    json: bool = False,
    force: bool = False,
    view: View = "lines",
    kind: AttentionKind = "encoder-decoder",
    layer: int | None = None,
    heads: tuple[int, ...] = (),
    token: str | None = None,
    granularity: Granularity = "words",
    beam_size: int | None = None,
    length_penalty: float | None = None,
    device: str = "auto",
) -> None:
    """Show what a model attends to in a sentence: as a page, a picture or numbers.

    For example:

        transduce attention runs/mine --source "A dog runs." --out report.html

    Parameters
    ----------
    model
        A model or run folder.
    source
        The sentence, as text.
    target
        Its translation, or its tree in brackets if the model parses; by default the
        model's own.
    out
        File for a page with all layers and heads; the page needs no network.
    figure
        File for one picture: .png, .svg or .pdf.
    json
        Print the weights of all layers and heads as one JSON object.
    force
        Overwrite these files if they exist.
    view
        Kind of picture: lines, as in the paper's Figures 3 to 5, a heat map of each
        head, or an overview of all heads of all layers.
    kind
        Attention that the picture shows: encoder, decoder or encoder-decoder.
    layer
        Layer that lines or maps show, from 1; by default the last.
    heads
        Heads that lines or maps show, from 1; by default all.
    token
        Word or sub-word whose lines are drawn; by default all.
    granularity
        Units of the picture or the numbers: words or sub-words.
    beam_size
        Beam size of the search; by default the model's.
    length_penalty
        Exponent alpha of the length penalty; by default the model's.
    device
        auto, cpu or cuda.
    """
    if out is None and figure is None and not json:
        raise ConfigError(
            "There must be an output, but none is named; give --out for a page, "
            "--figure for a picture, or --json for numbers."
        )
    require_distinct("--heads", heads)
    _require_utf8("--source", source)
    _require_utf8("--target", target or "")
    require_one_standard_output((out, STANDARD_OUTPUT if json else None))
    require_new(out, force=force, others=(figure,), called="the picture")
    require_new(figure, force=force)
    if figure is not None:
        check_figure_path(figure)
        _refuse_unused(view, layer=layer, heads=heads, token=token)
        has_search = out is not None or json
        is_searched = (beam_size, length_penalty) != (None, None)
        if is_searched and target is not None and not has_search:
            raise ConfigError(
                "--beam-size and --length-penalty have no effect on a picture with "
                "--target; leave them out, or add --out or --json, which show the "
                "search."
            )
    else:
        is_of_picture = (view, kind) != ("lines", "encoder-decoder") or (
            bool(heads) or layer is not None or token is not None
        )
        _refuse_without_picture(is_of_picture, granularity, has_numbers=json)
    translator = load(model, device=device)
    settings = {"beam_size": beam_size, "length_penalty": length_penalty}
    seen = look_into(translator, source, target, search_of(translator.search, settings))
    if figure is not None:
        labelled = seen.pair.heads_of(kind, granularity)
        _write_picture(labelled, figure, view, layer, heads, token, overwrite=force)
    if json:
        print_json(as_record(seen, granularity))
    if out is not None:
        with writer(out, overwrite=force) as file:
            file.write(as_page(seen))


def _require_utf8(option: str, text: str) -> None:
    """Raise `ConfigError` for a text with bytes that are not UTF-8."""
    if not is_utf8(text):
        raise ConfigError(
            f"{option} must be valid UTF-8, but is {shortened(text)}; write it in a "
            "terminal whose locale is UTF-8."
        )


def _refuse_unused(
    view: View, *, layer: int | None, heads: tuple[int, ...], token: str | None
) -> None:
    """Raise `ConfigError` for an option that has no effect in a view."""
    unused = {
        "--layer": view == "overview" and layer is not None,
        "--heads": view == "overview" and heads != (),
        "--token": view != "lines" and token is not None,
    }
    for option, is_unused in unused.items():
        if is_unused:
            raise ConfigError(
                f"{option} has no effect with --view {view}; leave it out, or choose "
                "--view lines."
            )


def _refuse_without_picture(
    is_of_picture: bool, granularity: Granularity, *, has_numbers: bool
) -> None:
    """Raise `ConfigError` for options of a picture where none is written."""
    if is_of_picture:
        raise ConfigError(
            "--view, --kind, --layer, --heads and --token choose what a picture shows, "
            "but there is no --figure; add it, or leave them out: the page and the "
            "numbers are of everything."
        )
    if granularity != "words" and not has_numbers:
        raise ConfigError(
            "--granularity chooses the units of a picture or of numbers, but there is "
            "no --figure and no --json; add one of them, or leave it out: the page "
            "shows both."
        )


def _write_picture(
    labelled: LabelledHeads,
    path: Path,
    view: View,
    layer: int | None,
    heads: tuple[int, ...],
    token: str | None,
    *,
    overwrite: bool,
) -> None:
    """Draw some heads, and name letters that no font has."""
    layer = layer if layer is not None else len(labelled.weights)
    write_figure(_draw(labelled, view, layer, heads, token), path, overwrite=overwrite)
    words = () if view == "overview" else (*labelled.queries, *labelled.keys)
    if missing := fonts_for(words).missing:
        print(advice(missing), file=sys.stderr)


def _draw(
    labelled: LabelledHeads,
    view: View,
    layer: int,
    heads: tuple[int, ...],
    token: str | None,
) -> Figure:
    num_layers, num_heads = labelled.weights.shape[:2]
    _require_between("layer", layer, num_layers)
    for head in heads:
        _require_between("heads", head, num_heads)
    heads = heads or tuple(range(1, num_heads + 1))
    match view:
        case "lines":
            return draw_lines(labelled, layer, heads, _places(labelled, token))
        case "maps":
            return draw_maps(labelled, layer, heads)
        case "overview":
            return draw_overview(labelled)


def _require_between(name: str, value: int, maximum: int) -> None:
    if not 1 <= value <= maximum:
        raise ConfigError(f"--{name} must be from 1 to {maximum}, but is {value}.")


def _places(labelled: LabelledHeads, token: str | None) -> list[int] | None:
    """Return the positions of the token among the queries; all if none is named."""
    if token is None:
        return None
    places = [i for i, label in enumerate(labelled.queries) if label == token]
    if not places:
        raise ConfigError(
            f"--token must be one of {', '.join(labelled.queries)}, but is {token}."
        )
    return places
