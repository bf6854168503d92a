"""Input lines, their translation, and search options of commands that translate."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transduce.cli.help import option_name
from transduce.cli.resumable_output import Destination, Origin, RecordOutput
from transduce.cli.terminal import counted_lines, warn
from transduce.decoding.translations import Pace, Translation
from transduce.decoding.translator import Translator, interdependent_lines
from transduce.errors import ConfigError
from transduce.files import without_infinity
from transduce.search_config import SearchConfig
from transduce.text.corpus import (
    STANDARD_INPUT,
    Windows,
    arriving_windows,
    full_windows,
    read_text,
    standard_input,
)
from transduce.text.languages import best_match, guess_all, require_language_of_files
from transduce.text.shortlist import Shortlist


def warn_of_other_language(
    model: Path, side: str, known: str | None, paths: Iterable[Path]
) -> None:
    """Print a warning if a file's ending names another language than the model's.

    `side` is "source" or "target".
    """
    try:
        require_language_of_files(model, side, known, paths)
    except ConfigError as error:
        warn(error)


def warn_of_other_languages(
    translator: Translator,
    model: Path,
    source: Sequence[Path],
    target: Sequence[Path],
    *,
    is_chosen: bool,
) -> None:
    """Print a warning for each side whose files' endings name another language.

    `is_chosen` tells whether the user has named the target language. If not, and the
    model has several, target files whose endings name different ones cause no warning:
    tags before their lines name the languages.
    """
    warn_of_other_language(model, "source", translator.source_language, source)
    may_differ = bool(translator.target_languages) and not is_chosen
    if may_differ and guess_all(target) is None:
        return
    warn_of_other_language(model, "target", translator.target_language, target)


def into_language_of(translator: Translator, target: Sequence[Path]) -> Translator:
    """Return a translator into the language of the targets' endings.

    If they name none of the model's several languages, it is the model's own, or else
    the first. A translator of a model with one language stays as it is.
    """
    if not (known := translator.target_languages):
        return translator
    named, own = guess_all(target), translator.target_language
    return translator.into(
        (named and best_match(named, known))
        or (own and best_match(own, known))
        or known[0]
    )


def decoding_of(translator: Translator, batch_lines: int) -> Origin:
    """Return everything about the computation on which the results depend.

    `batch_lines` is the number of lines whose results may depend on each other. If it
    is above 1, the results also depend on how processes divide the lines.
    """
    return {
        "device": translator.device,
        "precision": translator.precision,
        "library": "native" if translator.is_native else "PyTorch",
        **({"processes": translator.num_processes} if batch_lines > 1 else {}),
    }


def tags_of(translator: Translator) -> Origin:
    """Return the tags of the target language and of a corpus that are chosen."""
    tags = {"language_tag": translator.language_tag, "tag": translator.corpus_tag}
    return {name: tag for name, tag in tags.items() if tag}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLines:
    """Lines to translate, and how they are grouped."""

    lines: Iterator[str]
    windows: Windows
    """Groups of lines: full ones of a file, or what has arrived of a stream."""


def source_lines(input: Path | None) -> SourceLines:
    """Return the lines of a file or of standard input; `DataError` if it is closed."""
    if input is None or input == STANDARD_INPUT:
        standard_input("--input FILE")  # refuse a closed one before a model is loaded
        lines = read_text([STANDARD_INPUT])
        return SourceLines(lines=lines, windows=arriving_windows)
    windows = full_windows if input.is_file() else arriving_windows
    return SourceLines(lines=read_text([input]), windows=windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat:
    """Output format of translations."""

    num_best: int = 1
    """Number of translations of each line."""
    jsonl: bool = False
    """Whether each line is a JSON object with scores and tokens."""


def write_translations(
    translate: Callable[[RecordOutput, Pace], Iterable[Translation]],
    windows: Windows,
    destination: Destination,
    origin: Callable[[], Origin],
    output_format: OutputFormat,
    translator: Translator,
) -> None:
    """Write each translation as soon as it is ready: as text, n-best, or JSON.

    A message names each long line that was translated in parts.
    """
    batch_lines = interdependent_lines(translator, with_scores=output_format.jsonl)

    def whole_origin() -> Origin:
        decoding = {**decoding_of(translator, batch_lines), **tags_of(translator)}
        return {**origin(), **decoding, "form": asdict(output_format)}

    with (
        destination.opened(whole_origin, batch_lines) as output,
        counted_lines(destination.is_on_screen) as count_line,
    ):
        first = output.num_done
        pace = Pace(windows=windows, on_line=count_line, first_line=first)
        for number, each in enumerate(translate(output, pace), start=first + 1):
            if each.num_parts > 1:
                warn(
                    f"line {number:,} is too long, and is translated in "
                    f"{each.num_parts} parts."
                )
            output.write("".join(line + "\n" for line in _lines(each, output_format)))


def _lines(translation: Translation, output_format: OutputFormat) -> Iterator[str]:
    """Yield the output lines of a translation."""
    if output_format.jsonl:
        best = [asdict(h) for h in translation.hypotheses[: output_format.num_best]]
        content = {
            "text": translation.text,
            "score": translation.score,
            "num_parts": translation.num_parts,
            "hypotheses": best,
        }
        yield json.dumps(without_infinity(content), ensure_ascii=False)
    elif output_format.num_best == 1:
        yield translation.text
    else:
        found = [h.text for h in translation.hypotheses[: output_format.num_best]]
        yield from found + [""] * (output_format.num_best - len(found))


def search_of(own: SearchConfig, options: Mapping[str, Any]) -> SearchConfig:
    """Return a model's search settings, changed by the given options.

    Warns about own settings that no longer apply, which are dropped, and about options
    without effect. Raises `ConfigError` if options contradict each other.
    """
    config, dropped = own.changed(options)
    for each in (*dropped, *_without_effect(config, options)):
        warn(each)
    return config


def require_shortlist(
    is_wanted: bool | None, shortlist: Shortlist | None, model: Path
) -> None:
    """Raise `ConfigError` if --shortlist is given for a model without one."""
    if is_wanted and shortlist is None:
        raise ConfigError(
            f"{model}: --shortlist needs a model with a shortlist, but this one has "
            "none; make one with `transduce shortlist`."
        )


def shortlist_origin(config: SearchConfig, shortlist: Shortlist | None) -> Origin:
    """Return the checksum of the shortlist that a search uses, if it uses one."""
    if not config.shortlist or shortlist is None:
        return {}
    return {"shortlist": shortlist.digest()}


def _without_effect(config: SearchConfig, options: Mapping[str, Any]) -> list[str]:
    """Return a warning for each option that does not change the result of a search."""
    if config.beam_size == 1:
        return [
            f"{option_name(name)} changes only the scores, not the translations, of a "
            "greedy search (beam size 1)."
            for name in ("length_penalty", "penalty")
            if options.get(name) is not None
        ]
    if options.get("penalty") is not None and config.length_penalty == 0:
        return ["--penalty changes nothing where the length penalty is 0."]
    return []


def require_no_search(options: Mapping[str, Any], needed: str) -> None:
    """Raise `ConfigError` if search options are given to a command without search."""
    for name, value in options.items():
        # By identity: 0 equals False, but is an option that the user gave.
        if value is not None and value is not False and value != "auto":
            raise ConfigError(
                f"{option_name(name)} is for a model's search, but there is no model; "
                f"leave it out, or give {needed}."
            )
