import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GOLD = """\
(TOP (S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .)))
(TOP (S (NP-SBJ (PRP I)) (VP (VBP run) (NP (-NONE- *))) (. .)))
"""
PARSES = """\
(TOP (S (NP (DT the)) (VP (NN dog) (VBZ barks)) (. .)))
(TOP (S (NP (PRP I)) (VP (VBP run)) (. .)))
"""
BARE = """\
(TOP (S (NP (XX the)) (VP (XX dog) (XX barks)) (XX .)))
(TOP (S (NP (XX I)) (VP (XX run)) (XX .)))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gold").write_text(GOLD, encoding="utf-8")
    (tmp_path / "parses").write_text(PARSES, encoding="utf-8")
    (tmp_path / "bare").write_text(BARE, encoding="utf-8")
    return tmp_path


def test_table_and_summary_are_printed(
    succeeds: Callable[..., str], folder: Path
) -> None:
    printed = succeeds("evaluate-parses", folder / "gold", folder / "parses")
    rows = [" ".join(line.split()) for line in printed.splitlines()[3:5]]
    assert rows == [
        "1 4 0 33.33 33.33 1 3 3 1 3 3 100.00",
        "2 3 0 100.00 100.00 3 3 3 0 2 2 100.00",
    ]
    assert printed.count("Bracketing FMeasure       =  66.67\n") == 2
    assert printed.endswith("Tagging accuracy          = 100.00\n")


def test_counts_and_figures_are_one_object_of_json(
    succeeds: Callable[..., str], folder: Path
) -> None:
    files = (folder / "gold", folder / "parses")
    found = json.loads(succeeds("evaluate-parses", *files, "--json"))
    assert [one["matched"] for one in found["sentences"]] == [1, 3]
    assert found["all"]["f1"] == found["short"]["f1"] == pytest.approx(200 / 3)


def test_gold_tags_decide_which_tokens_are_punctuation(
    refuses: Callable[..., str], succeeds: Callable[..., str], folder: Path
) -> None:
    files = ("evaluate-parses", folder / "gold", folder / "bare")
    assert "bare:1: 4 words for 3; 2 of 2 sentences are not scored" in refuses(*files)
    printed = succeeds(*files, "--gold-tags")
    assert printed == succeeds("evaluate-parses", folder / "gold", folder / "parses")


def test_gold_tags_are_not_the_remedy_where_they_are_in_use(
    refuses: Callable[..., str], folder: Path
) -> None:
    (folder / "bare").write_text(BARE.replace("I)", "you)"), encoding="utf-8")
    files = ("evaluate-parses", folder / "gold", folder / "bare", "--gold-tags")
    assert refuses(*files).endswith("of the gold tree (--allow-dropped accepts it).")


def test_gold_tags_are_taken_where_both_trees_have_traces(
    succeeds: Callable[..., str], folder: Path
) -> None:
    parses = GOLD.replace("(. .)", "(XX .)").replace("-NONE-", "XX")
    (folder / "parses").write_text(parses, encoding="utf-8")
    files = ("evaluate-parses", folder / "gold", folder / "parses", "--gold-tags")
    found = json.loads(succeeds(*files, "--json"))
    assert (found["all"]["valid"], found["all"]["f1"]) == (2, 100)


def test_sentences_of_punctuation_alone_are_skipped_and_nothing_is_missing(
    command: Callable[..., Any], folder: Path
) -> None:
    (folder / "gold").write_text(f"{GOLD}(TOP (FRAG (: ...)))\n", encoding="utf-8")
    outcome = command("evaluate-parses", folder / "gold", folder / "gold", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    figures = json.loads(outcome.out)["all"]
    assert (figures["valid"], figures["skipped"], figures["f1"]) == (2, 1, 100)


def test_messages_name_standard_input(
    refuses: Callable[..., str], folder: Path
) -> None:
    gold = folder / "gold"
    for stdin, message in (
        (b"(S", "standard input:1:1: a tree must close"),
        (b"(S (A a))", "standard input: there must be as many trees as in"),
        (GOLD.replace("dog", "cat").encode(), "standard input, tree 1: `cat` for"),
    ):
        assert refuses("evaluate-parses", gold, "-", stdin=stdin).startswith(message)
    said = refuses("evaluate-parses", "-", gold, stdin=b"(S (A a))")
    assert "as in standard input, and at least one" in said


def test_a_word_that_differs_is_named_also_where_no_tag_marks_punctuation(
    refuses: Callable[..., str], folder: Path
) -> None:
    text = BARE.replace("dog", "cat")
    (folder / "bare").write_text(text, encoding="utf-8")
    files = ("evaluate-parses", folder / "gold", folder / "bare", "--gold-tags")
    assert "bare:1: `cat` for `dog`; 1 of 2 sentences is not" in refuses(*files)


def test_a_normalised_root_is_not_counted(
    succeeds: Callable[..., str], folder: Path
) -> None:
    (folder / "roots").write_text(GOLD.replace("(TOP ", "( "), encoding="utf-8")
    files = ("evaluate-parses", folder / "roots", folder / "parses", "--json")
    assert json.loads(succeeds(*files))["all"]["gold"] == 8
    assert json.loads(succeeds(*files, "--normalize"))["all"]["gold"] == 6


@pytest.mark.parametrize(
    ("second", "fault", "status"),
    [
        ("(TOP (S (PRP I) (VBP ran) (. .)))", "`ran` for `run`", "1"),
        ("(TOP (S (PRP I) (. .)))", "1 word for 2", "1"),
        ("", "no words", "2"),
        ("(())", "no words", "2"),
    ],
)
def test_a_dropped_sentence_is_printed_and_fails_unless_it_is_allowed(
    command: Callable[..., Any], folder: Path, second: str, fault: str, status: str
) -> None:
    first = PARSES.splitlines()[0]
    (folder / "parses").write_text(f"{first}\n{second}\n", encoding="utf-8")
    files = ("evaluate-parses", folder / "gold", folder / "parses")
    place = f"{folder}/parses:2: {fault}"
    refused, allowed = command(*files), command(*files, "--allow-dropped")
    assert (refused.code, allowed.code) == (2, 0)
    assert refused.err == (
        f"transduce: {place}; 1 of 2 sentences is not scored, as its words are "
        "not those of the gold tree (--gold-tags takes punctuation from the gold tree, "
        "--allow-dropped accepts it).\n"
    )
    assert allowed.err == f"Warning: {place}; the sentence is not scored.\n"
    assert refused.out == allowed.out
    assert refused.out.splitlines()[4].split()[:3] == ["2", "3", status]


BAD = {
    "missing": (None, r"bad: the file cannot be read \(No such file or directory\)"),
    "empty": (b"", "bad: there must be as many trees as in gold, .* 0 for 2[.]"),
    "blank": (b"\n", "bad: .* 1 for 2; a blank line or `.TOP.` counts as a sent"),
    "no tree": (
        b"(TOP)\n",
        "bad: .* 1 for 2; a blank line or `.TOP.` counts as a sent",
    ),
    "a tree too few": (b"(S (A a))\n", "bad: there must be as many .* are 1 for 2"),
    "a tree too many": (b"(S (A a))\n" * 3, "bad: .* as in gold, .* are 3 for 2"),
    "no bracket": (b"(S (A a))\nthe\n", "bad:2:1: a tree must begin"),
    "too few brackets": (
        b"(S (A a)\n(S (A a))\n",
        "bad:1:1: .* before a line that is not indented, but this one leaves 1 open",
    ),
    "too many brackets": (b"(S (A a)))\n", r"bad:1:10: .* here follows `\)`"),
    "an empty bracket": (b"(S (A a) ())\n", r"bad:1:11: a bracket must hold"),
    "text after the root": (b"(S (A a)) b\n", "bad:1:11: .* here follows `b`"),
    "a tree of two lines": (b"(S (A a)\n  (A b))\n", "bad: .* as in gold, .* 1 for 2"),
    "10,000 brackets": (
        b"(S " * 10_000 + b"(A a)" + b")" * 10_000,
        "bad:1:3001: brackets must be at most 1,000 deep",
    ),
    "Latin-1": (b"(S (A \xe4))\n", "bad:1: a line must be valid UTF-8, but byte 7"),
    "UTF-16": ("(S (A a))\n".encode("utf-16"), "bad:1: a line must be"),
    "NUL": (b"(S (A \0))\n", "bad:1: a line must be text, .* NUL byte"),
    "long line": (b"(" * 1_000_001, "bad:1: a line must be at most 1,000,000 bytes"),
}


@pytest.mark.parametrize("side", ["gold", "predicted"])
@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=list(BAD))
def test_a_faulty_file_is_refused(
    refuses: Callable[..., str],
    folder: Path,
    content: bytes | None,
    message: str,
    side: str,
) -> None:
    good, bad = folder / "gold", folder / "bad"
    if content is not None:
        bad.write_bytes(content)
    files = (bad, good) if side == "gold" else (good, bad)
    said = refuses("evaluate-parses", *files).replace(f"{folder}/", "")
    if side == "gold" and " for 2" in message:
        assert said.startswith("gold: there must be as many trees as in bad, and at")
    else:
        assert re.match(message, said)


@pytest.mark.parametrize("content", ["\n", "\n\n", "(TOP)\n", "()\n\n", "(())\n"])
def test_gold_trees_without_any_word_are_refused(
    refuses: Callable[..., str], folder: Path, content: str
) -> None:
    (folder / "gold").write_text(content, encoding="utf-8")
    message = refuses("evaluate-parses", folder / "gold", folder / "gold")
    assert message == f"{folder}/gold: a treebank must have a tree, but has none."


def indented(trees: str) -> str:
    """The same trees, each on several lines, with blank lines between them."""
    return "\n".join(
        line.replace(" (", "\n  (", 2) + "\n" for line in trees.splitlines()
    )


@pytest.mark.parametrize("which", ["gold", "parses", "both"])
def test_trees_may_take_several_lines_as_in_training(
    succeeds: Callable[..., str], folder: Path, which: str
) -> None:
    expected = succeeds("evaluate-parses", folder / "gold", folder / "parses")
    for name, trees in (("gold", GOLD), ("parses", PARSES)):
        if which in (name, "both"):
            (folder / name).write_text(indented(trees), encoding="utf-8")
    found = succeeds("evaluate-parses", folder / "gold", folder / "parses")
    assert found == expected


def test_a_dropped_tree_of_several_lines_is_named_by_number(
    refuses: Callable[..., str], folder: Path
) -> None:
    first = PARSES.splitlines()[0]
    parses = indented(f"{first}\n(TOP (S (PRP I) (. .)))\n")
    (folder / "parses").write_text(parses, encoding="utf-8")
    message = refuses("evaluate-parses", folder / "gold", folder / "parses")
    assert message.startswith(f"{folder}/parses, tree 2: 1 word for 2; 1 of 2 sent")


@pytest.mark.parametrize("encoded", [b"\xef\xbb\xbf", b""], ids=["mark", "none"])
def test_a_byte_order_mark_and_crlf_are_not_part_of_the_trees(
    succeeds: Callable[..., str], folder: Path, encoded: bytes
) -> None:
    content = encoded + PARSES.replace("\n", "\r\n").encode()
    (folder / "other").write_bytes(content)
    files = [folder / "gold", folder / "other"]
    assert succeeds("evaluate-parses", *files) == succeeds(
        "evaluate-parses", folder / "gold", folder / "parses"
    )


def test_a_folder_in_the_place_of_trees_is_refused_with_the_remedy(
    refuses: Callable[..., str], folder: Path
) -> None:
    message = refuses("evaluate-parses", folder / "gold", folder)
    assert message == (
        f"{folder}: the predicted trees must be a file, but this is a folder; give a "
        "model that parses by --model."
    )


@pytest.mark.parametrize("option", ["--length-penalty", "--processes"])
def test_predicted_trees_have_no_search(
    refuses: Callable[..., str], folder: Path, option: str
) -> None:
    files = (folder / "gold", folder / "parses")
    assert refuses("evaluate-parses", *files, option, "0") == (
        f"{option} is for a model's search, but there is no model; leave it out, or "
        "give --model instead of predicted trees."
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_predicted_trees_have_no_precision(
    refuses: Callable[..., str], folder: Path, precision: str
) -> None:
    files = (folder / "gold", folder / "parses")
    assert refuses("evaluate-parses", *files, "--precision", precision) == (
        "--precision is for a model's search, but there is no model; leave it out, or "
        "give --model instead of predicted trees."
    )
