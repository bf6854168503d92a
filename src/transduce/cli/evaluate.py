"""`transduce evaluate`: translations against references, by every protocol named."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from transduce.cli.files import Files
from transduce.decoding.next_token_models.ready_model import DecodingPrecision
from transduce.decoding.translator import load
from transduce.errors import ConfigError
from transduce.evaluation.bleu import (
    BleuScore,
    corpus_bleu,
    paper_bleu,
    tokenized_bleu,
)
from transduce.evaluation.chrf import ChrfScore, corpus_chrf
from transduce.text.corpus import read_pairs


def evaluate(
    model: Path | None = None,
    /,
    *,
    reference: Files,
    source: Files = (),
    hypothesis: Files = (),
    language: str = "de",
    beam_size: int | None = None,
    length_penalty: float | None = None,
    tokenized: Annotated[bool, Parameter(negative="")] = False,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
    device: str = "auto",
    precision: DecodingPrecision = "fp32",
    processes: int | None = None,
) -> None:
    """Score translations against references: sacreBLEU, the paper's BLEU, chrF.

    Parameters
    ----------
    model
        A model or run folder that translates the source; or give --hypothesis.
    reference
        The true translations, one a line.
    source
        What the model is to translate.
    hypothesis
        Translations already made.
    language
        Of the target, for the paper's tokenisation; compounds are split in "de".
    beam_size
        Hypotheses kept at each step of the model's search; those of its run by
        default.
    length_penalty
        Alpha of the model's search; that of its run by default.
    tokenized
        The text is tokenised and lower-cased already, as the published Multi30k
        scores have it: print the BLEU of its words as well.
    json_output
        Print one JSON object.
    device
        auto, cpu or cuda.
    precision
        Of matrix products: fp32 is exact; bf16 and int8 are up to several times as
        fast on a processor that is made for them.
    processes
        Copies of the program that search at the same time, each on one core, where
        there are many sentences; by default one for each core, or as many as
        OMP_NUM_THREADS says, and at most 16.
    """
    if (model is None) == (not hypothesis):
        raise ConfigError(
            "Either a model with --source or --hypothesis must be given, but not both."
        )
    if (model is None) != (not source):
        raise ConfigError("A --source and a model to translate it must go together.")
    # Both are read, and found to be aligned, before anything is translated.
    pairs = list(read_pairs(hypothesis or source, reference))
    references = [pair.target for pair in pairs]
    texts = [pair.source for pair in pairs]
    if model is not None:
        translator = load(
            model, device=device, precision=precision, num_processes=processes
        )
        settings = {"beam_size": beam_size, "length_penalty": length_penalty}
        search = translator.search.given(settings)
        texts = [found.text for found in translator.translate_stream(texts, search)]
    scores = score_hypotheses(texts, references, language, tokenized=tokenized)
    if json_output:
        print(json.dumps([asdict(score) for score in scores], indent=2))
    else:
        for score in scores:
            print(score)


def score_hypotheses(
    hypotheses: list[str], references: list[str], language: str, *, tokenized: bool
) -> list[BleuScore | ChrfScore]:
    """Every score there is, by name."""
    scores: list[BleuScore | ChrfScore] = [
        corpus_bleu(hypotheses, references),
        paper_bleu(hypotheses, references, language),
        corpus_chrf(hypotheses, references),
    ]
    if tokenized:
        scores.insert(0, tokenized_bleu(hypotheses, references, lowercase=True))
    return scores
