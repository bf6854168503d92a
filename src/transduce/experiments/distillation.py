"""Sequence-level knowledge distillation (Kim and Rush, 2016): a small model learns what
a large one, or an ensemble, translates.

The teacher translates text of the source language, useless translations are dropped,
and a student is trained on the pairs. With references, the student learns the
hypothesis that is closest to the reference (sequence-level interpolation). The result
of each step is kept in the folder, and the same call continues after an interruption.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from transduce.architectures.config import num_positions
from transduce.data.corpus_files import (
    CorpusFiles,
    Files,
    hold_out_pairs,
    num_characters,
    paths_of,
    read_through,
)
from transduce.data.prepared_corpus import (
    DEV,
    DEV_SOURCE,
    DEV_TARGET,
    PairEncoder,
    learning_texts,
)
from transduce.decoding.native_decoder import PrecisionChoice
from transduce.decoding.translator import Translator, load, require_translation
from transduce.device import Hardware, choose_hardware
from transduce.errors import CheckpointError, ConfigError
from transduce.experiments.distillation_report import (
    COMMAND,
    STUDENT,
    TEACHER,
    ComparedSystem,
    DistillationReport,
    measure_models,
    write_report,
)
from transduce.experiments.experiment import (
    EvaluationText,
    kept_precision,
    require_different_names,
)
from transduce.experiments.experiment import settings as flat_settings
from transduce.experiments.pipeline import RunObserver, checked_settings, resume
from transduce.experiments.pipeline import train as train_run
from transduce.experiments.presets import ADAPT, RunConfig, require_task
from transduce.experiments.presets import preset as preset_named
from transduce.experiments.run_folder import (
    RUN_CONFIG,
    RunFolder,
    is_run,
    require_replaceable_run,
)
from transduce.experiments.start_model import batching_for, tokenizer_settings
from transduce.experiments.synthetic_text import (
    COUNTED,
    DEFAULT_GENERATION,
    MAX_RATIO,
    TRANSLATIONS,
    Generation,
    InputFigures,
    InputText,
    generation_settings,
    locked_folder,
    record_settings,
    recorded_settings,
    require_share,
    translate_text,
    write_kept,
)
from transduce.experiments.train import (
    checked_observers,
    require_observer,
    with_settings,
)
from transduce.files import (
    clear_written,
    path_of,
    read_json,
    remove_folder,
    require_new_folder,
    require_without,
    write_json,
)
from transduce.machine import Precision, use_one_arena
from transduce.model_folder import model_sum, open_model
from transduce.search_config import SearchConfig
from transduce.settings import (
    require_between,
    require_config,
    require_flag,
    require_one_of,
    require_string,
    shown,
)
from transduce.text.corpus import SentencePair, read_pairs, read_text, require_text
from transduce.text.languages import (
    LanguagesConfig,
    guess_all,
    require_language_of_files,
)
from transduce.text.tokenizer import Tokenizer, learn_tokenizer, without_tags
from transduce.text.vocabulary import TokenizerConfig

Vocabulary = Literal["teacher", "new"]

STUDENT_TINY = "student-tiny"
HELD_OUT, PAIRS, DISTILLED = "text", "pairs.json", "distilled"
REPORT_FOLDER = "report"
NUM_BEST = 8
"""Default number of hypotheses that are compared with the reference."""
MAX_BEST = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationPlan:
    """Teachers, text and student of a distillation."""

    teachers: tuple[Path, ...]
    """Model or run folders; several form an ensemble."""
    source: tuple[Path, ...]
    """Text of the source language, which the teachers translate."""
    student: RunConfig
    """Settings of the student's training."""
    reference: tuple[Path, ...] = ()
    """Translations of the source; the student learns the closest hypothesis."""
    target_language: str | None = None
    """Language to translate into, of a teacher with several target languages."""
    dev_source: tuple[Path, ...] = ()
    """Held-out text. Without it, pairs are held out: true ones if there are references,
    otherwise the teachers' own."""
    dev_target: tuple[Path, ...] = ()
    """True translations of the held-out text."""
    tests: tuple[EvaluationText, ...] = ()
    """Texts on which teacher and student are compared; by default the dev text, if its
    translations are true ones."""
    vocabulary: Vocabulary = "teacher"
    """Whether the student has the teachers' vocabulary, or learns one from the pairs.
    """
    search: SearchConfig | None = None
    """The teachers' search; by default that of the first teacher."""
    num_best: int | None = None
    """Number of hypotheses that are compared with the reference."""
    max_ratio: float = MAX_RATIO
    """Largest ratio of the numbers of tokens of the two sides of a pair."""
    drop_worst: float = 0.0
    """Share of the pairs to drop because of the lowest log-probability per token."""

    def __post_init__(self) -> None:
        require_share("drop_worst", self.drop_worst)
        require_between("num_best", self.num_best, 1, MAX_BEST)
        if self.num_best is not None and not self.reference:
            raise ConfigError(
                "`num_best` hypotheses are compared with a reference, but there is no "
                "reference; give a reference, or leave it out."
            )
        if bool(self.dev_source) != bool(self.dev_target):
            raise ConfigError(
                "Both sides of the dev text must be given, but only "
                f"{(self.dev_source or self.dev_target)[0]} is."
            )
        if self.student.corpora:
            raise ConfigError(
                "The student learns what the teacher translates, so that `corpora` "
                "have no effect; leave them out."
            )
        require_different_names(self.tests)

    @property
    def files(self) -> list[Path]:
        """All files of text."""
        sides = (self.source, self.reference, self.dev_source, self.dev_target)
        tests = [(test.source, test.reference) for test in self.tests]
        return [path for side in (*sides, *tests) for path in side]

    @property
    def holds_out(self) -> bool:
        """Whether true pairs are held out as dev text."""
        is_wanted = self.student.evaluation.hold_out
        return is_wanted and bool(self.reference) and not self.dev_source

    @property
    def has_true_dev(self) -> bool:
        """Whether there is dev text whose translations are not a model's."""
        return bool(self.dev_source) or self.holds_out


