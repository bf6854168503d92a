// Tables, code and formulas that are wider than the page scroll; not all browsers let the
// keyboard reach them.
const SCROLLING = ".md-typeset__scrollwrap, .md-typeset pre > code, .md-typeset .formula"

function reachScrolling() {
  for (const each of document.querySelectorAll(SCROLLING)) {
    if (each.scrollWidth > each.clientWidth) {
      each.tabIndex = 0
    } else {
      each.removeAttribute("tabindex")
    }
  }
}

window.addEventListener("load", reachScrolling)
window.addEventListener("resize", reachScrolling)
