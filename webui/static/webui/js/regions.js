// Parts of a page that the server renders and that are re-read while something runs. `data-live="<url>"` on an element
// names its part ("" is the page's own address); `data-every` is the shortest time between two reads, in seconds. What
// a person is at is kept: focus, an open menu, the field being typed into, the rows under the pointer, sideways scroll,
// and the button being pressed: a press that began on an element that is gone at its end would be no click at all.
import { part } from "./api.js";
import { $, $$, el, icon } from "./dom.js";
import { onChange } from "./live.js";

const waiting = new WeakMap();
const arriving = new WeakMap();
let pressed = null;

export function start() {
  document.addEventListener(
    "pointerdown",
    (event) => {
      pressed = event.target;
    },
    true,
  );
  const released = () =>
    setTimeout(() => {
      pressed = null;
    }); // the click itself comes right after the pointer is up
  for (const kind of ["pointerup", "pointercancel"]) document.addEventListener(kind, released, true);
  for (const region of $$("[data-live]")) onChange(() => reread(region), Number(region.dataset.every || 0) * 1000);
}

/** Read a region's part again and put what changed into the page. */
export async function reread(region) {
  let html;
  try {
    html = await part(region.dataset.live || location.pathname + location.search);
  } catch (error) {
    if (error.status >= 400 && error.status !== 401) fail(region, error);
    throw error;
  }
  $(".state.error[data-failed]", region)?.remove();
  patch(region, html);
  region.dispatchEvent(new CustomEvent("reread", { bubbles: true }));
}

function fail(region, error) {
  if ($("[data-failed]", region)) return;
  const retry = el("button", {
    class: "btn sm",
    type: "button",
    text: "Retry",
    on: { click: () => reread(region).catch(() => {}) },
  });
  region.prepend(
    el(
      "div",
      { class: "state error", data: { failed: "1" }, role: "alert" },
      icon("alert-circle", "lead"),
      el("b", { text: "This part did not load" }),
      el("p", { class: "soft", text: `${error.message} The run is not affected; the other parts are current.` }),
      el("div", { class: "hs" }, retry, el("span", { class: "muted s12 mono", text: error.requestId })),
    ),
  );
}

/** Replace only what differs: children with an id are compared one by one, so that focus and open menus survive. */
export function patch(region, html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  if (inUse(region)) return wait(region, html);
  waiting.delete(region);
  replace(region, holder.content);
  return undefined;
}

const inUse = (region) => (pressed && region.contains(pressed)) || $(".menu:not([hidden]), :popover-open", region);

/** A menu is open or a button is down: the step line follows, the rest is put in when it has closed or come up. */
function wait(region, html) {
  if (!waiting.has(region)) {
    const timer = setInterval(() => {
      if (waiting.has(region) && inUse(region)) return;
      clearInterval(timer);
      if (waiting.has(region)) patch(region, waiting.get(region));
    }, 250);
  }
  waiting.set(region, html);
  const holder = document.createElement("template");
  holder.innerHTML = html;
  const line = $("#run-line2", region);
  const fresh = $("#run-line2", holder.content);
  if (line && fresh && !line.contains(pressed) && line.innerHTML !== fresh.innerHTML) line.innerHTML = fresh.innerHTML;
}

function replace(old, fresh) {
  // What a reader has opened stays open.
  for (const box of old.querySelectorAll("details[open][id]"))
    fresh.querySelector(`#${CSS.escape(box.id)}`)?.setAttribute("open", "");
  const before = [...old.children].filter((child) => child.id);
  const after = [...fresh.children];
  const same =
    before.length === old.children.length &&
    after.length === before.length &&
    after.every((child, i) => child.id === before[i].id);
  if (!same) {
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    old.replaceChildren(...after);
    if (focused) document.getElementById(focused)?.focus();
    return;
  }
  after.forEach((child, i) => {
    if (child.outerHTML === before[i].outerHTML) return;
    const rows = child.querySelectorAll("tr[id]");
    if (rows.length) return replaceRows(before[i], child, rows);
    if (before[i].contains(document.activeElement) && document.activeElement.matches("input, textarea, select"))
      return undefined;
    const focused = before[i].contains(document.activeElement) ? describe(document.activeElement) : "";
    swap(before[i], child);
    if (focused) $(focused, child)?.focus();
    return undefined;
  });
}

function describe(node) {
  if (node.id) return `#${CSS.escape(node.id)}`;
  if (node.dataset.verb) return `${node.localName}[data-verb="${node.dataset.verb}"]`;
  return node.dataset.menu ? `[data-menu="${node.dataset.menu}"]` : "";
}

/** Update rows in place; new or re-ordered rows wait while the pointer is over the table. */
function replaceRows(old, fresh, rows) {
  const ids = (root) => [...root.querySelectorAll("tr[id]")].map((row) => row.id).join();
  if (ids(old) !== ids(fresh)) {
    if (!old.matches(":hover")) swap(old, fresh);
    else later(old, fresh);
    return;
  }
  for (const row of rows) {
    const shown = document.getElementById(row.id);
    if (shown && shown.innerHTML !== row.innerHTML && !shown.contains(document.activeElement))
      shown.innerHTML = row.innerHTML;
  }
}

/** Put new rows in when the pointer has left the table; the newest ones win. */
function later(old, fresh) {
  const first = !arriving.has(old);
  arriving.set(old, fresh);
  if (first)
    old.addEventListener(
      "pointerleave",
      () => {
        if (old.isConnected) {
          swap(old, arriving.get(old));
        }
      },
      { once: true },
    );
}

/** Replace an element and keep how far its parts were scrolled. */
function swap(old, fresh) {
  const scrolled = (root) => [root, ...root.querySelectorAll(".scroll-x, .scroll-y, [data-scroll]")];
  const places = scrolled(old).map((node) => [node.scrollLeft, node.scrollTop]);
  old.replaceWith(fresh);
  scrolled(fresh).forEach((node, i) => {
    if (places[i]) [node.scrollLeft, node.scrollTop] = places[i];
  });
}