@runtime_checkable
class DistillationObserver(Protocol):
    """Callbacks for the steps of a distillation besides the training.

    A subclass defines those that it needs; the others do nothing.
    """

    def translated(self, done: int, total: int) -> None:
        """Report the number of sentences translated so far, and of all."""
        return

    def selected(self, figures: InputFigures, pairs: Mapping[str, int]) -> None:
        """Report the size of the input, and the numbers of kept and dropped pairs."""
        return

    def measuring(self, what: str) -> None:
        """Report the next measurement, after the training."""
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """Result of a distillation."""

    student: Path
    """Run folder of the student."""
    source: Path
    """Source text that the student learned."""
    target: Path
    """The teachers' translations of it."""
    report: DistillationReport
    """Teacher and student side by side."""
    report_folder: Path
    """Folder of the report: Markdown, page, JSON, and the translations."""


def distill(
    teachers: Files,
    source: Files,
    out: str | PathLike[str],
    *,
    reference: Files = (),
    target_language: str | None = None,
    dev_source: Files = (),
    dev_target: Files = (),
    tests: Sequence[tuple[str | PathLike[str], str | PathLike[str]]] = (),
    preset: str = STUDENT_TINY,
    settings: Mapping[str, Any] | None = None,
    vocabulary: Vocabulary = "teacher",
    search: SearchConfig | None = None,
    num_best: int | None = None,
    max_ratio: float = MAX_RATIO,
    drop_worst: float = 0.0,
    device: str = "auto",
    precision: PrecisionChoice = "auto",
    training_precision: Precision = "auto",
    num_processes: int | None = 1,
    overwrite: bool = False,
    observer: DistillationObserver | None = None,
    run_observers: Iterable[RunObserver] = (),
) -> Distillation:
    """Train a small model on the translations of a large one, or of an ensemble.

    Sequence-level knowledge distillation (Kim and Rush, 2016). The same call continues
    after an interruption.

        result = transduce.distill("runs/en-de", "mono.en", "student")
        translator = transduce.load(result.student)

    Parameters
    ----------
    teachers
        A model or run folder, or several, whose probabilities are averaged.
    source
        Text files in the source language, plain or compressed.
    out
        Folder of the result, new or begun by the same call.
    reference
        Translations of the source. The student then learns the one of the `num_best`
        hypotheses of a line that is closest to its reference.
    target_language
        Language to translate into, of a teacher with several target languages.
    dev_source, dev_target
        Held-out text with true translations.
    tests
        Pairs of a source file and a file of references, for the report.
    preset
        Preset of the student, as in `train`.
    settings
        Single settings of the student by name, as in `train`.
    vocabulary
        "teacher" to keep the teachers' vocabulary, "new" to learn one from the pairs.
    search
        The teachers' search; by default that of the first teacher.
    num_best
        Number of hypotheses that are compared with a reference, by default 8.
    max_ratio
        Largest ratio of the numbers of tokens of the two sides of a pair.
    drop_worst
        Share of the pairs to drop because of the lowest log-probability per token.
    device
        "auto", "cpu" or "cuda", for translation and training.
    precision
        Precision of the teachers, as in `load`.
    num_processes
        Number of processes that translate, as in `load`.
    training_precision
        Precision of the training: "auto", "fp32" or "bf16"; "auto" keeps that of an
        earlier call in the same folder.
    overwrite
        Whether to repeat the steps whose settings have changed.
    observer
        Object whose methods are called as the steps proceed.
    run_observers
        Objects whose methods are called as the training proceeds, as in `train`.

    Raises
    ------
    ConfigError
        The folder was begun with other settings, a setting is impossible, or a file's
        ending names another language than the teachers'.
    DataError
        A file cannot be used; the message names file and line.
    RequestError
        The teachers have different vocabularies or languages, or parse.
    CheckpointError
        A teacher is missing or damaged.
    """
    require_flag("overwrite", overwrite)
    require_string("preset", preset)
    require_one_of("vocabulary", vocabulary, Vocabulary)
    if search is not None:
        require_config("search", search, SearchConfig)
    observer = _Silent() if observer is None else observer
    require_observer(observer, DistillationObserver)
    folder = path_of("out", out)
    models = paths_of("teachers", teachers)
    compared = tuple(EvaluationText.of(*_checked_pair(pair)) for pair in tests)
    observers = checked_observers(run_observers)
    use_one_arena()  # before the threads of the teacher's tokenizer
    student = student_settings(
        preset, models, vocabulary, lambda base: with_settings(base, settings or {})
    )
    plan = DistillationPlan(
        teachers=models,
        source=paths_of("source", source),
        student=student,
        reference=paths_of("reference", reference),
        target_language=target_language,
        dev_source=paths_of("dev_source", dev_source),
        dev_target=paths_of("dev_target", dev_target),
        tests=compared,
        vocabulary=vocabulary,
        search=search,
        num_best=num_best,
        max_ratio=max_ratio,
        drop_worst=drop_worst,
    )
    return distill_in(
        folder,
        plan,
        observer,
        *observers,
        device=device,
        precision=precision,
        training_precision=training_precision,
        num_processes=num_processes,
        overwrite=overwrite,
    )


