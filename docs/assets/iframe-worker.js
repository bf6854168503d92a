// The search of the site runs in a worker, which browsers do not start in pages that are
// opened from files. There, a hidden frame runs the worker's script instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
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
}
