"""`transduce quickstart`: training, averaging and scoring on the built-in corpus."""

import shlex
import time
from pathlib import Path
from typing import Literal

from transduce.cli.launching import naming_resume_command
from transduce.cli.terminal import plain_console, program
from transduce.cli.training_display import TrainingDisplay
from transduce.device import choose_hardware
from transduce.errors import ConfigError
from transduce.experiments.presets import PRESETS
from transduce.experiments.quickstart import (
    ParsingResult,
    QuickstartResult,
    require_new_quickstart,
    run_parsing_quickstart,
    run_quickstart,
)
from transduce.grammar.corpus import Pair
from transduce.text.languages import english_name

SENTENCES: dict[Pair, str] = {
    "en-de": "The old lamp fell because it was heavy.",
    "en-zh": "The king sold the old lamp because it was very heavy.",
}
"""Example sentence for each pair, of words in the pair's corpus."""


def quickstart(
    *,
    out: Path = Path("quickstart"),
    task: Literal["translation", "parsing"] = "translation",
    pair: Pair = "en-de",
    force: bool = False,
    device: str = "auto",
) -> None:
    """Train, average, translate and score on the built-in corpus, in minutes.

    For example:

        transduce quickstart --out quickstart
        transduce quickstart --pair en-zh --out quickstart-zh

    Parameters
    ----------
    out
        A new folder for the corpus and the run.
    task
        Task to learn: translation (section 6.1) or parsing (section 6.3).
    pair
        Language pair: English to German or Chinese.
    force
        Overwrite an older quickstart in that folder.
    device
        auto, cpu or cuda.
    """
    if task == "parsing" and pair != "en-de":
        raise ConfigError(
            f"--pair {pair} needs --task translation, as parsing is only for English; "
            "leave one of them out."
        )
    require_new_quickstart(out, overwrite=force)
    started = time.monotonic()
    hardware = choose_hardware(device, width=PRESETS["quickstart"].model.d_model)
    source, target = map(english_name, pair.split("-"))
    print(
        f"Writing sentences of the built-in {source}-{target} grammar ...", flush=True
    )
    with TrainingDisplay() as display, naming_resume_command(out / "run", device):
        if task == "parsing":
            parsed = run_parsing_quickstart(out, hardware, display, overwrite=force)
            _show_parses(parsed, out, (time.monotonic() - started) / 60)
        else:
            result = run_quickstart(out, pair, hardware, display, overwrite=force)
            _show(result, pair, out, (time.monotonic() - started) / 60)


def _show(result: QuickstartResult, pair: Pair, out: Path, minutes: float) -> None:
    target = pair.split("-")[1]
    console = plain_console()
    console.print("\nFive sentences with combinations of words never seen in training:")
    for example in result.examples:
        console.print(f"  {example.source}")
        console.print(f"    -> {example.translation}")
        if example.translation != example.reference:
            console.print(f"    expected: {example.reference}")
    transduce, run = program(), shlex.quote(str(out / "run"))
    console.print(
        f"\nBLEU on unseen sentences: {result.bleu.score:.2f}\n  {result.bleu}\n"
        f"Learning curve: {result.picture}\n"
        f"Time: {minutes:.1f} minutes\n\n"
        "Translate a sentence of your own:\n"
        f"  echo '{SENTENCES[pair]}' | {transduce} translate {run}\n\n"
        "Train on your own two text files, line by line translations of each other:\n"
        f"  {transduce} check --source my.en --target my.{target} --preset multi30k\n"
        f"  {transduce} train --source my.en --target my.{target} --dev-source dev.en "
        f"--dev-target dev.{target} \\\n"
        "    --preset multi30k --out runs/mine\n"
        "(multi30k suits tens of thousands of pairs; base and big, the paper's models, "
        "suit millions.)",
    )


def _show_parses(result: ParsingResult, out: Path, minutes: float) -> None:
    console = plain_console()
    console.print("\nFive sentences with combinations of words never seen in training:")
    for tree in result.examples:
        console.print(f"  {tree}")
    console.print(
        f"\nOn unseen sentences: {result.score}\n"
        f"Learning curve: {result.picture}\n"
        f"Time: {minutes:.1f} minutes\n\n"
        "Parse a sentence of your own:\n"
        "  echo 'The old lamp fell because it was heavy.' | "
        f"{program()} parse {shlex.quote(str(out / 'run'))} --pretty\n\n"
        "Train on your own treebank, a tree in brackets a line:\n"
        f"  {program()} train --trees my.trees --dev-trees dev.trees \\\n"
        "    --preset parsing-small --out runs/parser\n"
        "(parsing-small suits thousands of trees; parsing-wsj and parsing-semi, the "
        "paper's, tens of thousands and millions.)",
    )
