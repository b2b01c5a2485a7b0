/* Search from a folder. A page that was opened as file:// may not start workers, so there a Worker is a hidden frame
   of the page: the script runs in the frame's window, and messages go to and fro as those of a worker do. */
if (location.protocol === "file:") {
  class FrameWorker extends EventTarget {
    constructor(url) {
      super()
      this.onmessage = null
      this.waiting = [] // what was posted before the script was there
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = "<!doctype html><title>worker</title><body></body>"
      this.frame.addEventListener("load", () => this.begin(new URL(url, location.href).href), { once: true })
      document.body.append(this.frame)
    }

    begin(url) {
      const inside = this.frame.contentWindow
      inside.postMessage = data => this.tell(this, data)
      inside.importScripts = (...urls) => Promise.all(urls.map(each => this.load(each)))
      this.load(url).then(() => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach(data => this.postMessage(data))
      })
    }

    load(url) {
      const script = this.frame.contentDocument.createElement("script")
      script.src = url
      const loaded = new Promise((done, failed) => {
        script.onload = done
        script.onerror = () => failed(new Error("cannot load " + url))
      })
      this.frame.contentDocument.body.append(script)
      return loaded
    }

    /* As a worker's messages do: a copy of the data arrives after the code that sends it. */
    tell(target, data) {
      const event = new MessageEvent("message", { data: structuredClone(data) })
      setTimeout(() => {
        target.dispatchEvent(event)
        if (target === this && this.onmessage) this.onmessage(event)
      })
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.tell(this.frame.contentWindow, data)
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.IFrameWorker = window.Worker = FrameWorker // the theme looks for the first name, to find its own scripts
}
