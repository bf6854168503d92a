// The search of the site runs in a worker, which browsers do not start in pages that are
// opened from files. There, a hidden frame runs the worker's script instead.
class FrameWorker extends EventTarget {
  constructor(address) {
    super()
    this.waiting = []
    const frame = document.createElement("iframe")
    frame.hidden = true
    frame.addEventListener("load", () => this.start(frame, address), { once: true })
    document.body.append(frame)
  }

  start(frame, address) {
    const inside = frame.contentWindow
    inside.postMessage = (data) =>
      this.dispatchEvent(new MessageEvent("message", { data }))
    const script = inside.document.createElement("script")
    script.src = new URL(address, location)
    script.addEventListener("load", () => {
      this.inside = inside
      this.waiting.forEach((data) => this.postMessage(data))
    })
    inside.document.head.append(script)
  }

  postMessage(data) {
    if (this.inside) {
      this.inside.dispatchEvent(new MessageEvent("message", { data }))
    } else {
      this.waiting.push(data)
    }
  }
}

// Text that may be searched for. To the search, a hyphen before a word leaves out pages
// with that word, and two are an error; here they begin an option, such as --beam-size.
// Its words must all be on a page, so they get the search's sign for that.
function withOptions(query) {
  return query.replace(/(^|\s)--+(\w[\w-]*)?/g, (_, space, name = "") =>
    name.split(/-+/).filter(Boolean).map((word) => `${space || " "}+${word}`).join("")
  )
}

const QUERY = 2 // kind of a message to the theme's worker; `data` is what was typed

const SearchWorker = location.protocol === "file:" ? FrameWorker : window.Worker
window.Worker = class extends SearchWorker {
  postMessage(message) {
    const isQuery = message.type === QUERY && typeof message.data === "string"
    super.postMessage(isQuery ? { ...message, data: withOptions(message.data) } : message)
  }
}
