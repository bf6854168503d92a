"""`transduce distill`: a small, fast model that learns what a large one translates."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from transduce.cli.back_translate import (
    LineProgress,
    describe_input,
    describe_pairs,
    kept_if_interrupted,
)
from transduce.cli.files import Files
from transduce.cli.options import (
    Assignments,
    changed_by_options,
    refuse_trees,
    require_both,
)
from transduce.cli.terminal import table_console
from transduce.cli.training_display import TrainingDisplay
from transduce.decoding.native_decoder import PrecisionChoice
from transduce.errors import ConfigError
from transduce.experiments.distillation import (
    STUDENT_TINY,
    DistillationPlan,
    Vocabulary,
    distill_in,
    student_settings,
)
from transduce.experiments.distillation_report import NAME, as_report
from transduce.experiments.experiment import EvaluationText
from transduce.experiments.synthetic_text import MAX_RATIO, InputFigures
from transduce.machine import Precision, use_one_arena
from transduce.model_folder import open_model
from transduce.report.terminal import show
from transduce.search_config import SearchConfig
from transduce.training.trainer import TrainingStoppedError


def distill(
    *teachers: Path,
    source: Files,
    out: Path,
    reference: Files = (),
    target_language: str | None = None,
    dev_source: Files = (),
    dev_target: Files = (),
    test: tuple[tuple[Path, Path], ...] = (),
    preset: str = STUDENT_TINY,
    config: Path | None = None,
    settings: Assignments = (),
    vocabulary: Vocabulary = "teacher",
    beam_size: int | None = None,
    num_best: int | None = None,
    max_ratio: float = MAX_RATIO,
    drop_worst: float = 0.0,
    force: bool = False,
    device: str = "auto",
    precision: PrecisionChoice = "auto",
    training_precision: Precision = "auto",
    processes: int | None = None,
) -> None:
    """Train a small model on the translations of a large one, or of an ensemble.

    The teacher translates the source text, useless translations are dropped, a student
    is trained on the pairs, and both are compared (Kim and Rush, 2016). Each step's
    result is kept, and the same command continues where it was interrupted.

    For example:

        transduce distill runs/big --source mono.en --out small --test test.en test.de
        transduce distill runs/1 runs/2 runs/3 --source train.en --reference train.de \
--out small

    Parameters
    ----------
    teachers
        Model or run folders; several form an ensemble, and must have one vocabulary.
    source
        Text files in the source language, one sentence per line, plain or compressed.
        Every different line is translated once.
    out
        Folder of all results; new, or begun by the same command.
    reference
        Translations of the source, line by line. The student then learns the one of the
        n-best translations of a line that is closest to its reference.
    target_language
        Language to translate into, of a teacher with several target languages.
    dev_source
        Held-out text, scored at each checkpoint of the student. By default pairs are
        held out: true ones if there are references, otherwise the teacher's own.
    dev_target
        Its true translations.
    test
        Pairs of a test text and its references, on which teacher and student are
        compared; by default the dev text.
    preset
        Preset of the student. student-tiny has no dropout, and is for millions of
        lines; for tens of thousands take multi30k, or set model.dropout.
    config
        A TOML file of settings that change the preset.
    settings
        Single settings of the student, such as model.decoder_layers=1.
    vocabulary
        teacher: the student has the teacher's vocabulary, and learns exactly the tokens
        that the teacher generated. new: a vocabulary is learned from the pairs
        (tokenizer.vocab_size), so that the student can be smaller.
    beam_size
        Beam size of the teacher; by default its own.
    num_best
        Number of translations that are compared with the reference; by default 8.
    max_ratio
        Drop pairs in which one side has more than this many times the other's tokens.
    drop_worst
        Share of the pairs to drop: those with the lowest log-probability per token.
    force
        Repeat the steps whose settings differ from those of the folder.
    device
        auto, cpu or cuda.
    precision
        Precision of the teacher: fp32 is exact; bf16 and int8 can be several times
        faster on a processor that supports them. auto is fp32, and int8 for quantized
        models.
    training_precision
        Precision of the student's training: auto, fp32 or bf16. auto keeps that of an
        earlier command in the same folder.
    processes
        Number of processes that share the teacher's sentences, each on one core; by
        default one for each core within affinity and CPU quota, at most
        OMP_NUM_THREADS and 16.
    """
    if not teachers:
        raise ConfigError("A teacher must be given; name a model or run folder.")
    require_both(dev_source, dev_target, "dev-")
    refuse_trees(*source, *reference)
    change = partial(changed_by_options, config_file=config, assignments=settings)
    use_one_arena()  # before the threads of the teacher's tokenizer
    student = student_settings(preset, teachers, vocabulary, change)
    own = open_model(teachers[0]).search or SearchConfig()
    search = own.given({"num_best": 1, "beam_size": beam_size})
    plan = DistillationPlan(
        teachers=teachers,
        source=source,
        student=student,
        reference=reference,
        target_language=target_language,
        dev_source=dev_source,
        dev_target=dev_target,
        tests=tuple(EvaluationText.of(*files) for files in test),
        vocabulary=vocabulary,
        search=search,
        num_best=num_best,
        max_ratio=max_ratio,
        drop_worst=drop_worst,
    )
    with kept_if_interrupted(out), DistillationDisplay() as display:
        try:
            result = distill_in(
                out,
                plan,
                display,
                display,
                device=device,
                precision=precision,
                training_precision=training_precision,
                num_processes=processes,
                overwrite=force,
            )
        except TrainingStoppedError as error:
            raise TrainingStoppedError(f"{error} The same command continues.") from None
    show(as_report(result.report), table_console())
    folder = result.report_folder
    print(f"The student is in {result.student}.")
    print(f"The report is in {folder}: {NAME}.md, {NAME}.html, {NAME}.json.")


class DistillationDisplay(TrainingDisplay):
    """Progress of a distillation and of the student's training."""

    def __init__(self) -> None:
        super().__init__()
        self._progress_of_lines = LineProgress(self)

    def translated(self, done: int, total: int) -> None:
        """Show the number of lines that the teacher has translated."""
        self._progress_of_lines(done, total)

    def selected(self, figures: InputFigures, pairs: Mapping[str, int]) -> None:
        """Print how many pairs the student learns from."""
        self.console.print(describe_input(figures))
        self.console.print(describe_pairs(pairs))

    def measuring(self, what: str) -> None:
        """Show a step of the comparison."""
        self.show(what, (), 0)
