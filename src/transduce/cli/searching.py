"""Search options, shared by all commands that search."""

import sys
from collections.abc import Mapping
from typing import Any

from transduce.errors import ConfigError
from transduce.search_config import SearchConfig


def search_of(own: SearchConfig, options: Mapping[str, Any]) -> SearchConfig:
    """Return a model's search settings, changed by the given options.

    Warns about own settings that no longer apply, which are dropped, and about options
    without effect. Raises `ConfigError` if options contradict each other.
    """
    config, dropped = own.changed(options)
    for each in (*dropped, *_pointless(config, options)):
        print(f"Warning: {each}", file=sys.stderr)
    return config


def _pointless(config: SearchConfig, options: Mapping[str, Any]) -> list[str]:
    """List warnings about options that do not change the result of a search."""
    said = []
    if config.beam_size == 1:
        said = [
            f"{_option(name)} changes only the scores, not the translations, of a "
            "greedy search (beam size 1)."
            for name in ("length_penalty", "penalty")
            if options.get(name) is not None
        ]
    elif options.get("penalty") is not None and config.length_penalty == 0:
        said = ["--penalty changes nothing where the length penalty is 0."]
    return said


def require_no_search(options: Mapping[str, Any], needed: str) -> None:
    """Raise `ConfigError` if search options are given to a command without search."""
    for name, value in options.items():
        if value not in (None, False, "auto", "fp32"):
            raise ConfigError(
                f"{_option(name)} is for a model's search, but there is no model; "
                f"leave it out, or give {needed}."
            )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
