"""Scores of translations: BLEU and its tokenizers, chrF, GLEU, and perplexity.

BLEU (Papineni et al., 2002) has three protocols that must not be confused. sacreBLEU
computes all of them; they differ in tokenization and smoothing. Compare only
`corpus_bleu` with results that others report today. `paper_bleu` is the figure of the
paper's Tables 2 and 3, about one point higher. BLEU compares words. The usual tokenizer
(13a) splits at spaces, which yields whole clauses in Chinese, so every score names its
tokenizer (Post, 2018).

Text is scored in Unicode NFC, in which models translate: a reference in another form
would lack all words with accents of Vietnamese or with some letters of Hindi. If that
changes a text, the signature of the score has "nfc:yes", as sacreBLEU differs there.

GLEU is the reward of GNMT (Wu et al., 2016, section 5). BLEU measures a corpus: for a
single sentence it is 0 without a common 4-gram. GLEU counts 1- to 4-grams together, and
is symmetric.

sacreBLEU is imported by the functions that use it: translating, cleaning and training
need other scores without it.
"""

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal
from unicodedata import is_normalized, normalize

from transduce.errors import DataError, RequestError, missing_package
from transduce.text.languages import (
    CHINESE,
    base,
    detect_by_script,
    english_name,
    is_unspaced,
)

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Signature
    from sacrebleu.metrics.bleu import BLEU
    from sacremoses import MosesPunctNormalizer


Tokenize = Literal[
    "auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none", "flores101",
    "flores200", "spBLEU-1K", "spm",
]  # fmt: skip
"""Names of sacreBLEU's tokenizers; auto is the one for the language."""

DEFAULT_TOKENIZER = "13a"
BY_CHARACTERS = "char"
BY_LANGUAGE = dict.fromkeys(CHINESE, "zh") | {"ja": "ja-mecab", "ko": "ko-mecab"}
"""Tokenizers of languages that have their own."""
EXTRAS = {"ja-mecab": ("mecab-python3", "ja"), "ko-mecab": ("mecab-ko", "ko")}
"""Package that each tokenizer needs, and the extra that installs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenization:
    """A tokenizer of sacreBLEU and why it was chosen."""

    name: str = DEFAULT_TOKENIZER
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
    """Return the choice of `choose_tokenization`, without trying it."""
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
    return DEFAULT_TOKENIZER


def require_tokenizer(name: str) -> None:
    """Raise `RequestError` if a tokenizer cannot be used here."""
    from sacrebleu.metrics.bleu import BLEU

    try:
        BLEU(tokenize=name, force=True)
    except (ImportError, RuntimeError, AssertionError, OSError) as error:
        task = f"BLEU with the tokenizer {name}"
        if name in EXTRAS and not isinstance(error, OSError):
            message = missing_package(task, *EXTRAS[name])
            hint = " Or choose another tokenizer, such as char."
            raise RequestError(message + hint) from None
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RequestError(
            f"{task} needs a model that sacreBLEU downloads and reads, but: {reason}; "
            "choose another tokenizer, such as char."
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class BleuScore:
    """BLEU score with its protocol, without which it cannot be compared."""

    name: str
    """Name of the protocol."""
    score: float
    """BLEU in percent."""
    precisions: tuple[float, ...]
    """Precisions of 1- to 4-grams in percent, smoothed if the protocol smooths."""
    brevity_penalty: float
    hypothesis_length: int
    """Number of words of the hypotheses, as the protocol tokenizes."""
    reference_length: int
    """Number of words of the references, as the protocol tokenizes. If a sentence has
    several references, the one closest in length counts."""
    statistics: tuple[int, ...]
    """Sufficient statistics: the two lengths, the matched 1- to 4-grams, and all 1- to
    4-grams of the hypotheses. A corpus has the sums over its sentences."""
    signature: str
    """sacreBLEU's signature of the protocol."""
    tokenizer: str | None = None
    """sacreBLEU's tokenizer, with the reason if detected; None for tokenized text."""

    @property
    def matched_4_grams(self) -> int:
        """Number of 4-grams that also occur in the references."""
        return self.statistics[5]

    def __str__(self) -> str:
        precisions = "/".join(f"{precision:.1f}" for precision in self.precisions)
        tokenizer = f", tokenizer {self.tokenizer}" if self.tokenizer else ""
        return (
            f"{self.name} = {self.score:.2f} ({precisions}, "
            f"brevity penalty {self.brevity_penalty:.3f}, "
            f"{self.hypothesis_length} words for {self.reference_length}{tokenizer}) "
            f"{self.signature}"
        )


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    more_references: Sequence[Sequence[str]] = (),
    lowercase: bool = False,
    tokenization: Tokenization | None = None,
) -> BleuScore:
    """Score detokenized text as sacreBLEU does (Post, 2018): 13a words by default.

    With several references, as in all protocols of BLEU, an n-gram matches at most as
    often as in the reference that has it most often, and the reference closest in
    length to the hypothesis gives the reference length.
    """
    from sacrebleu.metrics.bleu import BLEU

    chosen = tokenization or Tokenization()
    metric = BLEU(lowercase=lowercase, tokenize=chosen.name, force=True)
    score = _score("sacreBLEU", metric, hypotheses, [references, *more_references])
    return replace(score, tokenizer=str(chosen))


