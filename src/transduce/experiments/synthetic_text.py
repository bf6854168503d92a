"""Synthetic parallel text: monolingual lines that a model translates, to train another.

Translations are appended to one file, whose whole lines survive any end of the process.
Translation continues after them, and gives the file that an uninterrupted process would
have written: random numbers depend on a line's number alone. `record_settings` keeps a
record of the settings beside it, so that only the same work continues in a folder.

`back_translate` makes pairs of text of the target language, and `distillation` of text
of the source language, by the same functions.
"""

import json
import os
from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import blake2b, sha256
from itertools import count, islice
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import transduce
from transduce.data.cleaning_rules import NAMES, RULES, CleaningConfig, PairRules
from transduce.data.corpus_files import Files, paths_of, require_files
from transduce.decoding.native_decoder import PrecisionChoice
from transduce.decoding.translations import (
    MAX_SOURCE_TOKENS,
    Pace,
    Translation,
    TranslationHypothesis,
)
from transduce.decoding.translator import (
    Translator,
    interdependent_lines,
    load,
    longest_source,
    require_translation,
)
from transduce.errors import (
    OVERWRITE,
    CheckpointError,
    ConfigError,
    DataError,
    OverwriteError,
    warn_caller,
)
from transduce.files import (
    LEFTOVERS,
    atomic_file,
    named_errors,
    path_lock,
    path_of,
    read_json,
    require_without,
    write_all,
    write_json,
)
from transduce.metrics.scores import sentence_gleu
from transduce.model_folder import model_sum
from transduce.search_config import SamplingConfig, SearchConfig
from transduce.settings import (
    flattened,
    require_between,
    require_config,
    require_flag,
    require_function,
    shown,
)
from transduce.text.corpus import read_pairs, read_text
from transduce.text.languages import guess_all, require_language_of_files
from transduce.text.tokenizer import normalize

FORMAT = 2
"""Format of the record of settings."""
BEGUN_BY = "begun by"
"""Key of the format, and of the version of transduce, in the record of settings."""
SETTINGS, TRANSLATIONS, REPORT = "settings.json", "translations.jsonl", "report.json"
CHECKSUMS = {
    "back-translation.models": "models",
    "back-translation.input": "input",
    "translation.teachers": "teachers",
    "translation.source": "source text",
    "student.dev": "dev text",
}
"""Recorded settings that are checksums, with words for the files."""
BACK_TRANSLATED = "back-translated"
"""Name of the files of pairs, before their languages."""
KEY_BYTES = 8
"""Size of the hash of a line, by which repeated lines are recognised."""
MAX_RATIO = 3.0
"""Default of the largest ratio of the numbers of tokens of the two sides."""
LARGEST_RATIO = 1_000_000
"""Largest value of that setting."""
RATIO_SLACK = 2
"""Tokens added to both sides before their ratio is taken: one word may well have three
tokens in another language."""
CLEANING_RULES = (
    *("not-text", "replacement-character", "wrong-script", "long-word"),
    *("identical", "numbers", "loop"),
)
"""Rules of `transduce clean` that apply to a line and its translation."""
REASONS = (
    *("too-long", "empty", "cut-off", "length-ratio", *CLEANING_RULES, "low-score"),
)
"""Reasons why a pair is dropped. `too-long` is an input of more than 250 tokens, or 600
of a vocabulary of characters, with the tag of its target language: it is not
translated. `cut-off` is a translation that has not ended at the length limit."""
COUNTED = ("kept", *REASONS)
"""Kinds of pairs that `write_kept` counts."""


class InputLine(NamedTuple):
    """Line to translate, and its reference if there are references."""

    text: str
    reference: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFigures:
    """Number of lines of the input."""

    lines: int
    """All lines."""
    blank: int
    repeated: int
    """Lines that are equal to an earlier one, apart from white space and from the
    Unicode normal form."""
    digest: str = field(repr=False)
    """Hash of all lines."""

    @property
    def different(self) -> int:
        """Lines that are translated."""
        return self.lines - self.blank - self.repeated


