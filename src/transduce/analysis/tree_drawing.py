"""Constituency trees for display: as indented brackets or as an SVG picture."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from itertools import accumulate

from transduce.trees.trees import Tree

INDENT = "  "
CHARACTER, GAP, LEVEL, MARGIN, BASELINE = 8, 14, 44, 16, 14
"""Pixels: width of a character, gap between words, distance of levels, margin around a
tree, and height of the text's baseline."""
STYLE = (
    "text{font:14px sans-serif;text-anchor:middle;fill:#222}"
    ".label{font-weight:600;fill:#4477aa}.tag{fill:#888}"
    "line{stroke:#999}"
)


def indented(tree: Tree) -> str:
    """Format a tree in brackets, one constituent per line with its first leaves."""
    closing = Counter(one.end for one in tree.constituents)
    lines: list[str] = []
    depth, is_begun = 0, False
    for position, opened in enumerate(tree.opened_at()):
        for one in opened:
            lines.append(f"{INDENT * depth}({one.label}")
            depth += 1
        leaf = str(Tree(leaves=tree.leaves[position : position + 1], constituents=()))
        if opened or is_begun:
            lines[-1] += f" {leaf}"
        else:
            lines.append(INDENT * depth + leaf)
        num_closed = closing[position + 1]
        lines[-1] += ")" * num_closed
        depth -= num_closed
        is_begun = not num_closed
    return "\n".join(lines)


def svg(trees: Iterable[Tree]) -> str:
    """Draw trees as one SVG picture, one below the other."""
    drawings: list[str] = []
    width, height = 0.0, 0.0
    for tree in trees:
        nodes = _laid_out(tree)
        shapes = "".join(map(_shapes, nodes))
        drawings.append(f'<g transform="translate(0 {height:g})">{shapes}</g>')
        width = max(width, sum(_widths(tree)) + 2 * MARGIN)
        lowest = max([node.y for node in nodes], default=-MARGIN)
        height += lowest + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" '
        f'height="{height:g}" viewBox="0 0 {width:g} {height:g}">'
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(drawings)}</svg>\n"
    )


@dataclass(slots=True, eq=False)
class _Node:
    """Label, tag or word of a drawing, with the nodes below it."""

    text: str
    kind: str
    level: int
    x: float = 0.0
    below: list["_Node"] = field(default_factory=list)

    @property
    def y(self) -> int:
        return MARGIN + BASELINE + self.level * LEVEL


def _laid_out(tree: Tree) -> list[_Node]:
    """Place all nodes, each centred above its children."""
    above: list[tuple[_Node, int]] = []
    """Open constituents around the next leaf, each with its end."""
    phrases: list[_Node] = []
    others: list[_Node] = []
    leaves = zip(tree.leaves, tree.opened_at(), _middles(tree), strict=True)
    for position, (leaf, opened, x) in enumerate(leaves):
        while above and above[-1][1] <= position:
            above.pop()
        for one in opened:
            phrases.append(_Node(one.label, "label", len(above)))
            if above:
                above[-1][0].below.append(phrases[-1])
            above.append((phrases[-1], one.end))
        word = _Node(leaf.word, "word", len(above) + 1, x)
        tag = _Node(leaf.tag, "tag", len(above), x, [word])
        above[-1][0].below.append(tag)
        others += [tag, word]
    for node in reversed(phrases):
        node.x = (node.below[0].x + node.below[-1].x) / 2
    return phrases + others


def _widths(tree: Tree) -> list[int]:
    return [
        GAP + CHARACTER * max(len(leaf.word), len(leaf.tag)) for leaf in tree.leaves
    ]


def _middles(tree: Tree) -> list[float]:
    """Horizontal centre of each word."""
    widths = _widths(tree)
    ends = accumulate(widths, initial=MARGIN)
    return [start + width / 2 for start, width in zip(ends, widths, strict=False)]


def _shapes(node: _Node) -> str:
    x, y = f"{node.x:g}", node.y
    lines = [
        f'<line x1="{x}" y1="{y + 4}" x2="{child.x:g}" y2="{child.y - BASELINE}"/>'
        for child in node.below
    ]
    text = f'<text class="{node.kind}" x="{x}" y="{y}">{escape(node.text)}</text>'
    return text + "".join(lines)
