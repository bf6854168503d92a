"""`transduce evaluate-parses`: predicted trees against gold trees, as EVALB does it."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from transduce.errors import DataError
from transduce.parsing.bracket_f1 import (
    BracketScore,
    bracket_f1,
    require_pairs,
    with_tags_of,
)
from transduce.parsing.evalb_report import evalb_report
from transduce.parsing.normalization import normalized
from transduce.parsing.trees import Tree, read_parses
from transduce.text.corpus import read_text


def evaluate_parses(
    gold: Path,
    predicted: Path,
    /,
    *,
    normalize: Annotated[bool, Parameter(negative="")] = False,
    gold_tags: Annotated[bool, Parameter(negative="")] = False,
    allow_dropped: Annotated[bool, Parameter(negative="")] = False,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Score parses: EVALB's table and summary, with COLLINS.prm's parameters.

    A sentence whose words are not those of its gold tree is in no figure, so the
    command fails unless such sentences are allowed.

    Parameters
    ----------
    gold
        The true trees, one a line.
    predicted
        Theirs, line by line; a blank line where there is none.
    normalize
        Leave out traces and functions and call each root TOP, in both files: a root
        of another name is counted like any bracket.
    gold_tags
        Give the predicted words the tags of the gold tree. Tags say what is
        punctuation, which is not compared; their own accuracy then says nothing.
    allow_dropped
        Only warn of sentences that are in no figure.
    json_output
        Print one JSON object: sentences, all, and short (those of at most 40 words).
    """
    gold_trees = list(_trees(gold, normalize))
    predicted_trees = list(_trees(predicted, normalize))
    require_pairs(gold_trees, predicted_trees)
    if gold_tags:
        predicted_trees = list(map(with_tags_of, gold_trees, predicted_trees))
    score = bracket_f1(gold_trees, predicted_trees)
    print(json.dumps(asdict(score)) if json_output else evalb_report(score))
    dropped = [f"{predicted}:{fault}" for fault in _faults(score)]
    if dropped and not allow_dropped:
        raise DataError(
            f"{dropped[0]}; {len(dropped):,} of {len(gold_trees):,} sentences are in "
            "no figure for want of the gold tree's words (--allow-dropped accepts it)."
        )
    for fault in dropped:
        print(f"Warning: {fault}; the sentence is in no figure.", file=sys.stderr)


def _trees(path: Path, normalize: bool) -> Iterator[Tree]:
    trees = read_parses(read_text([path]), str(path))
    return map(normalized, trees) if normalize else trees


def _faults(score: BracketScore) -> Iterator[str]:
    for number, sentence in enumerate(score.sentences, start=1):
        if sentence.status != "valid":
            yield f"{number}: {sentence.fault}"
