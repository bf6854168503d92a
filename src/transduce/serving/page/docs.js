// Examples that are sent from the page, and answers as they come.

const TYPE = "application/json";

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
  status.textContent = "Sent …";
  answer.hidden = false;
  answer.textContent = "";
  try {
    const headers = body === undefined ? {} : { "content-type": TYPE };
    const response = await fetch(path.slice(1) || ".", { method, headers, body });
    const decoder = new TextDecoder();
    let text = "";
    for (const reader = response.body.getReader(); ;) {
      const { done, value } = await reader.read();
      text += decoder.decode(value, { stream: !done });
      answer.textContent = text;
      if (done) break;
    }
    const seconds = ((performance.now() - begun) / 1000).toFixed(2);
    status.textContent = `${response.status} ${response.statusText}, ${seconds} s`;
    answer.textContent = shown(text);
  } catch {
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
