"""`transduce split`: training, dev and test text from one corpus."""

from pathlib import Path

from transduce.cli.check import train_command
from transduce.cli.files import Files
from transduce.cli.options import text_files
from transduce.data.corpus_files import (
    CorpusFiles,
    default_held_out,
    read_through,
    require_choice,
    write_split,
)
from transduce.errors import ConfigError, counted
from transduce.files import atomic_directory, require_new_folder, require_without
from transduce.text.corpus import aligned_lines
from transduce.text.languages import guess_all


def split(
    *,
    source: Files,
    target: Files,
    out: Path,
    dev: int | None = None,
    test: int | None = None,
    seed: int = 1,
    force: bool = False,
) -> None:
    """Split a parallel corpus into training, dev and test text.

    Pairs are selected at random by their source; all pairs with the same source stay
    together, so that no held-out source is also in training.

    For example:

        transduce split --source my.en --target my.de --test 1000 --out split

    Parameters
    ----------
    source
        Text files, one sentence per line, plain or compressed.
    target
        Their translations, line by line.
    out
        Folder of the files: train.en, train.de, dev.en, ..., with the endings of the
        languages if known, otherwise .source and .target.
    dev
        Number of dev pairs; by default one in a hundred, at least 200 and at
        most 2,000.
    test
        Number of test pairs; by default there is no test text.
    seed
        Seed of the random selection.
    force
        Overwrite an older split in that folder.
    """
    text_files(source, target, (), ())  # raises unless a corpus can be read from them
    require_without(out, (*source, *target))
    require_new_folder(out, overwrite=force, made_by="split")
    read_through(source, target)
    sizes = [_default_dev_size(source, target) if dev is None else dev]
    sizes += [] if test is None else [test]
    choice = require_choice(source, target, sizes, seed)
    names = ("train", "dev", "test")[: 1 + len(sizes)]
    endings = guess_all(source) or "source", guess_all(target) or "target"
    if endings[0] == endings[1]:
        endings = "source", "target"

    with atomic_directory(out, "split", overwrite=force) as new:
        outputs = [
            (new / f"{name}.{endings[0]}", new / f"{name}.{endings[1]}")
            for name in names
        ]
        counts = write_split(source, target, choice, outputs)
    for name, count in zip(names, counts, strict=True):
        files = " ".join(f"{name}.{ending}" for ending in endings)
        print(f"{counted(count, 'pair'):>20}  {files}")
    if (left_out := choice.num_read - sum(counts)) > 0:
        print(
            "Left out of the training text, as their sources are held out: "
            f"{counted(left_out, 'pair')}."
        )
    train, held_out = (
        [(out / f"{name}.{ending}",) for ending in endings] for name in names[:2]
    )
    parts = CorpusFiles(
        source=train[0],
        target=train[1],
        dev_source=held_out[0],
        dev_target=held_out[1],
    )
    print(f"Train on them:\n  {train_command(parts)}")


def _default_dev_size(source: Files, target: Files) -> int:
    num_pairs = sum(1 for _ in aligned_lines(source, target))
    if (number := default_held_out(num_pairs)) is None:
        raise ConfigError(
            f"{source[0]}: a corpus of {counted(num_pairs, 'pair')} is too small "
            "for the default size of the dev text; give --dev NUMBER."
        )
    return number
