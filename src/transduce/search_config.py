"""How a translation is searched for (section 6.1)."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from transduce.errors import ConfigError
from transduce.settings import require_between, require_types

MAX_BEAM_SIZE = 1_000
"""Largest beam size, ten times that at which translations only get worse (Stahlberg and
Byrne, 2019)."""
MAX_LENGTH_PENALTY = 10
"""Beyond all sense, but the penalty of the longest line is still a number."""
MAX_WEIGHT = 1_000
"""Largest patience, coverage penalty and diversity, far beyond useful values."""
MAX_TOKENS = 100_000
"""Tokens of a translation at most: more than any sentence has, so that search ends."""

LengthPenalty = Literal["gnmt", "power"]

NOT_GREEDY = ("num_best", "patience", "coverage_penalty", "diversity")
"""Settings without a meaning for greedy search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """How a translation is searched for; the defaults are the paper's (section 6.1)."""

    beam_size: int = 4
    """Hypotheses kept at each step."""
    num_best: int = 1
    """Finished hypotheses that search is for; it ends once nothing unfinished can
    overtake them. Each call asks for it: that of a model's own search is not used."""
    patience: float | None = None
    """Times the beam size: so many finished hypotheses end the search in any case. Then
    only those finish that end among the beam's best of their step (Kasai et al., 2022),
    and those that the limit of length cuts short compete with them."""
    length_penalty: float = 0.6
    """Alpha: what length counts for when hypotheses are ranked; 0 for nothing."""
    penalty: LengthPenalty = "gnmt"
    """How alpha counts: ((5 + length) / 6)^alpha (Wu et al., 2016), or length^alpha."""
    coverage_penalty: float = 0.0
    """Beta: what source tokens that were hardly attended to cost a hypothesis, as the
    sum of log(min(attention, 1)) (Wu et al., 2016)."""
    diversity: float = 0.0
    """Nats that the k-th best token after a hypothesis is behind in the choice of what
    goes on, for each place behind the first (Li et al., 2016)."""
    min_length: int = 0
    """Tokens a translation has at least, its end not counted."""
    extra_length: int = 50
    """Tokens a translation may have beyond those of its source."""
    max_length: int | None = None
    """Tokens a translation has at most, its end counted, however long its source."""

    def __post_init__(self) -> None:
        require_types(self, "search.")
        self._require_sizes()
        self._require_numbers()

    def _require_sizes(self) -> None:
        require_between("search.beam_size", self.beam_size, 1, MAX_BEAM_SIZE)
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

    def _require_numbers(self) -> None:
        if not 0 <= self.length_penalty <= MAX_LENGTH_PENALTY:
            raise ConfigError(
                f"`search.length_penalty` must be from 0 to {MAX_LENGTH_PENALTY}, but "
                f"is {self.length_penalty}."
            )
        if self.patience is not None and not self.patience > 0:
            raise ConfigError(
                f"`search.patience` must be a number above 0, but is {self.patience}."
            )
        require_between("search.patience", self.patience, 0, MAX_WEIGHT)
        for name, most in (
            ("diversity", MAX_WEIGHT),
            ("coverage_penalty", MAX_WEIGHT),
            ("min_length", MAX_TOKENS),
            ("extra_length", MAX_TOKENS),
        ):
            require_between(f"search.{name}", getattr(self, name), 0, most)
        if self.max_length is not None and self.max_length <= self.min_length:
            raise ConfigError(
                f"`search.max_length` must be at least {self.min_length + 1}, one more "
                f"than `search.min_length`, but is {self.max_length}."
            )
        require_between("search.max_length", self.max_length, 1, MAX_TOKENS + 1)

    def given(self, settings: Mapping[str, Any]) -> "SearchConfig":
        """Copy with those settings that are not None.

        They override its own; own settings that lose their meaning are dropped with a
        warning, as is its own `num_best`. `ConfigError` if the settings contradict each
        other.
        """
        config, dropped = self.changed(settings)
        for each in dropped:
            warnings.warn(each, UserWarning, stacklevel=2)
        return config

    def changed(
        self, settings: Mapping[str, Any]
    ) -> tuple["SearchConfig", tuple[str, ...]]:
        """Copy like `given`, and sentences about dropped settings.

        A patience of "none" stands for None and overrides that of the config.
        """
        given = {k: value for k, value in settings.items() if value is not None}
        if given.get("patience") == "none":
            given["patience"] = None
        usual = SearchConfig()
        beam_size = given.get("beam_size", self.beam_size)
        dropped: dict[str, tuple[Any, str]] = {}
        if beam_size == 1:
            for name in NOT_GREEDY:
                reason = "has no effect on greedy search (beam size 1)"
                dropped[name] = getattr(usual, name), reason
        elif "num_best" not in given:
            # A line has one translation unless whoever asks can take several.
            reason = "is used only when a call asks for it"
            dropped["num_best"] = usual.num_best, reason
        dropped |= self._impossible_lengths(given)
        for name, (value, reason) in dropped.items():
            if given.get(name, value) != value:
                raise ConfigError(
                    f"`search.{name}` {reason}; choose a larger beam, or leave it out."
                )
        lost = {
            name: (value, reason)
            for name, (value, reason) in dropped.items()
            if name not in given and getattr(self, name) != value
        }
        config = replace(self, **{**given, **{k: v for k, (v, _) in lost.items()}})
        was_lost = NOT_GREEDY if self.beam_size == 1 else ()
        return config, tuple(
            f"The model's own `search.{name}` of {getattr(self, name)} {reason}, and "
            "is left out."
            for name, (_, reason) in lost.items()
            if name not in was_lost
        )

    def _impossible_lengths(
        self, given: Mapping[str, Any]
    ) -> dict[str, tuple[int | None, str]]:
        """Own limits of length that contradict the given ones, with reasons."""
        own_min, own_max = self.min_length, self.max_length
        least, most = given.get("min_length"), given.get("max_length")
        if most is not None and least is None and own_min >= most > 0:
            return {"min_length": (0, f"is above the greatest length of {most - 1}")}
        if least is None or most is not None or own_max is None:
            return {}
        if own_max <= least:
            return {"max_length": (None, f"leaves no room for {least} tokens")}
        return {}

    def greedy(self) -> "SearchConfig":
        """Greedy search with the same limits of length."""
        usual = SearchConfig()
        unused = {name: getattr(usual, name) for name in NOT_GREEDY}
        return replace(self, beam_size=1, **unused)

    def limit(self, source_length: int, least: int = 0) -> int:
        """Tokens of an output at most; the end counts on both sides.

        So many as are the least have room in any case.
        """
        limit = source_length + self.extra_length
        if self.max_length is not None:
            limit = min(limit, self.max_length)
        return max(limit, self.min_length + 1, least)

    @property
    def candidates(self) -> int:
        """Ways to go on or end that are weighed in each step: twice the beam's, as half
        of them may end."""
        return 2 * self.beam_size

    @property
    def end_candidates(self) -> int:
        """How many of them may end, the best."""
        return self.candidates if self.patience is None else self.beam_size

    @property
    def enough_ends(self) -> int | None:
        """Finished hypotheses after which search ends in any case, if it does."""
        if self.patience is None:
            return None
        # Unlike the paper: search may end while something better is possible, as in
        # other libraries, which saves a tenth to more than a third of its steps.
        return max(math.floor(self.patience * self.beam_size + 0.5), 1)

    @property
    def cut_ones_compete(self) -> bool:
        """Whether hypotheses cut short by the length limit compete with finished ones.

        In other libraries they do; otherwise they count only if none has finished.
        """
        return self.patience is not None

    def score(
        self, log_probability: float, length: int, coverage: float = 0.0
    ) -> float:
        """What search maximizes; the length counts the end token.

        Coverage is a sum of logarithms, at most 0.
        """
        ranked = log_probability / self.divisor(length)
        return ranked + self.coverage_penalty * coverage

    def divisor(self, length: int) -> float:
        """By which the log-probability is divided; it never falls with the length."""
        # Unlike the paper: length^alpha, if asked for, as other libraries have it.
        base = (5 + length) / 6 if self.penalty == "gnmt" else float(length)
        return float(base**self.length_penalty)


