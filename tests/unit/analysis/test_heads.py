"""Statistics of heads, and their agreement with the annotation of the grammar."""

import math
from itertools import islice

import pytest
import torch

from transduce.analysis.attention_maps import AttentionMaps
from transduce.analysis.grammar_heads import (
    AlignmentCounts,
    AlignmentError,
    AnnotatedMaps,
    LinkTotals,
    add_links,
    annotate,
    count_alignment,
    dependencies,
    error_rates,
    link_surveys,
    links,
    links_by,
)
from transduce.analysis.heads import (
    HeadName,
    HeadStatistics,
    head_statistics,
    head_sums,
    preferred_offsets,
    statistics_table,
)
from transduce.grammar.corpus import Grammar, GrammarSentence
from transduce.trees.trees import parse_tree

EVEN = torch.full((4, 4), 0.25)
PREVIOUS = torch.eye(4).roll(1, dims=0)  # the first word attends to the last
CAUSAL = torch.ones(3, 3).tril() / torch.tensor([[1.0], [2.0], [3.0]])


@pytest.fixture
def maps() -> AttentionMaps:
    """Maps of an encoder with a uniform head and one on the previous token."""
    return AttentionMaps(
        encoder=torch.stack([EVEN, PREVIOUS])[None],
        decoder=torch.stack([CAUSAL, torch.eye(3)])[None],
        encoder_decoder=torch.full((1, 2, 3, 4), 0.25),
    )


@pytest.fixture
def by_name(maps: AttentionMaps) -> dict[str, HeadStatistics]:
    return {str(each.head): each for each in head_statistics(head_sums([maps, maps]))}


def test_uniform_attention_has_the_greatest_entropy(
    by_name: dict[str, HeadStatistics],
) -> None:
    even = by_name["encoder 1.1"]
    assert even.entropy == pytest.approx(math.log(4))
    assert even.sharpness == even.edge == pytest.approx(0.25)
    assert even.distance == pytest.approx(1.25)  # 20 / 16
    assert even.previous == even.following == pytest.approx(3 / 16)
    assert even.same == pytest.approx(0.25)


def test_a_head_on_the_previous_token_is_recognized(
    by_name: dict[str, HeadStatistics],
) -> None:
    previous = by_name["encoder 1.2"]
    assert previous.entropy == pytest.approx(0)
    assert previous.sharpness == pytest.approx(1)
    assert previous.previous == pytest.approx(3 / 4)
    assert previous.edge == pytest.approx(1 / 4)
    assert previous.distance == pytest.approx(6 / 4)


def test_the_edge_of_a_decoder_is_its_start_token(
    by_name: dict[str, HeadStatistics],
) -> None:
    assert by_name["decoder 1.1"].edge == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert by_name["decoder 1.2"].same == pytest.approx(1)
    assert by_name["decoder 1.2"].following == pytest.approx(0)


def test_encoder_decoder_attention_has_no_distance(
    by_name: dict[str, HeadStatistics],
) -> None:
    across = by_name["encoder-decoder 1.1"]
    assert across.edge == pytest.approx(0.25)
    assert (across.distance, across.previous, across.same, across.following) == (
        None,
        None,
        None,
        None,
    )
    row = statistics_table([across]).rows[0]
    assert row == ("encoder-decoder 1.1", "1.39", "0.25", "–", "–", "–", "–", "0.25")


def test_longer_sentences_have_more_weight(maps: AttentionMaps) -> None:
    short = AttentionMaps(
        encoder=torch.ones(1, 2, 1, 1),
        decoder=torch.ones(1, 2, 1, 1),
        encoder_decoder=torch.ones(1, 2, 1, 1),
    )
    first = head_statistics(head_sums([maps, short]))[0]
    assert first.sharpness == pytest.approx((4 * 0.25 + 1) / 5)


def test_the_preferred_offset_is_compared_with_uniform_attention(
    maps: AttentionMaps,
) -> None:
    found = {str(each.head): each for each in preferred_offsets(head_sums([maps]))}
    assert set(found) == {"encoder 1.1", "encoder 1.2", "decoder 1.1", "decoder 1.2"}
    previous = found["encoder 1.2"]
    assert previous.head == HeadName(kind="encoder", layer=1, head=2)
    assert previous.share == pytest.approx(3 / 4)
    assert previous.offset in (-2, -1, 0)  # the windows that hold all of it
    even = found["encoder 1.1"]
    assert (even.offset, even.share) == (0, pytest.approx(10 / 16))
    assert even.even_share == pytest.approx(even.share)


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


def alignment_errors(*annotated: AnnotatedMaps) -> list[AlignmentError]:
    total: AlignmentCounts = {}
    for each in annotated:
        count_alignment(each, total)
    return list(error_rates(total))


