"""Trees as indented brackets and as SVG."""

from itertools import islice
from xml.etree import ElementTree

import pytest

from transduce.analysis.tree_drawing import indented, svg
from transduce.grammar.corpus import training_trees
from transduce.trees.trees import NOTHING, Tree, parse_tree, read_trees

TREES = list(islice(training_trees(seed=3), 30))
NAMESPACE = "{http://www.w3.org/2000/svg}"
TREE = parse_tree("(TOP (S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .)))")


def test_a_constituent_has_a_line_with_its_first_words() -> None:
    assert indented(TREE) == (
        "(TOP\n  (S\n    (NP (DT the) (NN dog))\n    (VP (VBZ barks))\n    (. .)))"
    )


def test_indented_trees_can_be_parsed() -> None:
    lines = "\n".join(map(indented, TREES)).splitlines()
    assert list(read_trees(lines, "drawn")) == TREES


def test_a_tree_without_words_gives_an_empty_picture() -> None:
    assert indented(NOTHING) == ""
    assert not list(ElementTree.fromstring(svg([])).iter(f"{NAMESPACE}text"))


def drawn(trees: list[Tree]) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg(trees)).iter(f"{NAMESPACE}text"))


def test_a_picture_has_every_label_tag_and_word() -> None:
    texts = sorted(element.text or "" for element in drawn([TREE]))
    labels = ["TOP", "S", "NP", "VP", "DT", "NN", "VBZ", "."]
    assert texts == sorted([*labels, "the", "dog", "barks", "."])


def test_a_label_is_centred_above_its_children() -> None:
    places = {element.text: float(element.get("x", "")) for element in drawn([TREE])}
    assert places["NP"] == (places["the"] + places["dog"]) / 2
    assert places["DT"] == places["the"] < places["dog"] < places["barks"]
    heights = {element.text: float(element.get("y", "")) for element in drawn([TREE])}
    assert heights["TOP"] < heights["S"] < heights["NP"] < heights["DT"]
    assert heights["DT"] < heights["the"]


def test_trees_are_drawn_below_one_another() -> None:
    one, two = (ElementTree.fromstring(svg([TREE] * count)) for count in (1, 2))
    assert float(two.get("height", "")) == 2 * float(one.get("height", ""))
    assert two.get("width") == one.get("width")


@pytest.mark.parametrize("word", ["<b>", "a&b", '"'])
def test_words_cannot_break_the_picture(word: str) -> None:
    tree = parse_tree(f"(TOP (X {word}))")
    assert [element.text for element in drawn([tree])] == ["TOP", "X", word]


def test_deep_trees_are_drawn() -> None:
    depth = 900
    tree = parse_tree("(S " * depth + "(A a)" + ")" * depth)
    assert len(drawn([tree])) == depth + 2
    assert indented(tree).endswith("(S (A a)" + ")" * depth)
