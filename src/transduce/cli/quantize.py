"""`transduce quantize`: a model folder a quarter as large, with weights in 8 bits."""

from pathlib import Path

from transduce.cli.files import Force, require_new_folder
from transduce.decoding.quantization import quantize as quantize_model
from transduce.model_folder import WEIGHTS

MEGABYTE = 10**6


def quantize(model: Path, /, *, out: Path, force: Force = False) -> None:
    """Write a model a quarter as large, with weights in 8 bits.

    Translations and scores are exactly those of the original with --precision int8,
    which is the new model's precision on a CPU. It cannot be trained, averaged or
    exported, so quantize last.

    For example:

        transduce quantize runs/mine --out mine-int8

    Parameters
    ----------
    model
        A model or run folder.
    out
        The folder of the new model.
    force
        Overwrite an older model in that folder.
    """
    require_new_folder(out, force=force, holding=WEIGHTS)
    made = quantize_model(model, out, overwrite=force)
    before, after = made.bytes_before / MEGABYTE, made.num_bytes / MEGABYTE
    print(
        f"The quantized model is in {out}: {after:,.1f} MB of weights instead of "
        f"{before:,.1f} MB ({made.num_bytes / made.bytes_before:.0%})."
    )
