// A constituency tree over its words, as linguists draw it.

import { element, widthOf } from "./attention.js";

const LEVEL = 46;
const GAP = 16;
const MARGIN = 4;
const LINE = 20;
const BOLD = 1.1; // width of the labels of phrases to that of usual letters

// The width of each word; the words of a phrase have room for its label.
function widthsOf({ leaves, constituents }) {
  const widths = leaves.map(({ tag, word }) => GAP + Math.max(widthOf(word), widthOf(tag)));
  // Inner phrases come after those around them.
  [...constituents].reverse().forEach(({ label, start, end }) => {
    const width = widths.slice(start, end).reduce((sum, each) => sum + each, 0);
    const lacking = Math.max(0, GAP + BOLD * widthOf(label) - width);
    for (let i = start; i < end; i += 1) widths[i] += lacking / (end - start);
  });
  return widths;
}

// What is written where: phrases, tags and words, each with what hangs below it.
function laidOut({ leaves, constituents }) {
  const widths = widthsOf({ leaves, constituents });
  const phrases = [], others = [], open = [];
  let begun = 0;
  let left = MARGIN;
  const hang = (node) => {
    open.at(-1)?.below.push(node);
    return node;
  };
  leaves.forEach(({ tag, word }, i) => {
    while (open.length && open.at(-1).end <= i) open.pop();
    for (; constituents[begun]?.start === i; begun += 1) {
      const { label, end } = constituents[begun];
      phrases.push(hang({ text: label, kind: "phrase", level: open.length, end, below: [] }));
      open.push(phrases.at(-1));
    }
    const x = left + widths[i] / 2;
    left += widths[i];
    const below = { text: word, kind: "leaf", level: open.length + 1, x, below: [] };
    others.push(below, hang({ text: tag, kind: "tag", level: open.length, x, below: [below] }));
  });
  // Each phrase is over the middle of what is below it, the lower ones first.
  [...phrases].reverse().forEach((node) => {
    node.x = (node.below[0].x + node.below.at(-1).x) / 2;
  });
  return { nodes: [...phrases, ...others], width: left + MARGIN };
}

export function treeDrawing(parse) {
  const { nodes, width } = laidOut(parse);
  const top = ({ level }) => MARGIN + level * LEVEL;
  const lines = nodes.flatMap((node) => node.below.map((child) => element("line", {
    x1: node.x, y1: top(node) + LINE, x2: child.x, y2: top(child),
  })));
  const texts = nodes.map((node) => element("text", {
    class: node.kind, x: node.x, y: top(node) + LINE / 2,
    "text-anchor": "middle", "dominant-baseline": "central",
  }, node.text));
  const height = Math.max(0, ...nodes.map(top)) + LINE + MARGIN;
  return element("svg", {
    width, height, role: "img", "aria-label": `Tree: ${parse.tree}`,
  }, ...lines, ...texts);
}
