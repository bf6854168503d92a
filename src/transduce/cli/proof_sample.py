"""What commands that end with a proof share: its sentences, and packages for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from transduce.errors import ConfigError, RequestError
from transduce.phrases import missing_package
from transduce.text.corpus import read_text
from transduce.text.grammar import Grammar

NUM_SENTENCES = 6
"""Of the built-in grammar."""
OUTLANDISH = "¿Ω  中文 <s> </s>\t🙂 e\u0301x 12.000?"
"""For the tokenizer: what few models have seen."""


def proof_sentences(sample: Path | None) -> list[str]:
    """The user's own, or some of the built-in corpus."""
    if sample is None:
        grammar = Grammar.built_in().training_sentences(seed=1)
        return [OUTLANDISH, *(each.source for each in islice(grammar, NUM_SENTENCES))]
    sentences = [line for line in read_text([sample]) if line.strip()]
    if not sentences:
        raise ConfigError(f"{sample}: must hold a sentence at least, but holds none.")
    return sentences


@contextmanager
def packages_for(task: str) -> Iterator[None]:
    """`RequestError` if one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise RequestError(missing_package(task, str(error.name), "export")) from None
