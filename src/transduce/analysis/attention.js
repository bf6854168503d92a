"use strict";
// Draws the attention of one sentence from the data in the page, without network.

const data = JSON.parse(document.getElementById("attention").textContent);
const KINDS = Object.keys(data.maps); // some models have no self-attention
const LEAST_SHOWN = 0.01; // fainter lines only add a grey haze
const MOST_PIXELS = 2 ** 24; // of a canvas on iOS; a larger one stays empty
const maps = Object.fromEntries(KINDS.map((kind) => [kind, readMap(data.maps[kind])]));
const state = {
  kind: "encoder-decoder",
  layer: data.layer,
  heads: new Set(allHeads("encoder-decoder")),
  grain: "sub-words",
  pointed: null, // {side, index} of the token under the mouse or the keyboard focus
  held: null, // the same for the token selected by a tap
  aligned: { layer: data.layer, heads: allHeads("encoder-decoder") },
};

const byId = (id) => document.getElementById(id);
const numLayers = (kind) => maps[kind].shape[0];
const namesOf = (heads) => `${heads.length > 1 ? "mean of heads" : "head"} ${heads.map((head) => head + 1).join(", ")}`;
const colourOf = (head) => data.colours[head % data.colours.length];
// Dashes of the lines of heads whose colours are those of earlier heads.
const dashesOf = (head) => ["none", "7 4", "2 4", "7 4 2 4"][Math.floor(head / data.colours.length) % 4];

function readMap({ shape, weights }) {
  const bytes = Uint8Array.from(atob(weights), (c) => c.charCodeAt(0));
  return { shape, weights: new Float32Array(bytes.buffer) };
}

function allHeads(kind) {
  return [...Array(maps[kind].shape[1]).keys()];
}

function axes(kind) {
  const { source, read, written } = data;
  return { encoder: [source, source], decoder: [read, read], "encoder-decoder": [written, source] }[kind];
}

// Rows of weights of one head between tokens.
function tokenWeights(kind, layer, head) {
  const { shape: [, heads, queries, keys], weights } = maps[kind];
  const start = (layer * heads + head) * queries * keys;
  return Array.from({ length: queries }, (_, i) => weights.subarray(start + i * keys, start + (i + 1) * keys));
}

function bounds({ starts, pieces }) {
  return starts.map((start, i) => [start, starts[i + 1] ?? pieces.length]);
}

// To a word: the sum over its pieces; from a word: the mean.
function wordWeights(rows, queries, keys) {
  return bounds(queries).map(([first, end]) =>
    bounds(keys).map(([from, to]) => {
      let sum = 0;
      for (let i = first; i < end; i++) for (let j = from; j < to; j++) sum += rows[i][j];
      return sum / (end - first);
    }));
}

function weightsOf(kind, layer, head, grain) {
  const rows = tokenWeights(kind, layer, head);
  return grain === "words" ? wordWeights(rows, ...axes(kind)) : rows;
}

function labelsOf(tokens, grain) {
  return grain === "words" ? tokens.words : tokens.labels;
}

function mean(matrices) {
  return matrices[0].map((row, i) => Array.from(row, (_, j) =>
    matrices.reduce((sum, each) => sum + each[i][j], 0) / matrices.length));
}

function chosenHeads() {
  return [...state.heads].sort((a, b) => a - b);
}

function focus() {
  return state.pointed ?? state.held;
}

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// Keeps the direction of a token's script apart from the text around it.
function isolated(label) {
  return `\u2068${label}\u2069`;
}

function swatch(head) {
  const mark = make("i", { className: "swatch" });
  const colour = colourOf(head);
  mark.style.background = dashesOf(head) === "none" ? colour
    : `repeating-linear-gradient(90deg, ${colour} 0 3px, transparent 3px 5px)`;
  return mark;
}

// Row of toggle buttons.
function choices(id, options) {
  const box = byId(id);
  const focused = [...box.querySelectorAll("button")].indexOf(document.activeElement);
  box.querySelectorAll("button").forEach((button) => button.remove());
  for (const { label, pressed, choose, mark } of options) {
    const button = make("button", { type: "button", onclick: () => { choose(); draw(); } }, ...(mark ? [mark] : []), label);
    if (pressed !== undefined) button.setAttribute("aria-pressed", pressed);
    box.append(button);
  }
  if (focused >= 0) box.querySelectorAll("button")[focused]?.focus();
}

