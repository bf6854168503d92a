"""`transduce align`: word alignment of given translations."""

from collections.abc import Iterator
from pathlib import Path

from transduce.cli.files import Files, require_new, writer
from transduce.cli.lines import into_language_of, warn_of_other_languages
from transduce.cli.terminal import warn
from transduce.decoding.alignment import MAX_ALIGNED_TOKENS, align_pairs
from transduce.decoding.native_decoder import PrecisionChoice
from transduce.decoding.translator import load, require_translation
from transduce.errors import listed_lines
from transduce.text.corpus import read_pairs


def align(
    model: Path,
    /,
    *,
    source: Files,
    target: Files,
    output: Path | None = None,
    force: bool = False,
    target_language: str | None = None,
    tag: str | None = None,
    device: str = "auto",
    precision: PrecisionChoice = "auto",
) -> None:
    """Link the words of given translations to those of their sources, by attention.

    Each line has the links of a pair in Pharaoh format: 0-0 1-2 links the first words
    of both sides, and the second word of the source with the third of the target. Words
    are separated by white space. The layer of cross-attention is the one that aligns
    the first 256 pairs best.

    For example:

        transduce align runs/mine --source test.en --target test.de

    Parameters
    ----------
    model
        A model or run folder.
    source
        Text files, one sentence per line.
    target
        Their translations, line by line.
    output
        A file to write; - is standard output, the default.
    force
        Overwrite the output if it exists.
    target_language
        Language to translate into, of a model with several target languages: its tag,
        such as >>de<<, is put before each line that does not begin with one. By default
        that of the targets' ending (.de, .zh), or else the model's own, or the first of
        its languages.
    tag
        Tag of a corpus of the training, such as bt for <bt>, before each line.
    device
        auto, cpu or cuda.
    precision
        Precision of matrix products: auto, which is fp32, and int8 for a quantized
        model on a CPU; fp32, which is exact; or bf16 or int8, which can be several
        times faster on a processor that supports them.
    """
    require_new(output, force=force, others=(*source, *target))
    translator = load(
        model,
        device=device,
        precision=precision,
        target_language=target_language,
        tag=tag,
    )
    require_translation(translator)
    is_chosen = target_language is not None
    if not is_chosen:
        translator = into_language_of(translator, target)
    warn_of_other_languages(translator, model, source, target, is_chosen=is_chosen)

    def pairs() -> Iterator[tuple[str, str]]:
        for pair in read_pairs(source, target):
            yield pair.source, pair.target

    unlinked: list[int] = []
    with writer(output, overwrite=force) as file:
        for number, each in enumerate(align_pairs(translator, pairs()), start=1):
            file.write(f"{each}\n")
            if each.source and each.target and not each.links:
                unlinked.append(number)
    if unlinked:
        warn(
            f"there are no links for {listed_lines(unlinked)}: a side has "
            f"{MAX_ALIGNED_TOKENS} or more tokens, or characters that the vocabulary "
            "lacks."
        )
