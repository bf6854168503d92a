import pytest
import torch

from transduce.analysis.head_annotation import AnnotatedMaps, alignment_errors, links_by
from transduce.grammar.corpus import GrammarSentence

# Weights of two target words over two source words and the end token.
WEIGHTS = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.1, 0.5]])


@pytest.mark.parametrize(
    ("linking", "expected"),
    [
        ("target", [[1, 0], [0, 0]]),  # the second word attends most to the end token
        ("source", [[1, 1], [0, 0]]),
        ("either", [[1, 1], [0, 0]]),
    ],
)
def test_words_are_linked_to_the_words_of_greatest_weight(
    linking: str, expected: list[list[int]]
) -> None:
    found = links_by(linking, WEIGHTS)  # type: ignore[arg-type]
    assert found.int().tolist() == expected


@pytest.fixture
def annotated() -> AnnotatedMaps:
    sentence = GrammarSentence(
        source="a b",
        target="x y",
        tree="",
        source_words=("a", "b"),
        target_words=("x", "y"),
        alignment=((0, 0), (1, 1)),
        antecedents=(),
    )
    right = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    crossed = torch.tensor([[0.0, 0.9, 0.1], [0.9, 0.0, 0.1]])
    return AnnotatedMaps(
        sentence=sentence,
        encoder=torch.eye(3).expand(1, 2, 3, 3),
        written=torch.stack([right, crossed])[None],
        read=torch.stack([crossed, crossed])[None],
    )


def test_the_error_rate_of_correct_links_is_zero(
    annotated: AnnotatedMaps,
) -> None:
    rates = {
        (each.place, each.linking, each.head): each.error_rate
        for each in alignment_errors([annotated])
    }
    assert len(rates) == 2 * 3 * 3
    assert rates["written", "target", 1] == 0
    assert rates["written", "target", 2] == 1
    assert rates["read", "either", None] == 1
    # In the mean of both heads the first decides: 1.0 to 0.9.
    assert rates["written", "target", None] == 0


def test_the_error_rate_counts_the_links_of_all_sentences(
    annotated: AnnotatedMaps,
) -> None:
    one_word = AnnotatedMaps(
        sentence=annotated.sentence,
        encoder=annotated.encoder,
        written=torch.tensor([[1.0, 0, 0], [0, 0, 1.0]]).expand(1, 2, 2, 3),
        read=annotated.read,
    )
    first = alignment_errors([annotated, one_word])[0]
    # 2 + 1 links are found, all right, of 2 + 2.
    assert first.error_rate == pytest.approx(1 - 2 * 3 / (3 + 4))