MAX_TOP_K = 10_000_000
"""Largest `top_k`: more tokens than any vocabulary has."""
MAX_SEED = 2**63 - 1
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.001, 1_000
"""Colder, only the likeliest is drawn; hotter, all alike."""
MAX_DRAWS = 100_000
"""Draws of a sentence at most; memory may allow fewer, as each has its own logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How tokens are drawn."""

    number: int = 1
    """Translations of each sentence."""
    temperature: float = 1.0
    """What logits are divided by: below one, the likely become likelier."""
    top_k: int | None = None
    """Only so many of the likeliest tokens are drawn from (Fan et al., 2018)."""
    top_p: float = 1.0
    """Only the likeliest tokens that reach this probability together are drawn from:
    the nucleus (Holtzman et al., 2020)."""
    extra_length: int = 50
    """Tokens a translation may have beyond those of its source."""
    seed: int = 1

    def __post_init__(self) -> None:
        require_types(self)
        for name, least, most in (
            ("number", 1, MAX_DRAWS),
            ("top_k", 1, MAX_TOP_K),
            ("extra_length", 0, MAX_TOKENS),
            ("seed", 0, MAX_SEED),
        ):
            require_between(name, getattr(self, name), least, most)
        if not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            raise ConfigError(
                f"`temperature` must be from {MIN_TEMPERATURE} to "
                f"{MAX_TEMPERATURE:,}, but is {self.temperature}."
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(
                f"`top_p` must be above 0 and at most 1, but is {self.top_p}."
            )
