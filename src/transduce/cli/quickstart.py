"""`transduce quickstart`: the whole main job on the built-in corpus."""

import sys
import time
from pathlib import Path

from transduce.cli.display import TrainingDisplay
from transduce.cli.terminal import plain_console
from transduce.device import choose_hardware
from transduce.experiments.presets import PRESETS
from transduce.experiments.quickstart import QuickstartResult, run_quickstart


def quickstart(*, out: Path = Path("quickstart"), device: str = "auto") -> None:
    """Train, average, translate and score on the built-in corpus, in minutes.

    Parameters
    ----------
    out
        A new folder for the corpus and the run.
    device
        auto, cpu or cuda.
    """
    started = time.monotonic()
    hardware = choose_hardware(device, width=PRESETS["quickstart"].model.d_model)
    print("Writing sentences of the built-in English-German grammar ...", flush=True)
    with TrainingDisplay() as display:
        result = run_quickstart(out, hardware, display)
    _show(result, out, (time.monotonic() - started) / 60)


def _show(result: QuickstartResult, out: Path, minutes: float) -> None:
    console = plain_console()
    console.print("\nFive sentences with combinations of words never seen in training:")
    for example in result.examples:
        console.print(f"  {example.source}")
        console.print(f"    -> {example.translation}")
        if example.translation != example.reference:
            console.print(f"    expected: {example.reference}")
    # As this very command was called: it need not be on the path.
    transduce = sys.argv[0] if Path(sys.argv[0]).name == "transduce" else "transduce"
    console.print(
        f"\nBLEU on unseen sentences: {result.bleu.score:.2f}\n  {result.bleu}\n"
        f"Learning curve: {result.picture}\n"
        f"Time: {minutes:.1f} minutes\n\n"
        "Translate a sentence of your own:\n"
        "  echo 'The old lamp fell because it was heavy.' | "
        f"{transduce} translate {out}/run\n\n"
        "Train on your own two text files, line by line translations of each other:\n"
        f"  {transduce} check --source my.en --target my.de --preset multi30k\n"
        f"  {transduce} train --source my.en --target my.de --dev-source dev.en "
        "--dev-target dev.de \\\n"
        "    --preset multi30k --out runs/mine\n"
        "(multi30k suits tens of thousands of pairs; base and big, the paper's models, "
        "suit millions.)",
    )
