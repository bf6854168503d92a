"""`transduce translate`: translation of raw text."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from transduce.cli.files import Files, writer
from transduce.cli.help import option_name
from transduce.cli.lines import (
    OutputFormat,
    require_shortlist,
    search_of,
    shortlist_origin,
    source_lines,
    warn_of_other_language,
    write_translations,
)
from transduce.cli.resumable_output import Destination, Origin, RecordOutput
from transduce.decoding.documents import translate_document
from transduce.decoding.native_decoder import PrecisionChoice
from transduce.decoding.translations import Pace, Translation
from transduce.decoding.translator import Translator, load
from transduce.errors import ConfigError
from transduce.model_folder import model_sum
from transduce.search_config import LengthPenalty, SearchConfig
from transduce.text.corpus import (
    STANDARD_INPUT,
    read_document,
    read_text,
    require_one_standard_input,
)
from transduce.text.glossary import read_glossary

InputFormat = Literal["lines", "text", "html", "srt", "vtt"]


def translate(
    model: Path,
    /,
    *,
    ensemble: Files = (),
    input: Path | None = None,
    output: Path | None = None,
    force: bool = False,
    resume: bool = False,
    format: InputFormat = "lines",
    prefixes: Path | None = None,
    beam_size: int | None = None,
    patience: float | Literal["none"] | None = None,
    length_penalty: float | None = None,
    penalty: LengthPenalty | None = None,
    coverage_penalty: float | None = None,
    diversity: float | None = None,
    min_length: int | None = None,
    extra_length: int | None = None,
    max_length: int | None = None,
    no_repeat_ngram: int | None = None,
    repetition_penalty: float | None = None,
    bad_words: Path | None = None,
    glossary: Path | None = None,
    shortlist: Annotated[bool | None, Parameter(negative="--no-shortlist")] = None,
    nbest: int | None = None,
    target_language: str | None = None,
    tag: str | None = None,
    jsonl: bool = False,
    device: str = "auto",
    precision: PrecisionChoice = "auto",
    processes: int | None = None,
) -> None:
    """Translate raw text line by line, or a document.

    Unset search options default to the model's settings, except --nbest.

    For example:

        echo "A dog runs." | transduce translate runs/mine
        transduce translate runs/mine --input test.en --output test.out
        transduce translate runs/mine --format html --input page.html > seite.html

    Parameters
    ----------
    model
        A model or run folder.
    ensemble
        Further models; each token is chosen by the mean of all models' probabilities.
    input
        A text file, one sentence per line, or a document; - is standard input, the
        default.
    output
        A file to write; - is standard output, the default. Lines are kept in
        OUTPUT.part until all are done.
    force
        Overwrite the output if it exists.
    resume
        Continue an interrupted output of the same model, input and options.
    format
        lines are sentences. text, html and the subtitles srt and vtt are documents:
        their sentences are found by the rules of the source language, and translated
        one by one. Tags of HTML go with the words that they mark, and need the extra
        serve. Sentences of subtitles may go over several cues, whose times stay.
    prefixes
        A text file with the beginning of each line's translation.
    beam_size
        Number of hypotheses kept at each step; 1 is greedy search.
    patience
        Search of a line ends after patience times beam-size finished translations
        (Kasai et al., 2022). 1 is as in CTranslate2, and saves a tenth to more than a
        third of the steps. By default search continues while a better translation is
        possible.
    length_penalty
        Exponent alpha of the length penalty; 0 ranks by probability alone.
    penalty
        Divisor of a hypothesis' log-probability: gnmt is ((5 + length) / 6)^alpha (Wu
        et al., 2016), power is length^alpha.
    coverage_penalty
        Weight beta of the coverage penalty, in nats, which lowers hypotheses that
        hardly attend to some source tokens, so that less is left untranslated (Wu et
        al., 2016).
    diversity
        Penalty in nats per rank among the continuations of one hypothesis, so that the
        n best differ more (Li et al., 2016).
    min_length
        Minimum length of a translation in tokens.
    extra_length
        Maximum length of a translation minus that of its source, in tokens.
    max_length
        Maximum length of a translation in tokens, with the end token; a prefix and one
        token are always allowed. If a line is translated in parts, the length limits
        apply to each part.
    no_repeat_ngram
        No sequence of so many tokens occurs twice in a translation, so that it cannot
        loop; 0 for no limit.
    repetition_penalty
        Factor of the log-probability of each token that the translation has already;
        above 1, repetitions become less likely (Keskar et al., 2019).
    bad_words
        A text file with one word or phrase per line, none of which occurs in a
        translation in this spelling.
    glossary
        A text file with a term of the source language on each line, and after a tab its
        translation. Lines with a term are translated with it; of several translations
        of a term, each on a line, one is chosen. A term without any is kept as it is.
    shortlist
        Choose among the candidates of the model's shortlist, which `transduce
        shortlist` makes: faster, with nearly the same translations. Scores are then
        normalized over the candidates of a line, but over the whole vocabulary if terms
        are placed in it. Lines with a prefix are translated with the whole vocabulary.
    nbest
        Number of different translations of each line, best first, one per line. Blank
        lines stand for missing ones; a line translated in parts has only one. The
        default is 1, whatever the model's settings.
    target_language
        Language to translate into, of a model with several target languages: its tag,
        such as >>de<<, is put before each line that does not begin with one. By default
        the model's own.
    tag
        Tag of a corpus of the training, such as bt for <bt>, before each line.
    jsonl
        Write one JSON object per line, with scores and tokens.
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
    _require_for_lines(
        format, resume=resume, prefixes=prefixes, nbest=nbest, jsonl=jsonl
    )
    files = (input or STANDARD_INPUT, prefixes, bad_words, glossary)
    require_one_standard_input([each for each in files if each is not None])
    destination = Destination(output=output, force=force, resume=resume)
    destination.require_usable(input, prefixes, bad_words, glossary)
    forbidden = None if bad_words is None else list(read_text([bad_words]))
    terms = None if glossary is None else read_glossary(glossary)
    source = source_lines(input)
    translator = load(
        model,
        *ensemble,
        device=device,
        precision=precision,
        num_processes=processes,
        target_language=target_language,
        tag=tag,
    )
    if terms is not None:
        translator = translator.with_glossary(terms)
    if input is not None:
        warn_of_other_language(model, "source", translator.source_language, [input])
    _require_within_beam(nbest, beam_size or translator.search.beam_size)
    settings = {
        "beam_size": beam_size,
        "num_best": nbest,
        "patience": patience,
        "length_penalty": length_penalty,
        "penalty": penalty,
        "coverage_penalty": coverage_penalty,
        "diversity": diversity,
        "min_length": min_length,
        "extra_length": extra_length,
        "max_length": max_length,
        "no_repeat_ngram": no_repeat_ngram,
        "repetition_penalty": repetition_penalty,
        "bad_words": None if forbidden is None else translator.token_ids(forbidden),
        "shortlist": shortlist,
    }
    require_shortlist(shortlist, translator.shortlist, model)
    config = search_of(translator.search, settings)
    if format != "lines":
        document = read_document(input or STANDARD_INPUT)
        with writer(output, overwrite=force) as file:
            file.writelines(translate_document(translator, document, format, config))
        return
    prefix_lines = None if prefixes is None else read_text([prefixes])

    def translate_rest(rest: RecordOutput, pace: Pace) -> Iterator[Translation]:
        lines = rest.reading(source.lines)
        targets = None if prefix_lines is None else rest.reading(prefix_lines)
        return translator.translate_stream(lines, config, targets, pace)

    write_translations(
        translate_rest,
        source.windows,
        destination,
        partial(
            _origin,
            (model, *ensemble),
            translator,
            config,
            has_prefixes=prefixes is not None,
        ),
        OutputFormat(num_best=config.num_best, jsonl=jsonl),
        translator,
    )


def _require_within_beam(nbest: int | None, beam_size: int) -> None:
    """Raise `ConfigError` if a beam cannot have as many translations of a line."""
    if nbest is not None and not 1 <= nbest <= max(beam_size, 1):
        raise ConfigError(
            f"--nbest must be from 1 to the beam size {beam_size}, but is {nbest}; see "
            "`--beam-size`."
        )


def _origin(
    models: Sequence[Path],
    translator: Translator,
    config: SearchConfig,
    *,
    has_prefixes: bool,
) -> Origin:
    """Return all on which translations depend besides the input."""
    glossary = translator.glossary
    return {
        "command": "translate",
        "models": [model_sum(each) for each in models],
        "search": asdict(config),
        "prefixes": has_prefixes,
        **shortlist_origin(config, translator.shortlist),
        **({} if glossary is None else {"glossary": glossary.digest()}),
    }


def _require_for_lines(format: InputFormat, **options: object) -> None:
    """Raise `ConfigError` for an option of lines that is given with a document."""
    given = [name for name, value in options.items() if value not in (None, False)]
    if given and format != "lines":
        raise ConfigError(
            f"{option_name(given[0])} is for lines, but --format names a document; "
            "leave out one of them."
        )
