"""`transduce heads`: what each head does over a corpus."""

from dataclasses import asdict
from itertools import islice
from pathlib import Path

from rich.console import Console

from transduce.analysis.head_survey.report import as_report
from transduce.analysis.head_survey.survey import (
    grammar_sentences,
    survey_annotated,
    survey_heads,
)
from transduce.cli.options import Files, require_both
from transduce.cli.reports import finish, require_new
from transduce.decoding.translator import load
from transduce.errors import ConfigError
from transduce.text.corpus import SentencePair, read_pairs


def heads(
    model: Path,
    /,
    *,
    out: Path,
    source: Files = (),
    target: Files = (),
    sentences: int = 500,
    device: str = "auto",
) -> None:
    """Survey what each head does over a corpus, and what it is worth.

    The built-in corpus, if no other is given, also tells which heads find what
    pronouns stand for, which follow syntax, and how well attention aligns words.

    Parameters
    ----------
    model
        A model or run folder.
    out
        A new folder for the report: Markdown with pictures, a page, and JSON.
    source
        Text files, one sentence a line.
    target
        Their translations, line by line.
    sentences
        How many pairs are looked at, the first ones.
    device
        auto, cpu or cuda.
    """
    if sentences < 1:
        raise ConfigError(f"`sentences` must be at least 1, but is {sentences}.")
    require_both(source, target)
    require_new(out)
    translator = load(model, device=device)
    translator.require_translation()
    network, tokenizer = translator.models[0].model, translator.tokenizer
    annotated = None
    with Console(stderr=True).status("Reading...") as status:
        if source:
            corpus = list(islice(read_pairs(source, target), sentences))
        else:
            spoken = grammar_sentences(sentences)
            corpus = [SentencePair(source=s.source, target=s.target) for s in spoken]
            annotated = survey_annotated(network, tokenizer, spoken)
        survey = survey_heads(network, tokenizer, corpus, status.update)
    where = str(source[0]) if source else "the built-in corpus"
    figures = asdict(survey) | (asdict(annotated) if annotated else {})
    finish(as_report(survey, annotated, str(model), where), figures, out, "heads")