def test_the_error_rate_of_correct_links_is_zero(
    annotated: AnnotatedMaps,
) -> None:
    rates = {
        (each.place, each.linking, each.head): each.error_rate
        for each in alignment_errors(annotated)
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
    first = alignment_errors(annotated, one_word)[0]
    # 2 + 1 links are found, all right, of 2 + 2.
    assert first.error_rate == pytest.approx(1 - 2 * 3 / (3 + 4))


SHIP = """(TOP (S (NP (DT The) (JJ broken) (NN ship)) (VP (VBZ does) (RB not)
(VP (VB leave) (SBAR (IN although) (S (NP (PRP it)) (VP (VBZ is)
(ADJP (JJ big))))))) (. .)))""".replace("\n", " ")
HORSES = """(TOP (S (NP (NP (DT the) (NNS horses)) (SBAR (WHNP (WDT that)) (S (NP (NP
(NNP Julia) (POS 's)) (NN child)) (VP (VBD saw))))) (VP (VBD found) (NP (DT a)
(NN ball))) (. .)))""".replace("\n", " ")


@pytest.fixture
def sentence() -> GrammarSentence:
    return GrammarSentence(
        source="The broken ship does not leave although it is big.",
        target="Das kaputte Schiff fährt nicht ab, obwohl es groß ist.",
        tree=SHIP,
        source_words=tuple(parse_tree(SHIP).words),
        target_words=(
            *("Das", "kaputte", "Schiff", "fährt", "nicht", "ab", ","),
            *("obwohl", "es", "groß", "ist", "."),
        ),
        alignment=((7, 8),),
        antecedents=((7, 2),),
    )


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (
            SHIP,
            [
                ("The", "ship"),
                ("broken", "ship"),
                ("does", "ship"),
                ("is", "it"),
            ],
        ),
        (
            HORSES,
            [
                ("the", "horses"),
                ("a", "ball"),
                ("saw", "child"),
                ("found", "horses"),
                ("ball", "found"),
            ],
        ),
    ],
    ids=["main and subordinate clause", "relative clause"],
)
def test_dependencies_follow_from_a_tree(
    tree: str, expected: list[tuple[str, str]]
) -> None:
    read = parse_tree(tree)
    found = [(read.words[d.query], read.words[d.key]) for d in dependencies(read)]
    assert found == expected


def test_a_pronoun_is_linked_from_both_languages(sentence: GrammarSentence) -> None:
    pronouns = [link for link in links(sentence) if "antecedent" in link.kind]
    assert [(each.kind, each.attention) for each in pronouns] == [
        ("it → antecedent", "encoder"),
        ("translation of it → antecedent", "encoder-decoder"),
    ]
    assert [(each.query, each.key) for each in pronouns] == [(7, 2), (8, 2)]


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        (1, "it → antecedent"),
        (1, "he, she, they → antecedent"),
        (1, "his, her, its, their → antecedent"),
        (1, "that, which, who → antecedent"),
    ],
)
def test_the_built_in_grammar_has_every_kind_of_pronoun(seed: int, kind: str) -> None:
    sentences = islice(Grammar.built_in().held_out_sentences(seed), 200)
    assert any(link.kind == kind for each in sentences for link in links(each))


def test_a_head_that_finds_the_antecedent_is_the_most_accurate(
    sentence: GrammarSentence,
) -> None:
    nowhere = torch.eye(12)
    finds = torch.eye(12)
    finds[7] = torch.tensor([0, 0, 0.4, 0, 0, 0, 0, 0.5, 0, 0, 0, 0.1])
    annotated = AnnotatedMaps(
        sentence=sentence,
        encoder=torch.stack([nowhere, finds])[None],
        written=torch.full((1, 2, 12, 12), 1 / 12),
        read=torch.full((1, 2, 12, 12), 1 / 12),
    )
    total: LinkTotals = {}
    add_links(annotated, total)
    found = {each.kind: each for each in link_surveys(total)}
    it = found["it → antecedent"]
    assert str(it.heads[0].head) == "encoder 1.2"
    assert it.heads[0].accuracy == 1  # itself left out
    assert it.heads[0].weight == pytest.approx(0.4)
    assert it.heads[1].accuracy == 0
    assert (it.offset, it.offset_accuracy, it.num_links) == (-5, 1, 1)


def test_attention_between_pieces_becomes_attention_between_words(
    sentence: GrammarSentence,
) -> None:
    source = [" The", " bro", "ken", *(f" {w}" for w in sentence.source_words[2:])]
    target = [*(f" {w}" for w in sentence.target_words)]
    maps = AttentionMaps(
        encoder=torch.full((1, 1, 13, 13), 1 / 13),
        decoder=torch.full((1, 1, 13, 13), 1 / 13),
        encoder_decoder=torch.eye(13)[None, None],
    )
    found = annotate(sentence, maps, source, target)
    assert found.encoder.shape == (1, 1, 12, 12)
    assert float(found.encoder[0, 0, 0, 1]) == pytest.approx(2 / 13)
    assert found.written.shape == found.read.shape == (1, 1, 12, 12)
    # Each word is the input one position after it was the output.
    assert found.written[0, 0, 0].argmax() == 0
    assert found.read[0, 0, 0].argmax() == 1
