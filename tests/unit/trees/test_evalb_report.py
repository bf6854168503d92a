from transduce.trees.bracket_f1 import bracket_f1, evalb_report
from transduce.trees.trees import read_parses

GOLD = [
    "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (PRP me))) (. .)))",
    "(TOP (S (NP-SBJ (PRP I)) (VP (VBP run) (ADVP (RB off)) (NP (-NONE- *))) (. .)))",
    "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (PRP me))) (. .)))",
    "(TOP (S (NP (NNP Ann)) (VP (VBZ sleeps)) (. .)))",
    "(TOP (S (NP (NNP Ann)) (VP (VBZ sleeps)) (. .)))",
    f"(TOP (S (NP {' '.join(['(NN a)'] * 40)}) (. .)))",
]
PREDICTED = [
    "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (NN me))) (. .)))",
    "(TOP (S (NP (PRP I)) (VP (VBP run) (PRT (RP off))) (. .)))",
    "(TOP (S (DT the) (VP (NN dog) (VBZ sees)) (NP (PRP me)) (. .)))",
    "(TOP (S (NP (NNP Anne)) (VP (VBZ sleeps)) (. .)))",
    "",
    f"(TOP (S {' '.join(['(NN a)'] * 40)} (. .)))",
]
# Layout and spelling as the C program prints them.
REPORT = """\
  Sent.                        Matched  Bracket   Cross        Correct Tag
 ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy
============================================================================
   1    5    0  100.00 100.00     4      4    4      0      4     3    75.00
   2    4    0  100.00 100.00     4      4    4      0      3     2    66.67
   3    5    0   50.00  66.67     2      4    3      1      4     4   100.00
   4    3    1    0.00   0.00     0      0    0      0      0     0     0.00
   5    3    2    0.00   0.00     0      0    0      0      0     0     0.00
   6   41    0   50.00 100.00     1      2    1      0     40    40   100.00
============================================================================
                 78.57  91.67     11    14    12      1     51    49    96.08
=== Summary ===

-- All --
Number of sentence        =      6
Number of Error sentence  =      1
Number of Skip  sentence  =      1
Number of Valid sentence  =      4
Bracketing Recall         =  78.57
Bracketing Precision      =  91.67
Bracketing FMeasure       =  84.62
Complete match            =  50.00
Average crossing          =   0.25
No crossing               =  75.00
2 or less crossing        = 100.00
Tagging accuracy          =  96.08

-- len<=40 --
Number of sentence        =      5
Number of Error sentence  =      1
Number of Skip  sentence  =      1
Number of Valid sentence  =      3
Bracketing Recall         =  83.33
Bracketing Precision      =  90.91
Bracketing FMeasure       =  86.96
Complete match            =  66.67
Average crossing          =   0.33
No crossing               =  66.67
2 or less crossing        = 100.00
Tagging accuracy          =  81.82"""


def report(gold: list[str], predicted: list[str]) -> str:
    trees = [list(read_parses(lines, "trees")) for lines in (gold, predicted)]
    return evalb_report(bracket_f1(*trees))


def test_table_and_summary_equal_evalbs() -> None:
    assert report(GOLD, PREDICTED) == REPORT


def test_totals_of_an_empty_corpus_are_short_like_evalbs() -> None:
    lines = report(["(TOP (S (NN a)))"], ["(TOP (NN a))"]).splitlines()
    assert " ".join(lines[3].split()) == "1 1 0 0.00 0.00 0 1 0 0 1 1 100.00"
    assert lines[5] == "      1     1   100.00"
    assert "Bracketing FMeasure       =   0.00" in lines
