"""The tokenizer that BLEU counts words by, chosen by the language of the target.

BLEU compares words, and the usual tokenizer (13a) takes what stands between spaces for
words: in Chinese a whole clause. Post (2018) has the tokenizer named with each score.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from sacrebleu.metrics.bleu import BLEU

from transduce.errors import ConfigError, RequestError
from transduce.languages import base, detect_unspaced, english_name, is_unspaced
from transduce.phrases import missing_package

Tokenize = Literal[
    "auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none", "flores101",
    "flores200", "spBLEU-1K", "spm",
]  # fmt: skip
"""sacreBLEU's tokenizers by name; auto: the one for the language."""

USUAL = "13a"
BY_CHARACTERS = "char"
BY_LANGUAGE = {
    "zh": "zh", "yue": "zh", "wuu": "zh", "nan": "zh", "hak": "zh", "lzh": "zh",
    "ja": "ja-mecab", "ko": "ko-mecab",
}  # fmt: skip
"""Languages with a tokenizer of their own."""
EXTRAS = {"ja-mecab": ("mecab-python3", "ja"), "ko-mecab": ("mecab-ko", "ko")}
"""The package that a tokenizer needs, and the extra that installs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """How translations of the dev corpus are scored."""

    tokenize: Tokenize = "auto"
    """Tokenizer of sacreBLEU; auto: by the target's language, else by its script."""
    hold_out: bool = True
    """Without a dev corpus, hold 1 % of the training corpus out: at least 200 pairs,
    and at most 2,000; none of a corpus of fewer than 400."""

    def __post_init__(self) -> None:
        if self.tokenize not in get_args(Tokenize):
            raise ConfigError(
                f"`evaluation.tokenize` must be one of {', '.join(get_args(Tokenize))},"
                f' but is "{self.tokenize}".'
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenization:
    """A tokenizer of sacreBLEU and why it was chosen."""

    name: str = USUAL
    reason: str = ""
    """Where it is not what was asked for or usual: the script that was found."""

    def __str__(self) -> str:
        return f"{self.name}, {self.reason}" if self.reason else self.name


def choose_tokenization(
    asked: Tokenize, language: str | None, references: Iterable[str]
) -> Tokenization:
    """The tokenizer that is asked for; else that of the language; else of the script.

    The references are read only where neither is known. `RequestError` if the
    tokenizer's package or data is missing.
    """
    chosen = _chosen(asked, language, references)
    require_tokenizer(chosen.name)
    return chosen


def _chosen(
    asked: Tokenize, language: str | None, references: Iterable[str]
) -> Tokenization:
    if asked != "auto":
        return Tokenization(name=asked)
    if language is not None:
        return Tokenization(name=tokenizer_of(language))
    if (found := detect_unspaced(references)) is None:
        return Tokenization()
    reason = f"as the references are in the script of {english_name(found)}"
    return Tokenization(name=tokenizer_of(found), reason=reason)


def tokenizer_of(language: str) -> str:
    """The tokenizer for a language: words where there are rules, else characters."""
    language_alone = base(language)
    if language_alone == "ko" or is_unspaced(language):
        return BY_LANGUAGE.get(language_alone, BY_CHARACTERS)
    return USUAL


def require_tokenizer(name: str) -> None:
    """`RequestError` if a tokenizer cannot be used here."""
    try:
        BLEU(tokenize=name, force=True)
    except (ImportError, RuntimeError, AssertionError) as error:
        if name in EXTRAS:
            task = f"BLEU with the tokenizer {name}"
            message = missing_package(task, *EXTRAS[name])
            hint = " Or choose another tokenizer, such as char."
            raise RequestError(message + hint) from None
        raise RequestError(_unusable(name, error)) from None
    except OSError as error:  # its model is downloaded once
        raise RequestError(_unusable(name, error)) from None


def _unusable(name: str, error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return (
        f"BLEU with the tokenizer {name} needs a model that sacreBLEU downloads and "
        f"reads, but: {reason}; choose another tokenizer, such as char."
    )
