"""Bracketed trees are read, written, normalized and drawn; malformed ones reported."""

from collections.abc import Iterable
from itertools import islice, pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from transduce.errors import DataError
from transduce.grammar.corpus import training_trees
from transduce.text.corpus import read_text
from transduce.trees.trees import (
    MAX_DEPTH,
    NOTHING,
    Constituent,
    Leaf,
    Tree,
    indented,
    normalized,
    parse_tree,
    read_parses,
    read_trees,
    svg,
    with_root,
    without_functions,
    without_traces,
)

LINE = "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .)))"
PENN = """
( (S
    (NP-SBJ (DT the) (NN dog) )
    (VP (VBZ barks)
\t(NP (-NONE- *T*-1)))
    (. .) ))

( (FRAG (INTJ (UH Yes)) (. .)) )
"""


def trees_in(text: str) -> list[Tree]:
    return list(read_trees(text.splitlines(), "trees"))


def test_a_tree_has_leaves_and_labelled_spans() -> None:
    assert parse_tree(LINE) == Tree(
        leaves=(
            Leaf("DT", "the"),
            Leaf("NN", "dog"),
            Leaf("VBZ", "barks"),
            Leaf(".", "."),
        ),
        constituents=(
            Constituent("TOP", 0, 4),
            Constituent("S", 0, 4),
            Constituent("NP", 0, 2),
            Constituent("VP", 2, 3),
        ),
    )


def test_the_words_of_a_tree_are_those_of_its_leaves() -> None:
    assert parse_tree(LINE).words == ("the", "dog", "barks", ".")


@pytest.mark.parametrize(
    "line",
    [
        LINE,
        "(ROOT (S (VP (VB go))))",
        "( (S (VP (VB go))))",
        "(S1 (S (NP (NP (NP (NN a)))) (NP (NP (NN b)) (NP (NN c)))))",
        "(VB Understand)",
        "(TOP (X (-LRB- -LRB-) (SYM 1\\/2) (`` ``) (NN a\u00a0b) (NN \u2028)))",
    ],
)
def test_a_tree_is_written_as_it_was_read(line: str) -> None:
    assert str(parse_tree(line)) == line


