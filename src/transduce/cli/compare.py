"""`transduce compare`: comparison of systems' translations."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import chain, takewhile
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter

from transduce.cli.files import (
    STANDARD_OUTPUT,
    require_new,
    require_one_standard_output,
    writer,
)
from transduce.cli.terminal import Json, error_console, print_json, table_console
from transduce.errors import ConfigError, DataError, counted
from transduce.metrics.comparison import (
    SIGNIFICANT_P,
    Comparison,
    Example,
    LengthScores,
    SystemExamples,
    SystemScore,
    Trials,
)
from transduce.metrics.comparison import compare as compare_systems
from transduce.metrics.scores import (
    Tokenization,
    Tokenize,
    choose_tokenization,
)
from transduce.report.report import (
    Column,
    MarkedText,
    Part,
    Report,
    Section,
    Table,
    as_page,
    columns,
)
from transduce.report.terminal import show
from transduce.text.corpus import (
    read_text,
    require_one_standard_input,
    require_text,
)
from transduce.text.languages import LanguagesConfig, detect_by_script, guess_all
from transduce.text.splitting import CHARACTER_END

MAX_ALIGNED = 4_000
"""Maximum length, in words or characters, of texts that are aligned to mark their
differences; memory grows with its square."""
EXAMPLE_COLUMNS = (
    Column(name="", is_text=True),
    Column(name="chrF"),
    Column(name="text", is_text=True),
)


def compare(
    *systems: Path,
    reference: Annotated[tuple[Path, ...], Parameter(consume_multiple=False)],
    source: Path | None = None,
    train: Path | None = None,
    tokenize: Tokenize = "auto",
    target_language: str | None = None,
    examples: int = 5,
    resamples: int = 1000,
    shuffles: int = 10_000,
    seed: int = 12345,
    html: Path | None = None,
    force: bool = False,
    json_output: Json = False,
) -> None:
    """Compare systems' translations with those of the first, the baseline.

    For example:

        transduce compare test.out other.out --reference test.de --source test.en

    Parameters
    ----------
    systems
        Files of translations of the same sentences, one per line.
    reference
        Reference translations. If the option is repeated, each file has a reference of
        each sentence: scores count all references, and lengths and word frequencies are
        those of the first. A file without the option before it is a system.
    source
        Source sentences, shown beside the translations.
    train
        Text of the target language for word frequencies; by default the reference.
    tokenize
        sacreBLEU's tokenizer; none for tokenized text. By default the one for the
        language: zh, ja-mecab, ko-mecab, char (Thai, Lao, Khmer, Burmese, Tibetan),
        else 13a.
    target_language
        Language of the translations, as a BCP 47 tag; by default that of the
        reference's ending (.de, .zh), otherwise guessed from its script.
    examples
        Number of sentences shown where a system is better, and where it is worse.
    resamples
        Number of resamples of the paired bootstrap.
    shuffles
        Number of shuffles of approximate randomisation.
    seed
        Seed of both tests.
    html
        File for a page with all tables.
    force
        Overwrite the page if it exists.
    json_output
        Print one JSON object.
    """
    trials = Trials(resamples=resamples, shuffles=shuffles, seed=seed)
    if examples < 0:
        raise ConfigError(f"--examples must be at least 0, but is {examples}.")
    language = LanguagesConfig(target=target_language).target or guess_all(reference)
    read = (*systems, *reference, source, train)
    require_one_standard_input([each for each in read if each is not None])
    require_one_standard_output((html, STANDARD_OUTPUT))  # which has the tables
    require_new(html, force=force, others=read)
    first = reference[0]
    references = [list(read_text([first]))]
    references += [_aligned(path, first, len(references[0])) for path in reference[1:]]
    for path, lines in zip(reference, references, strict=True):
        require_text(path, lines)
    tokenization = choose_tokenization(tokenize, language, chain(*references))
    with error_console().status("Comparing..."):
        comparison = compare_systems(
            _read_systems(systems, first, len(references[0])),
            references[0],
            more_references=references[1:],
            sources=_aligned(source, first, len(references[0])) if source else None,
            training=_read_with_text(train) if train else None,
            tokenize=tokenization.name,
            trials=trials,
            num_examples=examples,
        )
    report = as_report(
        comparison, train or first, tokenization, num_references=len(reference)
    )
    if html is not None:
        with writer(html, overwrite=force) as file:
            file.write(as_page(report))
    if json_output:
        print_json(asdict(comparison))
    else:
        show(report, table_console())


def _read_with_text(path: Path) -> Iterator[str]:
    """Yield the lines of a file; `DataError` at its end if all of them are blank."""
    has_text = False
    for line in read_text([path]):
        has_text = has_text or bool(line.strip())
        yield line
    if not has_text:
        require_text(path, ())


def _read_systems(
    paths: tuple[Path, ...], reference: Path, num_lines: int
) -> dict[str, list[str]]:
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigError(
                f"{path}: a system must be given once, but is given twice."
            )
    return {str(path): _aligned(path, reference, num_lines) for path in paths}


def _aligned(path: Path, reference: Path, num_lines: int) -> list[str]:
    lines = list(read_text([path]))
    if len(lines) != num_lines:
        raise DataError(
            f"{path}: must have as many lines as {reference}, {num_lines:,}, but has "
            f"{len(lines):,}."
        )
    return lines


def as_report(
    comparison: Comparison,
    counted_in: Path,
    tokenization: Tokenization,
    num_references: int = 1,
) -> Report:
    """Build the report; words were counted in the named file."""
    reference = "reference" if num_references == 1 else "first reference"
    words = f"Words are those of sacreBLEU's tokenizer {tokenization}."
    baseline, num = comparison.systems[0], comparison.num_sentences
    return Report(
        title=f"{counted(num, 'sentence')} by "
        f"{counted(len(comparison.systems), 'system')}",
        sections=(
            Section(title="Scores", parts=(words, *_scores(comparison))),
            Section(
                title=f"By length of the {reference}, in words",
                parts=(
                    _length_table("BLEU", comparison, lambda each: each.bleu),
                    _length_table("chrF", comparison, lambda each: each.chrf),
                ),
            ),
            Section(
                title="Words met, by their frequency",
                parts=(
                    f"F1 of the words of the {reference}s that a system wrote as well, "
                    f"by how often a word occurs in {counted_in}.",
                    _frequency_table(comparison),
                ),
            ),
            *(_example_section(each, baseline) for each in comparison.examples),
        ),
    )


def _scores(comparison: Comparison) -> tuple[Part, ...]:
    parts: list[Part] = []
    for scores in comparison.scores:
        heads = (scores.metric, "95 %", "difference", "p bootstrap", "p shuffles")
        rows = [
            (name, *_score_cells(score))
            for name, score in zip(comparison.systems, scores.systems, strict=True)
        ]
        verdict = Column(name="verdict", is_text=True)
        parts += [
            Table(columns=(*columns("system", *heads), verdict), rows=tuple(rows)),
            f"Scores and paired bootstrap: {scores.bootstrap_signature}",
            f"Shuffles (approximate randomisation): {scores.randomisation_signature}",
        ]
    if len(comparison.systems) > 2:
        parts.append(
            "Each p compares one system with the baseline, without correction for "
            "several systems."
        )
    return tuple(parts)


def _score_cells(score: SystemScore) -> tuple[str, ...]:
    """Return a system's scores, and a verdict: significant if both tests say so."""
    own = f"{score.score:.2f}", f"±{score.interval:.2f}"
    if score.p is None:
        return *own, "", "", "", "baseline"
    verdict = "better" if score.difference > 0 else "worse"
    return (
        *own,
        f"{score.difference:+z.2f}",
        f"{score.bootstrap_p:.4f}",
        f"{score.randomisation_p:.4f}",
        verdict if score.p < SIGNIFICANT_P else "not significant",
    )


