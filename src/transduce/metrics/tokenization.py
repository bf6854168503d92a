"""BLEU's tokenizer, chosen by the target language.

BLEU compares words. The usual tokenizer (13a) splits at spaces, which yields whole
clauses in Chinese. Every score names its tokenizer (Post, 2018).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from transduce.errors import RequestError, missing_package
from transduce.text.languages import base, detect_by_script, english_name, is_unspaced

Tokenize = Literal[
    "auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none", "flores101",
    "flores200", "spBLEU-1K", "spm",
]  # fmt: skip
"""Names of sacreBLEU's tokenizers; auto is the one for the language."""

USUAL = "13a"
BY_CHARACTERS = "char"
BY_LANGUAGE = {
    "zh": "zh", "yue": "zh", "wuu": "zh", "nan": "zh", "hak": "zh", "lzh": "zh",
    "ja": "ja-mecab", "ko": "ko-mecab",
}  # fmt: skip
"""Tokenizers of languages that have their own."""
EXTRAS = {"ja-mecab": ("mecab-python3", "ja"), "ko-mecab": ("mecab-ko", "ko")}
"""Package that each tokenizer needs, and the extra that installs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenization:
    """A tokenizer of sacreBLEU and why it was chosen."""

    name: str = USUAL
    reason: str = ""
    """Reason for a tokenizer chosen by the detected script; otherwise empty."""

    def __str__(self) -> str:
        return f"{self.name}, {self.reason}" if self.reason else self.name


def choose_tokenization(
    setting: Tokenize, language: str | None, references: Iterable[str]
) -> Tokenization:
    """Choose the given tokenizer, or else the language's, or else the script's.

    The references are read only if the first two are unknown. `RequestError` if the
    tokenizer's package or data is missing.
    """
    chosen = _chosen(setting, language, references)
    require_tokenizer(chosen.name)
    return chosen


def _chosen(
    setting: Tokenize, language: str | None, references: Iterable[str]
) -> Tokenization:
    if setting != "auto":
        return Tokenization(name=setting)
    if language is not None:
        return Tokenization(name=tokenizer_of(language))
    if (found := detect_by_script(references)) is None:
        return Tokenization()
    reason = f"as the references are in the script of {english_name(found)}"
    return Tokenization(name=tokenizer_of(found), reason=reason)


def tokenizer_of(language: str) -> str:
    """Return 13a for languages with spaces, else the language's own, or char."""
    language_alone = base(language)
    if language_alone == "ko" or is_unspaced(language):
        return BY_LANGUAGE.get(language_alone, BY_CHARACTERS)
    return USUAL


def require_tokenizer(name: str) -> None:
    """Raise `RequestError` if a tokenizer cannot be used here."""
    from sacrebleu.metrics.bleu import BLEU  # not needed for settings

    try:
        BLEU(tokenize=name, force=True)
    except (ImportError, RuntimeError, AssertionError) as error:
        if name in EXTRAS:
            task = f"BLEU with the tokenizer {name}"
            message = missing_package(task, *EXTRAS[name])
            hint = " Or choose another tokenizer, such as char."
            raise RequestError(message + hint) from None
        raise RequestError(_unusable(name, error)) from None
    except OSError as error:  # sacreBLEU downloads its model once
        raise RequestError(_unusable(name, error)) from None


def _unusable(name: str, error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return (
        f"BLEU with the tokenizer {name} needs a model that sacreBLEU downloads and "
        f"reads, but: {reason}; choose another tokenizer, such as char."
    )
