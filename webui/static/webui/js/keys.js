// Keys of every page. Single letters can be turned off; nothing here works while somebody types.
import { patch } from "./api.js";
import { $, $$, lettersOn, toast, typing } from "./dom.js";

const GO = {
  h: "/",
  r: "/runs",
  q: "/queue",
  c: "/cluster",
  n: "/runs/new",
  s: "/simulations",
  a: "/agents",
  m: "/models",
};
let pending = "";

const root = document.documentElement;

/** Kept with the person, like the theme. */
function setLetters(on) {
  root.dataset.letters = on ? "on" : "off";
  patch("/api/v1/me", { letter_keys: on }).catch((error) => toast(error.message, { tone: "bad" }));
}

export function start({ hold, openPalette }) {
  const box = $("[data-keys-on]");
  if (box) {
    box.checked = lettersOn();
    box.addEventListener("change", () => setLetters(box.checked));
    document.addEventListener("kept", () => {
      box.checked = lettersOn();
    });
  }
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      openPalette();
      return;
    }
    if (typing(event) || event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]") || !lettersOn()) return;
    if (pending === "g") {
      pending = "";
      if (GO[event.key]) {
        event.preventDefault();
        location.assign(GO[event.key]);
      }
      return;
    }
    if (event.key === "g") {
      pending = "g";
      setTimeout(() => {
        pending = "";
      }, 1200);
      return;
    }
    const done = plain(event, hold);
    if (done) event.preventDefault();
  });
}

function plain(event, hold) {
  if (event.key === "?") {
    $("#keys")?.showModal();
    return true;
  }
  if (event.key === "/") {
    const box = $("[data-search]");
    box?.focus();
    return Boolean(box);
  }
  const tab = /^[1-9]$/.test(event.key) ? $$(".tabs a")[Number(event.key) - 1] : event.key === "v" ? nextView() : null;
  if (tab) {
    tab.click();
    return true;
  }
  if (event.key === " " && !event.target.closest("button, a, input, summary, [tabindex]:not(main)")) {
    hold();
    return true;
  }
  if (event.key === "j" || event.key === "k") return move(event.key === "j" ? 1 : -1);
  if (event.key === "[" || event.key === "]") return step(event.key === "[" ? -1 : 1);
  return false;
}

/** The view of the tab behind the one that is shown; behind the last comes the first. */
function nextView() {
  const views = $$(".views a");
  return views[(views.findIndex((link) => link.hasAttribute("aria-current")) + 1) % views.length];
}

/** Move through the rows of a table; Enter opens, since the focus is on the row's link. */
function move(by) {
  const links = $$("tr.go a.rowlink, tr.go td:first-child a");
  if (!links.length) return false;
  const at = links.indexOf(document.activeElement);
  links[Math.min(links.length - 1, Math.max(0, at + by))].focus();
  return true;
}

/** To the step before or after: the page's own links when it has them, else along the cells of the step bar. */
function step(by) {
  const link = $(`main a[rel=${by < 0 ? "prev" : "next"}]`);
  if (link) {
    link.click();
    return true;
  }
  const cells = $$("main .cells a");
  if (!cells.length) return false;
  const at = cells.indexOf(document.activeElement);
  cells[at < 0 ? cells.length - 1 : Math.min(cells.length - 1, Math.max(0, at + by))].focus();
  return true;
}
