"""`transduce heads`: survey of the attention heads over a corpus."""

from dataclasses import asdict
from itertools import islice
from pathlib import Path

from transduce.analysis.grammar_heads import (
    SEED,
    grammar_sentences,
    survey_annotated,
    translator_and_pair,
)
from transduce.analysis.heads import survey_heads, tree_pairs, unit_of
from transduce.analysis.heads_report import as_report
from transduce.cli.files import Files, finish_report, lost_if_interrupted
from transduce.cli.lines import into_language_of, warn_of_other_languages
from transduce.cli.options import require_both
from transduce.cli.terminal import error_console
from transduce.data.treebank import read_treebank
from transduce.decoding.translator import load
from transduce.errors import ConfigError
from transduce.files import require_new_folder
from transduce.grammar.corpus import held_out_trees
from transduce.settings import require_between
from transduce.text.corpus import SentencePair, name_of, read_pairs, require_text
from transduce.trees.trees import Tree, normalized

MAX_SENTENCES = 1_000_000
"""Maximum number of sentences of a survey, which keeps their tokens in memory."""


def heads(
    model: Path,
    /,
    *,
    out: Path,
    force: bool = False,
    source: Files = (),
    target: Files = (),
    trees: Files = (),
    sentences: int = 500,
    device: str = "auto",
) -> None:
    """Survey the function and the importance of each attention head over a corpus.

    The built-in corpus, used by default for models from English into German or Chinese,
    also shows which heads resolve pronouns, which follow syntax, and how well attention
    aligns words.

    For example:

        transduce heads runs/mine --source test.en --target test.de --out heads

    Parameters
    ----------
    model
        A model or run folder.
    out
        A new folder for the report: Markdown with pictures, a page, and JSON.
    force
        Overwrite an older report in that folder.
    source
        Text files, one sentence per line.
    target
        Their translations, line by line. A model of several target languages
        translates into the one that their ending names (.de, .zh).
    trees
        Treebanks, for a parser; by default trees of the built-in corpus.
    sentences
        Number of pairs or trees, from the first on.
    device
        auto, cpu or cuda.
    """
    require_between("--sentences", sentences, 1, MAX_SENTENCES)
    require_both(source, target)
    require_new_folder(out, overwrite=force, made_by="heads")
    translator = load(model, device=device)
    if target:
        translator = into_language_of(translator, target)
        warn_of_other_languages(translator, model, source, target, is_chosen=False)
    annotated = None
    with lost_if_interrupted(out), error_console().status("Reading...") as status:
        if translator.symbols is not None:
            _require_none(source, "parses", "--trees")
            corpus = tree_pairs(translator.symbols, _trees(trees, sentences))
        else:
            _require_none(trees, "translates", "--source and --target")
            corpus = list(islice(read_pairs(source, target), sentences))
            if source:
                require_text(source[0], (pair.source for pair in corpus))
                require_text(target[0], (pair.target for pair in corpus))
            else:
                translator, pair = translator_and_pair(translator)
                spoken = grammar_sentences(sentences, pair)
                corpus = [
                    SentencePair(source=s.source, target=s.target) for s in spoken
                ]
                annotated = survey_annotated(translator, spoken)
        survey = survey_heads(translator, corpus, status.update)
    files = [*source, *trees]
    where = name_of(files[0]) if files else "the built-in corpus"
    figures = asdict(survey) | (asdict(annotated) if annotated else {})
    report = as_report(survey, annotated, str(model), where, unit_of(translator))
    finish_report(report, figures, out, "heads", overwrite=force)


def _require_none(files: Files, does: str, options: str) -> None:
    """Raise `ConfigError` if files of the other task are given."""
    if files:
        raise ConfigError(
            f"{files[0]}: the corpus of a model that {does} must be given by {options},"
            " but this file is given by another option."
        )


def _trees(files: Files, count: int) -> list[Tree]:
    """Return the first trees of treebanks, or of the built-in corpus."""
    if not files:
        return list(map(normalized, islice(held_out_trees(SEED), count)))
    return read_treebank(files)[:count]
