// Translate, or parse, as one types: each sentence appears when it is done.

import { drawing } from "./attention.js";
import { treeDrawing } from "./tree.js";

const PAUSE_MS = 250;
const WIDEST = 600;
const NUM_ALTERNATIVES = 3;
const HTTP_FORBIDDEN = 403;
const MOST_RETRIES = 3;
const LONGEST_WAIT_S = 60;
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
let starting = null;
let running = null;
let looking = null;
let retries = 0; // since the user has typed or chosen something
let isCurrent = false; // whether the result is that of the text and the choices
let attention = null;
let drawnWidth = 0;

class Refused extends Error {
  constructor(message, waitSeconds = NaN) {
    super(message);
    this.waitSeconds = waitSeconds;
  }
}

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
  const answer = await response.json().catch(() => null); // a proxy may send a page
  const reason = typeof answer?.error === "string"
    ? answer.error : `The server answered ${response.status}.`;
  throw new Refused(reason, Number(response.headers.get("retry-after") || NaN));
}

async function ask(path, body, signal) {
  const headers = { "content-type": "application/json" };
  const asked = { ...body, api_key: key.value };
  return checked(
    await fetch(path, { method: "POST", headers, signal, body: JSON.stringify(asked) }));
}

// What is chosen now; a result keeps it, as it may change before the result is looked at.
const choices = () => ({
  model: model.value, target: language.value || null, tag: tag.value || null,
});

// Half of a character, as a cut emoji leaves it, is no text that the server could read.
const wholeCharacters = (text) => text.replace(/\p{Cs}/gu, "\ufffd");

function askForAll(text, chosen, signal) {
  const q = wholeCharacters(text);
  return isParser()
    ? ask("v1/parse", { q, model: chosen.model }, signal)
    : ask("v1/translate", { q, alternatives: NUM_ALTERNATIVES, ...chosen }, signal);
}

function explain(problem) {
  if (problem.name === "AbortError") return;
  let reason = "The server cannot be reached. Once it runs again, go on typing.";
  if (problem instanceof Refused) reason = problem.message;
  if (problem instanceof SyntaxError) {
    reason = "The answer of the server is cut or changed, perhaps by a proxy.";
  }
  showError(reason);
}

// Seconds after which the page tries again, as the server allows; null if it does not.
function secondsToRetry({ waitSeconds }, retriesMade) {
  if (retriesMade >= MOST_RETRIES || !(waitSeconds <= LONGEST_WAIT_S)) return null;
  return Math.max(waitSeconds, 1);
}

const retryNotice = (seconds) => `The page tries again in ${seconds} s.`;

function setCurrent(value) {
  isCurrent = value;
  target.classList.toggle("is-outdated", !value);
  copy.disabled = !value || !target.textContent;
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
    if (!done) continue;
    if (rest.trim()) yield JSON.parse(rest);
    return;
  }
}

// What a sentence became; what stands between sentences stays as it is.
const resultOf = (piece) => piece.translation ?? piece.tree ?? piece.source;

const isEmpty = (piece) => !resultOf(piece).trim();

// A button whose text flows with that around it.
function sentenceButton(piece, chosen) {
  const button = document.createElement("span");
  button.className = "sentence";
  button.setAttribute("role", "button");
  button.tabIndex = 0;
  button.textContent = resultOf(piece);
  button.title = piece.source;
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => look(button, piece, chosen));
  button.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    look(button, piece, chosen);
  });
  return button;
}

