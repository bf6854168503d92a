"""The paper's rows of Table 3 agree with its text and with our presets."""

import pytest

from transduce.experiments.presets import TABLE_3
from transduce.experiments.table3 import PAPER_ROWS


def test_every_preset_of_the_table_has_a_row_of_the_paper() -> None:
    assert list(PAPER_ROWS) == [
        "base", "A-h1", "A-h4", "A-h16", "A-h32", "B-dk16", "B-dk32", "C-N2", "C-N4",
        "C-N8", "C-d256", "C-d1024", "C-ff1024", "C-ff4096", "D-drop0", "D-drop0.2",
        "D-smooth0", "D-smooth0.2", "E-learned", "big",
    ]  # fmt: skip
    assert set(PAPER_ROWS) == set(TABLE_3)


@pytest.mark.parametrize(
    ("row", "difference"),
    [
        # Section 6.2 on rows A: "single-head attention is 0.9 BLEU worse than the best
        # setting".
        ("A-h1", -0.9),
        ("B-dk16", -0.7),
        ("C-N2", -2.1),
        ("D-drop0", -1.2),
        ("E-learned", -0.1),
        ("big", 0.6),
        ("base", 0.0),
    ],
)
def test_differences_are_from_base(row: str, difference: float) -> None:
    assert PAPER_ROWS[row].difference == difference


def test_a_row_may_gain_bleu_and_lose_perplexity() -> None:
    # Label smoothing "hurts perplexity, as the model learns to be more unsure, but
    # improves accuracy and BLEU score" (section 5.4).
    smooth, base = PAPER_ROWS["D-smooth0"], PAPER_ROWS["base"]
    assert smooth.perplexity < base.perplexity
    assert smooth.bleu < base.bleu


def test_no_row_is_better_than_big() -> None:
    assert max(PAPER_ROWS, key=lambda row: PAPER_ROWS[row].bleu) == "big"
    assert min(PAPER_ROWS, key=lambda row: PAPER_ROWS[row].perplexity) == "big"