def test_a_tree_may_take_several_lines_and_have_any_root() -> None:
    assert list(map(str, trees_in(PENN))) == [
        "( (S (NP-SBJ (DT the) (NN dog)) (VP (VBZ barks) (NP (-NONE- *T*-1))) (. .)))",
        "( (FRAG (INTJ (UH Yes)) (. .)))",
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf"])
def test_a_file_may_begin_with_a_mark_and_end_lines_with_crlf(
    tmp_path: Path, begin: bytes, end: bytes
) -> None:
    path = tmp_path / "trees"
    path.write_bytes(begin + PENN.encode().replace(b"\n", end))
    assert list(read_trees(read_text([path]), "trees")) == trees_in(PENN)


def test_trees_are_returned_as_soon_as_they_end() -> None:
    def lines() -> Iterable[str]:
        yield LINE
        raise AssertionError("the second line was not asked for")

    assert str(next(read_trees(lines(), "trees"))) == LINE


def test_an_empty_file_has_no_trees() -> None:
    assert trees_in("\n \t\n") == []


@pytest.mark.parametrize(
    ("word", "written"),
    [("(", "-LRB-"), (")", "-RRB-"), (":-)", ":--RRB-"), ("-LRB-", "-LRB-")],
)
def test_brackets_in_words_are_written_as_the_treebank_writes_them(
    word: str, written: str
) -> None:
    tree = Tree(leaves=(Leaf("X", word),), constituents=(Constituent("S", 0, 1),))
    assert str(tree) == f"(S (X {written}))"


@pytest.mark.parametrize("word", ["", "a b", "\n"])
def test_a_word_with_white_space_cannot_be_written(word: str) -> None:
    tree = Tree(leaves=(Leaf("X", word),), constituents=())
    with pytest.raises(DataError, match="^A word must be without white space to be"):
        str(tree)


def test_deeply_nested_trees_are_read() -> None:
    deep = "(X " * (MAX_DEPTH - 1) + "(NN a)" + ")" * (MAX_DEPTH - 1)
    tree = parse_tree(deep)
    assert len(tree.constituents) == MAX_DEPTH - 1
    assert str(tree) == deep


BAD = {
    "a word before the tree": ("dog", r"1:1: a tree must begin with `\(`, .* is `dog`"),
    "a word between trees": (f"{LINE}\n\n dog", "3:2: a tree must begin with .*`dog`"),
    "a bracket too many": (f"{LINE}\n)", r"2:1: a tree must begin .* here is `\)`"),
    "a bracket too many in the line": (
        "(S (NN a)))",
        r"1:11: a tree must be alone on its line, but here follows `\)`",
    ),
    "text after the root": ("(S (NN a)) b", "1:12: a tree must be alone .* `b`"),
    "a tree after the root": ("(S (NN a)) (S", r"1:12: a tree must be alone .* `\(`"),
    "a bracket too few": (
        "\n(S (NP (NN a))\n",
        "2:1: a tree must close its brackets before the file ends, .* leaves 1 open",
    ),
    "a bracket too few before a tree": (
        f"{LINE}\n(S (NP (NN a)\n{LINE})",
        "2:1: .* before a line that is not indented, but this one leaves 2 open",
    ),
    "an open bracket": ("  (", "1:3: a tree must close its brackets .* leaves 1 open"),
    "nothing in a bracket": ("()", r"1:2: a bracket must hold a word or .* is `\)`"),
    "only a label": ("(S (NP ) (NN a))", r"1:8: a bracket must hold a word or"),
    "only a deep label": ("(S (A (B)) (NN a))", r"1:9: a bracket must hold a word or"),
    "two words": ("(NP (NN a b))", "1:11: a word must stand in a bracket with .* `b`"),
    "a word beside a bracket": ("(NP (NN a) b)", "1:12: a word must stand .* `b`"),
    "a label with a space": (
        "(S\u00a0X (NN a))",
        r"1:2: a label must be without white space, but here is `S\\xa0X`",
    ),
    "a tag with a space": ("(S (NN\u3000X a))", r"1:5: a label must .* `NN\\u3000X`"),
    "a bracket beside a word": ("(NN a (NN b))", r"1:7: a word must stand .* `\(`"),
    "10,000 brackets": (
        "(X " * 10_000 + "(NN a)" + ")" * 10_000,
        r"1:3001: brackets must be at most 1,000 deep, but here is one more `\(`\.",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=list(BAD))
def test_a_malformed_tree_is_reported_with_file_line_and_column(
    text: str, message: str
) -> None:
    with pytest.raises(DataError, match=f"^trees:{message}"):
        trees_in(text)


def test_trees_before_a_malformed_one_are_returned() -> None:
    trees = read_trees([LINE, ")"], "trees")
    assert str(next(trees)) == LINE
    with pytest.raises(DataError, match="^trees:2:1: "):
        next(trees)


@pytest.mark.parametrize(
    "line", ["", " \t", "()", "(())", "( ( ) )", "(TOP)", "(TOP )"]
)
def test_a_line_may_stand_for_a_missing_parse(line: str) -> None:
    assert list(read_parses([LINE, line, LINE], "parses")) == [
        parse_tree(LINE),
        NOTHING,
        parse_tree(LINE),
    ]


def test_a_missing_parse_is_written_as_a_blank_line() -> None:
    assert str(NOTHING) == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("(S)", "a bracket must hold a word or brackets"),
        ("(S (NN a)) (S (NN b))", "a tree must be alone on its line"),
        ("TOP", "a tree must begin with"),
    ],
)
def test_a_malformed_parse_is_reported_with_its_line(line: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"^parses:2:\d+: {message}"):
        list(read_parses([LINE, line, ")"], "parses"))


