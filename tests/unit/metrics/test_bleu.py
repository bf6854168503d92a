"""BLEU against multi-bleu.perl written down line by line, and against sacreBLEU."""

import json
import logging
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.errors import DataError
from transduce.metrics.scores import (
    BleuScore,
    corpus_bleu,
    paper_bleu,
    replace_unicode_punctuation,
    split_compounds,
    tokenized_bleu,
)

HYPOTHESES = [
    "Der U-Bahn-Fahrer sagt: „Guten Tag“, Frau Dr. Müller!",
    "Es kostet 3,50 Euro, also z. B. wenig…",
    "",
    "Ein vis-à-vis liegendes Haus & ein Hof.",
]
REFERENCES = [
    'Der U-Bahn-Fahrer sagte: "Guten Tag", Frau Dr. Müller!',
    "Es kostet 3,50 Euro, also z. B. nicht viel...",
    "Nichts als Regen am 3. Mai.",
    "Ein vis-à-vis liegendes Haus & kein Hof.",
]
OTHERS = [
    'Herr Müller, der Fahrer, sagt: "Guten Tag!"',
    "Es kostet 3,50 Euro, also z. B. wenig…",
    "",
    "Ein Haus & ein Hof, die vis-à-vis liegen.",
]
"""Second references."""
PROTOCOLS = [corpus_bleu, tokenized_bleu, paper_bleu]

# Words, and their form after the steps of the paper's protocol.
WORDS_OF_THE_PAPER = {
    "haus": "haus",
    "Haus": "Haus",
    "U-Bahn": "U ##AT##-##AT## Bahn",
    "a-b-c": "a ##AT##-##AT## b-c",
    "rot,": "rot ,",
    "(so)": "( so )",
    "3,50": "3,50",
    "„ja“": "&quot; ja &quot;",
}

words = st.sampled_from(["a", "b", "c", "A"])
lines = st.lists(words, max_size=9).map(" ".join)
corpora = st.lists(st.tuples(lines, lines), min_size=1, max_size=5)
of_three = st.lists(st.tuples(lines, lines, lines, lines), min_size=1, max_size=5)
"""Corpora of hypotheses with three references each."""
paper_words = st.sampled_from(list(WORDS_OF_THE_PAPER))
paper_corpora = st.lists(
    st.tuples(st.lists(paper_words, max_size=9), st.lists(paper_words, max_size=9)),
    min_size=1,
    max_size=4,
)
without_deadline = settings(deadline=None)


@dataclass(frozen=True)
class Expected:
    bleu: float
    precisions: list[float]
    brevity_penalty: float
    hypothesis_length: int
    reference_length: int


def ngrams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def multi_bleu(hypotheses: list[str], *references: list[str]) -> Expected:
    """BLEU by the algorithm of multi-bleu.perl, for any number of references."""
    correct, total = [0] * 5, [0] * 5
    hypothesis_length = reference_length = 0
    for hypothesis, *texts in zip(hypotheses, *references, strict=True):
        hypothesis_words = hypothesis.split()
        several = [text.split() for text in texts]
        hypothesis_length += len(hypothesis_words)
        # The closest length counts, of two that are equally close the smaller.
        lengths = sorted(map(len, several))
        reference_length += min(lengths, key=lambda n: abs(n - len(hypothesis_words)))
        for n in range(1, 5):
            expected = [ngrams(words, n) for words in several]
            for ngram, count in ngrams(hypothesis_words, n).items():
                total[n] += count
                correct[n] += min(count, max(each[ngram] for each in expected))
    precisions = [correct[n] / total[n] if total[n] else 0.0 for n in range(1, 5)]
    brevity_penalty = 1.0
    if hypothesis_length == 0 < reference_length:
        brevity_penalty = 0.0
    elif hypothesis_length < reference_length:
        brevity_penalty = math.exp(1 - reference_length / hypothesis_length)
    bleu = brevity_penalty * math.prod(precisions) ** (1 / 4)
    return Expected(
        100 * bleu,
        [100 * precision for precision in precisions],
        brevity_penalty,
        hypothesis_length,
        reference_length,
    )


def assert_same(actual: BleuScore, expected: Expected) -> None:
    assert actual.score == pytest.approx(expected.bleu)
    assert actual.precisions == pytest.approx(expected.precisions)
    assert actual.brevity_penalty == pytest.approx(expected.brevity_penalty)
    assert actual.hypothesis_length == expected.hypothesis_length
    assert actual.reference_length == expected.reference_length