def students_hardware(
    out: Path, device: str, precision: Precision, width: int
) -> Hardware:
    """Choose the hardware that trains a student of `width` d_model.

    Precision "auto" is that of an earlier command in the same folder.
    """
    student = recorded_settings(out).get("student")
    recorded = student.get("precision") if isinstance(student, dict) else None
    return choose_hardware(device, kept_precision(precision, recorded), width=width)


class _Silent(DistillationObserver):
    """Observer that does nothing."""


def distill_in(
    out: Path,
    plan: DistillationPlan,
    observer: DistillationObserver,
    *run_observers: RunObserver,
    device: str,
    precision: PrecisionChoice,
    training_precision: Precision,
    num_processes: int | None,
    overwrite: bool,
) -> Distillation:
    """Distil in a folder, or continue there, like `distill`."""
    width = plan.student.model.d_model
    hardware = students_hardware(out, device, training_precision, width)
    if overwrite:
        require_without(out, plan.files)
    for test in plan.tests:
        test.read_through()
    if plan.dev_source:
        read_through(plan.dev_source, plan.dev_target)
        require_text(plan.dev_source[0], read_text(plan.dev_source))
    with load(
        *plan.teachers, device=device, precision=precision, num_processes=num_processes
    ) as translator:
        steps = _Steps(out, plan, hardware, _into_target(translator, plan))
        return steps.run(observer, run_observers, overwrite=overwrite)


