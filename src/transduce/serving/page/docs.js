// Examples that are sent from the page, and answers as they come.

const TYPE = "application/json";
const running = new Map(); // the request of each form that was sent last

function shown(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // lines of JSON, figures, or a part of an answer
  }
}

async function send(form) {
  const { method, path } = form.dataset;
  const status = form.querySelector("output");
  const answer = form.querySelector(".answer");
  const body = form.querySelector("textarea")?.value;
  const begun = performance.now();
  running.get(form)?.abort();
  const mine = new AbortController();
  running.set(form, mine);
  status.textContent = "Sent …";
  answer.hidden = false;
  answer.textContent = "";
  try {
    const headers = body === undefined ? {} : { "content-type": TYPE };
    const response = await fetch(path.slice(1) || ".", {
      method, headers, body, signal: mine.signal,
    });
    const decoder = new TextDecoder();
    let text = "";
    for (const reader = response.body.getReader(); ;) {
      const { done, value } = await reader.read();
      text += decoder.decode(value, { stream: !done });
      answer.textContent = text;
      if (done) break;
    }
    const seconds = ((performance.now() - begun) / 1000).toFixed(2);
    const code = `${response.status} ${response.statusText}`.trim(); // HTTP/2 has no text
    status.textContent = `${code}, ${seconds} s`;
    answer.textContent = shown(text);
  } catch {
    if (mine.signal.aborted) return;
    answer.hidden = true;
    status.textContent = "The server cannot be reached.";
  }
}

document.querySelectorAll("form").forEach((form) => form.addEventListener("submit", (event) => {
  event.preventDefault();
  send(form);
}));
document.querySelectorAll(".address").forEach((each) => {
  each.textContent = new URL(".", location).href.replace(/[/]$/, "");
});
