"""`transduce evaluate`: translations against references, by every protocol named."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from transduce.cli.options import Files
from transduce.decoding.beam_search import SearchConfig
from transduce.decoding.translator import load
from transduce.device import choose_hardware
from transduce.errors import ConfigError
from transduce.evaluation.bleu import (
    BleuScore,
    corpus_bleu,
    paper_bleu,
    tokenized_bleu,
)
from transduce.evaluation.chrf import ChrfScore, corpus_chrf
from transduce.text.corpus import read_text


def evaluate(
    model: Path | None = None,
    /,
    *,
    reference: Files,
    source: Files = (),
    hypothesis: Files = (),
    language: str = "de",
    beam_size: int = 4,
    length_penalty: float = 0.6,
    tokenized: Annotated[bool, Parameter(negative="")] = False,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
    device: str = "auto",
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
        Hypotheses kept at each step of the model's search.
    length_penalty
        Alpha of the model's search.
    tokenized
        The text is tokenised and lower-cased already, as the published Multi30k
        scores have it: print the BLEU of its words as well.
    json_output
        Print one JSON object.
    device
        auto, cpu or cuda.
    """
    references = list(read_text(reference))
    if (model is None) == (not hypothesis):
        raise ConfigError(
            "Either a model with --source or --hypothesis must be given, but not both."
        )
    if model is None:
        if source:
            raise ConfigError("A --source needs a model to translate it.")
        hypotheses = list(read_text(hypothesis))
    else:
        if not source:
            raise ConfigError("A model must have a --source to translate.")
        search = SearchConfig(beam_size=beam_size, length_penalty=length_penalty)
        translator = load(model, choose_hardware(device).device.type)
        translations = translator.translate_stream(read_text(source), search)
        hypotheses = [translation.text for translation in translations]
    scores = score_hypotheses(hypotheses, references, language, tokenized=tokenized)
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