def _length_table(
    metric: str,
    comparison: Comparison,
    scores_of: Callable[[LengthScores], tuple[float, ...]],
) -> Table:
    rows = [
        (
            str(each.words),
            f"{each.num_sentences:,}",
            *(f"{score:.2f}" for score in scores_of(each)),
        )
        for each in comparison.by_length
    ]
    heads = columns("words", "sentences", *comparison.systems)
    return Table(title=metric, columns=heads, rows=tuple(rows))


def _frequency_table(comparison: Comparison) -> Table:
    rows = [
        (
            str(each.occurrences),
            f"{each.systems[0].num_wanted:,}",
            *(f"{accuracy.f1:.2f}" for accuracy in each.systems),
        )
        for each in comparison.by_frequency
    ]
    heads = columns("occurrences", "words", *comparison.systems)
    return Table(columns=heads, rows=tuple(rows))


def _example_section(examples: SystemExamples, baseline: str) -> Section:
    tables = tuple(
        _example_table(example, examples.system, baseline)
        for example in (*examples.better, *examples.worse)
    )
    return Section(
        title=f"Where {examples.system} differs most from {baseline}",
        parts=tables or ("No sentence is shown.",),
    )


def _example_table(example: Example, system: str, baseline: str) -> Table:
    reference = example.reference
    rows: list[tuple[str, str, str | MarkedText]] = [("reference", "", reference)]
    for name, chrf, text in (
        (baseline, example.baseline_chrf, example.baseline),
        (system, example.hypothesis_chrf, example.hypothesis),
    ):
        rows.append((name, f"{chrf:.1f}", marked_differences(text, reference)))
    if example.source is not None:
        rows.insert(0, ("source", "", example.source))
    word = "better" if example.difference > 0 else "worse"
    return Table(
        title=f"Line {example.line:,}, {word} by {abs(example.difference):.1f}",
        columns=EXAMPLE_COLUMNS,
        rows=tuple(rows),
    )


