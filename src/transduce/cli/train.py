"""`transduce train`: text files to trained, averaged, scored model."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from transduce.cli.display import TrainingDisplay
from transduce.cli.options import (
    Assignments,
    Files,
    changed,
    require_both,
    run_config,
)
from transduce.device import Precision, choose_hardware
from transduce.errors import ConfigError
from transduce.experiments.pipeline import (
    refuse_changed_files,
    refuse_changed_settings,
    settings_of,
)
from transduce.experiments.pipeline import resume as resume_run
from transduce.experiments.pipeline import train as train_run
from transduce.experiments.preparation import CorpusFiles


def train(
    *,
    out: Path,
    preset: str | None = None,
    source: Files = (),
    target: Files = (),
    dev_source: Files = (),
    dev_target: Files = (),
    config: Path | None = None,
    settings: Assignments = (),
    resume: Annotated[bool, Parameter(negative="")] = False,
    device: str = "auto",
    precision: Precision = "auto",
) -> None:
    """Train a model: text files to averaged, scored model.

    Parameters
    ----------
    out
        The run's folder; new, or with --resume one that holds a run.
    preset
        The settings to begin with: base (if none is given), big, a row of Table 3
        (C-N2, ...), multi30k.
    source
        Text files, one sentence a line, plain or gzip.
    target
        Their translations, line by line.
    dev_source
        Held-out text, scored at each checkpoint.
    dev_target
        Its translations.
    config
        A TOML file of settings that change the preset.
    settings
        Single settings, such as model.dropout=0.2.
    resume
        Go on with the run in the output folder.
    device
        auto, cpu or cuda.
    precision
        Of matrix products: bf16 where the processor is good at it, by default.
    """
    hardware = choose_hardware(device, precision)
    if resume and preset is None:
        run = changed(settings_of(out), config, settings)
    else:
        run = run_config(preset or "base", config, settings)
    files = _corpus_files(source, target, dev_source, dev_target)
    if resume:
        refuse_changed_settings(out, run)
        if source or dev_source:
            refuse_changed_files(out, files)
    elif not source:
        raise ConfigError("A corpus must be given: --source FILE... --target FILE...")
    with TrainingDisplay(run.training.steps) as display:
        if resume:
            result = resume_run(out, hardware, display)
        else:
            result = train_run(files, run, out, hardware, display)
    display.finished(result)


def _corpus_files(
    source: tuple[Path, ...],
    target: tuple[Path, ...],
    dev_source: tuple[Path, ...],
    dev_target: tuple[Path, ...],
) -> CorpusFiles:
    require_both(source, target)
    require_both(dev_source, dev_target)
    return CorpusFiles(
        source=source, target=target, dev_source=dev_source, dev_target=dev_target
    )
