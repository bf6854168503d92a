"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from transduce.errors import ConfigError
from transduce.experiments.presets import RunConfig, preset
from transduce.settings import apply_assignments, apply_file

Assignments = Annotated[
    tuple[str, ...],
    Parameter(name="--set", consume_multiple=True, negative="", show_default=False),
]
"""Settings as key=value."""


def run_config(
    name: str, config_file: Path | None, assignments: tuple[str, ...]
) -> RunConfig:
    """A preset, changed by a file, changed by single settings."""
    return changed(preset(name), config_file, assignments)


def changed(
    config: RunConfig, config_file: Path | None, assignments: tuple[str, ...]
) -> RunConfig:
    """Settings changed by a file, then by single settings."""
    sizes = config.model.vocab_size, config.model.target_vocab_size
    if config_file is not None:
        config = apply_file(config, config_file)
    config = apply_assignments(config, assignments)
    if (config.model.vocab_size, config.model.target_vocab_size) != sizes:
        raise ConfigError(
            "`model.vocab_size` and `model.target_vocab_size` must be left to the "
            "tokenizer and the trees, but one is set; set `tokenizer.vocab_size` "
            "instead."
        )
    return config


def require_both(source: tuple[Path, ...], target: tuple[Path, ...]) -> None:
    """`ConfigError` if only one side of a corpus is given."""
    if bool(source) != bool(target):
        raise ConfigError(
            "Both sides of a corpus must be given, but only "
            f"{(source or target)[0]} is."
        )


def require_new(out: Path) -> None:
    """`ConfigError` if something is there."""
    if out.exists():
        raise ConfigError(f"{out}: the output folder must be new, but exists.")
