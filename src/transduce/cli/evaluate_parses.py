"""`transduce evaluate-parses`: EVALB's scores of predicted trees."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transduce.cli.files import Files
from transduce.cli.lines import require_no_search, search_of
from transduce.cli.terminal import Json, print_json, warn
from transduce.data.treebank import before_number, read_both, read_gold
from transduce.decoding.native_decoder import PrecisionChoice
from transduce.decoding.parser import score_parses
from transduce.decoding.translator import load
from transduce.errors import ConfigError, DataError, counted, neither_or_both
from transduce.trees.bracket_f1 import (
    BracketScore,
    bracket_f1,
    evalb_report,
    with_tags_of,
)
from transduce.trees.trees import normalized


def evaluate_parses(
    gold: Path,
    predicted: Path | None = None,
    /,
    *,
    model: Path | None = None,
    ensemble: Files = (),
    beam_size: int | None = None,
    length_penalty: float | None = None,
    constrained: bool = False,
    normalize: bool = False,
    gold_tags: bool = False,
    allow_dropped: bool = False,
    json_output: Json = False,
    device: str = "auto",
    precision: PrecisionChoice = "auto",
    processes: int | None = None,
) -> None:
    """Score parses: EVALB's table and summary, with COLLINS.prm's parameters.

    Sentences whose words differ from the gold tree's are not scored; the command fails
    unless --allow-dropped is given.

    For example:

        transduce evaluate-parses test.trees --model runs/parser

    Parameters
    ----------
    gold
        Gold trees in brackets, each on one line or on several (all but the first
        indented).
    predicted
        Predicted trees, one for each gold tree, on one line or on several. (TOP) stands
        for a sentence without a parse; so does a blank line if each tree is on one
        line.
    model
        A model or run folder to parse the words of the gold trees, instead of predicted
        trees. Then all trees are normalized, words get the gold tags, and the number of
        repaired trees is reported.
    ensemble
        Further models; each symbol is chosen by the mean of all models' probabilities.
    beam_size
        Beam size of the search; by default the model's.
    length_penalty
        Alpha of the length penalty; by default the model's.
    constrained
        Restrict the search to well-formed trees over the words.
    normalize
        Remove traces and function tags and rename each root to TOP, in both files; a
        root of another name counts like any bracket.
    gold_tags
        Give the predicted words the gold tags. Tags identify punctuation, which is not
        compared; tagging accuracy is then meaningless.
    allow_dropped
        Only warn about sentences that are not scored.
    json_output
        Print one JSON object: sentences, all, and short (at most 40 words); for a model
        also mended (percent of repaired sentences) and repairs (by kind).
    device
        auto, cpu or cuda.
    precision
        Precision of matrix products: auto, which is fp32, and int8 for a quantized
        model on a CPU; fp32, which is exact; or bf16 or int8, which can be several
        times faster on a processor that supports them.
    processes
        Number of processes that share the sentences, each on one core; by default one
        for each core within affinity and CPU quota, at most OMP_NUM_THREADS and 16.
    """
    if predicted is not None and predicted.is_dir():
        raise ConfigError(
            f"{predicted}: the predicted trees must be a file, but this is a folder; "
            "give a model that parses by --model."
        )
    if predicted is not None and model is None:
        options = {
            "ensemble": ensemble or None,
            "beam_size": beam_size,
            "length_penalty": length_penalty,
            "constrained": constrained,
            "device": device,
            "precision": precision,
            "processes": processes,
        }
        require_no_search(options, "--model instead of predicted trees")
        score = _score_of_files(gold, predicted, normalize, gold_tags)
        _print(score, {}, json_output)
        _refuse_dropped(score, predicted, allow_dropped, gold_tags)
    elif model is not None and predicted is None:
        if normalize or gold_tags or allow_dropped:
            raise ConfigError(
                "--normalize, --gold-tags and --allow-dropped are for predicted trees, "
                "but --model is given; leave them out: a model's trees are normalized "
                "and have the gold tree's words and tags."
            )
        trees = read_gold(gold)
        translator = load(
            model,
            *ensemble,
            device=device,
            precision=precision,
            num_processes=processes,
        )
        settings = {"beam_size": beam_size, "length_penalty": length_penalty}
        search, parser = search_of(translator.search, settings), translator.parser()
        words = (tree.words for tree in trees)
        parses = list(parser.parse_stream(words, search, constrained=constrained))
        found = score_parses(trees, parses)
        repairs = {name: n for name, n in asdict(found.repairs).items() if n}
        mending = {"mended": found.mended, "repairs": repairs}
        _print(found.brackets, mending, json_output)
    else:
        raise ConfigError(
            "Either predicted trees or a --model must be given, but "
            f"{neither_or_both(are_given=model is not None)}"
        )


def _score_of_files(
    gold: Path, predicted: Path, normalize: bool, gold_tags: bool
) -> BracketScore:
    gold_trees, trees = read_both(gold, predicted)
    if normalize:
        gold_trees = list(map(normalized, gold_trees))
        trees = list(map(normalized, trees))
    if gold_tags:
        trees = list(map(with_tags_of, gold_trees, trees))
    return bracket_f1(gold_trees, trees)


def _print(score: BracketScore, mending: Mapping[str, Any], json_output: bool) -> None:
    if json_output:
        print_json({**asdict(score), **mending})
        return
    print(evalb_report(score))
    if mending:
        repairs = ", ".join(f"{n:,} {name}" for name, n in mending["repairs"].items())
        print(
            f"\nRepaired to be trees: {mending['mended']:.2f} % of sentences "
            f"({repairs or 'no repairs'})"
        )


def _refuse_dropped(
    score: BracketScore, predicted: Path, allow_dropped: bool, gold_tags: bool
) -> None:
    """Raise `DataError` for sentences with other words, or warn about each."""
    place = before_number(predicted, len(score.sentences))
    dropped = [
        f"{place}{number}: {sentence.fault}"
        for number, sentence in enumerate(score.sentences, start=1)
        if sentence.fault
    ]
    if dropped and not allow_dropped:
        is_one = len(dropped) == 1
        dropping = "is not scored, as its" if is_one else "are not scored, as their"
        tags = "" if gold_tags else "--gold-tags takes punctuation from the gold tree, "
        raise DataError(
            f"{dropped[0]}; {len(dropped):,} of "
            f"{counted(len(score.sentences), 'sentence')} {dropping} words are not "
            f"those of the gold tree ({tags}--allow-dropped accepts it)."
        )
    for fault in dropped:
        warn(f"{fault}; the sentence is not scored.")
