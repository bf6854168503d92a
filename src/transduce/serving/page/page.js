// Translate, or parse, as one types: each sentence appears when it is done.

import { drawing } from "./attention.js";
import { readFile, saveFile } from "./files.js";
import { treeDrawing } from "./tree.js";

const PAUSE_MS = 250;
const WIDEST = 600;
const NUM_ALTERNATIVES = 3;
const HTTP_FORBIDDEN = 403;
const HTTP_TOO_LARGE = 413;
const LONGEST_PART = 5000; // characters, about those of one batch of sentences
const SHORTEST_PART = 200; // of a part that is not cut again
const ENDS = ["\n", ". ", "。", " "]; // places to cut a text, best first
const TELL_MS = 1000;
const MOST_RETRIES = 3;
const LONGEST_WAIT_S = 60;
// There, Alt with a letter types another one, such as ß, ç or ś.
const ALT_TYPES = /^(Mac|iP)/.test(navigator.platform);
const [source, target, model, language, tag, glossary, format, swap] = [
  "source", "target", "model", "language", "tag", "glossary", "format", "swap",
].map((id) => document.getElementById(id));
const [key, error, status, open, file, copy, save, layer, head] = [
  "key", "error", "status", "open", "file", "copy", "save", "layer", "head",
].map((id) => document.getElementById(id));

let models = [];
let glossaries = []; // of all models
let needsKey = false;
let mostCharacters = LONGEST_PART; // of a part
let opened = null; // the file that the text is from
let timer = null;
let starting = null;
let running = null;
let looking = null;
let isCurrent = false; // whether the result is that of the text and the choices
let attention = null;
let drawnWidth = 0;

