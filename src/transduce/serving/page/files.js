// Files that the user opens and saves.

const MOST_BYTES = 2_000_000;
// The charset that a page names, as in <meta charset="iso-8859-1">.
const CHARSET = /<meta[^>]*?charset\s*=\s*["']?\s*([\w:.-]+)/i;
const NO_TEXT = /[\0\x1b]/; // what other files have, or text in a charset that is not read

// The text of a file; null if it is in no charset that is known.
function decoded(bytes, isHtml) {
  const [first, second] = new Uint8Array(bytes);
  const start = new TextDecoder("latin1").decode(bytes.slice(0, 1024)); // where browsers look
  let charsets = ["utf-8", isHtml ? CHARSET.exec(start)?.[1] : null];
  if (first === 0xff && second === 0xfe) charsets = ["utf-16le"];
  if (first === 0xfe && second === 0xff) charsets = ["utf-16be"];
  for (const charset of charsets.filter(Boolean)) {
    try {
      const text = new TextDecoder(charset, { fatal: true }).decode(bytes);
      if (!NO_TEXT.test(text)) return text;
    } catch {
      // It is in another charset.
    }
  }
  return null;
}

// Reads a file; the message of an error says why it cannot be translated.
export async function readFile(file) {
  const { name, type, size } = file;
  const isHtml = /\.html?$/i.test(name) || type === "text/html";
  if (!isHtml && type !== "text/plain" && !/\.(txt|srt)$/i.test(name)) {
    throw new Error(`${name} must be text or HTML (.txt, .srt, .html), but is another file.`);
  }
  if (size > MOST_BYTES) {
    const megabytes = Math.ceil(size / 100_000) / 10;
    throw new Error(`${name} must have at most 2 MB, but has ${megabytes} MB; open it in parts.`);
  }
  const bytes = await file.arrayBuffer().catch(() => {
    throw new Error(`${name} cannot be read.`);
  });
  const text = decoded(bytes, isHtml);
  if (text === null) throw new Error(`${name} must be text in UTF-8; save it so.`);
  if (!text.trim()) throw new Error(`${name} has no text.`);
  return { name, text, isHtml, hasReturns: text.includes("\r\n") };
}

// Saves a result under the name of the file that was opened, if there was one.
export function saveFile(text, language, isHtml, opened) {
  const own = isHtml ? ".html" : ".txt";
  const [, stem, ending] = /^(.*?)(\.[^.]*)?$/s.exec(opened?.name ?? `translation${own}`);
  const lines = opened?.hasReturns ? text.replaceAll("\n", "\r\n") : text;
  // The file is in UTF-8: the mark at its start counts more than a charset that it names.
  const named = isHtml ? CHARSET.exec(text)?.[1] : null;
  const mark = named && !/^utf-?8$/i.test(named) ? "\ufeff" : "";
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([mark, lines]));
  link.download = `${stem}.${language}${ending ?? own}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // when it is saved
}