async function work({ isRetry = false } = {}) {
  clearTimeout(timer);
  running?.abort();
  setCurrent(false);
  if (!isRetry) retries = 0;
  if (!chosenModel()) {
    await start();
    return;
  }
  const mine = running = new AbortController();
  const text = source.value;
  const chosen = choices();
  if (!text.trim()) {
    finish(text, [], null);
    return;
  }
  if (needsKey && !key.value) {
    finish(text, [], null);
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
    for await (const piece of jsonLines(await askForAll(text, chosen, mine.signal))) {
      if (piece.error) throw new Refused(piece.error);
      if (piece.score === null) {
        nodes.push(document.createTextNode(resultOf(piece)));
      } else {
        nodes.push(sentenceButton(piece, chosen));
        done += 1;
        if (done > 1) showStatus(`Working… ${done} sentences are done.`);
        if (!isEmpty(piece)) first ??= [nodes[nodes.length - 1], piece, chosen];
      }
      if (mine !== running) return;
      if (nodes.length === 1) target.replaceChildren();
      target.append(nodes[nodes.length - 1]);
    }
    if (mine === running) finish(text, nodes, first);
  } catch (problem) {
    if (mine !== running) return;
    target.setAttribute("aria-busy", "false");
    showStatus("");
    explain(problem);
    const seconds = secondsToRetry(problem, retries);
    if (seconds === null || source.value !== text) return; // the pause after typing goes on
    retries += 1;
    showStatus(retryNotice(seconds));
    timer = setTimeout(() => work({ isRetry: true }), 1000 * seconds);
  }
}

// The user may have typed on since the text was sent.
function finish(text, nodes, first) {
  target.replaceChildren(...nodes);
  target.setAttribute("aria-busy", "false");
  showStatus("");
  retries = 0;
  setCurrent(source.value === text);
  if (nodes.length && !target.textContent.trim()) showStatus("The result is empty.");
  showError("");
  document.getElementById("sentence").hidden = first === null;
  if (first) {
    look(...first);
    return;
  }
  stopLooking();
}

function stopLooking() {
  looking?.abort();
  looking = null;
  attention = null; // a hidden place has no width to draw in
}

// What is known of one sentence: its tree or other translations, and attention.
async function look(button, piece, chosen) {
  const isParse = piece.tree !== undefined;
  target.querySelectorAll(".sentence").forEach((each) =>
    each.setAttribute("aria-pressed", String(each === button)));
  document.getElementById("sentence-source").textContent = piece.source;
  document.getElementById("translated").hidden = isParse;
  document.getElementById("parsed").hidden = !isParse;
  if (isParse) {
    showTree(piece);
  } else {
    const best = { text: piece.translation, score: piece.score };
    document.getElementById("alternatives").replaceChildren(
      ...[best, ...piece.alternatives].map(alternativeItem));
  }
  if (isEmpty(piece)) {
    stopLooking();
    document.getElementById("attention").textContent = "The result is empty.";
    return;
  }
  await showAttention(piece, chosen);
}

async function showAttention(piece, chosen, retriesMade = 0) {
  looking?.abort();
  const mine = looking = new AbortController();
  try {
    const body = {
      source: piece.source, target: resultOf(piece), model: chosen.model,
      target_language: chosen.target, tag: chosen.tag,
    };
    const found = await (await ask("v1/attention", body, mine.signal)).json();
    if (mine !== looking) return;
    attention = found;
    offerChoices();
    draw();
  } catch (problem) {
    if (mine !== looking || problem.name === "AbortError") return;
    attention = null;
    const reason = problem instanceof Refused ? problem.message : "";
    const seconds = secondsToRetry(problem, retriesMade);
    document.getElementById("attention").textContent =
      seconds === null ? reason : `${reason} ${retryNotice(seconds)}`;
    if (!reason) explain(problem);
    if (seconds === null) return;
    setTimeout(() => {
      if (mine === looking) showAttention(piece, chosen, retriesMade + 1);
    }, 1000 * seconds);
  }
}

// A score that is rounded to zero has no sign.
const figure = (score) => score.toFixed(2).replace(/^-(?=0\.00$)/, "");

function showTree(piece) {
  document.getElementById("tree").replaceChildren(treeDrawing(piece));
  const places = piece.num_repairs === 1 ? "1 place" : `${piece.num_repairs} places`;
  const state = piece.is_overlong ? "too long to be read, and flat"
    : piece.num_repairs ? `repaired in ${places}` : "as the model wrote it";
  document.getElementById("parse-note").textContent =
    `Score ${figure(piece.score)}; the tree is ${state}.`;
}

