"""How likely a given translation is."""

from dataclasses import dataclass

from transduce.evaluation.perplexity import perplexity


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetScore:
    """How likely a model holds a target, given its source."""

    log_probability: float
    """Natural logarithm, the end token counted."""
    num_tokens: int
    """The end token counted."""

    @property
    def perplexity(self) -> float:
        """Of a token."""
        return perplexity(self.log_probability, self.num_tokens)
