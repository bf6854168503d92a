"""Survey of the lines of a corpus."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from transduce.data.cleaning_rules import text_fault
from transduce.data.prepared_corpus import PairEncoder, learning_texts
from transduce.errors import DataError
from transduce.experiments.corpus_survey import (
    Survey,
    survey_corpora,
    valid_pairs,
)
from transduce.text.corpus import Line, SentencePair
from transduce.text.tokenizer import learn_tokenizer
from transduce.text.vocabulary import TokenizerConfig


@pytest.fixture
def survey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Sequence[bytes], Sequence[bytes]], Survey]:
    """Survey a corpus of the given lines; places are bare file names."""

    def run(source: Sequence[bytes], target: Sequence[bytes]) -> Survey:
        monkeypatch.chdir(tmp_path)
        for name, lines in (("source", source), ("target", target)):
            Path(name).write_bytes(b"".join(line + b"\n" for line in lines))
        sides = [Path("source")], [Path("target")]
        config = TokenizerConfig(vocab_size=400)
        texts = learning_texts(valid_pairs(*sides), num_characters=0)
        tokenizer = learn_tokenizer(texts, config)
        encoder = PairEncoder(tokenizer=tokenizer)
        return survey_corpora([(sides, encoder)], max_length=256)

    return run


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_the_invalid_byte_is_the_one_that_training_names(before, after):
    assume(b"\0" not in before + after)
    content = before + b"\xff" + after
    with pytest.raises(DataError) as refusal:
        Line(path=Path("text"), number=2, content=content).text()
    named = text_fault(content).replace("is", "of this one is")
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "named"),
    [(b"\0", "byte 1 is 0x00"), (b"a\0\xff", "byte 2 is 0x00"),
     (b"a\xff\0", "byte 2 is 0xff"), ("ü\0".encode(), "byte 3 is 0x00")],
)  # fmt: skip
def test_the_first_of_invalid_and_nul_bytes_is_named(content, named):
    assert text_fault(content) == named


def test_a_tokenizer_is_learned_from_valid_pairs_only(tmp_path):
    (tmp_path / "source").write_bytes(b"one\ncaf\xe9\ntwo\nmore\n")
    (tmp_path / "target").write_bytes(b"eins\nzwei\ndr\0ei\n")
    pairs = valid_pairs([tmp_path / "source"], [tmp_path / "target"])
    assert list(pairs) == [SentencePair(source="one", target="eins")]


def test_places_count_the_lines_that_are_left_out(survey):
    seen = survey([b"\xff", b"one", b"\0", b"two"], [b"x", b"eins", b"y", b"zwei"])
    assert [seen.place(row) for row in range(2)] == ["source:2", "source:4"]
    assert seen.place(1, "target") == "target:4"


@pytest.mark.parametrize("text", ["a\tb", "über Ärger", "l'été", "ok\r"], ids=ascii)
def test_ordinary_text_is_not_suspicious(text, survey):
    side = survey([b"one", text.encode()], [b"eins", b"zwei"]).side("source")
    assert not any(finding.count for finding in side.suspicious.values())


def test_lengths_count_non_empty_lines_only(survey):
    words = (1, 1, 1, 2, 5, 0)
    source = [b" ".join([b"a"] * n) for n in words]
    side = survey(source, [b"b"] * 6).side("source")
    assert (side.tokens, side.words, side.tokens_per_word) == (10, 10, 1.0)
    assert (side.mean_length, side.median_length) == (2.0, 1.0)
    assert (side.percentile_95_length, side.longest) == (5, 5)
    assert side.longest_place == "source:5"


@pytest.mark.parametrize("longest", [1, 7, 12, 13, 60, 150])
def test_bins_hold_every_line_and_never_overlap(longest, survey):
    source = [b" ".join([b"a"] * n) for n in range(1, longest + 1)]
    bins = survey(source, [b"b"] * longest).length_bins()
    assert sum(each.source for each in bins) == longest
    assert sum(each.target for each in bins) == longest
    assert bins[0].shortest == 1
    assert bins[-1].longest >= longest
    starts = [each.shortest for each in bins[1:]]
    assert starts == [each.longest + 1 for each in bins[:-1]]
    assert len(bins) <= 13


@pytest.mark.parametrize("longest", [2, 3, 90])
def test_the_few_longest_lines_share_the_last_bin(longest, survey):
    source = [b"a"] * 300 + [b" ".join([b"a"] * longest)]
    bins = survey(source, [b"b"] * 301).length_bins()
    assert [(b.shortest, b.longest, b.source, b.target) for b in bins] == [
        (1, 1, 300, 301),
        (2, longest, 1, 0),
    ]
