"""`transduce evaluate`: BLEU and chrF of translations, each with its protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from transduce.cli.files import Files
from transduce.cli.lines import (
    into_language_of,
    require_no_search,
    search_of,
    warn_of_other_languages,
)
from transduce.cli.terminal import Json, print_json
from transduce.decoding.native_decoder import PrecisionChoice
from transduce.decoding.translator import load
from transduce.errors import ConfigError, DataError, counted, neither_or_both
from transduce.metrics.scores import (
    BleuScore,
    ChrfScore,
    Tokenization,
    Tokenize,
    choose_tokenization,
    corpus_bleu,
    corpus_chrf,
    language_for_paper_bleu,
    paper_bleu,
    tokenized_bleu,
)
from transduce.text.corpus import (
    read_pairs,
    read_text,
    require_one_standard_input,
    require_text,
)
from transduce.text.languages import LanguagesConfig, guess_all


def evaluate(
    model: Path | None = None,
    /,
    *,
    reference: Files,
    source: Files = (),
    hypothesis: Files = (),
    ensemble: Files = (),
    language: Annotated[
        str | None, Parameter(name=("--target-language", "--language"))
    ] = None,
    tag: str | None = None,
    tokenize: Tokenize = "auto",
    beam_size: int | None = None,
    length_penalty: float | None = None,
    tokenized: bool = False,
    json_output: Json = False,
    device: str = "auto",
    precision: PrecisionChoice = "auto",
    processes: int | None = None,
) -> None:
    """Score translations against references: sacreBLEU, the paper's BLEU, chrF.

    For example:

        transduce evaluate runs/mine --source test.en --reference test.de
        transduce evaluate runs/1 --ensemble runs/2 --source a.en --reference a.de
        transduce evaluate --hypothesis mine.out --reference test.de
        transduce evaluate --hypothesis mine.out --reference first.de second.de

    Parameters
    ----------
    model
        A model or run folder to translate the source; alternatively, give --hypothesis.
    reference
        Reference translations, one per line. Several files are several references of
        each sentence, or parts of one if they have as many lines as the source or the
        hypotheses only together.
    source
        Source sentences for the model.
    hypothesis
        Existing translations, instead of a model.
    ensemble
        Further models, which translate together with the model; each token is chosen by
        the mean of all models' probabilities.
    language
        Target language as a BCP 47 tag, which selects the tokenizer, and the language
        into which a model of several target languages translates. By default the
        model's, if it has only one, otherwise that of the reference's ending (.de,
        .zh).
    tag
        Tag of a corpus of the training, such as bt for <bt>, before each source.
    tokenize
        sacreBLEU's tokenizer. By default zh for Chinese, ja-mecab for Japanese,
        ko-mecab for Korean, char for Thai, Lao, Khmer, Burmese and Tibetan, else 13a.
        If the language is unknown, it is guessed from the reference's script.
    beam_size
        Beam size of the search; by default the model's.
    length_penalty
        Alpha of the length penalty; by default the model's.
    tokenized
        The text is already tokenized and lower-cased, as for published Multi30k scores:
        also print BLEU without further tokenization.
    json_output
        Print a JSON list with an object for each metric.
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
    options = {
        "ensemble": ensemble or None,
        "tag": tag,
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "device": device,
        "precision": precision,
        "processes": processes,
    }
    _require_either(model, source, hypothesis, options)
    language = LanguagesConfig(target=language).target
    # Read both and check their alignment before translating.
    texts, references = _read_sides(source, hypothesis, reference)
    settings = {"beam_size": beam_size, "length_penalty": length_penalty}
    translator = None
    if model is not None:
        translator = load(
            model,
            *ensemble,
            device=device,
            precision=precision,
            num_processes=processes,
            tag=tag,
        )
        if language is None:
            translator = into_language_of(translator, reference)
        elif translator.target_languages:
            translator = translator.into(language)
        is_chosen = language is not None
        warn_of_other_languages(
            translator, model, source, reference, is_chosen=is_chosen
        )
        language = language or translator.target_language
    language = language or guess_all(reference)
    tokenization = choose_tokenization(tokenize, language, chain(*references))
    if translator is not None:
        found = translator.translate_stream(
            texts, search_of(translator.search, settings)
        )
        texts = [translation.text for translation in found]
    scores = score_hypotheses(texts, references, language, tokenization)
    if tokenized:
        first, *others = references
        bleu = tokenized_bleu(texts, first, more_references=others, lowercase=True)
        scores.insert(0, bleu)
    if json_output:
        print_json([asdict(score) for score in scores])
    else:
        for score in scores:
            print(score)


def _read_sides(
    source: Sequence[Path], hypothesis: Sequence[Path], reference: Sequence[Path]
) -> tuple[list[str], list[list[str]]]:
    """Read the source or the hypotheses, and one or several references of each."""
    given = hypothesis or source
    if len(reference) == 1:
        name = "hypothesis" if hypothesis else "source"
        pairs = list(read_pairs(given, reference, (name, "reference")))
        texts = [pair.source for pair in pairs]
        references = [(reference[0], [pair.target for pair in pairs])]
    else:
        require_one_standard_input((*given, *reference))
        texts = list(read_text(given))
        files = [(path, list(read_text([path]))) for path in reference]
        references = _references(files, given, len(texts))
    if source:
        require_text(source[0], texts)
    for path, lines in references:
        require_text(path, lines)
    return texts, [lines for _, lines in references]


def _references(
    files: Sequence[tuple[Path, list[str]]], given: Sequence[Path], num_lines: int
) -> list[tuple[Path, list[str]]]:
    """Return the references of files that are one each, or parts of one.

    Files that follow each other are parts if they have as many lines as the text only
    together. Each reference is returned with the first of its files.
    """
    references, is_complete = list[tuple[Path, list[str]]](), True
    for path, lines in files:
        if is_complete:
            references.append((path, []))
        reference = references[-1][1]
        reference += lines
        is_complete = len(reference) >= num_lines
    if any(len(lines) != num_lines for _, lines in references):
        numbers = " and ".join(f"{path} has {len(lines):,}" for path, lines in files)
        raise DataError(
            f"Reference files must have {counted(num_lines, 'line')} each, or together "
            f"if they are parts of one reference, as {' and '.join(map(str, given))} "
            f"has, but {numbers}."
        )
    return references


def _require_either(
    model: Path | None,
    source: Sequence[Path],
    hypothesis: Sequence[Path],
    options: Mapping[str, Any],
) -> None:
    """Raise `ConfigError` unless a model with a source, or translations, are given."""
    if (model is None) == (not hypothesis):
        raise ConfigError(
            "Either a model with --source or --hypothesis must be given, but "
            f"{neither_or_both(are_given=model is not None)}"
        )
    if (model is None) != (not source):
        raise ConfigError(
            "A model and --source must be given together, but only one of them is."
        )
    if model is None:
        require_no_search(options, "a model with --source")


def score_hypotheses(
    hypotheses: list[str],
    references: list[list[str]],
    language: str | None,
    tokenization: Tokenization,
) -> list[BleuScore | ChrfScore]:
    """Return sacreBLEU, the paper's BLEU (for languages with spaces) and chrF."""
    first, *others = references
    scores: list[BleuScore | ChrfScore] = [
        corpus_bleu(
            hypotheses, first, more_references=others, tokenization=tokenization
        )
    ]
    moses = language_for_paper_bleu(language, chain(*references))
    if moses is not None:
        scores.append(paper_bleu(hypotheses, first, moses, more_references=others))
    return [*scores, corpus_chrf(hypotheses, first, more_references=others)]
