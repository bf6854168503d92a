"""`transduce presets`: the presets, their sizes, and what each is for."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby

from transduce.architectures.config import num_parameters
from transduce.cli.help import print_entries, print_paragraph
from transduce.cli.settings import changed_settings
from transduce.cli.terminal import Json, print_json, table_console
from transduce.experiments.presets import ADAPT, BASE, PRESETS, TABLE_3, RunConfig

TRANSLATION = {
    "base": "The paper's base: millions of pairs",
    "big": "The paper's big: millions of pairs",
    "base-en-fr": "English-French: 32,000 word-pieces",
    "big-en-fr": "English-French: big, with dropout 0.1",
    "multi30k": "Tens of thousands of pairs",
    "multi30k-big": "The same, with twice the widths",
    "student-tiny": "Student of a large model (distill)",
    "student-tiny-ssru": "Student with a recurrent decoder (SSRU)",
    "quickstart": "The built-in corpus, in minutes",
}
RIVALS = {
    "rnnsearch-en-fr": "RNNsearch: millions of pairs",
    "rnnsearch-multi30k": "RNNsearch: tens of thousands of pairs",
    "gnmt-en-de": "GNMT: millions of pairs",
    "gnmt-en-fr": "GNMT: millions of pairs, dropout 0.2",
    "gnmt-multi30k": "GNMT: tens of thousands of pairs",
    "gnmt-rl-en-de": "GNMT, then updates by reward",
    "gnmt-rl-multi30k": "GNMT, then updates by reward",
    "deep-att-en-de": "Deep-Att: millions of pairs",
    "deep-att-en-fr": "Deep-Att: millions of pairs",
    "deep-att-multi30k": "Deep-Att: tens of thousands of pairs",
    "convs2s-en-de": "ConvS2S: millions of pairs",
    "convs2s-en-fr": "ConvS2S, English-French",
    "convs2s-multi30k": "ConvS2S: tens of thousands of pairs",
    "bytenet-en-de": "ByteNet: millions of pairs",
    "bytenet-multi30k": "ByteNet: tens of thousands of pairs",
    "moe-en-de": "MoE: millions of pairs",
    "moe-en-fr": "MoE: millions of pairs",
    "moe-multi30k": "MoE: tens of thousands of pairs",
    "moe-ffn-multi30k": "Transformer with mixtures of experts",
}
PARSING = {
    "parsing-wsj": "Section 6.3: 40,000 trees",
    "parsing-semi": "Section 6.3: 17 million trees",
    "parsing-small": "Thousands of trees",
    "parsing-quickstart": "The built-in trees, in minutes",
}
BOTH = {
    ADAPT: "A trained model (--from)",
    "tiny": "Trying commands out, in seconds",
}
"""Corpora that presets are for, by task; the other rows of Table 3 vary base."""

NAME_WIDTH, PARAMETERS_WIDTH, UPDATES_WIDTH = 18, 6, 9
"""Widths of the columns."""
ROW_WIDTH = NAME_WIDTH + 2 + PARAMETERS_WIDTH + 2 + UPDATES_WIDTH
MILLION = 1_000_000
ABOUT = "Presets: name, number of parameters, number of updates, and corpus."


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetSummary:
    """Purpose and sizes of a preset."""

    name: str
    group: str
    """Task of the preset, or Table 3."""
    purpose: str
    """Corpus that the preset is for; for a row of Table 3, its changes to base."""
    num_parameters: int | None
    """Number of parameters with a full vocabulary; None if it is that of the model that
    a run starts from."""
    steps: int
    """Number of updates."""
    target_tokens: int
    """Approximate number of target tokens of an update."""


def preset_summaries() -> Iterator[PresetSummary]:
    """Summaries of all presets, those of one group together."""
    rows = {
        name: _changes(row) for name, row in TABLE_3.items() if name not in TRANSLATION
    }
    for group, purposes in {
        "Translation": TRANSLATION,
        "Table 2, the paper's rivals": RIVALS,
        "Parsing": PARSING,
        "Translation and parsing": BOTH,
        "Table 3, changes to base": rows,
    }.items():
        for name, purpose in purposes.items():
            config = PRESETS[name]
            yield PresetSummary(
                name=name,
                group=group,
                purpose=purpose,
                num_parameters=None
                if name == ADAPT
                else num_parameters(config.sized_model),
                steps=config.training.steps,
                target_tokens=config.batching.target_tokens,
            )


def _changes(config: RunConfig) -> str:
    """Settings in which a row of Table 3 differs from base."""
    return ", ".join(
        f"{setting.key}={setting.value}" for setting in changed_settings(config, BASE)
    )


def presets(*, json_output: Json = False) -> None:
    """List the presets: number of parameters, number of updates, and purpose.

    A preset holds all settings of a run. `transduce train --preset NAME` uses one;
    `transduce settings NAME` lists its settings.

    For example:

        transduce presets
        transduce presets --json

    Parameters
    ----------
    json_output
        Print the list as JSON.
    """
    summaries = list(preset_summaries())
    if json_output:
        print_json([asdict(summary) for summary in summaries])
        return
    console = table_console()
    print_paragraph(console, ABOUT)
    for title, group in groupby(summaries, key=lambda summary: summary.group):
        rows = [(_row(summary), summary.purpose) for summary in group]
        print_entries(console, title, rows, ROW_WIDTH)


def _row(summary: PresetSummary) -> str:
    return (
        f"{summary.name:<{NAME_WIDTH}}  "
        f"{_size(summary.num_parameters):>{PARAMETERS_WIDTH}}  "
        f"{summary.steps:>{UPDATES_WIDTH},}"
    )


def _size(count: int | None) -> str:
    """Number of parameters in short, such as 63.1M."""
    if count is None:
        return "any"
    if count >= 1_000 * MILLION:
        return f"{count / MILLION / 1_000:.1f}B"
    if count < MILLION / 10:
        return f"{count / 1_000:.0f}k"
    return f"{count / MILLION:.1f}M"
