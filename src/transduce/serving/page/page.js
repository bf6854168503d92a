// Translate, or parse, as one types: each sentence appears when it is done.

import { drawing } from "./attention.js";
import { treeDrawing } from "./tree.js";

const PAUSE_MS = 250;
const WIDEST = 600;
const NUM_ALTERNATIVES = 3;
const HTTP_FORBIDDEN = 403;
// There, Alt with a letter types another one, such as ß, ç or ś.
const ALT_TYPES = /^(Mac|iP)/.test(navigator.platform);
const [source, target, model, language, tag, swap] = [
  "source", "target", "model", "language", "tag", "swap",
].map((id) => document.getElementById(id));
const [key, error, status, copy, layer, head] = [
  "key", "error", "status", "copy", "layer", "head",
].map((id) => document.getElementById(id));

let models = [];
let needsKey = false;
let timer = null;
let running = null;
let looking = null;
let attention = null;

class Refused extends Error {}

function showError(message) {
  error.textContent = message;
  error.hidden = !message;
}

function showStatus(message) {
  status.textContent = message;
}

function askForKey() {
  needsKey = true;
  document.getElementById("key-row").hidden = false;
}

async function checked(response) {
  if (response.ok) return response;
  if (response.status === HTTP_FORBIDDEN) askForKey();
  const answer = await response.json().catch(() => ({}));
  throw new Refused(answer.error ?? `The server answered ${response.status}.`);
}

async function ask(path, body, signal) {
  const headers = { "content-type": "application/json" };
  const asked = { ...body, model: model.value, api_key: key.value };
  return checked(
    await fetch(path, { method: "POST", headers, signal, body: JSON.stringify(asked) }));
}

const askForAll = (signal) => isParser()
  ? ask("v1/parse", { q: source.value }, signal)
  : ask("v1/translate", {
    q: source.value, alternatives: NUM_ALTERNATIVES, target: language.value || null,
    tag: tag.value || null,
  }, signal);

function explain(problem) {
  if (problem.name === "AbortError") return;
  showError(problem instanceof Refused
    ? problem.message
    : "The server cannot be reached. Once it runs again, go on typing.");
}

async function* jsonLines(response) {
  const decoder = new TextDecoder();
  let rest = "";
  for (const reader = response.body.getReader(); ;) {
    const { done, value } = await reader.read();
    rest += decoder.decode(value, { stream: !done });
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
    if (done) return;
  }
}

// What a sentence became; what stands between sentences stays as it is.
const resultOf = (piece) => piece.translation ?? piece.tree ?? piece.source;

const isEmpty = (piece) => !resultOf(piece).trim();

// A button whose text flows with that around it.
function sentenceButton(piece) {
  const button = document.createElement("span");
  button.className = "sentence";
  button.setAttribute("role", "button");
  button.tabIndex = 0;
  button.textContent = resultOf(piece);
  button.title = piece.source;
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => look(button, piece));
  button.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    look(button, piece);
  });
  return button;
}

async function work() {
  clearTimeout(timer);
  running?.abort();
  if (!chosenModel()) {
    await start();
    return;
  }
  const mine = running = new AbortController();
  if (!source.value.trim()) {
    finish([], null);
    return;
  }
  if (needsKey && !key.value) {
    finish([], null);
    showStatus("This server asks for a key: enter it above, then press Enter.");
    return;
  }
  target.setAttribute("aria-busy", "true");
  showError("");
  showStatus("Working…");
  try {
    const nodes = [];
    let first = null;
    let done = 0;
    for await (const piece of jsonLines(await askForAll(mine.signal))) {
      if (piece.error) throw new Refused(piece.error);
      if (piece.score === null) {
        nodes.push(document.createTextNode(resultOf(piece)));
      } else {
        nodes.push(sentenceButton(piece));
        done += 1;
        if (done > 1) showStatus(`Working… ${done} sentences are done.`);
        if (!isEmpty(piece)) first ??= [nodes[nodes.length - 1], piece];
      }
      if (mine !== running) return;
      if (nodes.length === 1) target.replaceChildren();
      target.append(nodes[nodes.length - 1]);
    }
    if (mine === running) finish(nodes, first);
  } catch (problem) {
    if (mine !== running) return;
    target.setAttribute("aria-busy", "false");
    showStatus("");
    explain(problem);
  }
}

function finish(nodes, first) {
  target.replaceChildren(...nodes);
  target.setAttribute("aria-busy", "false");
  showStatus("");
  copy.disabled = nodes.length === 0;
  if (nodes.length && !target.textContent.trim()) showStatus("The result is empty.");
  showError("");
  document.getElementById("sentence").hidden = first === null;
  if (first) {
    look(...first);
    return;
  }
  looking?.abort();
  attention = null; // a hidden place has no width to draw in
}

// What is known of one sentence: its tree or other translations, and attention.
async function look(button, piece) {
  target.querySelectorAll(".sentence").forEach((each) =>
    each.setAttribute("aria-pressed", String(each === button)));
  document.getElementById("sentence-source").textContent = piece.source;
  document.getElementById("translated").hidden = isParser();
  document.getElementById("parsed").hidden = !isParser();
  if (isParser()) {
    showTree(piece);
  } else {
    const best = { text: piece.translation, score: piece.score };
    document.getElementById("alternatives").replaceChildren(
      ...[best, ...piece.alternatives].map(alternativeItem));
  }
  looking?.abort();
  if (isEmpty(piece)) {
    attention = null;
    document.getElementById("attention").textContent = "The result is empty.";
    return;
  }
  const mine = looking = new AbortController();
  try {
    const body = {
      source: piece.source, target: resultOf(piece), target_language: language.value || null,
      tag: tag.value || null,
    };
    attention = await (await ask("v1/attention", body, mine.signal)).json();
    offerChoices();
    draw();
  } catch (problem) {
    if (problem.name === "AbortError") return;
    attention = null;
    const isReason = problem instanceof Refused;
    document.getElementById("attention").textContent = isReason ? problem.message : "";
    if (!isReason) explain(problem);
  }
}

