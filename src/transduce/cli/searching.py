"""Options of a search, as all commands that search have them."""

import sys
from collections.abc import Mapping
from typing import Any

from transduce.errors import ConfigError
from transduce.search_config import SearchConfig


def search_of(own: SearchConfig, options: Mapping[str, Any]) -> SearchConfig:
    """A model's own search, changed by those options that are given.

    What of its own they leave without a meaning is dropped, and that is said, as is
    what means nothing. `ConfigError` if the options contradict each other.
    """
    config, dropped = own.changed(options)
    for each in (*dropped, *_pointless(config, options)):
        print(f"Warning: {each}", file=sys.stderr)
    return config


def _pointless(config: SearchConfig, options: Mapping[str, Any]) -> list[str]:
    """What is said of options that change nothing that is found."""
    said = []
    if config.beam_size == 1:
        said = [
            f"{_option(name)} changes only the scores of a greedy search, whose beam "
            "size is 1, not what it finds."
            for name in ("length_penalty", "penalty")
            if options.get(name) is not None
        ]
    elif options.get("penalty") is not None and config.length_penalty == 0:
        said = ["--penalty changes nothing where the length penalty is 0."]
    return said


def require_no_search(options: Mapping[str, Any], needed: str) -> None:
    """`ConfigError` if options of a search are given where there is none."""
    for name, value in options.items():
        if value not in (None, False, "auto", "fp32"):
            raise ConfigError(
                f"{_option(name)} says how a model searches, but there is none; leave "
                f"it out, or give {needed}."
            )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