@dataclass(slots=True, kw_only=True)
class InputText:
    """Text files, plain or compressed, whose different lines are translated once each.

    Reading takes about 100 bytes of memory for each different line.
    """

    paths: Sequence[Path]
    references: Sequence[Path] = ()
    """Translations of all lines, if there are any."""

    def __post_init__(self) -> None:
        if not self.paths:
            raise ConfigError("The input must be at least one file, but none is given.")
        require_files((*self.paths, *self.references), "the input")

    def lines(self) -> Iterator[InputLine]:
        """Yield the lines that are neither blank nor repeated."""
        return self._different(Counter(), sha256())

    def figures(self) -> InputFigures:
        """Read all lines; `DataError` if one cannot be used, or none has text."""
        counts, digest = Counter[str](), sha256()
        deque(self._different(counts, digest), maxlen=0)
        figures = InputFigures(
            lines=counts["lines"],
            blank=counts["blank"],
            repeated=counts["repeated"],
            digest=digest.hexdigest(),
        )
        if figures.different == 0:
            raise DataError(
                f"{self.paths[0]}: at least one line must have text, but none has."
            )
        return figures

    def _different(self, counts: Counter[str], digest: Any) -> Iterator[InputLine]:
        known: set[bytes] = set()
        for line in self._read():
            counts["lines"] += 1
            for text in line:
                digest.update(f"{text}\n".encode())
            words = normalize(line.text)
            if not words:
                counts["blank"] += 1
                continue
            key = blake2b(words.encode(), digest_size=KEY_BYTES).digest()
            if key in known:
                counts["repeated"] += 1
                continue
            known.add(key)
            yield line

    def _read(self) -> Iterator[InputLine]:
        if not self.references:
            yield from (InputLine(text, None) for text in read_text(self.paths))
            return
        names = ("source", "reference")
        for pair in read_pairs(self.paths, self.references, names):
            yield InputLine(pair.source, pair.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedLine:
    """Line of the file of translations."""

    input: str
    output: str
    score: float | None
    """Log-probability per token, the end token included; None without an output."""
    dropped: str | None
    """Reason why the pair is not used, one of `REASONS`."""

    def as_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


def parse_line(text: bytes) -> TranslatedLine | None:
    """Parse a line of the file of translations; None if it is cut short or damaged."""
    try:
        values = json.loads(text)
        line = TranslatedLine(**values)
    except (ValueError, TypeError, RecursionError):
        return None
    is_text = {type(values["input"]), type(values["output"])} == {str}
    is_score = values["score"] is None or type(values["score"]) is float
    is_reason = values["dropped"] in (None, *REASONS)
    is_sound = is_text and is_score and is_reason and text.endswith(b"\n")
    return line if is_sound else None


def read_translations(path: Path) -> Iterator[TranslatedLine]:
    """Yield the lines of a file of translations up to the first damaged one."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for text in file:
            if (line := parse_line(text)) is None:
                return
            yield line


def keep_whole_lines(path: Path, multiple: int) -> int:
    """Cut off a file after its last whole line; return the number of lines kept.

    The number is a multiple of `multiple`, the number of lines whose results depend on
    each other. Warns of a damaged line that no interruption has cut short, as many may
    come after it.
    """
    number = end = kept = kept_end = 0
    is_damaged = False
    with path.open("a+b") as file:
        file.seek(0)
        for text in file:
            if parse_line(text) is None:
                is_damaged = text.endswith(b"\n")
                break
            number, end = number + 1, end + len(text)
            if number % multiple == 0:
                kept, kept_end = number, end
        if kept_end != file.seek(0, os.SEEK_END):
            file.truncate(kept_end)
    if is_damaged:
        warn_caller(
            f"{path}: line {number + 1:,} is damaged; lines from {kept + 1:,} on are "
            "translated again."
        )
    return kept


class OutputRules:
    """Rules that drop useless translations."""

    def __init__(
        self,
        max_ratio: float,
        source_language: str | None = None,
        target_language: str | None = None,
        max_tokens: int = MAX_SOURCE_TOKENS,
    ) -> None:
        self._max_ratio = max_ratio
        self._max_tokens = max_tokens
        off = tuple(rule for rule in RULES if rule not in CLEANING_RULES)
        self._rules = PairRules(
            CleaningConfig(off=off), source_language, target_language
        )

    def broken(
        self, text: str, source: Sequence[int], found: TranslationHypothesis | None
    ) -> str | None:
        """Return why a translation of a text is useless, or None.

        `source` holds the tokens of the text that the model reads.
        """
        if len(source) > self._max_tokens:
            return "too-long"
        if found is None or not found.text.strip():
            return "empty"
        if len(found.token_log_probabilities) <= len(found.tokens):  # no end token
            return "cut-off"
        lengths = [len(side) + RATIO_SLACK for side in (source, found.tokens)]
        if max(lengths) > self._max_ratio * min(lengths):
            return "length-ratio"
        rule = self._rules.judge(text.encode(), found.text.encode()).code
        return NAMES[rule] if rule else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Settings of the translation of lines, and of the choice of translations."""

    decoding: SearchConfig | SamplingConfig
    """Beam search or sampling. With references, the best of `num_best` is taken."""
    max_ratio: float = MAX_RATIO
    """Largest ratio of the numbers of tokens of the two sides."""

    def __post_init__(self) -> None:
        require_between("max_ratio", self.max_ratio, 1, LARGEST_RATIO)


def translate_text(
    text: InputText,
    path: Path,
    translator: Translator,
    generation: Generation,
    total: int,
    on_progress: Callable[[int, int], object],
) -> None:
    """Append the translations of all lines that are missing in a file.

    `on_progress(done, total)` is called before the first translation and after each.
    `done` is the number of lines in the file, `total` that of the lines of the text.
    """
    together = interdependent_lines(translator, with_scores=True)
    done = keep_whole_lines(path, together)
    on_progress(done, total)
    numbers = count(done + 1)
    waiting: deque[tuple[InputLine, list[int]]] = deque()
    longest = longest_source(translator)
    rules = OutputRules(
        generation.max_ratio,
        translator.source_language,
        translator.target_language,
        longest,
    )

    def sources() -> Iterator[str]:
        for line in islice(text.lines(), done, None):
            # Tags take places, too.
            [source] = translator.source_ids([line.text])
            waiting.append((line, source))
            yield line.text if len(source) <= longest else ""

    pace = Pace(first_line=done, on_line=lambda: on_progress(next(numbers), total))
    decoding = generation.decoding
    translations = (
        translator.translate_stream(sources(), decoding, pace=pace)
        if isinstance(decoding, SearchConfig)
        else translator.sample_stream(sources(), decoding, pace)
    )
    with path.open("ab", buffering=0) as file:
        for each in translations:
            line, source = waiting.popleft()
            found = _chosen(each, line.reference, translator)
            translated = TranslatedLine(
                input=line.text,
                output="" if found is None else found.text,
                score=None if found is None else _score(found),
                dropped=rules.broken(line.text, source, found),
            )
            with named_errors(path):
                write_all(file.fileno(), translated.as_json().encode())
        with named_errors(path):
            os.fsync(file.fileno())


def _chosen(
    translation: Translation, reference: str | None, translator: Translator
) -> TranslationHypothesis | None:
    """Return the hypothesis closest to the reference, or else the best one.

    Kim and Rush (2016) compare by smoothed sentence BLEU over words; GLEU over tokens
    also suits languages without spaces.
    """
    found = translation.hypotheses
    if not found:
        return None
    if reference is None or len(found) == 1:
        return found[0]
    tokenizer = translator.tokenizer
    [ids] = tokenizer.encode_targets([reference])
    pieces = tokenizer.pieces(ids)
    return max(found, key=lambda each: sentence_gleu(each.tokens, pieces))


def _score(found: TranslationHypothesis) -> float:
    return found.log_probability / max(len(found.token_log_probabilities), 1)


def require_share(name: str, share: float) -> None:
    """Raise `ConfigError` unless a share to drop is from 0 to less than 1."""
    try:
        is_share = 0 <= share < 1
    except TypeError:
        is_share = False
    if not is_share:
        raise ConfigError(
            f"`{name}` must be from 0 to less than 1, but is {shown(share)}."
        )


def write_kept(
    translations: Path, inputs: Path, outputs: Path, drop_worst: float = 0.0
) -> dict[str, int]:
    """Write the pairs that are used to two line-aligned files.

    `drop_worst` is the share of otherwise usable pairs, those with the lowest scores,
    that is dropped too. Returns the number of kept pairs, and of dropped ones by
    reason. Raises `DataError`, and writes no file, if none is kept.
    """
    scores = array("d")
    for line in read_translations(translations):
        if line.dropped is None:
            scores.append(line.score or 0.0)
    worst = set[int]()
    if number := int(drop_worst * len(scores)):
        order = np.argsort(np.frombuffer(scores), kind="stable")
        worst = set(order[:number].tolist())
    counts = dict.fromkeys(COUNTED, 0)
    usable = 0
    with (
        atomic_file(inputs) as new_inputs,
        atomic_file(outputs) as new_outputs,
        new_inputs.open("w", encoding="utf-8", newline="\n") as input_file,
        new_outputs.open("w", encoding="utf-8", newline="\n") as output_file,
    ):
        for line in read_translations(translations):
            reason = line.dropped or (REASONS[-1] if usable in worst else "kept")
            usable += line.dropped is None
            counts[reason] += 1
            if reason == "kept":
                input_file.write(line.input + "\n")
                # A model could generate line ends.
                output_file.write(line.output.replace("\n", " ") + "\n")
        if counts["kept"] == 0:
            reasons = [f"{number:,} {why}" for why, number in counts.items() if number]
            raise DataError(
                f"{translations}: at least one translation must be left to learn from, "
                f"but all are useless ({', '.join(reasons)}); use another model."
            )
    return counts


@contextmanager
def locked_folder(folder: Path, steps: Collection[str]) -> Iterator[None]:
    """Create the folder of a piece of work if necessary, and lock it.

    `steps` are the names of the steps of the work. Raises `ConfigError` if another
    process uses the folder, or if it holds anything else than the same steps.
    """
    if folder.exists() and not folder.is_dir():
        raise _not_own(folder)
    folder.mkdir(parents=True, exist_ok=True)
    refusal = ConfigError(
        f"{folder}: another command is writing this folder; wait for it to end, or "
        "choose another."
    )
    with path_lock(folder, refusal):
        is_own = set(recorded_settings(folder)) == {BEGUN_BY, *steps}
        # A killed command may leave the record half-written under a hidden name.
        if set(folder.iterdir()) - set(folder.glob(LEFTOVERS)) and not is_own:
            raise _not_own(folder)
        yield


def _not_own(folder: Path) -> ConfigError:
    return ConfigError(
        f"{folder}: the output folder must be new, empty, or one that the same "
        "command began, but is not; choose another."
    )


def recorded_settings(folder: Path) -> dict[str, Any]:
    """Return the record of the work in a folder; empty if there is none."""
    path = folder / SETTINGS
    if not path.is_file():
        return {}
    try:
        record = read_json(path)
    except CheckpointError as error:
        # The reason is in the error's brackets; its remedy is for models.
        reason = str(error).partition("(")[2].rpartition(")")[0] or "no JSON object"
        raise ConfigError(
            f"{path}: the record of this folder's settings is damaged ({reason}), so "
            "that no command can continue here; choose another folder."
        ) from None
    begun_by = record.get(BEGUN_BY)
    return record if isinstance(begun_by, dict) and "format" in begun_by else {}


def record_settings(
    folder: Path,
    settings: Mapping[str, Mapping[str, Any]],
    discard: Callable[[str], object],
    *,
    overwrite: bool,
    defaults: Mapping[str, Mapping[str, Any]],
) -> None:
    """Record the settings of each step of a piece of work, in the order of the steps.

    A setting that the record of an older version lacks had its value in `defaults`.

    If they differ from those recorded, raises `ConfigError`, or with `overwrite` calls
    `discard` with the name of each step whose result is no longer valid: the first that
    differs, and all after it. A record of another format differs in all steps.
    """
    version = {"format": FORMAT, "version": transduce.__version__}
    record = json.loads(json.dumps({BEGUN_BY: version, **settings}))
    recorded = recorded_settings(folder)
    steps = list(settings)
    known = _known_settings(recorded, record, json.loads(json.dumps(defaults)))
    changed = (i for i, name in enumerate(steps) if known.get(name) != record[name])
    first = next(changed, len(steps))
    if recorded and recorded[BEGUN_BY]["format"] != FORMAT:
        if not overwrite:
            raise OverwriteError(
                f"{folder}: was begun by another version of transduce "
                f"({recorded[BEGUN_BY].get('version')}), whose settings this one "
                "cannot compare; continue with that version, choose another folder, or "
                f"{OVERWRITE}."
            )
        first = 0
    if recorded and first == len(steps):
        return
    if recorded and not overwrite:
        _refuse_changes(folder, known, record)
    for name in reversed(steps[first:]):
        discard(name)
    write_json(folder / SETTINGS, record)


def _known_settings(
    recorded: Mapping[str, Any],
    requested: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> dict[str, Any]:
    """Return recorded settings; a requested one that they lack has its default.

    Tables that the record lacks stay missing, such as that of sampling beside a search.
    """
    known = dict(recorded)
    for name, default in defaults.items():
        there, now = recorded.get(name), requested.get(name)
        if name not in requested:
            continue
        if isinstance(there, dict) and isinstance(now, dict):
            known[name] = _known_settings(there, now, default)
        elif name not in recorded and not isinstance(now, dict):
            known[name] = default
    return known


def _refuse_changes(
    folder: Path, recorded: Mapping[str, Any], requested: Mapping[str, Any]
) -> None:
    """Raise `ConfigError` about the first setting that differs."""
    then, now = flattened(recorded), flattened(requested)
    # First the number of hypotheses, from which the beam size may follow.
    first = [name for name in now if name.endswith(".num_best") and name in then]
    for name in (*first, *now, *then):
        is_setting = not name.startswith(f"{BEGUN_BY}.")
        if is_setting and then.get(name) != now.get(name):
            raise OverwriteError(
                f"{folder}: was begun {_difference(name, then, now)}; give the same "
                f"input, models and options, choose another folder, or {OVERWRITE}."
            )


def _difference(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe how a setting differs from the recorded one."""
    if name in CHECKSUMS:
        return f"with other {CHECKSUMS[name]}"
    if name not in then:
        return f"without {name}, but now it is {_shown(now[name])}"
    return f"with {name} {_shown(then[name])}, but now it is {_shown(now.get(name))}"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackTranslation:
    """Synthetic pairs that `back_translate` has written."""

    source: Path
    """Translations: the synthetic source side."""
    target: Path
    """Lines of the input: the true target side."""
    figures: InputFigures
    """Number of lines of the input."""
    pairs: Mapping[str, int]
    """Number of pairs by outcome: "kept", or the reason of dropping."""


def back_translate(
    model: str | PathLike[str],
    inputs: Files,
    out: str | PathLike[str],
    *,
    ensemble: Files = (),
    target_language: str | None = None,
    sampling: SamplingConfig | None = None,
    search: SearchConfig | None = None,
    max_ratio: float = MAX_RATIO,
    drop_worst: float = 0.0,
    device: str = "auto",
    precision: PrecisionChoice = "auto",
    num_processes: int | None = 1,
    overwrite: bool = False,
    on_progress: Callable[[int, int], object] | None = None,
) -> BackTranslation:
    """Translate text of the target language back, as training pairs for a model of the
    other direction (Sennrich et al., 2016).

    Each different line is translated once; useless translations are dropped. The pairs
    are in two line-aligned files in the folder. The same call continues after any
    interruption, and gives the same pairs as an uninterrupted one.

        pairs = transduce.back_translate("runs/de-en", "mono.de", "back-translated")
        transduce.train(["train.en", pairs.source], ["train.de", pairs.target], "mine")

    Parameters
    ----------
    model
        A model or run folder that translates from the target language.
    inputs
        Text files in the target language, plain or compressed.
    out
        Folder of the result, new or begun by the same call.
    ensemble
        Further models, whose probabilities are averaged with those of the first.
    target_language
        Language to translate into, of a model with several target languages. By default
        the model's own.
    sampling
        Settings of sampling (Edunov et al., 2018); by default beam search.
    search
        Settings of beam search; by default the model's own.
    max_ratio
        Largest ratio of the numbers of tokens of the two sides.
    drop_worst
        Share of the pairs to drop because of the lowest log-probability per token.
    device
        Device of the models, as in `load`.
    precision
        Precision of the models, as in `load`.
    num_processes
        Number of processes that translate, as in `load`.
    overwrite
        Whether to start over if the folder holds the result of other settings.
    on_progress
        Called with the number of translated lines and their total number.

    Raises
    ------
    ConfigError
        The folder was begun with other settings, or holds something else, or a file's
        ending names another language than the model's.
    RequestError
        The models have different vocabularies or languages, or parse.
    DataError
        The input cannot be used; the message names file and line.
    CheckpointError
        A model is missing or damaged.
    """
    require_flag("overwrite", overwrite)
    if on_progress is not None:
        require_function("on_progress", on_progress)
    if sampling is not None:
        require_config("sampling", sampling, SamplingConfig)
    if search is not None:
        require_config("search", search, SearchConfig)
    folder = path_of("out", out)
    models = (path_of("model", model), *paths_of("ensemble", ensemble))
    text = InputText(paths=paths_of("inputs", inputs))
    require_share("drop_worst", drop_worst)
    if sampling is not None and sampling.number != 1:
        raise ConfigError(
            "Back-translation takes one sample of each line, but `number` is "
            f"{sampling.number}; leave it out."
        )
    if sampling is not None and search is not None:
        raise ConfigError(
            "Either `sampling` or `search` must be given, but both are; leave one out."
        )
    with load(
        *models, device=device, precision=precision, num_processes=num_processes
    ) as translator:
        require_translation(translator)
        own = {"tag": translator.language_tag} if translator.language_tag else {}
        if target_language is not None:
            translator, own = translator.into(target_language), {}
        return _back_translate(
            models,
            text,
            folder,
            translator,
            decoding=sampling or search or translator.search.given({}),
            # Earlier versions put no tag of the model's own language: what they have
            # begun is not continued with one.
            by_default=own,
            max_ratio=max_ratio,
            drop_worst=drop_worst,
            overwrite=overwrite,
            on_progress=on_progress or (lambda done, total: None),
        )


def _back_translate(
    models: Sequence[Path],
    text: InputText,
    folder: Path,
    translator: Translator,
    *,
    decoding: SearchConfig | SamplingConfig,
    by_default: Mapping[str, str],
    max_ratio: float,
    drop_worst: float,
    overwrite: bool,
    on_progress: Callable[[int, int], object],
) -> BackTranslation:
    language = translator.source_language
    require_language_of_files(models[0], "source", language, text.paths)
    generation = Generation(decoding=decoding, max_ratio=max_ratio)
    if overwrite:
        require_without(folder, text.paths)
    figures = text.figures()
    settings = {
        "back-translation": {
            "models": [model_sum(each) for each in models],
            "input": figures.digest,
            **generation_settings(generation, translator),
            **by_default,
        }
    }

    source, target = synthetic_paths(folder, translator, text.paths)

    def discard(_step: str) -> None:
        # The old pairs may be in other languages; their report is removed last.
        pairs = {*_reported_pairs(folder), source, target}
        for path in (*pairs, folder / TRANSLATIONS, folder / REPORT):
            path.unlink(missing_ok=True)

    with locked_folder(folder, settings):
        record_settings(
            folder,
            settings,
            discard,
            overwrite=overwrite,
            defaults={"back-translation": DEFAULT_GENERATION},
        )
        translations, total = folder / TRANSLATIONS, figures.different
        translate_text(text, translations, translator, generation, total, on_progress)
        pairs = write_kept(translations, target, source, drop_worst)
        result = BackTranslation(
            source=source, target=target, figures=figures, pairs=pairs
        )
        _report(result, folder)
    return result


def _report(result: BackTranslation, folder: Path) -> None:
    figures = asdict(result.figures)
    del figures["digest"]
    report = {
        "source": result.source.name,
        "target": result.target.name,
        "lines": figures,
        "pairs": dict(result.pairs),
    }
    write_json(folder / REPORT, report)


def _reported_pairs(folder: Path) -> list[Path]:
    """Return the files of pairs that the report in a folder names; none without it."""
    try:
        report = read_json(folder / REPORT)
    except CheckpointError:
        return []
    return [
        folder / name
        for name in (report.get("source"), report.get("target"))
        if isinstance(name, str)
        and name.startswith(f"{BACK_TRANSLATED}.")
        and name == Path(name).name
    ]


DEFAULT_GENERATION = {
    "search": asdict(SearchConfig()),
    "sampling": asdict(SamplingConfig()),
}
"""Default values of settings that records of older versions lack."""


def generation_settings(
    generation: Generation, translator: Translator
) -> dict[str, Any]:
    """Return everything that translations depend on besides models and input.

    The number of processes counts only where the results of lines depend on those that
    a process translates together.
    """
    decoding = generation.decoding
    together = interdependent_lines(translator, with_scores=True) > 1
    kind = "search" if isinstance(decoding, SearchConfig) else "sampling"
    return {
        kind: asdict(decoding),
        "into": translator.target_language,
        "max_ratio": generation.max_ratio,
        "device": translator.device,
        "precision": translator.precision,
        "library": "native" if translator.is_native else "PyTorch",
        **({"processes": translator.num_processes} if together else {}),
    }


def synthetic_paths(
    folder: Path, translator: Translator, inputs: Sequence[Path]
) -> tuple[Path, Path]:
    """Return the files of translations and of inputs, which end in their languages."""
    language = translator.source_language or guess_all(inputs)
    other = translator.target_language
    if language is None or other is None or language == other:
        other, language = "source", "target"
    source, target = (f"{BACK_TRANSLATED}.{each}" for each in (other, language))
    return folder / source, folder / target