function drawControls() {
  choices("kinds", KINDS.map((kind) => ({
    label: kind, pressed: kind === state.kind,
    choose: () => {
      state.kind = kind;
      state.layer = Math.min(state.layer, numLayers(kind) - 1);
      state.heads = new Set(allHeads(kind));
      state.held = state.pointed = null;
    },
  })));
  choices("layers", Array.from({ length: numLayers(state.kind) }, (_, layer) => ({
    label: String(layer + 1), pressed: layer === state.layer, choose: () => { state.layer = layer; },
  })));
  choices("heads", [
    ...allHeads(state.kind).map((head) => ({
      label: String(head + 1), mark: swatch(head), pressed: state.heads.has(head),
      choose: () => {
        if (!state.heads.delete(head)) state.heads.add(head);
        if (!state.heads.size) state.heads.add(head); // one must stay
      },
    })),
    { label: "all", choose: () => { state.heads = new Set(allHeads(state.kind)); } },
  ]);
  choices("grain", ["sub-words", "words"].map((grain) => ({
    label: grain, pressed: grain === state.grain,
    choose: () => { state.grain = grain; state.held = state.pointed = null; },
  })));
}

function drawTokens(id, side, labels) {
  byId(id).replaceChildren(...labels.map((label, index) => {
    const here = { side, index };
    const point = () => { state.pointed = here; drawFocus(); };
    const leave = () => { state.pointed = null; drawFocus(); };
    const hold = () => {
      const isHeld = state.held?.side === side && state.held.index === index;
      state.held = isHeld ? null : here;
      state.pointed = null;
      drawFocus();
    };
    const button = make("button", {
      type: "button", onmouseenter: point, onmouseleave: leave, onfocus: point, onblur: leave, onclick: hold, dir: "auto",
    }, label);
    button.setAttribute("aria-label", `${label}, ${side} ${index + 1}`);
    return make("li", {}, button);
  }));
}

function drawLines() {
  const [queries, keys] = axes(state.kind);
  drawTokens("queries", "from", labelsOf(queries, state.grain));
  drawTokens("keys", "to", labelsOf(keys, state.grain));
}

// Redraws what depends on the selected token: lines, shades and the sentence.
function drawFocus() {
  const at = focus();
  const heads = chosenHeads();
  const weights = heads.map((head) => weightsOf(state.kind, state.layer, head, state.grain));
  const [from, to] = ["queries", "keys"].map((id) => [...byId(id).querySelectorAll("button")]);
  const svg = document.querySelector("#lines svg");
  const box = byId("lines").getBoundingClientRect();
  const middles = (buttons) => buttons.map((button) => {
    const place = button.getBoundingClientRect();
    return { y: place.top + place.height / 2 - box.top, left: place.left - box.left, right: place.right - box.left };
  });
  const [starts, ends] = [middles(from), middles(to)];
  const lines = [];
  heads.forEach((head, k) => {
    const shift = heads.length > 1 ? (k / (heads.length - 1) - 0.5) * 6 : 0; // side by side
    starts.forEach((start, i) => ends.forEach((end, j) => {
      const weight = weights[k][i][j];
      const isShown = !at || (at.side === "from" ? at.index === i : at.index === j);
      if (!isShown || weight < LEAST_SHOWN) return;
      const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
      const values = { x1: start.right, y1: start.y + shift, x2: end.left, y2: end.y + shift, stroke: colourOf(head), "stroke-dasharray": dashesOf(head), "stroke-width": at ? 2.5 : 1.5, "stroke-opacity": weight.toFixed(3) };
      for (const [name, value] of Object.entries(values)) line.setAttribute(name, value);
      lines.push(line);
    }));
  });
  svg.replaceChildren(...lines);
  shade(from, to, at, mean(weights));
}

function shade(from, to, at, weights) {
  for (const button of [...from, ...to]) button.className = "";
  if (!at) {
    byId("said").textContent = "";
    return;
  }
  const [chosen, others] = at.side === "from" ? [from, to] : [to, from];
  chosen[at.index].className = "chosen";
  const row = others.map((_, j) => (at.side === "from" ? weights[at.index][j] : weights[j][at.index]));
  others.forEach((button, j) => {
    if (row[j] < LEAST_SHOWN || button.className === "chosen") return;
    button.className = "lit";
    button.style.setProperty("--weight", Math.min(row[j], 1).toFixed(3));
  });
  say(at, chosen[at.index].textContent, others.map((button, j) => [button.textContent, row[j]]));
}

function say(at, name, others) {
  const best = others.sort((a, b) => b[1] - a[1]).slice(0, 4).filter(([, weight]) => weight >= LEAST_SHOWN);
  const list = best.map(([label, weight]) => `${isolated(label)} ${weight.toFixed(2)}`).join(", ");
  const verb = at.side === "from" ? "attends to" : "is attended to by";
  byId("said").textContent = `“${isolated(name)}” ${verb}: ${list || "nothing above 0.01"} (layer ${state.layer + 1}, ${namesOf(chosenHeads())})`;
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  return { ink: style.getPropertyValue("--ink"), accent: style.getPropertyValue("--accent"), line: style.getPropertyValue("--line") };
}

