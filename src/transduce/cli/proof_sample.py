"""Sentences for commands that end with a proof."""

from itertools import islice
from pathlib import Path

from transduce.errors import ConfigError
from transduce.grammar.corpus import BUILT_IN, Grammar
from transduce.text.corpus import read_text
from transduce.text.languages import base

NUM_SENTENCES = 6
"""Number of sentences of the built-in grammar."""
OUTLANDISH = "¿Ω  中文 <s> </s>\t🙂 e\u0301x 12.000?"
"""Text that few tokenizers have seen."""


def proof_sentences(sample: Path | None, language: str | None) -> list[str]:
    """Return the user's sentences, or some of the built-in corpus.

    The latter are in `language`, a BCP 47 tag, or in English if the corpus lacks it.
    """
    if sample is None:
        return [OUTLANDISH, *_built_in(None if language is None else base(language))]
    sentences = [line for line in read_text([sample]) if line.strip()]
    if not sentences:
        raise ConfigError(f"{sample}: must hold a sentence at least, but holds none.")
    return sentences


def _built_in(language: str | None) -> list[str]:
    found = [pair for pair in BUILT_IN if pair.endswith(f"-{language}")]
    grammar = Grammar.built_in(found[0] if found else "en-de")
    sentences = islice(grammar.training_sentences(seed=1), NUM_SENTENCES)
    return [each.target if found else each.source for each in sentences]
