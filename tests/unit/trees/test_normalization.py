import pytest

from transduce.trees.normalization import (
    normalized,
    with_root,
    without_functions,
    without_traces,
)
from transduce.trees.trees import NOTHING, parse_tree

AS_ANNOTATED = """( (SBARQ (WHNP-1 (WP What)) (SQ (VBD did) (NP-SBJ (PRP you))
 (VP (VB say) (SBAR (-NONE- 0) (S (-NONE- *T*-1))) (ADVP|PRT (RB back)))) (. ?)))"""


def test_a_treebank_tree_is_normalised_for_training() -> None:
    assert str(normalized(parse_tree(AS_ANNOTATED))) == (
        "(TOP (SBARQ (WHNP (WP What)) (SQ (VBD did) (NP (PRP you)) (VP (VB say) "
        "(PRT (RB back)))) (. ?)))"
    )


@pytest.mark.parametrize(
    ("annotated", "spoken"),
    [
        ("(S (NP (-NONE- *)) (VP (TO to)))", "(S (VP (TO to)))"),
        ("(S (A (NN a) (B (-NONE- 0))) (C (NN c)))", "(S (A (NN a)) (C (NN c)))"),
        ("(S (A (-NONE- 1) (NN a) (-NONE- 2)))", "(S (A (NN a)))"),
        ("(NP (NP (NN a)) (SBAR (-NONE- 0)))", "(NP (NP (NN a)))"),
        ("(S (NN a))", "(S (NN a))"),
    ],
)
def test_traces_and_emptied_constituents_are_removed(
    annotated: str, spoken: str
) -> None:
    assert without_traces(parse_tree(annotated)) == parse_tree(spoken)


def test_a_tree_of_traces_alone_is_empty() -> None:
    assert normalized(parse_tree("( (S (NP (-NONE- *)) (VP (-NONE- *))))")) == NOTHING


@pytest.mark.parametrize(
    ("label", "kept"),
    [
        ("NP-SBJ-1", "NP"),
        ("NP=2", "NP"),
        ("WHNP-1=2", "WHNP"),
        ("ADVP|PRT", "PRT"),
        ("PRT|ADVP-CLR", "ADVP"),
        ("-X-", "-X"),
        ("NP", "NP"),
    ],
)
def test_function_tags_are_removed_from_labels(label: str, kept: str) -> None:
    tree = parse_tree(f"(TOP ({label} (NN-X a-b)))")
    assert str(without_functions(tree)) == f"(TOP ({kept} (NN-X a-b)))"


@pytest.mark.parametrize("root", ["", "TOP", "ROOT", "S1", "VROOT"])
def test_every_root_gets_the_same_label(root: str) -> None:
    tree = parse_tree(f"({root} (S (NN a)) (. .))")
    assert str(with_root(tree)) == "(TOP (S (NN a)) (. .))"


@pytest.mark.parametrize("tree", ["(S (NN a) (NN b))", "(NN a)"])
def test_a_tree_without_a_root_gets_one(tree: str) -> None:
    assert str(with_root(parse_tree(tree))) == f"(TOP {tree})"
