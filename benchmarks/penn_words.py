"""Count the words of a treebank that the parser's word rules cut otherwise.

    python benchmarks/penn_words.py TREES...

The raw text of each tree is rebuilt from its words by the spacing of printed English,
and cut by the rules that `transduce parse` uses for raw text. The treebank's words that
differ are counted; each place is printed with both cuts.
"""

import argparse
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

from transduce.text.corpus import read_text
from transduce.trees.penn_words import penn_words
from transduce.trees.trees import read_trees

SIGNS = {
    "-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"',
    "`": "'",
}  # fmt: skip
JOINED_TO_NEXT = re.compile(r"``|`|-L[RC]B-|\[|[A-Z]{0,3}\$|#|[£€¥]|[Dd]'")
JOINED_TO_LAST = re.compile(
    r"''|'|-R[RC]B-|\]|[.,:;?!%]|\.\.\.|(?i:n't|'(?:s|m|d|ll|re|ve))"
)
SPLIT_WORDS = frozenset(
    {"can not", "gon na", "wan na", "got ta", "gim me", "lem me", "'t is", "'t was"}
)
NUM_CONTEXT = 3
"""Number of words shown before and after a difference."""


def raw_text(words: Sequence[str]) -> str:
    """Rebuild the text of a sentence; its last stop merges with an abbreviation's."""
    text, last = "", ""
    for word in words:
        is_merged = word == "." and text.endswith(".") and last not in {".", "..."}
        is_joined = (
            not text
            or JOINED_TO_NEXT.fullmatch(last)
            or JOINED_TO_LAST.fullmatch(word)
            or f"{last} {word}".lower() in SPLIT_WORDS
        )
        written = "" if is_merged else SIGNS.get(word, word)
        text += written if is_joined else f" {written}"
        last = word
    return text


def main() -> None:
    """Count and print the differences of the files given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", type=Path, nargs="+")
    files: list[Path] = parser.parse_args().trees
    num_words = num_other = num_places = 0
    for file in files:
        for tree in read_trees(read_text([file]), str(file)):
            words = tree.words
            found = penn_words(raw_text(words))
            num_words += len(words)
            matcher = SequenceMatcher(None, words, found, autojunk=False)
            for kind, start, end, found_start, found_end in matcher.get_opcodes():
                if kind == "equal":
                    continue
                num_other += max(end - start, 1)
                num_places += 1
                around = max(start - NUM_CONTEXT, 0)
                print(
                    f"- {' '.join(words[around : end + NUM_CONTEXT])!r}: "
                    f"{' '.join(words[start:end])!r} is cut as "
                    f"{' '.join(found[found_start:found_end])!r}"
                )
    print(f"{num_other} of {num_words:,} words differ, in {num_places} places.")


if __name__ == "__main__":
    main()