function showTree(piece) {
  document.getElementById("tree").replaceChildren(treeDrawing(piece));
  const state = piece.is_overlong ? "too long to be read, and flat"
    : piece.num_repairs ? `repaired in ${piece.num_repairs} places` : "as the model wrote it";
  document.getElementById("parse-note").textContent =
    `Score ${piece.score.toFixed(2)}; the tree is ${state}.`;
}

function alternativeItem({ text, score }) {
  const item = document.createElement("li");
  const result = document.createElement("bdi"); // the score stays behind Arabic, too
  result.textContent = text;
  result.lang = target.lang;
  const shown = document.createElement("span");
  shown.className = "score";
  shown.textContent = score.toFixed(2);
  item.append(result, shown);
  return item;
}

function offerChoices() {
  const offer = (select, count) => {
    if (select.options.length === count + 1) return;
    const numbers = Array.from({ length: count }, (_, i) => new Option(i + 1, i));
    select.replaceChildren(new Option("mean of all", ""), ...numbers);
  };
  offer(layer, attention.weights.length);
  offer(head, attention.weights[0].length);
}

function draw() {
  if (!attention) return;
  const place = document.getElementById("attention");
  const width = Math.min(place.clientWidth, WIDEST);
  place.replaceChildren(drawing(attention, layer.value, head.value, width));
}

const isParser = () => chosenModel()?.task === "parse";

const chosenModel = () => models.find((each) => each.name === model.value);

const chosenTarget = () => language.value || chosenModel()?.target;

const opposite = () => models.find((each) =>
  each.source === chosenTarget() && each.targets.includes(chosenModel().source));

// The target languages of a model that has several, with the wanted one chosen.
function offerLanguages(wanted) {
  const { targets, target_names: names } = chosenModel() ?? { targets: [] };
  const isChoice = targets.length > 1;
  document.getElementById("language-label").hidden = !isChoice;
  language.replaceChildren(
    ...(isChoice ? targets.map((each, i) => new Option(names[i], each)) : []));
  if (isChoice) language.value = targets.includes(wanted) ? wanted : chosenModel().target;
}

// The tags of the corpora on which a model was trained.
function offerTags() {
  const tags = chosenModel()?.tags ?? [];
  document.getElementById("tag-label").hidden = tags.length === 0;
  const wanted = tags.includes(tag.value) ? tag.value : "";
  tag.replaceChildren(new Option("none", ""), ...tags.map((each) => new Option(each)));
  tag.value = wanted;
}

function modelChosen() {
  offerLanguages(language.value);
  languageChosen();
}

function languageChosen() {
  offerTags();
  swap.hidden = opposite() === undefined;
  nameLanguages();
  document.getElementById("target-title").textContent = isParser() ? "Trees" : "Translation";
  work();
}

// For the right fonts and voices. A placeholder for a language is its own name.
function nameLanguages() {
  const { source: from, source_name: name, targets, target_names: names } = chosenModel();
  const into = chosenTarget();
  source.lang = document.getElementById("sentence-source").lang = name === from ? "" : from;
  target.lang = names[targets.indexOf(into)] === into ? "" : into;
}

function swapDirection() {
  const other = opposite();
  if (!other) return;
  const wanted = chosenModel().source;
  source.value = target.textContent || source.value;
  model.value = other.name;
  offerLanguages(wanted);
  languageChosen();
  source.focus();
}

async function copyTranslation() {
  const text = target.textContent;
  try {
    await navigator.clipboard.writeText(text);
    showStatus("Copied.");
  } catch {
    // Without a secure connection there is no clipboard: leave it to the user.
    getSelection().selectAllChildren(target);
    showStatus("Selected: press Ctrl+C.");
  }
}

async function start() {
  try {
    models = await (await checked(await fetch("v1/models"))).json();
    const settings = await (await checked(await fetch("frontend/settings"))).json();
    if (settings.keyRequired) askForKey();
  } catch (problem) {
    explain(problem);
    return;
  }
  const labels = models.map((each) => {
    const several = each.targets.length > 1 ? `${each.targets.length} languages` : "";
    const languages = `${each.source_name} → ${several || each.target_name}`;
    if (each.task === "parse") return `${languages} (${each.name})`;
    return each.source_name === each.source ? each.name : languages;
  });
  const isOnly = (label) => labels.indexOf(label) === labels.lastIndexOf(label);
  model.replaceChildren(...models.map(({ name }, i) =>
    new Option(isOnly(labels[i]) ? labels[i] : `${labels[i]} (${name})`, name)));
  modelChosen();
}

source.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(work, PAUSE_MS);
});
source.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) work();
});
document.addEventListener("keydown", (event) => {
  if (ALT_TYPES || !event.altKey || event.ctrlKey || event.metaKey) return;
  const action = { KeyS: swapDirection, KeyC: copyTranslation }[event.code];
  if (action) {
    event.preventDefault();
    action();
  }
});
model.addEventListener("change", modelChosen);
language.addEventListener("change", languageChosen);
tag.addEventListener("change", work);
document.getElementById("key-row").addEventListener("submit", (event) => {
  event.preventDefault();
  work();
});
swap.addEventListener("click", swapDirection);
copy.addEventListener("click", copyTranslation);
if (ALT_TYPES) [swap, copy].forEach((each) => each.removeAttribute("aria-keyshortcuts"));
[layer, head].forEach((each) => each.addEventListener("change", draw));
addEventListener("resize", draw);
start();
