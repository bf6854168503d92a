"""A parser takes words, and its parses have a short repr."""

from typing import Any

import pytest

from transduce.checkpoint import Checkpoint
from transduce.decoding.parser import Parse
from transduce.decoding.translator import Translator
from transduce.errors import ConfigError, RequestError
from transduce.search_config import SearchConfig
from transduce.trees.linearization import Repairs
from transduce.trees.trees import parse_tree

DOG = "(S (NP (DT a) (NN dog)) (VP (VBZ runs)))"


@pytest.mark.parametrize(
    ("repairs", "is_overlong", "told"),
    [
        (Repairs(), False, ""),
        (Repairs(unclosed=2, missing=1), False, ", repairs=3"),
        (Repairs(), True, ", is_overlong=True"),
    ],
)
def test_a_parse_has_a_repr_of_one_line(
    repairs: Repairs, is_overlong: bool, told: str
) -> None:
    parse = Parse(
        tree=parse_tree(DOG), repairs=repairs, score=-1.0, is_overlong=is_overlong
    )
    assert repr(parse) == f"Parse(tree='{DOG}', score=-1.000{told})"


def test_the_repr_of_a_long_parse_is_cut() -> None:
    tree = parse_tree(f"(S {'(NN dog) ' * 200})")
    parse = Parse(tree=tree, repairs=Repairs(), score=-1.0)
    assert len(repr(parse)) < 150


@pytest.mark.parametrize(
    "words",
    [
        *("It is", ["It", ""], ["It is"], ["It", " "], [5], 5, None),
        *({"It"}, {"It": 1}, b"It"),
        pytest.param(iter(["It", "is"]), id="iterator"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked_types")
def test_a_parser_refuses_what_is_no_list_of_words(
    parsing_checkpoint: Checkpoint, words: Any
) -> None:
    """The letters of a string would count as words, and an iterator is read once."""
    parser = Translator(parsing_checkpoint, "cpu").parser()
    with pytest.raises(RequestError, match="must be a list of words"):
        list(parser.parse_stream([words]))


@pytest.mark.usefixtures("unchecked_types")
def test_a_parser_refuses_what_are_no_sentences(parsing_checkpoint: Checkpoint) -> None:
    parser = Translator(parsing_checkpoint, "cpu").parser()
    sentences: Any = 5
    with pytest.raises(RequestError, match="must be given as lists of words"):
        list(parser.parse_stream(sentences))


@pytest.mark.usefixtures("unchecked_types")
def test_a_parser_refuses_a_word_in_place_of_a_flag(
    parsing_checkpoint: Checkpoint,
) -> None:
    constrained: Any = "no"
    with pytest.raises(ConfigError, match="`constrained` must be true or false, but"):
        Translator(parsing_checkpoint, "cpu").parse("A", constrained=constrained)


def test_a_parser_reads_words_without_characters_that_show_nothing(
    parsing_checkpoint: Checkpoint,
) -> None:
    parser = Translator(parsing_checkpoint, "cpu").parser()
    search = SearchConfig(beam_size=2, extra_length=5)
    plain, hinted = ["A", "dog", "runs"], ["A", "\ufeffd\u00adog", "\u200bruns"]
    several = [plain, hinted, ["A", "\u200b", "runs"]]
    first, second, third = parser.parse_stream(several, search)
    assert second.score == first.score
    assert list(second.tree.words) == hinted
    assert list(third.tree.words) == several[-1]
