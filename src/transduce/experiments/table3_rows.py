"""The rows of Table 3 at any scale: each row's change, applied to a smaller base.

The scale is a factor on the widths `d_model`, `d_ff`, `d_k` and `d_v` and on the
vocabulary. Heads and layers keep their numbers, so that heads times `d_k` stays
`d_model` and every row is there to be tried. What a row changes in size or in steps, it
changes by the paper's factor; dropout, smoothing and positions are as the row has them.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, TypeVar

from transduce.errors import ConfigError
from transduce.experiments.presets import BASE, TABLE_3, RunConfig
from transduce.model.config import ModelConfig
from transduce.training.config import TrainingConfig

WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
BY_FACTOR = (*WIDTHS, "num_heads", "num_layers", "steps")
"""What a row changes by a factor."""
PARTS = 8
"""Of the paper's widths, one is the least scale and the step between two: then each
head of each row has an even width, as sinusoids want it."""
WARMUP_SHARE = 5
"""Of fewer steps than the paper's, every fifth at most warms up."""

MULTI30K_SCALE, MULTI30K_STEPS = 0.25, 2_000
"""Some 2 million tokens, five passes: without matrix units, 8 minutes of one core for
base, four hours for all rows."""

Part = TypeVar("Part", ModelConfig, TrainingConfig)