def sides(corpus: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [pair[0] for pair in corpus], [pair[1] for pair in corpus]


class TestTokenizedBleu:
    @without_deadline
    @given(corpora)
    def test_tokenized_bleu_equals_multi_bleu(self, corpus: list[tuple[str, str]]):
        hypotheses, references = sides(corpus)
        expected = multi_bleu(hypotheses, references)
        assert_same(tokenized_bleu(hypotheses, references), expected)

    @without_deadline
    @given(of_three)
    def test_bleu_of_several_references_equals_multi_bleu(
        self, corpus: list[tuple[str, str, str, str]]
    ):
        hypotheses, first, *others = map(list, zip(*corpus, strict=True))
        score = tokenized_bleu(hypotheses, first, more_references=others)
        assert_same(score, multi_bleu(hypotheses, first, *others))
        assert score.signature.startswith("nrefs:3|")

    @without_deadline
    @given(corpora)
    def test_text_is_lower_cased_before_scoring(self, corpus: list[tuple[str, str]]):
        hypotheses, references = sides(corpus)
        expected = multi_bleu(
            [hypothesis.lower() for hypothesis in hypotheses],
            [reference.lower() for reference in references],
        )
        assert_same(tokenized_bleu(hypotheses, references, lowercase=True), expected)

    def test_tokenized_bleu_equals_the_output_of_the_perl_script(self):
        score = tokenized_bleu(HYPOTHESES, REFERENCES)
        assert score.score == pytest.approx(42.992443, abs=1e-6)
        assert score.statistics == (23, 30, 18, 13, 9, 6, 23, 20, 17, 14)

    def test_non_ascii_letters_are_lower_cased(self):
        score = tokenized_bleu(["Ä É Ж Σ"], ["ä é ж σ"], lowercase=True)
        assert score.score == pytest.approx(100)

    def test_punctuation_does_not_separate_words(self):
        assert tokenized_bleu(["a, b!"], ["a , b !"]).hypothesis_length == 2

    def test_bleu_without_a_matching_4_gram_is_zero(self):
        score = tokenized_bleu(["a b c x d e"], ["a b c y d e"])
        assert score.score == 0
        assert score.precisions == pytest.approx([100 * 5 / 6, 60, 25, 0])

    def test_the_signature_says_that_nothing_is_tokenised_or_smoothed(self):
        assert tokenized_bleu(["a"], ["a"], lowercase=True).signature == (
            "nrefs:1|case:lc|eff:no|tok:none|smooth:none"
            f"|version:{version('sacrebleu')}"
        )


class TestCorpusBleu:
    @without_deadline
    @given(corpora)
    def test_bleu_equals_sacrebleus(self, corpus: list[tuple[str, str]]):
        hypotheses, references = sides(corpus)
        expected = sacrebleu.corpus_bleu(hypotheses, [references], force=True)
        score = corpus_bleu(hypotheses, references)
        assert score.score == pytest.approx(expected.score)
        assert score.precisions == pytest.approx(expected.precisions)
        assert score.brevity_penalty == pytest.approx(expected.bp)

    @pytest.mark.parametrize("others", [[], [OTHERS]])
    def test_score_and_signature_equal_those_of_sacrebleus_command(
        self, tmp_path: Path, others: list[list[str]]
    ):
        hypotheses = tmp_path / "hypotheses"
        hypotheses.write_text("\n".join(HYPOTHESES) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "sacrebleu"]
        for number, lines in enumerate([REFERENCES, *others]):
            path = tmp_path / f"references.{number}"
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            command.append(str(path))
        options = ["--input", str(hypotheses), "--width", "6", "--lowercase"]
        printed = subprocess.run(command + options, capture_output=True, check=True)
        expected = json.loads(printed.stdout)
        score = corpus_bleu(
            HYPOTHESES, REFERENCES, more_references=others, lowercase=True
        )
        assert score.score == pytest.approx(expected["score"], abs=1e-6)
        assert score.signature == expected["signature"]

    def test_bleu_is_case_sensitive_by_default(self):
        hypotheses, references = ["Das ist ein Haus."], ["das ist ein haus."]
        assert corpus_bleu(hypotheses, references).score < 100
        lowered = corpus_bleu(hypotheses, references, lowercase=True)
        assert lowered.score == pytest.approx(100)
        assert "case:lc" in lowered.signature

    def test_tokenised_looking_text_is_scored_without_a_warning(
        self, caplog: pytest.LogCaptureFixture
    ):
        with caplog.at_level(logging.DEBUG):
            corpus_bleu(["Ein Haus ."] * 200, ["Ein Haus ."] * 200)
        assert not caplog.records


class TestPaperBleu:
    def test_paper_bleu_equals_the_output_of_the_perl_scripts(self):
        score = paper_bleu(HYPOTHESES, REFERENCES)
        assert score.score == pytest.approx(65.096725, abs=1e-6)
        assert score.brevity_penalty == pytest.approx(0.814543, abs=1e-6)
        assert score.statistics == (39, 47, 36, 30, 25, 21, 39, 36, 33, 30)

    @without_deadline
    @given(paper_corpora)
    def test_paper_bleu_is_multi_bleu_after_the_papers_tokenization(
        self, corpus: list[tuple[list[str], list[str]]]
    ):
        hypotheses = [" ".join(hypothesis) for hypothesis, _ in corpus]
        references = [" ".join(reference) for _, reference in corpus]
        prepared = [
            tuple(" ".join(WORDS_OF_THE_PAPER[word] for word in side) for side in pair)
            for pair in corpus
        ]
        expected = multi_bleu([pair[0] for pair in prepared], [p[1] for p in prepared])
        assert_same(paper_bleu(hypotheses, references), expected)

    @without_deadline
    @given(paper_corpora, paper_corpora)
    def test_all_references_pass_the_papers_tokenization(
        self,
        corpus: list[tuple[list[str], list[str]]],
        other: list[tuple[list[str], list[str]]],
    ):
        sides = [(*pair, *more) for pair, more in zip(corpus, other, strict=False)]
        texts = [[" ".join(line) for line in side] for side in zip(*sides, strict=True)]
        prepared = [
            [" ".join(WORDS_OF_THE_PAPER[word] for word in line) for line in side]
            for side in zip(*sides, strict=True)
        ]
        hypotheses, first, *others = texts
        score = paper_bleu(hypotheses, first, more_references=others)
        assert_same(score, multi_bleu(*prepared))

    def test_all_kinds_of_quotes_are_equal(self):
        score = paper_bleu(["„Ja“, sagt er."], ['"Ja", sagt er.'])
        assert score.score == pytest.approx(100)

    def test_paper_bleu_is_case_sensitive(self):
        assert paper_bleu(["ein haus am see"], ["Ein Haus am See"]).precisions[0] == 25

    @pytest.mark.parametrize(("language", "length"), [("de", 3), ("fr", 1)])
    def test_compounds_are_split_in_german_only(self, language: str, length: int):
        score = paper_bleu(["porte-monnaie"], ["x"], language)
        assert score.hypothesis_length == length

    def test_the_tokeniser_depends_on_the_language(self):
        assert paper_bleu(["l'eau"], ["x"], "fr").hypothesis_length == 2
        assert paper_bleu(["l'eau"], ["x"], "de").hypothesis_length == 3

    def test_name_and_signature_list_each_step(self):
        score = paper_bleu(["a"], ["a"])
        assert score.name == (
            "BLEU, tokenized and compound-split (Vaswani et al., 2017)"
        )
        assert score.signature == (
            "nrefs:1|case:mixed|eff:no|tok:moses-de|smooth:none"
            "|punctuation:moses+lowquote|compounds:split"
            f"|sacremoses:{version('sacremoses')}|version:{version('sacrebleu')}"
        )

    def test_name_and_signature_omit_skipped_steps(self):
        score = paper_bleu(["a"], ["a"], "fr")
        assert score.name == "BLEU, tokenized (Vaswani et al., 2017)"
        assert "tok:moses-fr" in score.signature
        assert "compounds:whole" in score.signature


class TestReplaceUnicodePunctuation:
    @pytest.mark.parametrize(
        ("marks", "replaced"),
        [
            ("，、∶：？！；", ",,::?!;"),
            ("“”《》「」„", '"""""""'),
            ("（）〈〉【】", "()<>[]"),
            ("０１２３４５６７８９", "0123456789"),
            ("～’…━％", "~'...-%"),
            ("。", ". "),
            ("．", ". "),
            ("。  a．  b", ". a. b"),
        ],
    )
    def test_punctuation_is_replaced_as_by_the_perl_script(
        self, marks: str, replaced: str
    ):
        assert replace_unicode_punctuation(marks) == replaced

    @pytest.mark.parametrize("text", ["«»‚‘–—´", "Straße, 3 %", ""])
    def test_other_characters_are_kept_as_by_the_perl_script(self, text: str):
        assert replace_unicode_punctuation(text) == text


class TestSplitCompounds:
    @pytest.mark.parametrize(
        ("text", "split"),
        [
            ("rich-text format", "rich ##AT##-##AT## text format"),
            ("foo-bar-baz", "foo ##AT##-##AT## bar ##AT##-##AT## baz"),
            ("a-b-c", "a ##AT##-##AT## b-c"),
            ("vis-à-vis", "vis ##AT##-##AT## à ##AT##-##AT## vis"),
            ("Ein- und Ausgang - oder -gang", "Ein- und Ausgang - oder -gang"),
            ("a--b", "a ##AT##-##AT## -b"),
            ("", ""),
        ],
    )
    def test_hyphens_are_split_as_by_the_perl_script(self, text: str, split: str):
        assert split_compounds(text) == split


class TestBleuScore:
    def test_a_score_prints_as_one_line(self):
        assert str(tokenized_bleu(["a b c d e"], ["a b c d f g"])) == (
            "BLEU, tokenized = 54.75 (80.0/75.0/66.7/50.0, brevity penalty 0.819, "
            "5 words for 6) nrefs:1|case:mixed|eff:no|tok:none|smooth:none"
            f"|version:{version('sacrebleu')}"
        )

    @without_deadline
    @given(corpora, st.sampled_from(PROTOCOLS))
    def test_statistics_of_a_corpus_are_sums_over_sentences(
        self, corpus: list[tuple[str, str]], bleu: Callable[..., BleuScore]
    ):
        of_sentences = [
            bleu([hypothesis], [reference]).statistics
            for hypothesis, reference in corpus
        ]
        of_corpus = bleu(*sides(corpus)).statistics
        assert of_corpus == tuple(map(sum, zip(*of_sentences, strict=True)))


@pytest.mark.parametrize("bleu", PROTOCOLS)
class TestAllProtocols:
    def test_empty_hypotheses_are_counted(self, bleu: Callable[..., BleuScore]):
        score = bleu(["a b c d e", ""], ["a b c d e", "f g h i j"])
        assert score.brevity_penalty == pytest.approx(math.exp(1 - 10 / 5))
        assert score.score == pytest.approx(100 * math.exp(-1))

    def test_empty_hypotheses_alone_score_zero(self, bleu: Callable[..., BleuScore]):
        score = bleu(["", ""], ["a b c d", "e"])
        assert (score.score, score.brevity_penalty) == (0, 0)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a b", "must be a list of strings, but is str"),
            (b"a b", "must be a list of strings, but is bytes"),
            (["a b", None, "a"], "but number 2 is NoneType"),
        ],
    )
    @pytest.mark.usefixtures("unchecked_types")
    def test_a_text_that_is_not_several_strings_is_refused(
        self, bleu: Callable[..., BleuScore], text: Any, message: str
    ):
        for texts in ((text, ["a", "b", "c"]), (["a", "b", "c"], text)):
            with pytest.raises(DataError, match=message):
                bleu(*texts)

    @pytest.mark.usefixtures("unchecked_types")
    def test_a_text_may_be_an_array_or_an_iterator(
        self, bleu: Callable[..., BleuScore]
    ):
        lines = ["a b c d e", "f g h"]
        assert bleu(np.array(lines), iter(lines)) == bleu(lines, lines)

    def test_an_empty_list_of_hypotheses_is_an_error(
        self, bleu: Callable[..., BleuScore]
    ):
        message = r"^The number of hypotheses must be at least 1, but is 0\.$"
        with pytest.raises(DataError, match=message):
            bleu([], [])

    @pytest.mark.parametrize("references", [["a"], ["a", "b", "c"]])
    def test_unequal_numbers_of_lines_are_an_error(
        self, bleu: Callable[..., BleuScore], references: list[str]
    ):
        message = (
            r"^The number of references must be 2, that of the hypotheses, "
            rf"but is {len(references)}\.$"
        )
        with pytest.raises(DataError, match=message):
            bleu(["a", "b"], references)
        with pytest.raises(DataError, match=message):
            bleu(["a", "b"], ["a", "b"], more_references=[references])