def tokenized_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    more_references: Sequence[Sequence[str]] = (),
    lowercase: bool = False,
) -> BleuScore:
    """Score tokenized text as Moses' multi-bleu.perl does, without tokenizing it again.

    There is no smoothing: without a matching 4-gram the score is 0. Lower-casing covers
    all letters, as in Moses' lowercase.perl; `multi-bleu.perl -lc` covers only A to Z.
    Any white space separates words; in multi-bleu.perl only ASCII white space does.
    """
    metric = _multi_bleu(lowercase=lowercase)
    every = [references, *more_references]
    return _score("BLEU, tokenized", metric, hypotheses, every)


def paper_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    language: str = "de",
    *,
    more_references: Sequence[Sequence[str]] = (),
) -> BleuScore:
    """Score detokenized text as the paper did (tensor2tensor's get_ende_bleu.sh).

    Both sides pass Unicode punctuation replacement, Moses' tokenizer, compound
    splitting and multi-bleu.perl. The paper's script is for English-German; only German
    compounds are split. The score is meaningless for languages without spaces between
    words, since Moses' tokenizer splits at spaces.
    """
    from sacremoses import MosesTokenizer  # slow to import, rarely needed

    tokenizer, splits_compounds = MosesTokenizer(language), language == "de"
    texts = ScoredTexts.of([hypotheses, references, *more_references])

    def words(text: str) -> str:
        text = tokenizer.tokenize(replace_unicode_punctuation(text), return_str=True)
        return split_compounds(text) if splits_compounds else text

    protocol = "tokenized and compound-split" if splits_compounds else "tokenized"
    return _score(
        f"BLEU, {protocol} (Vaswani et al., 2017)",
        _multi_bleu(lowercase=False),
        [words(line) for line in texts.columns[0]],
        [[words(line) for line in each] for each in texts.columns[1:]],
        steps=(
            *texts.steps,
            ("tok", f"moses-{language}"),
            ("punctuation", "moses+lowquote"),
            ("compounds", "split" if splits_compounds else "whole"),
            ("sacremoses", version("sacremoses")),
        ),
    )


def language_for_paper_bleu(
    language: str | None, references: Iterable[str]
) -> str | None:
    """Return the language of `paper_bleu` for references; None if it has none.

    If it is unknown, the script decides; the Latin script counts as German, as in the
    paper. Languages without spaces between words have no such score.
    """
    known = language or detect_by_script(references) or "de"
    return None if is_unspaced(known) else base(known)


def replace_unicode_punctuation(text: str) -> str:
    """Write punctuation in ASCII as Moses' replace-unicode-punctuation.perl does.

    The German low quote, which that script keeps, becomes a plain quote too; otherwise
    the paper's figures are not reached.
    """
    return str(_normalizer().replace_unicode_punct(text)).replace("„", '"')


@cache
def _normalizer() -> "MosesPunctNormalizer":
    from sacremoses import MosesPunctNormalizer

    return MosesPunctNormalizer()


def split_compounds(text: str) -> str:
    """Split words at their hyphens (Luong et al., 2015), as the paper's script does.

    A match consumes its neighbours, so `a-b-c` is split only once.
    """
    # Perl matches bytes, and a match consumes only one of the two bytes of "à", so
    # "vis-à-vis" is split twice.
    halves = re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", text.encode())
    return halves.decode()


