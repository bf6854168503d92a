"""BLEU (Papineni et al., 2002) by three protocols that must not be confused, and chrF.

sacreBLEU computes all of them; the protocols differ in tokenization and smoothing.
Compare only `corpus_bleu` with results that others report today. `paper_bleu` is the
figure of the paper's Tables 2 and 3, about one point higher.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transduce.errors import DataError
from transduce.metrics.tokenization import Tokenization

if TYPE_CHECKING:
    from sacremoses import MosesPunctNormalizer


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
    """Number of words of the references, as the protocol tokenizes."""
    statistics: tuple[int, ...]
    """Sufficient statistics: the two lengths, the matched 1- to 4-grams, and all 1- to
    4-grams of the hypotheses. Those of a corpus are the sums over its sentences."""
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
    case: Literal["mixed", "lower"] = "mixed",
    tokenization: Tokenization | None = None,
) -> BleuScore:
    """Score detokenized text as sacreBLEU does (Post, 2018): 13a words by default."""
    lowercase = {"mixed": False, "lower": True}[case]
    chosen = tokenization or Tokenization()
    metric = BLEU(lowercase=lowercase, tokenize=chosen.name, force=True)
    score = _score("sacreBLEU", metric, hypotheses, references)
    return replace(score, tokenizer=str(chosen))


def tokenized_bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> BleuScore:
    """Score tokenized text as Moses' multi-bleu.perl does, without tokenizing it again.

    There is no smoothing: without a matching 4-gram the score is 0. Lower-casing covers
    all letters, as in Moses' lowercase.perl; `multi-bleu.perl -lc` covers only A to Z.
    Any white space separates words; in multi-bleu.perl only ASCII white space does.
    """
    metric = _multi_bleu(lowercase=lowercase)
    return _score("BLEU, tokenized", metric, hypotheses, references)


def paper_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    language: str = "de",
    *,
    splits_compounds: bool | None = None,
) -> BleuScore:
    """Score detokenized text as the paper did (tensor2tensor's get_ende_bleu.sh).

    Both sides pass Unicode punctuation replacement, Moses' tokenizer, compound
    splitting and multi-bleu.perl. The paper's script is for English-German; by default
    only German compounds are split. The score is meaningless for languages without
    spaces between words, since Moses' tokenizer splits at spaces."""
    if splits_compounds is None:
        splits_compounds = language == "de"
    from sacremoses import MosesTokenizer  # slow to import, rarely needed

    tokenizer = MosesTokenizer(language)

    def words(text: str) -> str:
        text = tokenizer.tokenize(replace_unicode_punctuation(text), return_str=True)
        return split_compounds(text) if splits_compounds else text

    protocol = "tokenized and compound-split" if splits_compounds else "tokenized"
    return _score(
        f"BLEU, {protocol} (Vaswani et al., 2017)",
        _multi_bleu(lowercase=False),
        [words(hypothesis) for hypothesis in hypotheses],
        [words(reference) for reference in references],
        steps=(
            ("tok", f"moses-{language}"),
            ("punctuation", "moses+lowquote"),
            ("compounds", "split" if splits_compounds else "whole"),
            ("sacremoses", version("sacremoses")),
        ),
    )


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


def _multi_bleu(*, lowercase: bool) -> BLEU:
    return BLEU(lowercase=lowercase, tokenize="none", smooth_method="none", force=True)


def _score(
    name: str,
    metric: BLEU,
    hypotheses: Sequence[str],
    references: Sequence[str],
    steps: tuple[tuple[str, str], ...] = (),
) -> BleuScore:
    """Score by sacreBLEU; `steps` are added to its signature."""
    require_pairs(hypotheses, references)
    counted = metric.corpus_score(hypotheses, [references])
    signature = metric.get_signature()
    for step, value in steps:
        signature.update(step, value)
    return BleuScore(
        name=name,
        score=counted.score,
        precisions=tuple(counted.precisions),
        brevity_penalty=counted.bp,
        hypothesis_length=counted.sys_len,
        reference_length=counted.ref_len,
        statistics=(
            counted.sys_len,
            counted.ref_len,
            *counted.counts,
            *counted.totals,
        ),
        signature=str(signature),
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


def corpus_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> ChrfScore:
    """Score detokenized text as sacreBLEU does: chrF2, up to 6 characters, no words."""
    require_pairs(hypotheses, references)
    metric = CHRF()
    score = metric.corpus_score(hypotheses, [references]).score
    return ChrfScore(
        name=f"chrF{metric.beta}", score=score, signature=str(metric.get_signature())
    )
