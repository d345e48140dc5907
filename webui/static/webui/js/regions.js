// Parts of a page that the server renders and that are re-read while something runs. `data-live="<url>"` on an element
// names its part ("" is the page's own address); `data-every` is the shortest time between two reads, in seconds.
import { part } from "./api.js";
import { $, $$, el, icon } from "./dom.js";
import { onChange } from "./live.js";

const readAt = new WeakMap();

export function start() {
  for (const region of $$("[data-live]")) onChange(() => reread(region));
}

/** Read a region's part again and put what changed into the page. */
export async function reread(region, force = false) {
  const every = Number(region.dataset.every || 1) * 1000;
  if (!force && Date.now() - (readAt.get(region) || 0) < every - 50) return;
  readAt.set(region, Date.now());
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
  const retry = el("button", { class: "btn sm", type: "button", text: "Retry", on: { click: () => reread(region, true).catch(() => {}) } });
  region.prepend(el("div", { class: "state error", data: { failed: "1" }, role: "alert" }, icon("alert-circle", "lead"),
    el("b", { text: "This part did not load" }), el("p", { class: "soft", text: `${error.message} The run is not affected; the other parts are current.` }),
    el("div", { class: "hs" }, retry, el("span", { class: "muted s12 mono", text: error.requestId }))));
}

/** Replace only what differs: children with an id are compared one by one, so that focus and open menus survive. */
export function patch(region, html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  for (const menu of $$(".menu:not([hidden])", region)) if (menu.id) return keepMenu(region, holder, menu.id);
  replace(region, holder.content);
}

function keepMenu(region, holder, id) {
  // A menu is open: change figures around it at the next read, after it closed.
  const line = $("#run-line2", region);
  const fresh = $("#run-line2", holder.content);
  if (line && fresh && line.innerHTML !== fresh.innerHTML) line.innerHTML = fresh.innerHTML;
  return id;
}

function replace(old, fresh) {
  const before = [...old.children].filter((child) => child.id);
  const after = [...fresh.children];
  const same = before.length === old.children.length && after.length === before.length && after.every((child, i) => child.id === before[i].id);
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
    if (before[i].contains(document.activeElement) && document.activeElement.matches("input")) return undefined;
    const focused = before[i].contains(document.activeElement) ? describe(document.activeElement) : "";
    before[i].replaceWith(child);
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
    if (!old.matches(":hover")) old.replaceWith(fresh);
    else old.dataset.waiting = "1";
    return;
  }
  for (const row of rows) {
    const shown = document.getElementById(row.id);
    if (shown && shown.innerHTML !== row.innerHTML && !shown.contains(document.activeElement)) shown.innerHTML = row.innerHTML;
  }
}
