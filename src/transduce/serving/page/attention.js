// Lines between the words of a sentence and of its result, as in Figures 3 to 5.

const SVG = "http://www.w3.org/2000/svg";
const ROW = 28;
const COLUMN = 0.36;
const GAP = 10;
const FONT = "15px system-ui, sans-serif"; // as in page.css
const FAINTEST = 0.03;

const isPunctuation = (piece) => piece !== " " && !/[\p{L}\p{N}]/u.test(piece);

// Scripts that write no spaces; each piece of theirs is a word of its own.
const UNSPACED = [
  "Hani", "Hira", "Kana", "Bopo", "Yiii", "Thai", "Laoo", "Khmr", "Mymr", "Tibt", "Tale",
  "Talu", "Lana", "Tavt", "Bali", "Java",
].map((script) => `\\p{scx=${script}}`).join("");
const BEGINS_UNSPACED = new RegExp(`^[${UNSPACED}]`, "u");
const ENDS_UNSPACED = new RegExp(`[${UNSPACED}]$`, "u");
const JOINS_NEXT = /[\u200c\u200d]$/; // zero-width joiners, also within Persian words

// The same rule as word_starts in analysis/attention_maps.py, which the command `transduce
// attention` follows.
function beginsWord(piece, before) {
  if (piece.startsWith(" ")) return true;
  const goesOn = /^[\p{M}\u200c\u200d]/u.test(piece);
  if (before.trim() === "" || goesOn || JOINS_NEXT.test(before)) return false;
  return isPunctuation(piece) || isPunctuation(before)
    || BEGINS_UNSPACED.test(piece) || ENDS_UNSPACED.test(before);
}

// Pieces that stand for the bytes of characters which the vocabulary lacks, as in <0xC3><0xA9>.
const BYTES = /(?:<0x[0-9A-F]{2}>)+/g;

function readable(text) {
  return text.replace(BYTES, (run) => {
    const bytes = run.match(/[0-9A-F]{2}(?=>)/g).map((each) => parseInt(each, 16));
    const characters = new TextDecoder().decode(Uint8Array.from(bytes));
    return /[\p{C}\ufffd]/u.test(characters) ? run : characters;
  });
}

// The pieces of each word, the first of which begins with a space.
export function wordsOf(pieces) {
  const words = [];
  let before = "";
  pieces.forEach((piece, i) => {
    if (i === 0 || (piece && beginsWord(piece, before))) words.push({ text: "", pieces: [] });
    const word = words[words.length - 1];
    word.text += piece.trimStart();
    word.pieces.push(i);
    before = piece || before;
  });
  return words.map((word) => ({ ...word, text: readable(word.text) }));
}

// The mean of the chosen layers and heads: of each query, a weight for each key.
export function meanWeights(weights, layer, head) {
  const chosen = (list, choice) => (choice === "" ? list : [list[Number(choice)]]);
  const heads = chosen(weights, layer).flatMap((each) => chosen(each, head));
  return heads[0].map((row, q) =>
    row.map((_, k) => heads.reduce((sum, each) => sum + each[q][k], 0) / heads.length));
}

// Of pieces to words: what goes to a word is the sum, what comes from it the mean.
function betweenWords(weights, queries, keys) {
  const to = (row, key) => key.pieces.reduce((sum, k) => sum + row[k], 0);
  return queries.map((query) => keys.map((key) =>
    query.pieces.reduce((sum, q) => sum + to(weights[q], key), 0) / query.pieces.length));
}

export function element(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  made.append(...children);
  return made;
}

const pen = document.createElement("canvas").getContext("2d");

export function widthOf(text) {
  pen.font = FONT;
  return pen.measureText(text).width;
}

function shortened(text, width) {
  const letters = [...text];
  let shown = text;
  while (letters.length && widthOf(shown) > width - GAP) {
    letters.pop();
    shown = `${letters.join("")}…`;
  }
  return shown;
}

// The middle of a word among as many, evenly from top to bottom.
const middle = (i, count, height) => ((i + 0.5) * height) / count;

function column(words, isLeft, { width, height }, choose) {
  const columnWidth = width * COLUMN;
  const start = isLeft ? 0 : width - columnWidth;
  return words.map((word, i) => {
    const y = middle(i, words.length, height);
    const text = element("text", {
      x: isLeft ? columnWidth - GAP : start + GAP,
      y,
      "text-anchor": isLeft ? "end" : "start",
      "dominant-baseline": "central",
    }, shortened(word.text, columnWidth));
    const box = element("rect", {
      x: start + 1, y: y - ROW / 2 + 1, width: columnWidth - 2, height: ROW - 2, rx: 4,
    });
    const title = element("title", {}, word.text);
    const group = element("g", {
      class: "word", tabindex: 0, role: "button", "aria-pressed": "false",
      "aria-label": `${isLeft ? "source" : "result"}: ${word.text}`,
    }, title, box, text);
    group.addEventListener("mouseenter", () => choose(i));
    group.addEventListener("mouseleave", () => choose(null));
    group.addEventListener("focus", () => choose(i));
    group.addEventListener("blur", () => choose(null));
    group.addEventListener("click", () => choose(i));
    return group;
  });
}

// A drawing of all lines, or of those of the word under the pointer or in focus.
export function drawing(attention, layer, head, width) {
  const keys = wordsOf(attention.keys);
  const queries = wordsOf(attention.queries);
  const weights = betweenWords(
    meanWeights(attention.weights, layer, head), queries, keys);
  const height = ROW * Math.max(keys.length, queries.length);
  const lines = [];
  const show = (side, chosen) => {
    lines.forEach(({ line, ends, weight }) => {
      const isShown = chosen === null || ends[side] === chosen;
      line.setAttribute("stroke-opacity", isShown ? Math.sqrt(weight) : 0);
    });
    [left, right].forEach((groups, i) => groups.forEach((group, j) => {
      const isChosen = i === side && j === chosen;
      group.classList.toggle("is-chosen", isChosen);
      group.setAttribute("aria-pressed", String(isChosen));
    }));
  };
  queries.forEach((_, q) => keys.forEach((_, k) => {
    const weight = weights[q][k];
    if (weight < FAINTEST) return;
    const line = element("line", {
      x1: width * COLUMN, y1: middle(k, keys.length, height),
      x2: width * (1 - COLUMN), y2: middle(q, queries.length, height),
      "stroke-width": 1 + 3 * weight, "stroke-opacity": Math.sqrt(weight),
    });
    lines.push({ line, ends: [k, q], weight });
  }));
  const left = column(keys, true, { width, height }, (i) => show(0, i));
  const right = column(queries, false, { width, height }, (i) => show(1, i));
  return element("svg", {
    width, height, role: "group",
    "aria-label": "Attention between the words of the source and of the result",
  }, ...lines.map(({ line }) => line), ...left, ...right);
}