def test_a_parse_without_its_last_bracket_is_named_with_its_line() -> None:
    message = r"^parses:2:1: a tree must close its brackets before {}, .* 1 open"
    for lines, end in (([LINE], "a line that is not indented"), ([], "the file ends")):
        with pytest.raises(DataError, match=message.format(end)):
            list(read_parses([LINE, "(S (NN a)", *lines], "parses"))


def test_parses_of_several_lines_are_separated_by_blank_lines() -> None:
    expected = trees_in(PENN)
    assert list(read_parses(PENN.splitlines(), "parses")) == expected
    lines = [*PENN.splitlines(), "(TOP)", "", *PENN.splitlines(), "()"]
    assert list(read_parses(lines, "parses")) == [
        *expected,
        NOTHING,
        *expected,
        NOTHING,
    ]


def test_errors_after_trees_without_a_parse_name_their_line() -> None:
    with pytest.raises(DataError, match=r"^parses:4:1: a tree must begin with"):
        list(read_parses([LINE, "", "()", "x"], "parses"))


def test_a_text_without_a_tree_is_reported() -> None:
    with pytest.raises(
        DataError, match="^tree:1: a tree must be here, but the line is"
    ):
        parse_tree(" ")


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
        ("NP|", "NP"),
        ("ADVP|PRT|-1", "PRT"),
        ("|", "|"),
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


def test_indented_trees_without_words_are_read_as_missing_parses() -> None:
    found = [TREES[0], NOTHING, TREES[1], NOTHING]
    lines = "\n".join(map(indented, found)).splitlines()
    assert list(read_parses(lines, "drawn")) == found


def test_a_tree_without_words_gives_an_empty_picture() -> None:
    assert indented(NOTHING) == "(TOP)"
    assert not list(ElementTree.fromstring(svg([])).iter(f"{NAMESPACE}text"))


def drawn(trees: list[Tree]) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg(trees)).iter(f"{NAMESPACE}text"))


def test_a_picture_has_every_label_tag_and_word() -> None:
    texts = sorted(element.text or "" for element in drawn([TREE]))
    labels = ["TOP", "S", "NP", "VP", "DT", "NN", "VBZ", "."]
    assert texts == sorted([*labels, "the", "dog", "barks", "."])


def test_a_word_without_a_constituent_is_drawn() -> None:
    assert [element.text for element in drawn([parse_tree("(NN dog)")])] == [
        "NN",
        "dog",
    ]


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


@pytest.mark.parametrize("word", ["a\x01b\ufffe", "a\ud800b\udfff"])
def test_a_word_of_characters_that_xml_lacks_is_drawn(word: str) -> None:
    tree = parse_tree(f"(TOP (X {word}))")
    assert svg([tree]).encode()
    assert [element.text for element in drawn([tree])][-1] == "a\ufffdb\ufffd"


def test_wide_characters_have_twice_the_room() -> None:
    trees = [
        parse_tree(f"(TOP (A {word}) (A {word}))") for word in ("我" * 9, "n" * 18)
    ]
    [wide], [narrow] = (
        [t.get("x") for t in drawn([tree]) if t.text == word][1:]
        for tree, word in zip(trees, ("我" * 9, "n" * 18), strict=True)
    )
    assert wide == narrow


def test_labels_beside_each_other_do_not_overlap() -> None:
    tree = parse_tree(
        "(S (WHADVP (A so) (A I)) (WHADJP (A ok)) (SBARQ (A a)) (X (A b)))"
    )
    row = [
        (float(element.get("x", "")), element.text or "")
        for element in drawn([tree])
        if element.get("class") == "label" and element.text != "S"
    ]
    assert len(row) == 4
    pixels = 10  # of a bold capital letter
    for (left, one), (right, other) in pairwise(row):
        assert right - left > pixels * (len(one) + len(other)) / 2


def test_deep_trees_are_drawn() -> None:
    depth = 900
    tree = parse_tree("(S " * depth + "(A a)" + ")" * depth)
    assert len(drawn([tree])) == depth + 2
    assert indented(tree).endswith("(S (A a)" + ")" * depth)
