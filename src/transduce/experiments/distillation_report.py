"""Teacher and student side by side: quality, size and speed."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from transduce.architectures.config import num_parameters
from transduce.decoding.native_decoder import DecodingPrecision
from transduce.decoding.translator import Translator, load
from transduce.errors import ConfigError, RequestError, counted
from transduce.experiments.experiment import EvaluationText
from transduce.files import atomic_directory
from transduce.machine import describe_processor, one_thread
from transduce.metrics.scores import choose_tokenization, corpus_bleu, corpus_chrf
from transduce.model_folder import find_model, open_model, quantize
from transduce.report.report import (
    Part,
    Report,
    Section,
    Table,
    as_page,
    columns,
    encodable,
    write_markdown,
)
from transduce.search_config import SearchConfig
from transduce.text.corpus import read_text, write_lines
from transduce.text.languages import is_unspaced

COMMAND = "distill"
"""Command that writes the report, and the translations beside it."""
NAME = "distillation"
"""Name of the report's files."""
NUM_TIMED = 100
"""Number of sentences whose translation is timed."""
ROUNDS = 3
"""Number of turns of each model."""
TEACHER, STUDENT = "teacher", "student"
MEGABYTE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """Quality of a model's translations of a text."""

    text: str
    """Name of the text."""
    bleu: float
    chrf: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """Figures of the teacher or the student in one precision."""

    name: str
    precision: DecodingPrecision
    parameters: int
    """Number of parameters of all models together."""
    megabytes: float
    """Size of the model folders in megabytes."""
    beam_size: int
    words_per_second: float
    """Source words, or characters of a language without spaces, that are translated in
    a second of one core's time."""
    scores: tuple[TextScore, ...]
    """Scores of the texts; none for the teacher in 8 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationReport:
    """Figures of teacher and student, and how they were measured."""

    models: tuple[ModelFigures, ...]
    num_teachers: int
    signatures: tuple[str, ...]
    """sacreBLEU's signatures of the scores."""
    unit: str
    """Unit of speed: words or characters."""
    num_timed: int
    """Number of sentences whose translation is timed."""
    processor: str
    notes: tuple[str, ...]
    """Sentences on measurements that could not be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSystem:
    """Models that translate together, in one precision."""

    name: str
    folders: tuple[Path, ...]
    search: SearchConfig
    precision: DecodingPrecision = "fp32"
    into: str | None = None
    """Target language, if the models have several."""
    is_scored: bool = True

    @property
    def label(self) -> str:
        """Name with the precision, if that is not fp32."""
        return (
            self.name if self.precision == "fp32" else f"{self.name}-{self.precision}"
        )

    def load(self, device: str) -> Translator:
        translator = load(*self.folders, device=device, precision=self.precision)
        return translator if self.into is None else translator.into(self.into)

    def figures(
        self, words_per_second: float, scores: Sequence[TextScore]
    ) -> ModelFigures:
        sizes = [num_parameters(open_model(each).config) for each in self.folders]
        return ModelFigures(
            name=self.name,
            precision=self.precision,
            parameters=sum(sizes),
            megabytes=self._megabytes(),
            beam_size=self.search.beam_size,
            words_per_second=words_per_second,
            scores=tuple(scores),
        )

    def _megabytes(self) -> float:
        files = (path for each in self.folders for path in find_model(each).iterdir())
        return sum(path.stat().st_size for path in files) / MEGABYTE


def measure_models(
    teacher: ComparedSystem,
    student: ComparedSystem,
    texts: Sequence[EvaluationText],
    on_step: Callable[[str], object],
    *,
    source: Path,
    device: str,
) -> tuple[DistillationReport, dict[str, list[str]]]:
    """Compare teacher and student, both also in 8 bits.

    Also returns their translations, by the names of model and text. The texts are
    translated on the device. Speed is measured on one core of the processor with the
    first text, or with `source` if there is none; the models take turns. `on_step` is
    called with a description of each step.
    """
    with TemporaryDirectory() as folder:
        systems, notes = _with_quantized((teacher, student), Path(folder))
        scored = _scored(systems, texts, on_step, device)
        lines = read_text([texts[0].source if texts else source])
        timed = list(islice(filter(str.strip, lines), NUM_TIMED))
        on_step(f"measuring speed with {counted(len(timed), 'sentence')}")
        language = open_model(systems[-1].folders[0]).source_language
        number, unit = _size_in_units(timed, language)
        seconds = _seconds_by_turns(systems, timed)
        models = tuple(
            each.figures(number / seconds[each.label], scored.scores[each.label])
            for each in systems
        )
    report = DistillationReport(
        models=models,
        num_teachers=len(teacher.folders),
        signatures=tuple(scored.signatures),
        unit=unit,
        num_timed=len(timed),
        processor=describe_processor(),
        notes=notes,
    )
    return report, scored.translations


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScoredTranslations:
    """Translations of the texts by all systems, with their scores."""

    translations: dict[str, list[str]]
    """Lines by the names of model and text."""
    scores: dict[str, list[TextScore]]
    """Scores of the texts by the name of the model."""
    signatures: dict[str, None]
    """Signatures of the scores, in order."""


def _scored(
    systems: Sequence[ComparedSystem],
    texts: Sequence[EvaluationText],
    on_step: Callable[[str], object],
    device: str,
) -> _ScoredTranslations:
    """Translate the texts by each system that is scored, and score the translations."""
    scored = _ScoredTranslations(
        translations={},
        scores={system.label: [] for system in systems},
        signatures={},
    )
    for system in (each for each in systems if each.is_scored):
        translator = system.load(device if system.precision == "fp32" else "cpu")
        for text in texts:
            on_step(f"{system.label} translates {text.name}")
            sources = read_text([text.source])
            found = translator.translate_stream(sources, system.search)
            lines = [each.text for each in found]
            score, signatures = _score(text, lines, translator.target_language)
            scored.translations[f"{system.label}.{text.name}"] = lines
            scored.scores[system.label].append(score)
            scored.signatures.update(dict.fromkeys(signatures))
    return scored


def _size_in_units(lines: Sequence[str], language: str | None) -> tuple[int, str]:
    """Return the number of words or, in a language without spaces, of characters."""
    if language is None or not is_unspaced(language):
        return sum(len(line.split()) for line in lines), "words"
    return sum(map(len, lines)), "characters"


def _with_quantized(
    systems: Sequence[ComparedSystem], quantized: Path
) -> tuple[list[ComparedSystem], tuple[str, ...]]:
    """Return each system in fp32 and in 8 bits, and notes on those left out.

    A system that is quantized already is only in 8 bits. The others in 8 bits are
    written to the folder `quantized`.
    """
    found: list[ComparedSystem] = []
    notes: list[str] = []
    for system in systems:
        if all(open_model(folder).is_quantized for folder in system.folders):
            found.append(replace(system, precision="int8"))
            continue
        made = tuple(
            quantized / f"{system.name}-{i}" for i in range(len(system.folders))
        )
        small = replace(
            system,
            precision="int8",
            folders=made,
            is_scored=system.name == STUDENT,
        )
        found.append(system)
        try:
            for folder, out in zip(system.folders, made, strict=True):
                quantize(folder, out)
            small.load("cpu").get_ready()
        except (ConfigError, RequestError) as error:
            notes.append(f"The {system.name} is not measured in 8 bits: {error}")
        else:
            found.append(small)
    return found, tuple(notes)


def _score(
    text: EvaluationText, lines: Sequence[str], language: str | None
) -> tuple[TextScore, tuple[str, str]]:
    references = list(read_text([text.reference]))
    tokenization = choose_tokenization("auto", language, references)
    bleu = corpus_bleu(lines, references, tokenization=tokenization)
    chrf = corpus_chrf(lines, references)
    score = TextScore(text=text.name, bleu=bleu.score, chrf=chrf.score)
    signatures = f"BLEU: {bleu.signature}", f"{chrf.name}: {chrf.signature}"
    return score, signatures


def _seconds_by_turns(
    systems: Sequence[ComparedSystem], lines: Sequence[str]
) -> dict[str, float]:
    """Return the time of one core that each system takes, the median of its turns.

    Processor time is measured, so other programs hardly matter.
    """
    taken: dict[str, list[float]] = {each.label: [] for each in systems}
    with one_thread():
        loaded = {each.label: (each.load("cpu"), each.search) for each in systems}
        for translator, search in loaded.values():  # warm up
            list(translator.translate_stream(lines[:1], search))
        for number in range(ROUNDS):
            order = list(loaded) if number % 2 == 0 else list(reversed(loaded))
            for label in order:
                translator, search = loaded[label]
                started = time.process_time()
                list(translator.translate_stream(lines, search))
                taken[label].append(time.process_time() - started)
    return {label: max(median(each), 1e-9) for label, each in taken.items()}


def write_report(
    report: DistillationReport, translations: dict[str, list[str]], out: Path
) -> None:
    """Write the report as Markdown, page and JSON, and the translations beside it.

    An older report of the command is replaced.
    """
    shown = as_report(report)
    with atomic_directory(out, COMMAND, overwrite=True) as folder:
        write_markdown(shown, folder, NAME)
        (folder / f"{NAME}.html").write_text(as_page(shown), encoding="utf-8")
        text = json.dumps(asdict(report), indent=2, ensure_ascii=False) + "\n"
        (folder / f"{NAME}.json").write_text(encodable(text), encoding="utf-8")
        for name, lines in translations.items():
            write_lines(folder / f"{name}.txt", lines)


def as_report(report: DistillationReport) -> Report:
    """Build the report with one table: a row for each model and precision."""
    texts = [score.text for score in report.models[0].scores]
    heads = columns(
        "model",
        *(f"{metric} {text}" for text in texts for metric in ("BLEU", "chrF")),
        *("parameters", "MB", "beam", f"{report.unit}/s", "times"),
    )
    slowest = report.models[0].words_per_second
    table = Table(
        columns=heads,
        rows=tuple(_row(each, len(texts), slowest) for each in report.models),
    )
    teachers = report.num_teachers
    parts: list[Part] = [
        "The teacher is one model."
        if teachers == 1
        else f"The teacher is an ensemble of {counted(teachers, 'model')}.",
        table,
        f"Speed is that of {counted(report.num_timed, 'sentence')} on one core of "
        f"{report.processor}, in processor time: the median of {ROUNDS} turns. "
        "MB is the size of the model folder; in 8 bits, as `transduce quantize` writes "
        "it.",
        *report.signatures,
        *report.notes,
    ]
    if not texts:
        parts.append(
            "Quality is not measured, as there is no text with true translations."
        )
    section = Section(title="Teacher and student", parts=tuple(parts))
    return Report(title="Distillation", sections=(section,))


def _row(model: ModelFigures, num_texts: int, slowest: float) -> tuple[str, ...]:
    name = model.name if model.precision == "fp32" else f"{model.name} int8"
    scores = [f"{n:.2f}" for each in model.scores for n in (each.bleu, each.chrf)]
    return (
        name,
        *(scores or [""] * (2 * num_texts)),
        f"{model.parameters:,}",
        f"{model.megabytes:,.1f}",
        str(model.beam_size),
        f"{model.words_per_second:,.0f}",
        f"{model.words_per_second / slowest:.1f}",
    )
