"""A parse has a short repr."""

import pytest

from transduce.decoding.parser import Parse
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