def _into_target(translator: Translator, plan: DistillationPlan) -> Translator:
    """Return the teacher with the target language chosen; check both languages.

    A teacher of several languages translates into the given one. By default it is the
    language of the references' endings, or else the teacher's own.
    """
    require_translation(translator)
    true_targets = (*plan.reference, *plan.dev_target)
    language = plan.target_language
    if language is None and translator.target_languages:
        language = guess_all(true_targets) or translator.target_language
    if language is not None:
        translator = translator.into(language)
    sources = (*plan.source, *plan.dev_source, *(test.source for test in plan.tests))
    targets = (*true_targets, *(test.reference for test in plan.tests))
    model = plan.teachers[0]
    require_language_of_files(model, "source", translator.source_language, sources)
    require_language_of_files(model, "target", translator.target_language, targets)
    return translator


class _Steps:
    """Steps of a distillation in its folder; each is skipped if its result is there."""

    def __init__(
        self,
        out: Path,
        plan: DistillationPlan,
        hardware: Hardware,
        translator: Translator,
    ) -> None:
        """Check the settings of the training, before the long translation."""
        self._out = out
        self._hardware = hardware
        self._translator = translator
        self._search = replace(plan.search or translator.search, num_best=1)
        self._generation = _generation(plan, self._search)
        self._tags = _students_tags(plan, translator)
        self._encoder: PairEncoder | None = None
        if plan.vocabulary == "teacher":
            tokenizer = without_tags(translator.tokenizer, self._tags)
            self._encoder = PairEncoder(tokenizer=tokenizer)
        self._plan = replace(plan, student=_student(plan, translator, self._encoder))
        like_pairs = replace(_files(plan), target=plan.reference or plan.source)
        checked_settings(self._plan.student, like_pairs, hardware, None, self._encoder)
        text = InputText(paths=plan.source, references=plan.reference)
        self._figures = text.figures()
        self._pairs = _pair_paths(out, self._plan.student.languages)

    def run(
        self,
        observer: DistillationObserver,
        run_observers: Sequence[RunObserver],
        *,
        overwrite: bool,
    ) -> Distillation:
        """Translate, select pairs, train the student, and measure it."""
        settings = self._settings()
        with locked_folder(self._out, settings):
            report_folder = self._out / REPORT_FOLDER
            require_new_folder(report_folder, overwrite=True, made_by=COMMAND)
            discard = partial(_discard, self._out, self._pairs)
            default = RunConfig(model=type(self._plan.student.model)())
            record_settings(
                self._out,
                settings,
                discard,
                overwrite=overwrite,
                defaults={
                    "translation": DEFAULT_GENERATION,
                    "student": flat_settings(default),
                },
            )
            files = _text(self._out, self._plan)
            self._translate(files, observer)
            self._translator.close()  # its processes would take the training's cores
            files = self._select(files, observer)
            self._train(files, run_observers)
            report, texts = self._measure(observer)
            write_report(report, texts, report_folder)
        source, target = self._pairs
        return Distillation(
            student=self._out / STUDENT,
            source=source,
            target=target,
            report=report,
            report_folder=report_folder,
        )

    def _settings(self) -> dict[str, dict[str, Any]]:
        """Return everything on which the result of each step depends, by step."""
        plan, dev = self._plan, None
        if plan.dev_source:
            dev = read_through(plan.dev_source, plan.dev_target).digest
        return {
            "translation": {
                "teachers": [model_sum(path) for path in plan.teachers],
                "source": self._figures.digest,
                "held out by seed": (
                    plan.student.training.seed if plan.holds_out else None
                ),
                **generation_settings(self._generation, self._translator),
            },
            "pairs": {"drop_worst": plan.drop_worst},
            "student": {
                "vocabulary": plan.vocabulary,
                "dev": dev,
                "precision": self._hardware.precision,
                **flat_settings(plan.student),
            },
        }

    def _translate(self, files: CorpusFiles, observer: DistillationObserver) -> None:
        """Translate the source by the teachers."""
        text = InputText(paths=files.source, references=files.target)
        is_whole = files.source == self._plan.source
        figures = self._figures if is_whole else text.figures()
        translate_text(
            text,
            self._out / TRANSLATIONS,
            self._translator,
            self._generation,
            figures.different,
            observer.translated,
        )

    def _select(
        self, files: CorpusFiles, observer: DistillationObserver
    ) -> CorpusFiles:
        """Write the pairs to learn from; return their files beside the dev text."""
        source, target = self._pairs
        counts = self._recorded_counts()
        if counts is None:
            drop_worst = self._plan.drop_worst
            counts = write_kept(self._out / TRANSLATIONS, source, target, drop_worst)
            write_json(self._out / PAIRS, counts)
        observer.selected(self._figures, counts)
        return replace(files, source=(source,), target=(target,))

    def _recorded_counts(self) -> dict[str, int] | None:
        """Return the numbers of the pairs that are written already; None if not all
        files are there and sound."""
        if not all(path.is_file() for path in self._pairs):
            return None
        try:
            counts = read_json(self._out / PAIRS)
        except CheckpointError:
            return None
        is_sound = all(isinstance(counts.get(kind), int) for kind in COUNTED)
        return counts if is_sound else None

    def _train(self, files: CorpusFiles, observers: Sequence[RunObserver]) -> None:
        """Train the student, or continue its training."""
        run, config = self._out / STUDENT, self._plan.student
        _require_run_or_free(run)
        if not is_run(run):
            encoder, dictionary = self._encoder, None
            if encoder is not None:  # the first teacher's, with its dictionary
                dictionary = open_model(self._plan.teachers[0]).dictionary
            elif self._tags:
                encoder = _learn_encoder(
                    files, config.tokenizer, self._tags, self._translator
                )
            train_run(
                files,
                config,
                run,
                self._hardware,
                *observers,
                encoder=encoder,
                dictionary=dictionary,
            )
        elif not RunFolder(run).log.has_results:
            resume(run, self._hardware, *observers)

    def _measure(
        self, observer: DistillationObserver
    ) -> tuple[DistillationReport, dict[str, list[str]]]:
        """Compare the teachers and the student on the test texts."""
        source, _ = self._pairs
        has_languages = bool(self._translator.language_tag)
        teacher = ComparedSystem(
            name=TEACHER,
            folders=self._plan.teachers,
            search=self._search,
            into=self._translator.target_language if has_languages else None,
        )
        return measure_models(
            teacher,
            _trained_student(self._out / STUDENT),
            self._plan.tests or _dev_as_test(self._out, self._plan),
            observer.measuring,
            source=source,
            device=self._hardware.device.type,
        )


