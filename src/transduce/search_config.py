"""Settings of beam search (section 6.1) and of sampling."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from transduce.errors import ConfigError, warn_caller
from transduce.settings import (
    Bounds,
    Seed,
    convert_and_check,
    converted,
    shown,
    without_numpy,
)

MAX_BEAM_SIZE = 1_000
"""Largest beam size: ten times the size beyond which translations get worse (Stahlberg
and Byrne, 2019)."""
MAX_TOKENS = 100_000
"""Maximum length of a translation in tokens: longer than any sentence."""
MAX_TOKEN = 2**31 - 1
"""Largest id of a token in the native library."""

Length = Annotated[int, Bounds(0, MAX_TOKENS)]
"""Number of tokens."""
Weight = Annotated[float, Bounds(0, 1_000)]
"""Weight of a penalty; the largest is far beyond useful values."""
Positive = Annotated[float, Bounds(0, 1_000, above=True)]

LengthPenalty = Literal["gnmt", "power"]

NOT_GREEDY = ("num_best", "patience", "coverage_penalty", "diversity")
"""Settings that greedy search does not use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """Settings of beam search; the defaults are the paper's (section 6.1)."""

    beam_size: Annotated[int, Bounds(1, MAX_BEAM_SIZE)] = 4
    """Number of hypotheses kept at each step; 1 is greedy search."""
    num_best: int = 1
    """Number of translations to return. Search ends once no unfinished hypothesis can
    overtake them. Only a call's own value counts, never a model's."""
    patience: Positive | None = None
    """Search ends after patience times beam_size finished hypotheses (Kasai et al.,
    2022). With it, only the beam_size best candidates of a step may finish. Hypotheses
    truncated by the length limit are then ranked with the finished ones."""
    length_penalty: Annotated[float, Bounds(0, 10)] = 0.6
    """Alpha, the strength of length normalization; 0 turns it off. At its largest value
    the divisor of the longest line is still finite."""
    penalty: LengthPenalty = "gnmt"
    """Formula of the divisor: ((5 + length) / 6)^alpha (gnmt; Wu et al., 2016), or
    length^alpha (power)."""
    # Unlike the paper: a penalty for source tokens that are left untranslated (Wu et
    # al., 2016), and one that lets the n best differ more (Li et al., 2016). Off by
    # default: `search.coverage_penalty`, `search.diversity`.
    coverage_penalty: Weight = 0.0
    """Beta, the weight of the coverage penalty: the sum over source tokens of
    log(min(attention received, 1)) (Wu et al., 2016)."""
    diversity: Weight = 0.0
    """Penalty in nats per rank among the continuations of one hypothesis (Li et al.,
    2016)."""
    # Unlike the paper: a translation can have a minimum length, and a maximum length
    # whatever its source. Off by default: `search.min_length`, `search.max_length`.
    min_length: Length = 0
    """Minimum length of a translation in tokens, without the end token."""
    extra_length: Length = 50
    """Maximum length of a translation minus that of its source, in tokens."""
    max_length: Annotated[int, Bounds(1, MAX_TOKENS + 1)] | None = None
    """Absolute maximum length of a translation in tokens, with the end token."""
    # Unlike the paper: rules exclude tokens, as in other libraries, against loops and
    # for forbidden words. Off by default: `search.no_repeat_ngram`,
    # `search.repetition_penalty`, `search.bad_words`.
    no_repeat_ngram: Length = 0
    """No sequence of so many tokens occurs twice in a translation; 0 for no limit."""
    repetition_penalty: Positive = 1.0
    """Factor of the log-probability of each token that the hypothesis has already;
    above 1, repetitions become less likely (Keskar et al., 2019). The log-probabilities
    of hypotheses include it."""
    bad_words: Sequence[Sequence[int]] = ()
    """Sequences of token ids that never occur in a translation."""
    shortlist: bool = False
    """Whether each sentence chooses among the candidates of the model's shortlist
    (L'Hostis et al., 2016), which is faster. Log-probabilities are then normalized over
    the candidates. Without a shortlist, and after a prefix, all tokens are
    candidates."""

    def __post_init__(self) -> None:
        words = require_sequences("search.bad_words", self.bad_words)
        object.__setattr__(self, "bad_words", words)
        convert_and_check(self, "search.")
        if not 1 <= self.num_best <= self.beam_size:
            raise ConfigError(
                f"`search.num_best` must be from 1 to the beam size {self.beam_size}, "
                f"but is {self.num_best}."
            )
        if self.coverage_penalty > 0 and self.beam_size == 1:
            raise ConfigError(
                "`search.beam_size` must be at least 2 if there is a coverage penalty, "
                "as that ranks hypotheses, but is 1."
            )
        if self.max_length is not None and self.max_length <= self.min_length:
            raise ConfigError(
                f"`search.max_length` must be at least {self.min_length + 1}, one more "
                f"than `search.min_length`, but is {self.max_length}."
            )

    def given(self, settings: Mapping[str, Any]) -> "SearchConfig":
        """Return a copy with the settings that are not None.

        Own settings that no longer apply are dropped with a warning, as is the own
        `num_best`. Raises `ConfigError` if the settings contradict each other.
        """
        config, dropped = self.changed(settings)
        for each in dropped:
            warn_caller(each)
        return config

    def changed(
        self, settings: Mapping[str, Any]
    ) -> tuple["SearchConfig", tuple[str, ...]]:
        """Return a copy as `given` does, and a sentence for each dropped setting.

        A patience of "none" stands for None and overrides the config's.
        """
        given = {k: value for k, value in settings.items() if value is not None}
        if given.get("patience") == "none":
            given["patience"] = None
        # Values of other types cannot be compared below.
        numbers = {k: value for k, value in given.items() if k != "bad_words"}
        given |= converted(SearchConfig, numbers, "search.")
        useless = self._useless(given)
        for name, (default, reason) in useless.items():
            if given.get(name, default) != default:
                raise ConfigError(
                    f"`search.{name}` {reason}; choose a larger beam, or leave it out."
                )
        dropped = {
            name: default
            for name, (default, _) in useless.items()
            if name not in given and getattr(self, name) != default
        }
        # A model whose own search is greedy has never used the settings of beams.
        unused = NOT_GREEDY if self.beam_size == 1 else ()
        return replace(self, **given, **dropped), tuple(
            f"The model's own `search.{name}` of {getattr(self, name)} "
            f"{useless[name][1]}, and is left out."
            for name in dropped
            if name not in unused
        )

    def _useless(self, given: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
        """Return the settings that cannot be used beside those given.

        Each has the value that takes its place, and the reason.
        """
        default = SearchConfig()
        useless: dict[str, tuple[Any, str]] = {}
        if given.get("beam_size", self.beam_size) == 1:
            reason = "has no effect on greedy search (beam size 1)"
            useless |= {name: (getattr(default, name), reason) for name in NOT_GREEDY}
        elif "num_best" not in given:
            # A line has one translation unless the caller can take several.
            reason = "is used only when a call asks for it"
            useless["num_best"] = default.num_best, reason
        return useless | self._impossible_lengths(given)

    def _impossible_lengths(
        self, given: Mapping[str, Any]
    ) -> dict[str, tuple[int | None, str]]:
        """Return own length limits that contradict the given ones, with reasons."""
        own_min, own_max = self.min_length, self.max_length
        min_length, max_length = given.get("min_length"), given.get("max_length")
        if max_length is not None and min_length is None and own_min >= max_length > 0:
            return {
                "min_length": (0, f"is above the greatest length of {max_length - 1}")
            }
        if min_length is None or max_length is not None or own_max is None:
            return {}
        if own_max <= min_length:
            return {"max_length": (None, f"leaves no room for {min_length} tokens")}
        return {}

    def greedy(self) -> "SearchConfig":
        """Return greedy search with the same length limits."""
        default = SearchConfig()
        unused = {name: getattr(default, name) for name in NOT_GREEDY}
        return replace(self, beam_size=1, **unused)

    def limit(self, source_length: int, minimum: int = 0) -> int:
        """Return the maximum output length in tokens, for a source of that length.

        The end token counts on both sides. The limit is at least `minimum`.
        """
        limit = source_length + self.extra_length
        if self.max_length is not None:
            limit = min(limit, self.max_length)
        return max(limit, self.min_length + 1, minimum)

    @property
    def has_restrictions(self) -> bool:
        """Whether the next token depends on the tokens before it by rules."""
        return bool(
            self.no_repeat_ngram or self.bad_words or self.repetition_penalty != 1
        )

    @property
    def candidates(self) -> int:
        """Number of candidates in each step: twice the beam, since half may end."""
        return 2 * self.beam_size

    @property
    def end_candidates(self) -> int:
        """Number of best candidates that may finish a hypothesis."""
        return self.candidates if self.patience is None else self.beam_size

    @property
    def finished_limit(self) -> int | None:
        """Number of finished hypotheses that end the search; None for no such limit."""
        if self.patience is None:
            return None
        # Unlike the paper: search may end while something better is possible, as in
        # other libraries. This saves a tenth to more than a third of the steps. Off by
        # default: `search.patience`.
        return max(math.floor(self.patience * self.beam_size + 0.5), 1)

    @property
    def ranks_truncated(self) -> bool:
        """Whether truncated hypotheses are ranked with finished ones at the limit.

        In other libraries they are; by default they count only if none has finished.
        """
        return self.patience is not None

    def score(
        self, log_probability: float, length: int, coverage: float = 0.0
    ) -> float:
        """Return the score that search maximizes.

        `length` counts the end token; `coverage` is a sum of logarithms, at most 0.
        """
        ranked = log_probability / self.divisor(length)
        return ranked + self.coverage_penalty * coverage

    def divisor(self, length: int) -> float:
        """Return the divisor of the log-probability; it never falls with the length."""
        # Unlike the paper: length^alpha, as in other libraries. Off by default:
        # `search.penalty`.
        base = (5 + length) / 6 if self.penalty == "gnmt" else float(length)
        return float(base**self.length_penalty)


def require_sequences(key: str, value: object) -> tuple[tuple[int, ...], ...]:
    """Return sequences of ids as tuples; raise `ConfigError` for anything else."""
    rows: list[Any] = list(value) if isinstance(value, list | tuple) else [None]
    found = []
    for row in rows:
        is_sequence = isinstance(row, list | tuple) and bool(row)
        ids = tuple(map(without_numpy, row)) if is_sequence else (None,)
        if not all(type(i) is int and 0 <= i <= MAX_TOKEN for i in ids):
            raise ConfigError(
                f"`{key}` must be a list of lists of token ids, none of them empty, "
                f"but is {shown(value)}."
            )
        found.append(ids)
    return tuple(found)


PARSING_SEARCH = SearchConfig(beam_size=21, length_penalty=0.3, extra_length=300)
"""The paper's search for parses (section 6.3)."""


def default_search(*, is_parser: bool) -> SearchConfig:
    """Return the search of a model that stores none."""
    return PARSING_SEARCH if is_parser else SearchConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Settings of sampling."""

    number: Annotated[int, Bounds(1, 100_000)] = 1
    """Number of samples of each sentence; memory may allow fewer than the maximum."""
    temperature: Annotated[float, Bounds(0.001, 1_000)] = 1.0
    """Divisor of the logits; below 1, likely tokens become likelier. Beyond its bounds
    sampling is greedy or uniform."""
    top_k: Annotated[int, Bounds(1, 10**7)] | None = None
    """Sample from the k likeliest tokens only (Fan et al., 2018); None for all."""
    top_p: Annotated[float, Bounds(0, 1, above=True)] = 1.0
    """Sample from the nucleus only: the likeliest tokens whose probabilities sum to at
    least p (Holtzman et al., 2020)."""
    extra_length: Length = 50
    """Maximum length of a translation minus that of its source, in tokens."""
    seed: Seed = 1
    """Seed of the random numbers; the same seed gives the same translations."""

    def __post_init__(self) -> None:
        convert_and_check(self)