def scaled_base(scale: float = 1.0, steps: int | None = None) -> RunConfig:
    """The paper's base model with narrower layers, and with as many steps.

    No checkpoints are averaged in Table 3, so one is enough.
    """
    if not 1 <= scale * PARTS <= PARTS or scale * PARTS % 1:
        raise ConfigError(
            f"`scale` must be a multiple of 1/{PARTS} from 1/{PARTS} to 1, but is "
            f"{scale:g}."
        )
    if steps is None:
        steps = BASE.training.steps
    widths: dict[str, Any] = {
        name: int(getattr(BASE.model, name) * scale) for name in WIDTHS
    }
    warmup_steps = min(BASE.training.warmup_steps, max(steps // WARMUP_SHARE, 1))
    return replace(
        BASE,
        tokenizer=replace(
            BASE.tokenizer, vocab_size=int(BASE.tokenizer.vocab_size * scale)
        ),
        model=replace(BASE.model, **widths),
        training=replace(
            BASE.training, steps=steps, warmup_steps=warmup_steps, keep_checkpoints=1
        ),
    )


def base_for(corpus: str | None, scale: float | None, steps: int | None) -> RunConfig:
    """The base at that scale; if none is named, at one that suits the corpus.

    That is the paper's own, but for Multi30k, whose sentences are too few for it: there
    it is one of half the layers and of small updates, for which two cores are enough.
    """
    if corpus != "multi30k" or scale is not None:
        return scaled_base(1.0 if scale is None else scale, steps)
    base = scaled_base(MULTI30K_SCALE, MULTI30K_STEPS if steps is None else steps)
    return replace(
        base,
        tokenizer=replace(base.tokenizer, vocab_size=6_000),
        model=replace(base.model, num_layers=BASE.model.num_layers // 2),
        batching=replace(
            base.batching, source_tokens=1_024, target_tokens=1_024, batch_tokens=1_024
        ),
    )


def row_config(base: RunConfig, row: str) -> RunConfig:
    """A row's change of the paper's base, applied to another.

    `ConfigError` if it cannot be, or changes nothing.
    """
    paper = TABLE_3[row]
    config = replace(
        base,
        model=_changed(base.model, BASE.model, paper.model, row),
        training=_changed(
            base.training,
            BASE.training,
            replace(paper.training, keep_checkpoints=BASE.training.keep_checkpoints),
            row,
        ),
    )
    if row != "base" and config == base:
        raise ConfigError(
            f"Row {row} must differ from base, but with these settings does not; leave "
            "it out of --rows, or change the settings."
        )
    return config


def require_rows(rows: tuple[str, ...]) -> list[str]:
    """Rows in the paper's order, base always among them; all if none is named.

    `ConfigError` names the nearest of one that there is not.
    """
    for row in rows:
        if row not in TABLE_3:
            nearest = get_close_matches(row, TABLE_3, n=1, cutoff=0.0)[0]
            raise ConfigError(
                f"A row must be one of {', '.join(TABLE_3)}, but is {row!r}; did you "
                f"mean {nearest!r}?"
            )
    return [row for row in TABLE_3 if not rows or row in (*rows, "base")]


def settings(config: RunConfig) -> dict[str, Any]:
    """Every setting by its full name."""
    return dict(_flattened(asdict(config), ""))


def changes(config: RunConfig, base: RunConfig) -> dict[str, Any]:
    """The settings that are not those of another run, by full name."""
    theirs = settings(base)
    return {k: value for k, value in settings(config).items() if value != theirs[k]}


def _changed(base: Part, paper_base: Part, paper_row: Part, row: str) -> Part:
    new: dict[str, Any] = {}
    for name in (field.name for field in fields(base)):
        before, after = getattr(paper_base, name), getattr(paper_row, name)
        if after != before:
            is_size = name in BY_FACTOR
            ours = getattr(base, name)
            new[name] = _sized(row, name, ours, before, after) if is_size else after
    return replace(base, **new)


def _sized(row: str, name: str, ours: int, before: int, after: int) -> int:
    factor = Fraction(after, before)
    size = factor * ours
    if size.denominator > 1:
        raise ConfigError(
            f"`{name}` of row {row} must be a whole number, but is {factor} of the "
            f"base's {ours}; leave the row out of --rows, or set another base."
        )
    return int(size)


def _flattened(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """The right half of a row; newstest2013, English to German."""

    perplexity: float
    """Of a piece of the paper's byte-pair encoding."""
    bleu: float
    """By beam search, without averaging of checkpoints."""
    millions: int
    """Parameters; a row without a number is as large as base."""

    @property
    def difference(self) -> float:
        """From base, in BLEU."""
        return round(self.bleu - PAPER_ROWS["base"].bleu, 1)


PAPER_ROWS = {
    "base": PaperRow(perplexity=4.92, bleu=25.8, millions=65),
    "A-h1": PaperRow(perplexity=5.29, bleu=24.9, millions=65),
    "A-h4": PaperRow(perplexity=5.00, bleu=25.5, millions=65),
    "A-h16": PaperRow(perplexity=4.91, bleu=25.8, millions=65),
    "A-h32": PaperRow(perplexity=5.01, bleu=25.4, millions=65),
    "B-dk16": PaperRow(perplexity=5.16, bleu=25.1, millions=58),
    "B-dk32": PaperRow(perplexity=5.01, bleu=25.4, millions=60),
    "C-N2": PaperRow(perplexity=6.11, bleu=23.7, millions=36),
    "C-N4": PaperRow(perplexity=5.19, bleu=25.3, millions=50),
    "C-N8": PaperRow(perplexity=4.88, bleu=25.5, millions=80),
    "C-d256": PaperRow(perplexity=5.75, bleu=24.5, millions=28),
    "C-d1024": PaperRow(perplexity=4.66, bleu=26.0, millions=168),
    "C-ff1024": PaperRow(perplexity=5.12, bleu=25.4, millions=53),
    "C-ff4096": PaperRow(perplexity=4.75, bleu=26.2, millions=90),
    "D-drop0": PaperRow(perplexity=5.77, bleu=24.6, millions=65),
    "D-drop0.2": PaperRow(perplexity=4.95, bleu=25.5, millions=65),
    "D-smooth0": PaperRow(perplexity=4.67, bleu=25.3, millions=65),
    "D-smooth0.2": PaperRow(perplexity=5.47, bleu=25.7, millions=65),
    "E-learned": PaperRow(perplexity=4.92, bleu=25.7, millions=65),
    "big": PaperRow(perplexity=4.33, bleu=26.4, millions=213),
}
"""By the names of our presets, in the paper's order."""