def _generation(plan: DistillationPlan, search: SearchConfig) -> Generation:
    """Return how the teachers translate: with references, a wide beam."""
    if plan.reference:
        number = plan.num_best or NUM_BEST
        beam_size = max(search.beam_size, number)
        search = replace(search, beam_size=beam_size, num_best=number)
    return Generation(decoding=search, max_ratio=plan.max_ratio)


def _students_tags(plan: DistillationPlan, translator: Translator) -> set[str]:
    """Return the tags of languages that the student learns.

    A student of one target language needs none. If lines of the text begin with tags of
    languages, it learns these, and the tag that the teacher puts before other lines.
    """
    tokenizer = translator.tokenizer
    found = tags_in(plan.source, tokenizer) if tokenizer.language_tags else set()
    return {*found, translator.language_tag} if found else found


def tags_in(paths: Sequence[Path], tokenizer: Tokenizer) -> set[str]:
    """Return the tags of the vocabulary with which lines of a text begin."""
    found = set(map(tokenizer.language, read_text(paths)))
    return found & set(tokenizer.language_tags)


def _learn_encoder(
    files: CorpusFiles, config: TokenizerConfig, tags: set[str], teacher: Translator
) -> PairEncoder:
    """Learn a vocabulary with tags from pairs, whose sources may begin with them."""

    def pairs() -> Iterator[SentencePair]:
        for pair in read_pairs(files.source, files.target):
            tag = teacher.tokenizer.language(pair.source)
            yield replace(pair, source=pair.source.removeprefix(tag))

    texts = learning_texts(pairs(), sum(map(num_characters, pairs())))
    return PairEncoder(tokenizer=learn_tokenizer(texts, config, sorted(tags)))


