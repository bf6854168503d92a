"""The tree of a beam search as a drawing for a page."""

from collections import Counter
from collections.abc import Iterator
from html import escape

from transduce.analysis.search_tree import SearchTree
from transduce.special_ids import EOS

STEP, LANE, MARGIN = 110, 46, 24
"""Pixels from step to step, from rank to rank, and around."""


def draw_tree(tree: SearchTree, tokens: dict[int, str]) -> str:
    """An SVG: a column for each step, in it the hypotheses that went on, best first.

    Below a token stands the log-probability of all up to it. Under them all stand the
    ends of those that were found, with their scores.
    """
    best = set(enumerate(tree.path(tree.hypotheses[0])))
    num_lanes = max(map(len, tree.steps), default=1)
    shapes = [
        *_branches(tree, tokens, best),
        *_ends(tree, num_lanes),
        _node(_place(0, 0), None, "<s>", "", is_best=False),
    ]
    ended = Counter(len(hypothesis.ids) for hypothesis in tree.hypotheses)
    width = MARGIN * 2 + STEP * (max([len(tree.steps), *ended]) + 2)
    height = MARGIN * 2 + LANE * (num_lanes + max(ended.values()))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="Tree of the search; '
        f'the table below has what it found">{"".join(shapes)}</svg>'
    )


def _branches(
    tree: SearchTree, tokens: dict[int, str], best: set[tuple[int, int]]
) -> Iterator[str]:
    for step, branches in enumerate(tree.steps):
        for lane, branch in enumerate(branches):
            if branch.token == EOS:  # has ended, and only fills the beam up
                continue
            yield _node(
                _place(step + 1, lane),
                _place(step, branch.parent or 0),
                tokens[branch.token].strip() or "␣",
                f"{branch.total:.2f}",
                is_best=(step, lane) in best,
            )


def _ends(tree: SearchTree, num_lanes: int) -> Iterator[str]:
    ended: Counter[int] = Counter()
    for hypothesis in tree.hypotheses:
        last, path = len(hypothesis.ids), tree.path(hypothesis)
        yield _node(
            _place(last + 1, num_lanes + ended[last]),
            _place(len(path), path[-1] if path else 0),
            "</s>" if hypothesis.is_finished else "cut short",
            f"score {hypothesis.score:.3f}",
            is_best=hypothesis is tree.hypotheses[0],
        )
        ended[last] += 1


def _node(
    place: tuple[int, int],
    parent: tuple[int, int] | None,
    label: str,
    figure: str,
    is_best: bool,
) -> str:
    x, y = place
    line = ""
    if parent is not None:
        from_x, from_y = parent
        line = f'<line x1="{from_x + 62}" y1="{from_y}" x2="{x - 6}" y2="{y}"/>'
    return (
        f"<g{' class=best' if is_best else ''}>{line}"
        f'<text x="{x}" y="{y}">{escape(label)}</text>'
        f'<text class="quiet" x="{x}" y="{y + 14}">{figure}</text></g>'
    )


def _place(step: int, lane: int) -> tuple[int, int]:
    return MARGIN + STEP * step, MARGIN + LANE * lane + LANE // 4