def require_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise DataError unless each hypothesis has its reference and there is one."""
    if not hypotheses:
        raise DataError("The number of hypotheses must be at least 1, but is 0.")
    if len(hypotheses) != len(references):
        raise DataError(
            f"The number of references must be {len(hypotheses)}, that of the "
            f"hypotheses, but is {len(references)}."
        )


def _lines_of(text: Iterable[object]) -> list[str]:
    """Return a text as a list; the characters of one string would count as lines."""
    if isinstance(text, str | bytes):
        raise DataError(
            "A text to score must be a list of strings, but is "
            f"{type(text).__name__}; put it into a list."
        )
    lines: list[str] = []
    for line in text:
        if not isinstance(line, str):
            raise DataError(
                "A text to score must be a list of strings, but number "
                f"{len(lines) + 1:,} is {type(line).__name__}."
            )
        lines.append(line)
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTexts:
    """Texts in Unicode NFC: hypotheses and references."""

    columns: list[Sequence[str]]
    steps: tuple[tuple[str, str], ...]
    """Addition to a signature; empty if all texts were in NFC."""

    @classmethod
    def of(cls, texts: Iterable[Iterable[str]]) -> "ScoredTexts":
        """Write the texts in NFC.

        Raises `DataError` for a text that is not several strings.
        """
        columns: list[Sequence[str]] = list(map(_lines_of, texts))
        if all(is_normalized("NFC", line) for each in columns for line in each):
            return cls(columns=columns, steps=())
        written = [[normalize("NFC", line) for line in each] for each in columns]
        return cls(columns=[*written], steps=(("nfc", "yes"),))

    def signed(
        self, signature: "Signature", more_steps: tuple[tuple[str, str], ...] = ()
    ) -> str:
        """Write a signature of sacreBLEU with the steps added to it."""
        for step, value in (*self.steps, *more_steps):
            signature.update(step, value)
        return str(signature)


def _multi_bleu(*, lowercase: bool) -> "BLEU":
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(lowercase=lowercase, tokenize="none", smooth_method="none", force=True)


def _score(
    name: str,
    metric: "BLEU",
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    steps: tuple[tuple[str, str], ...] = (),
) -> BleuScore:
    """Score by sacreBLEU; `steps` are added to its signature."""
    texts = ScoredTexts.of([hypotheses, *references])
    for each in texts.columns[1:]:
        require_pairs(texts.columns[0], each)
    counted = metric.corpus_score(texts.columns[0], texts.columns[1:])
    return BleuScore(
        name=name,
        score=counted.score,
        precisions=tuple(counted.precisions),
        brevity_penalty=counted.bp,
        hypothesis_length=counted.sys_len,
        reference_length=counted.ref_len,
        statistics=(counted.sys_len, counted.ref_len, *counted.counts, *counted.totals),
        signature=texts.signed(metric.get_signature(), steps),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChrfScore:
    """chrF score (Popović, 2015) with its protocol."""

    name: str
    """chrF with beta, the weight of recall against precision."""
    score: float
    """chrF in percent."""
    signature: str
    """sacreBLEU's signature of the protocol."""

    def __str__(self) -> str:
        return f"{self.name} = {self.score:.2f} {self.signature}"


def corpus_chrf(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    more_references: Sequence[Sequence[str]] = (),
) -> ChrfScore:
    """Score detokenized text as sacreBLEU does: chrF2, up to 6 characters, no words.

    Of several references, the one with the highest chrF counts for each sentence.
    """
    from sacrebleu.metrics.chrf import CHRF

    texts = ScoredTexts.of([hypotheses, references, *more_references])
    for each in texts.columns[1:]:
        require_pairs(texts.columns[0], each)
    metric = CHRF()
    score = metric.corpus_score(texts.columns[0], texts.columns[1:]).score
    signature = texts.signed(metric.get_signature())
    return ChrfScore(name=f"chrF{metric.beta}", score=score, signature=signature)


LONGEST_N_GRAM = 4
"""Length of the longest n-grams."""


def n_grams(tokens: Sequence[Hashable]) -> Counter[tuple[Hashable, ...]]:
    """Count the 1- to 4-grams of a sentence."""
    starts = [tokens[first:] for first in range(LONGEST_N_GRAM)]
    return Counter(
        gram
        for longest in range(1, LONGEST_N_GRAM + 1)
        for gram in zip(*starts[:longest], strict=False)
    )


def sentence_gleu(
    hypothesis: Sequence[Hashable], reference: Sequence[Hashable]
) -> float:
    """Return the GLEU of a sentence of words or ids, from 0 to 1.

    It is the smaller of the precision and the recall of 1- to 4-grams; 0 if one of the
    sentences is empty.
    """
    return gleu_of_counts(n_grams(hypothesis), n_grams(reference))


def gleu_of_counts(
    hypothesis: Counter[tuple[Hashable, ...]], reference: Counter[tuple[Hashable, ...]]
) -> float:
    """Return the GLEU of counted n-grams, so that a reference is counted only once."""
    if not hypothesis or not reference:
        return 0.0
    matches = sum(min(count, reference[gram]) for gram, count in hypothesis.items())
    # The larger of the numbers is the denominator of the smaller of the ratios.
    return matches / max(hypothesis.total(), reference.total())


def mean_gleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return the mean GLEU of sentences in percent, over words between spaces."""
    pairs = zip(texts, references, strict=True)
    scores = [sentence_gleu(text.split(), right.split()) for text, right in pairs]
    return 100 * sum(scores) / max(len(scores), 1)


def perplexity(log_probability: float, num_tokens: int) -> float:
    """Return the perplexity per token; infinite if it overflows.

    `log_probability` is a natural logarithm.
    """
    try:
        return math.exp(-log_probability / num_tokens)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetScore:
    """Log-probability of a target under a model, given its source."""

    token_log_probabilities: tuple[float, ...]
    """Natural logarithm of the probability of each token and of the end token."""
    tokens: tuple[str, ...] = ()
    """Tokens of the target, without the end token, if `Translator` scores it; the first
    token of a word begins with a space."""

    @property
    def log_probability(self) -> float:
        """Natural logarithm of the target's probability, including the end token."""
        return sum(self.token_log_probabilities)

    @property
    def num_tokens(self) -> int:
        """Number of tokens, including the end token."""
        return len(self.token_log_probabilities)

    @property
    def perplexity(self) -> float:
        """Perplexity per token."""
        return perplexity(self.log_probability, self.num_tokens)