def _student(
    plan: DistillationPlan, translator: Translator, encoder: PairEncoder | None
) -> RunConfig:
    """Return the student's settings with the teacher's languages and vocabulary."""
    source = translator.source_language or guess_all(plan.source)
    target = translator.target_language or guess_all(plan.reference or plan.dev_target)
    known = LanguagesConfig(source=source, target=target)
    given = plan.student.languages
    languages = known.given({"source": given.source, "target": given.target})
    tokenizer = plan.student.tokenizer
    if encoder is not None:
        tokenizer = tokenizer_settings(encoder.tokenizer)
    return replace(plan.student, languages=languages, tokenizer=tokenizer)


def _checked_pair(pair: object) -> tuple[Path, Path]:
    """Return a pair of files for the report; `ConfigError` for anything else."""
    if isinstance(pair, tuple | list) and len(pair) == 2:
        source, reference = pair
        if isinstance(source, str | PathLike) and isinstance(reference, str | PathLike):
            return path_of("tests", source), path_of("tests", reference)
    raise ConfigError(
        "`tests` must be a list of pairs of files, each a source and its references, "
        f"but one is {shown(pair)}."
    )


def student_settings(
    name: str,
    teachers: Sequence[Path],
    vocabulary: Vocabulary,
    change: Callable[[RunConfig], RunConfig],
) -> RunConfig:
    """Return the settings of a preset, with lengths that fit the teachers' tokens.

    `change` applies the user's settings. If it changes no length, sentences have at
    most as many tokens as the student has positions, or as in the preset.

    Raises `ConfigError` without a teacher, for a preset that cannot be a student's, and
    for settings of a tokenizer that is not learned, and `CheckpointError` for a damaged
    teacher.
    """
    require_task(name, "translation")
    if name == ADAPT:
        raise ConfigError(
            f"The preset {ADAPT} trains a trained model further, but a student is "
            f"trained from the start; choose another preset, such as {STUDENT_TINY}."
        )
    if not teachers:
        raise ConfigError("A distillation needs a teacher, but none is given.")
    config = preset_named(name)
    if vocabulary == "new":
        return change(config)
    tokenizer = open_model(teachers[0], with_shortlist=False).tokenizer
    batching = batching_for(tokenizer, config)
    if (max_positions := num_positions(change(config).model)) is not None:
        longest = max(
            min(batching.max_length, max_positions), config.batching.max_length
        )
        batching = replace(batching, max_length=longest)
    student = change(replace(config, batching=batching))
    if student.tokenizer != config.tokenizer:
        raise ConfigError(
            "Settings of `tokenizer` have no effect, as the student has the teachers' "
            'vocabulary; leave them out, or give "new" as `vocabulary`.'
        )
    return student