class Refused extends Error {
  constructor(message, status = NaN, waitSeconds = NaN) {
    super(message);
    this.status = status;
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
  const waitSeconds = Number(response.headers.get("retry-after") || NaN);
  throw new Refused(reason, response.status, waitSeconds);
}

async function ask(path, body, signal) {
  const headers = { "content-type": "application/json" };
  const asked = { ...body, api_key: key.value };
  return checked(
    await fetch(path, { method: "POST", headers, signal, body: JSON.stringify(asked) }));
}

// What is chosen now; a result keeps it, as it may change before the result is looked at.
const choices = () => ({
  model: model.value,
  target: language.value || null,
  tag: tag.value || null,
  glossary: glossary.value || null,
  format: (!isParser() && format.value) || null,
});

// Half of a character, as a cut emoji leaves it, is no text that the server could read.
const wholeCharacters = (text) => text.replace(/\p{Cs}/gu, "\ufffd");

function askForPart(text, chosen, signal) {
  const q = wholeCharacters(text);
  return models.find(({ name }) => name === chosen.model)?.task === "parse"
    ? ask("v1/parse", { q, model: chosen.model }, signal)
    : ask("v1/translate", { q, alternatives: NUM_ALTERNATIVES, ...chosen }, signal);
}

// The first part of a text of at most so many characters, cut between lines if it can be.
function partOf(text, most) {
  if (text.length <= most) return text;
  const part = text.slice(0, most);
  const mark = ENDS.find((each) => part.includes(each));
  if (mark) return part.slice(0, part.lastIndexOf(mark) + mark.length);
  const isCut = most > 1 && /[\ud800-\udbff]$/.test(part); // within an emoji
  return isCut ? part.slice(0, -1) : part;
}

// The pieces of a text, which is sent in as many parts as the server needs.
async function* piecesOf(text, chosen, send) {
  let most = chosen.format ? Infinity : mostCharacters;
  for (let rest = text; rest;) {
    const part = partOf(rest, most);
    let answer;
    try {
      answer = await send(part);
    } catch (problem) {
      const isLong = problem.status === HTTP_TOO_LARGE && part.length > SHORTEST_PART;
      if (chosen.format || !isLong) throw problem;
      most = Math.ceil(part.length / 2);
      continue;
    }
    rest = rest.slice(part.length);
    yield* jsonLines(answer);
  }
}

function explain(problem) {
  if (problem.name === "AbortError") return;
  let reason = "The server cannot be reached. Once it runs again, type on or press Ctrl+Enter.";
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

// Sends a request, and again as the server allows; `tell` hears why and when.
async function persist(send, signal, tell) {
  for (let retriesMade = 0; ; retriesMade += 1) {
    try {
      return await send();
    } catch (problem) {
      const seconds = secondsToRetry(problem, retriesMade);
      if (seconds === null || signal.aborted) throw problem;
      tell(problem, `The page tries again in ${seconds} s.`);
      await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
      signal.throwIfAborted();
    }
  }
}

function setCurrent(value) {
  isCurrent = value;
  target.classList.toggle("is-outdated", !value);
  copy.disabled = save.disabled = !value || !target.textContent;
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
  button.tabIndex = -1; // of all sentences, Tab reaches the chosen one
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

function reachByTab(button) {
  const before = target.querySelector(".sentence[tabindex='0']");
  if (before) before.tabIndex = -1;
  button.tabIndex = 0;
}

// The arrow keys go from sentence to sentence.
function goOn(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
  const all = [...target.querySelectorAll(".sentence")];
  const place = all.indexOf(document.activeElement);
  const next = place < 0 ? undefined : all[place + step];
  if (!next) return;
  event.preventDefault();
  reachByTab(next);
  next.focus();
}

async function work() {
  clearTimeout(timer);
  running?.abort();
  setCurrent(false);
  if (!chosenModel()) {
    await start();
    return;
  }
  const mine = running = new AbortController();
  const text = source.value;
  const chosen = choices();
  if (!text.trim()) {
    finish(text, 0, null);
    return;
  }
  if (needsKey && !key.value) {
    finish(text, 0, null);
    showStatus("This server asks for a key: enter it above, then press Enter.");
    return;
  }
  target.setAttribute("aria-busy", "true");
  let count = 0;
  let done = 0;
  let first = null;
  let told = performance.now();
  const tellProgress = () => {
    told = performance.now();
    showStatus(done > 1 ? `Working… ${done} sentences are done.` : "Working…");
  };
  const send = (part) => persist(() => {
    showError("");
    tellProgress();
    return askForPart(part, chosen, mine.signal);
  }, mine.signal, (problem, notice) => {
    explain(problem);
    showStatus(notice);
  });
  try {
    for await (const piece of piecesOf(text, chosen, send)) {
      if (mine !== running) return;
      if (piece.error) throw new Refused(piece.error);
      let node = resultOf(piece);
      if (piece.score !== null) {
        node = sentenceButton(piece, chosen);
        done += 1;
        if (done === 1) node.tabIndex = 0;
        if (performance.now() - told > TELL_MS) tellProgress();
        if (!isEmpty(piece)) first ??= [node, piece, chosen];
      }
      if (!count) target.replaceChildren();
      target.append(node);
      count += 1;
    }
    if (mine === running) finish(text, count, first);
  } catch (problem) {
    if (mine !== running) return;
    target.setAttribute("aria-busy", "false");
    showStatus("");
    explain(problem);
  }
}

// The user may have typed on since the text was sent.
function finish(text, count, first) {
  if (!count) target.replaceChildren();
  target.setAttribute("aria-busy", "false");
  showStatus("");
  setCurrent(source.value === text);
  if (count && !target.textContent.trim()) showStatus("The result is empty.");
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

// The text of HTML, whose scripts do not run in a document of their own.
function plain(html) {
  const { textContent } = new DOMParser().parseFromString(html, "text/html").documentElement;
  return textContent.replace(/\s+/g, " ").trim();
}

const plainPiece = (piece) => ({
  ...piece,
  source: plain(piece.source),
  translation: plain(piece.translation),
  alternatives: piece.alternatives.map(({ text, score }) => ({ text: plain(text), score })),
});

// What is known of one sentence: its tree or other translations, and attention.
async function look(button, result, chosen) {
  const piece = chosen.format ? plainPiece(result) : result;
  const isParse = piece.tree !== undefined;
  target.querySelectorAll(".sentence").forEach((each) =>
    each.setAttribute("aria-pressed", String(each === button)));
  reachByTab(button);
  document.getElementById("sentence-source").textContent = piece.source;
  const isPivoted = showPivot(piece, chosen);
  document.getElementById("translated").hidden = isParse;
  document.getElementById("parsed").hidden = !isParse;
  if (isParse) {
    showTree(piece);
  } else {
    const best = { text: piece.translation, score: piece.score };
    document.getElementById("alternatives").replaceChildren(
      ...[best, ...piece.alternatives].map(alternativeItem));
    document.getElementById("lacking").hidden = !piece.may_lack_terms;
  }
  document.getElementById("attended").hidden = isPivoted;
  if (isPivoted) {
    stopLooking();
    return;
  }
  if (isEmpty(piece)) {
    stopLooking();
    document.getElementById("attention").textContent = "The result is empty.";
    return;
  }
  await showAttention(piece, chosen);
}

// Two models with a pivot language between them show the sentence in that language, as
// neither of them attends from the result to the source.
function showPivot(piece, chosen) {
  const { pivot, pivot_name: name } =
    models.find((each) => each.name === chosen.model) ?? {};
  document.getElementById("sentence-pivot").hidden = !pivot;
  if (!pivot) return false;
  document.getElementById("pivot-name").textContent = name;
  const text = document.getElementById("pivot-text");
  text.textContent = piece.pivot;
  text.lang = pivot;
  return true;
}

async function showAttention(piece, chosen) {
  looking?.abort();
  const mine = looking = new AbortController();
  const body = {
    source: piece.source, target: resultOf(piece), model: chosen.model,
    target_language: chosen.target, tag: chosen.tag,
  };
  const say = (text) => {
    attention = null;
    document.getElementById("attention").textContent = text;
  };
  try {
    const answer = await persist(
      () => ask("v1/attention", body, mine.signal), mine.signal,
      ({ message }, notice) => say(`${message} ${notice}`));
    const found = await answer.json();
    if (mine !== looking) return;
    attention = found;
    offerChoices();
    draw();
  } catch (problem) {
    if (mine !== looking || problem.name === "AbortError") return;
    const isRefused = problem instanceof Refused;
    say(isRefused ? problem.message : "");
    if (!isRefused) explain(problem);
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

// The glossaries of a model into the target language. The server uses the default one of
// its own accord.
function offerGlossaries(wanted) {
  const names = glossaries
    .filter((each) => each.model === model.value && each.target === chosenTarget())
    .map(({ name }) => name);
  document.getElementById("glossary-label").hidden = names.length === 0;
  const hasDefault = names.includes("default");
  const others = names.filter((name) => name !== "default").map((name) => new Option(name));
  glossary.replaceChildren(...(hasDefault
    ? [new Option("default", ""), ...others, new Option("none")]
    : [new Option("none", ""), ...others]));
  glossary.value = wanted;
  if (glossary.selectedIndex < 0) glossary.value = "";
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
  format.value = wanted.get("format") === "html" ? "html" : "";
  languageChosen(wanted.get("tag"), wanted.get("glossary"));
}

function languageChosen(wantedTag = tag.value, wantedGlossary = glossary.value) {
  offerTags(wantedTag);
  offerGlossaries(wantedGlossary);
  swap.hidden = opposite() === undefined;
  document.getElementById("format-label").hidden = isParser();
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

async function openFile(chosen) {
  try {
    const found = await readFile(chosen);
    if (found.isHtml && isParser()) {
      throw new Error(`${found.name} must be text for a parser, but is HTML.`);
    }
    opened = found;
  } catch (problem) {
    showError(problem.message);
    return;
  }
  source.value = opened.text;
  if (!isParser()) format.value = opened.isHtml ? "html" : "";
  remember();
  work();
}

const hasFiles = ({ dataTransfer }) => dataTransfer?.types.includes("Files") ?? false;

function drop(event) {
  if (!hasFiles(event)) return;
  event.preventDefault();
  source.classList.remove("is-drop");
  const [first, ...others] = event.dataTransfer.files;
  if (others.length) {
    showError("One file can be translated at a time.");
  } else if (first) {
    openFile(first);
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
    glossaries = await (await checked(await fetch("v1/glossaries"))).json();
    const settings = await (await checked(await fetch("frontend/settings"))).json();
    if (settings.keyRequired) askForKey();
    mostCharacters = Math.min(settings.charLimit, LONGEST_PART);
  } catch (problem) {
    explain(problem);
    return;
  }
  const labels = found.map((each) => {
    const several = each.targets.length > 1 ? `${each.targets.length} languages` : "";
    const via = each.pivot ? ` via ${each.pivot_name}` : "";
    const languages = `${each.source_name} → ${several || each.target_name}${via}`;
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
  if (!source.value) opened = null;
  clearTimeout(timer);
  timer = setTimeout(work, PAUSE_MS);
});
source.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) work();
});
target.addEventListener("keydown", goOn);
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
[tag, glossary, format].forEach((each) => each.addEventListener("change", () => {
  work();
  remember();
}));
document.getElementById("key-row").addEventListener("submit", (event) => {
  event.preventDefault();
  work();
});
swap.addEventListener("click", swapDirection);
copy.addEventListener("click", copyTranslation);
save.addEventListener("click", () =>
  saveFile(target.textContent, chosenTarget(), choices().format !== null, opened));
open.addEventListener("click", () => file.click());
file.addEventListener("change", () => {
  if (file.files.length) openFile(file.files[0]);
  file.value = ""; // so that the same file can be opened again
});
addEventListener("dragover", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault(); // the browser would show the file in place of the page
  source.classList.add("is-drop");
});
addEventListener("dragleave", ({ relatedTarget }) => {
  if (relatedTarget === null) source.classList.remove("is-drop");
});
addEventListener("drop", drop);
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