function alternativeItem({ text, score }) {
  const item = document.createElement("li");
  const result = document.createElement("bdi"); // the score stays behind Arabic, too
  result.textContent = text;
  result.lang = target.lang;
  const shown = document.createElement("span");
  shown.className = "score";
  shown.textContent = figure(score);
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

const availableWidth = () =>
  Math.min(document.getElementById("attention").clientWidth, WIDEST);

function draw() {
  if (!attention) return;
  drawnWidth = availableWidth();
  document.getElementById("attention").replaceChildren(
    drawing(attention, layer.value, head.value, drawnWidth));
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
function offerTags(wanted) {
  const tags = chosenModel()?.tags ?? [];
  document.getElementById("tag-label").hidden = tags.length === 0;
  tag.replaceChildren(new Option("none", ""), ...tags.map((each) => new Option(each)));
  tag.value = tags.includes(wanted) ? wanted : "";
}

// The address keeps the choices: a reloaded page has its text, but no choices of its own.
function remember() {
  const chosen = Object.entries(choices()).filter(([, value]) => value);
  history.replaceState(null, "", `#${new URLSearchParams(chosen)}`);
}

function restore() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (models.some(({ name }) => name === wanted.get("model"))) {
    model.value = wanted.get("model");
  }
  offerLanguages(wanted.get("target"));
  languageChosen(wanted.get("tag"));
}

function languageChosen(wantedTag = tag.value) {
  offerTags(wantedTag);
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
  // The result of an earlier text must not replace this one, which would be lost.
  if (isCurrent && target.textContent) source.value = target.textContent;
  model.value = other.name;
  offerLanguages(wanted);
  languageChosen();
  remember();
  source.focus();
}

async function copyTranslation() {
  if (copy.disabled) return;
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

// Typing may start it again before it has ended.
function start() {
  starting ??= listModels().finally(() => {
    starting = null;
  });
  return starting;
}

async function listModels() {
  let found; // `models` is set together with its options, which other code relies on
  try {
    found = await (await checked(await fetch("v1/models"))).json();
    const settings = await (await checked(await fetch("frontend/settings"))).json();
    if (settings.keyRequired) askForKey();
  } catch (problem) {
    explain(problem);
    return;
  }
  const labels = found.map((each) => {
    const several = each.targets.length > 1 ? `${each.targets.length} languages` : "";
    const languages = `${each.source_name} → ${several || each.target_name}`;
    if (each.task === "parse") return `${languages} (${each.name})`;
    return each.source_name === each.source ? each.name : languages;
  });
  const isOnly = (label) => labels.indexOf(label) === labels.lastIndexOf(label);
  models = found;
  model.replaceChildren(...models.map(({ name }, i) =>
    new Option(isOnly(labels[i]) ? labels[i] : `${labels[i]} (${name})`, name)));
  restore();
}

source.addEventListener("input", () => {
  setCurrent(false);
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
model.addEventListener("change", () => {
  offerLanguages(language.value);
  languageChosen();
  remember();
});
language.addEventListener("change", () => {
  languageChosen();
  remember();
});
tag.addEventListener("change", () => {
  work();
  remember();
});
document.getElementById("key-row").addEventListener("submit", (event) => {
  event.preventDefault();
  work();
});
swap.addEventListener("click", swapDirection);
copy.addEventListener("click", copyTranslation);
if (ALT_TYPES) [swap, copy].forEach((each) => each.removeAttribute("aria-keyshortcuts"));
[layer, head].forEach((each) => each.addEventListener("change", draw));
// An on-screen keyboard changes the height alone; the chosen word stays.
addEventListener("resize", () => {
  if (availableWidth() !== drawnWidth) draw();
});
addEventListener("hashchange", () => {
  if (models.length) restore();
});
start();