// Sizes a canvas in device pixels, so that it is sharp.
function surface(canvas, width, height) {
  const most = Math.sqrt(MOST_PIXELS / (width * height));
  const scale = Math.min(Math.max(window.devicePixelRatio || 1, 2), most);
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  return pen;
}

function drawCells(pen, weights, x, y, cell, colour) {
  pen.fillStyle = colour;
  weights.forEach((row, i) => row.forEach((weight, j) => {
    pen.globalAlpha = Math.min(weight, 1);
    pen.fillRect(x + j * cell, y + i * cell, cell, cell);
  }));
  pen.globalAlpha = 1;
}

function drawMap() {
  const heads = chosenHeads();
  const weights = mean(heads.map((head) => weightsOf(state.kind, state.layer, head, state.grain)));
  const [rows, columns] = axes(state.kind).map((tokens) => labelsOf(tokens, state.grain));
  const canvas = byId("map"), cell = 22, font = "13px system-ui, sans-serif";
  const measure = canvas.getContext("2d");
  measure.font = font;
  const longest = (labels) => Math.ceil(Math.max(...labels.map((label) => measure.measureText(label).width))) + 10;
  const left = longest(rows), top = longest(columns);
  const pen = surface(canvas, left + columns.length * cell + 2, top + rows.length * cell + 2);
  const { ink, accent, line } = colours();
  drawCells(pen, weights, left, top, cell, accent);
  pen.strokeStyle = line;
  pen.strokeRect(left, top, columns.length * cell, rows.length * cell);
  pen.fillStyle = ink;
  pen.font = font;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  rows.forEach((label, i) => pen.fillText(isolated(label), left - 6, top + (i + 0.5) * cell));
  pen.textAlign = "left";
  columns.forEach((label, j) => {
    pen.save();
    pen.translate(left + (j + 0.5) * cell, top - 6);
    pen.rotate(-Math.PI / 2);
    pen.fillText(isolated(label), 0, 0);
    pen.restore();
  });
  const what = `${state.kind} attention, layer ${state.layer + 1}, ${namesOf(heads)}`;
  canvas.setAttribute("aria-label", `Heat map: ${what}`);
  byId("map-note").textContent = `${what[0].toUpperCase()}${what.slice(1)}. Rows attend to columns; full colour is a weight of 1.`;
}

function drawOverview() {
  const size = 84;
  const { accent } = colours();
  byId("overview").replaceChildren(...Array.from({ length: numLayers(state.kind) }, (_, layer) =>
    make("div", {}, make("span", {}, `layer ${layer + 1}`), ...allHeads(state.kind).map((head) => {
      const canvas = make("canvas");
      const weights = weightsOf(state.kind, layer, head, state.grain);
      const pen = surface(canvas, size, size);
      drawCells(pen, weights, 0, 0, size / Math.max(weights.length, weights[0].length), accent);
      const isOnly = layer === state.layer && state.heads.size === 1 && state.heads.has(head);
      const button = make("button", {
        type: "button", className: "head",
        onclick: () => { state.layer = layer; state.heads = new Set([head]); draw(); byId("overview").querySelectorAll("button")[layer * allHeads(state.kind).length + head].focus(); },
      }, canvas, swatch(head), `head ${head + 1}`);
      button.setAttribute("aria-pressed", isOnly);
      button.setAttribute("aria-label", `Layer ${layer + 1}, head ${head + 1}`);
      return button;
    }))));
}

function drawAlignment() {
  if (state.kind === "encoder-decoder") state.aligned = { layer: state.layer, heads: chosenHeads() };
  const { layer, heads } = state.aligned;
  const weights = mean(heads.map((head) => weightsOf("encoder-decoder", layer, head, state.grain)));
  const [written, source] = axes("encoder-decoder").map((tokens) => labelsOf(tokens, state.grain));
  byId("alignment").replaceChildren(...weights.map((row, i) => {
    const best = row.indexOf(Math.max(...row));
    return make("tr", {}, make("td", { className: "text", dir: "auto" }, written[i]), make("td", { className: "text", dir: "auto" }, source[best]), make("td", {}, row[best].toFixed(2)));
  }));
  byId("alignment-note").textContent = `By the cross-attention of layer ${layer + 1}, ${namesOf(heads)}.`;
}

function draw() {
  drawControls();
  drawLines();
  drawFocus();
  drawMap();
  drawOverview();
  drawAlignment();
}

byId("views").hidden = false;
draw();
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  state.held = state.pointed = null;
  drawFocus();
});
window.addEventListener("resize", drawFocus);
window.addEventListener("beforeprint", draw);
window.addEventListener("afterprint", draw);
for (const query of ["(prefers-color-scheme: dark)", "print"]) {
  window.matchMedia(query).addEventListener("change", draw);
}
