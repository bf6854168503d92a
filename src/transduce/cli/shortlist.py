"""`transduce shortlist`: candidates of target pieces, for faster translation."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean

import numpy as np

from transduce.cli.files import Files
from transduce.cli.options import require_both
from transduce.cli.terminal import plain_console
from transduce.data.corpus_files import require_files
from transduce.data.dataset import open_dataset, require_ids_below
from transduce.data.prepared_corpus import TRAINING
from transduce.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    RequestError,
    counted,
)
from transduce.files import atomic_file, is_disk_full, require_place
from transduce.machine import num_threads
from transduce.model_folder import change_search, find_model, open_model
from transduce.text.alignment import EncodedPairs
from transduce.text.corpus import read_pairs, read_text
from transduce.text.languages import require_language_of_files
from transduce.text.shortlist import (
    MAX_PIECES,
    SHORTLIST_FILE,
    Shortlist,
    encode_pairs,
    learn_shortlist,
    require_sizes,
    shortlist_of_alignments,
)

TRIED_PAIRS = 1_000
"""Sentence pairs on which the shortlist is tried."""


def shortlist(
    model: Path,
    /,
    *,
    source: Files = (),
    target: Files = (),
    alignments: Path | None = None,
    frequent: int = 100,
    per_piece: int = 100,
    make_default: bool = False,
) -> None:
    """Count a shortlist: the target pieces among which a translation chooses.

    `translate --shortlist` and `serve --shortlist` then compute the output layer for
    some hundred pieces instead of the whole vocabulary. A line's candidates are the
    most frequent target pieces, the best ones of each of its source pieces, and its
    source pieces themselves. IBM model 1 finds the best ones, in both directions.

    The shortlist is kept in the model's folder and replaces the one that is there.

    For example:

        transduce shortlist runs/mine
        transduce shortlist model --source train.en --target train.de

    Parameters
    ----------
    model
        A model or run folder. Of a run, the model that `translate` uses gets the
        shortlist.
    source
        Text of the source language, one sentence per line; by default the training
        text of the run.
    target
        Its translations, line by line.
    alignments
        Word alignments of the text in Pharaoh format (0-0 1-2), one line for each
        pair, instead of IBM model 1; words are separated by spaces or tabs.
    frequent
        Number of most frequent target pieces that are candidates of every line.
    per_piece
        Number of candidates of each source piece.
    make_default
        Use the shortlist in all commands that search with this model, unless
        `translate` or `serve` is given --no-shortlist.
    """
    _require_usable(source, target, alignments)
    require_sizes(frequent, per_piece)
    folder = find_model(model)
    path = folder / SHORTLIST_FILE
    require_place(path)
    opened = open_model(folder, with_shortlist=False)
    if opened.symbols is not None:
        raise RequestError(
            f"{model}: a shortlist must be of a model that translates, but this one "
            "parses."
        )
    tokenizer = opened.tokenizer
    require_language_of_files(model, "source", opened.source_language, source)
    if not tokenizer.language_tags:  # otherwise it has several target languages
        require_language_of_files(model, "target", opened.target_language, target)
    # Given alignments are counted in pairs of any length.
    longest = MAX_PIECES if alignments is None else math.inf
    if source:
        pairs = encode_pairs(_text_pairs(source, target), tokenizer, longest)
    else:
        pairs = _pairs_of_run(model, tokenizer.vocab_size)
    if not len(pairs):
        least = f"1 to {MAX_PIECES} pieces" if alignments is None else "text"
        raise DataError(
            "A shortlist must be learned from sentence pairs, but there are none with "
            f"{least} on each side; give more text."
        )
    if alignments is None:
        learned = learn_shortlist(
            pairs,
            tokenizer,
            frequent=frequent,
            per_piece=per_piece,
            num_threads=num_threads(),
        )
    else:
        learned = shortlist_of_alignments(
            _text_pairs(source, target),
            read_text([alignments]),
            tokenizer,
            origin=str(alignments),
            frequent=frequent,
            per_piece=per_piece,
        )
    _write(learned, path)
    if make_default:
        change_search(folder, partial(replace, shortlist=True))
    plain_console().print(
        f"Sentence pairs: {len(pairs):,}\n"
        f"Candidates of a line: {_mean_candidates(learned, pairs):,.0f} of "
        f"{counted(learned.vocab_size, 'piece')} on average\n"
        f"Shortlist: {path}"
    )


def _require_usable(source: Files, target: Files, alignments: Path | None) -> None:
    """Raise `ConfigError` if files are missing, or are to be read twice but cannot."""
    require_both(source, target)
    if alignments is None:
        return
    if not source:
        raise ConfigError(
            "--alignments needs the text that is aligned; give --source and --target."
        )
    require_files((*source, *target), "aligned text")


def _text_pairs(
    source: Sequence[Path], target: Sequence[Path]
) -> Iterator[tuple[str, str]]:
    for pair in read_pairs(source, target):
        yield pair.source, pair.target


def _pairs_of_run(run: Path, vocab_size: int) -> EncodedPairs:
    """Return the training pairs of a run without those that are too long."""
    if not (run / TRAINING).is_dir():
        raise ConfigError(
            f"{run}: a model without the text of its run needs --source and --target; "
            "give the text that it was trained on."
        )
    dataset = open_dataset(run / TRAINING)
    require_ids_below(dataset, run / TRAINING, vocab_size, vocab_size)
    lengths = [np.diff(side.offsets) for side in (dataset.source, dataset.target)]
    shorter, longer = np.minimum(*lengths), np.maximum(*lengths)
    kept = dataset.picked(np.flatnonzero((shorter > 0) & (longer <= MAX_PIECES)))
    return EncodedPairs(
        sources=kept.source.ids.astype(np.int32),
        targets=kept.target.ids.astype(np.int32),
        source_ends=kept.source.offsets[1:].astype(np.int64),
        target_ends=kept.target.offsets[1:].astype(np.int64),
    )


def _write(learned: Shortlist, path: Path) -> None:
    try:
        with atomic_file(path) as new:
            learned.save(new)
    except OSError as error:
        remedy = "free some space" if is_disk_full(error) else "correct that"
        raise CheckpointError(
            f"{path}: the shortlist cannot be written ({error.strerror or error}); "
            f"{remedy} and try again. The old one stays, if there is one."
        ) from None


def _mean_candidates(learned: Shortlist, pairs: EncodedPairs) -> float:
    """Return the mean number of candidates of the first sentence pairs."""
    base = learned.base()
    tried = islice(pairs, TRIED_PAIRS)
    return fmean(len(learned.candidates(source, base)) for source, _ in tried)
