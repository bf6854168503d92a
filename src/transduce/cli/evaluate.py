"""`transduce evaluate`: BLEU and chrF of translations, each with its protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from transduce.cli.lines import (
    into_language_of,
    require_no_search,
    search_of,
    warn_of_other_languages,
)
from transduce.cli.terminal import Files, print_json
from transduce.decoding.native_decoder import PrecisionChoice
from transduce.decoding.translator import load
from transduce.errors import ConfigError, neither_or_both
from transduce.metrics.scores import (
    BleuScore,
    ChrfScore,
    Tokenization,
    Tokenize,
    choose_tokenization,
    corpus_bleu,
    corpus_chrf,
    paper_bleu,
    tokenized_bleu,
)
from transduce.text.corpus import SentencePair, read_pairs, require_text
from transduce.text.languages import (
    LanguagesConfig,
    base,
    detect_by_script,
    guess_all,
    is_unspaced,
)


def evaluate(
    model: Path | None = None,
    /,
    *,
    reference: Files,
    source: Files = (),
    hypothesis: Files = (),
    language: Annotated[
        str | None, Parameter(name=("--target-language", "--language"))
    ] = None,
    tag: str | None = None,
    tokenize: Tokenize = "auto",
    beam_size: int | None = None,
    length_penalty: float | None = None,
    tokenized: Annotated[bool, Parameter(negative="")] = False,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
    device: str = "auto",
    precision: PrecisionChoice = "auto",
    processes: int | None = None,
) -> None:
    """Score translations against references: sacreBLEU, the paper's BLEU, chrF.

    For example:

        transduce evaluate runs/mine --source test.en --reference test.de
        transduce evaluate --hypothesis mine.out --reference test.de

    Parameters
    ----------
    model
        A model or run folder to translate the source; alternatively, give --hypothesis.
    reference
        Reference translations, one per line.
    source
        Source sentences for the model.
    hypothesis
        Existing translations, instead of a model.
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
    pairs = _read_pairs(source, hypothesis, reference)
    references = [pair.target for pair in pairs]
    texts = [pair.source for pair in pairs]
    settings = {"beam_size": beam_size, "length_penalty": length_penalty}
    translator = None
    if model is not None:
        translator = load(
            model,
            device=device,
            precision=precision,
            num_processes=processes,
            tag=tag,
        )
        if language is None:
            translator = into_language_of(translator, model, reference)
        elif translator.target_languages:
            translator = translator.into(language)
        is_chosen = language is not None
        warn_of_other_languages(
            translator, model, source, reference, is_chosen=is_chosen
        )
        language = language or translator.target_language
    language = language or guess_all(reference)
    tokenization = choose_tokenization(tokenize, language, references)
    if translator is not None:
        found = translator.translate_stream(
            texts, search_of(translator.search, settings)
        )
        texts = [translation.text for translation in found]
    scores = score_hypotheses(texts, references, language, tokenization)
    if tokenized:
        scores.insert(0, tokenized_bleu(texts, references, lowercase=True))
    if json_output:
        print_json([asdict(score) for score in scores])
    else:
        for score in scores:
            print(score)


def _read_pairs(
    source: Sequence[Path], hypothesis: Sequence[Path], reference: Sequence[Path]
) -> list[SentencePair]:
    """Read the source or the hypotheses, beside the references."""
    given = hypothesis or source
    name = "hypothesis" if hypothesis else "source"
    pairs = list(read_pairs(given, reference, (name, "reference")))
    if source:
        require_text(source[0], (pair.source for pair in pairs))
    require_text(reference[0], (pair.target for pair in pairs))
    return pairs


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
    references: list[str],
    language: str | None,
    tokenization: Tokenization,
) -> list[BleuScore | ChrfScore]:
    """sacreBLEU, the paper's BLEU (for languages with spaces) and chrF.

    An unknown language counts as German, as in the paper.
    """
    language = language or detect_by_script(references) or "de"
    scores: list[BleuScore | ChrfScore] = [
        corpus_bleu(hypotheses, references, tokenization=tokenization)
    ]
    if not is_unspaced(language):
        scores.append(paper_bleu(hypotheses, references, base(language)))
    return [*scores, corpus_chrf(hypotheses, references)]
