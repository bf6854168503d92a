"""`transduce quantize`: a model folder a quarter as large, with weights in 8 bits."""

from pathlib import Path

from transduce.model_folder import quantize as quantize_model


def quantize(model: Path, /, *, out: Path, force: bool = False) -> None:
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
        Overwrite an older quantized model in that folder.
    """
    made = quantize_model(model, out, overwrite=force)
    print(
        f"The quantized model is in {out}: {_size(made.num_bytes)} of weights instead "
        f"of {_size(made.bytes_before)} ({made.num_bytes / made.bytes_before:.0%})."
    )


def _size(num_bytes: int) -> str:
    if num_bytes < 10**6:
        return f"{num_bytes / 10**3:,.1f} kB"
    return f"{num_bytes / 10**6:,.1f} MB"