def _discard(out: Path, pairs: tuple[Path, Path], step: str) -> None:
    """Remove the result of a step.

    A student of other languages than before has other files of pairs.
    """
    old = _recorded_pairs(out)
    files: Iterable[Path] = ()
    match step:
        case "translation":
            files = (out / TRANSLATIONS,)
        case "pairs":
            files = {out / PAIRS, *pairs, *old}
        case "student":
            _require_run_or_free(out / STUDENT)
            if is_run(out / STUDENT):
                require_replaceable_run(out / STUDENT)
                remove_folder(out / STUDENT)
            if (out / REPORT_FOLDER).exists():
                clear_written(out / REPORT_FOLDER, COMMAND)
            files = () if old == pairs else old
    for path in files:
        path.unlink(missing_ok=True)


def _require_run_or_free(folder: Path) -> None:
    """Raise `CheckpointError` if the student's folder holds anything but its run."""
    if folder.exists() and not is_run(folder) and any(folder.iterdir()):
        raise CheckpointError(
            f"{folder}: must hold the student's run, but lacks {RUN_CONFIG} or the "
            "encoded corpus; restore them, or remove the folder to train another "
            "student."
        )


def _pair_paths(out: Path, languages: LanguagesConfig) -> tuple[Path, Path]:
    """Return the files of the pairs, which end in their languages if these differ."""
    source, target = languages.source or "source", languages.target or "target"
    if source == target:
        source, target = "source", "target"
    return out / f"{DISTILLED}.{source}", out / f"{DISTILLED}.{target}"


def _recorded_pairs(out: Path) -> tuple[Path, ...]:
    """Return the files of the pairs by the recorded settings; none without a record."""
    student = recorded_settings(out).get("student")
    if not isinstance(student, dict):
        return ()
    tags = {side: student.get(f"languages.{side}") for side in ("source", "target")}
    try:
        return _pair_paths(out, LanguagesConfig(**tags))
    except ConfigError:  # no languages
        return ()


def _files(plan: DistillationPlan) -> CorpusFiles:
    return CorpusFiles(
        source=plan.source,
        target=plan.reference,
        dev_source=plan.dev_source,
        dev_target=plan.dev_target,
    )


def _text(out: Path, plan: DistillationPlan) -> CorpusFiles:
    """Return the text to translate, its references, and the dev text."""
    files = _files(plan)
    if not plan.holds_out:
        return files
    # Repeated at each call, as it is quick and a crash may have interrupted it.
    parts = hold_out_pairs(files, out / HELD_OUT, plan.student.training.seed)
    return parts or files


def _trained_student(run: Path) -> ComparedSystem:
    model = open_model(run)
    search = (model.search or SearchConfig()).given({"num_best": 1})
    # A student of several languages has learned sources without a tag with the tag of
    # its target language.
    into = model.target_language if model.tokenizer.language_tags else None
    return ComparedSystem(name=STUDENT, folders=(run,), search=search, into=into)


def _dev_as_test(out: Path, plan: DistillationPlan) -> tuple[EvaluationText, ...]:
    """Return the dev text as test text, if its translations are true ones."""
    folder = RunFolder(out / STUDENT)
    if not plan.has_true_dev or not folder.has_dev_corpus:
        return ()
    dev = folder.path / DEV
    return (
        EvaluationText(name="dev", source=dev / DEV_SOURCE, reference=dev / DEV_TARGET),
    )