def marked_differences(text: str, reference: str) -> MarkedText:
    """Mark the words of a text that the reference does not have in this order.

    Characters, with their combining marks, are marked if the reference has no spaces
    between words. If one of the two is longer than `MAX_ALIGNED` between their common
    beginning and end, order does not matter there: each word is marked that the
    reference has less often.
    """
    if detect_by_script([reference]) not in (None, "ko"):
        return _marked(_characters(text), _characters(reference), separator="")
    return _marked(text.split(), reference.split(), separator=" ")


def _characters(text: str) -> list[str]:
    """Cut a text into characters, each with its combining marks."""
    return [each for each in CHARACTER_END.split(text) if each]


def _marked(words: list[str], wanted: list[str], separator: str) -> MarkedText:
    start = _num_equal(words, wanted)
    end = _num_equal(reversed(words[start:]), reversed(wanted[start:]))
    middle = words[start : len(words) - end]
    other = wanted[start : len(wanted) - end]
    is_long = max(len(middle), len(other)) > MAX_ALIGNED
    met = _common_in_any_order(middle, other) if is_long else _common(middle, other)
    different = {start + i for i in range(len(middle)) if i not in met}
    marked = tuple((word, i in different) for i, word in enumerate(words))
    return MarkedText(words=marked, separator=separator)


def _num_equal(words: Iterable[str], wanted: Iterable[str]) -> int:
    """Count the first words that are the same in both texts."""
    pairs = zip(words, wanted, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _common_in_any_order(words: list[str], wanted: list[str]) -> set[int]:
    """Return the places of the words that the other text has as well, wherever.

    A word that the other text has n times is met n times at most.
    """
    left, met = Counter(wanted), set[int]()
    for i, word in enumerate(words):
        if left[word]:
            left[word] -= 1
            met.add(i)
    return met


def _common(words: list[str], wanted: list[str]) -> set[int]:
    """Return the places of a longest common subsequence among the words.

    difflib's matcher takes the cube of the length where words repeat, as in loops.
    """
    ids = {word: i for i, word in enumerate(wanted)}
    row = np.array([ids[word] for word in wanted], dtype=np.int64)
    # Length of the longest common subsequence of the first i words and j wanted ones.
    lengths = np.zeros((len(words) + 1, len(wanted) + 1), dtype=np.uint16)
    for i, word in enumerate(words):
        is_met = row == ids.get(word, -1)
        best = np.maximum(lengths[i, 1:], lengths[i, :-1] + is_met)
        np.maximum.accumulate(best, out=lengths[i + 1, 1:])
    met = set[int]()
    i, j = len(words), len(wanted)
    while lengths[i, j]:
        if lengths[i, j] == lengths[i, j - 1]:
            j -= 1
        elif lengths[i, j] == lengths[i - 1, j]:
            i -= 1
        else:
            i, j = i - 1, j - 1
            met.add(i)
    return met
