// The command palette: the verbs that are legal on this page, its tabs, all pages, runs, agents, nodes and templates.
import { get } from "./api.js";
import { $, $$, el, icon } from "./dom.js";

let entries = [];
let at = 0;
let timer = null;

export function start() {
  const dialog = $("#palette");
  if (!dialog) return;
  const input = $("input", dialog);
  input.addEventListener("input", () => {
    show(input.value);
    clearTimeout(timer);
    timer = setTimeout(() => findRuns(input.value), 200);
  });
  dialog.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && entries.length) {
      event.preventDefault();
      select((at + step + entries.length) % entries.length);
    }
    if (event.key === "Enter") {
      event.preventDefault();
      open(entries[at]);
    }
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
}

export function openPalette() {
  const dialog = $("#palette");
  if (!dialog || dialog.open) return;
  $("input", dialog).value = "";
  dialog.showModal();
  show("");
  findRuns("");
  findOthers();
}

function commands() {
  const pages = $$(".side a.nav-i").map((link) => ({
    icon: "chevron-right",
    text: link.textContent.trim(),
    kind: "page",
    url: link.href,
  }));
  const extra = [
    { icon: "stack-2", text: "Components", kind: "help", url: "/help/components" },
    { icon: "code", text: "API reference", kind: "help", url: "/api/v1/docs" },
    ...("mayCreate" in document.body.dataset
      ? [{ icon: "plus", text: "New run", kind: "page", url: "/runs/new" }]
      : []),
    { icon: "user", text: "Profile", kind: "page", url: "/settings/profile" },
  ];
  const tabs = $$(".tabs a, .views a").map((link) => ({
    icon: "chevron-right",
    text: `${link.textContent.trim()} of this run`,
    kind: "tab",
    url: link.href,
  }));
  const verbs = $$("#menu-verbs [data-verb]:not([aria-disabled=true])").map((button) => ({
    icon: "player-play",
    text: `${button.textContent.trim()} this run`,
    kind: "verb",
    button,
  }));
  const asks = [
    { icon: "keyboard", text: "Keys of this page", kind: "command", dialog: "keys" },
    { icon: "code", text: "API calls of this page", kind: "command", button: $("[popovertarget=api-pop]") },
  ].filter((entry) => entry.dialog || entry.button);
  const theme = { icon: "sun", text: "Switch theme", kind: "command", button: $("[data-theme-toggle]") };
  return [...verbs, ...tabs, ...pages, ...extra, ...asks, theme];
}

let runs = [];
let others = null;

/** Agents, nodes and templates are few: read once per page, and filtered here. */
async function findOthers() {
  if (others) return;
  others = [];
  const kinds = [
    [
      "/api/v1/agents?limit=200&fields=role",
      (row) => ({
        icon: "affiliate",
        text: row.role,
        kind: "agent",
        url: `/runs?agent=${encodeURIComponent(row.role)}`,
      }),
    ],
    [
      "/api/v1/nodes",
      (row) => ({ icon: "server-2", text: row.name, kind: "node", url: `/cluster#${encodeURIComponent(row.name)}` }),
    ],
    [
      "/api/v1/templates?fields=name",
      (row) => ({
        icon: "template",
        text: row.name,
        kind: "template",
        url: `/runs/new?template=${encodeURIComponent(row.name)}`,
      }),
    ],
  ];
  const found = await Promise.allSettled(kinds.map(async ([url, entry]) => (await get(url)).results.map(entry)));
  const seen = new Set();
  for (const entry of found.flatMap((one) => (one.status === "fulfilled" ? one.value : []))) {
    if (!seen.has(entry.kind + entry.text)) others.push(entry);
    seen.add(entry.kind + entry.text);
  }
  if ($("#palette").open) show($("#palette input").value);
}

async function findRuns(text) {
  try {
    const query = text.trim() ? `&q=${encodeURIComponent(text.trim())}` : "";
    const found = await get(`/api/v1/runs?limit=8${query}`);
    runs = found.results.map((run) => ({
      icon: "list-details",
      text: `${run.key}  ${run.name}`,
      kind: run.status,
      url: run.web_url,
    }));
  } catch {
    runs = []; // pages and commands still work without the list
  }
  if ($("#palette").open) show($("#palette input").value);
}

function show(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (entry) => words.every((word) => entry.text.toLowerCase().includes(word));
  const named = words.length ? (others || []).filter(fits) : [];
  entries = [
    ...commands()
      .filter(fits)
      .slice(0, words.length ? 8 : 20),
    ...runs.filter(fits),
    ...named,
  ].slice(0, 24);
  const list = $("#palette-list");
  list.replaceChildren(
    ...entries.map((entry, i) =>
      el(
        "li",
        {
          id: `pal-${i}`,
          role: "option",
          "aria-selected": "false",
          on: { click: () => open(entry), mousemove: () => select(i) },
        },
        icon(entry.icon, "sm"),
        el("span", { class: "trunc", text: entry.text }),
        el("span", { class: "kind", text: entry.kind }),
      ),
    ),
  );
  if (!entries.length)
    list.append(el("li", { class: "none", role: "option", "aria-disabled": "true", text: "Nothing matches." }));
  select(0);
}

function select(index) {
  at = index;
  for (const [i, item] of $$("#palette-list li").entries())
    item.setAttribute("aria-selected", String(i === at && entries.length > 0));
  $("#palette input").setAttribute("aria-activedescendant", entries.length ? `pal-${at}` : "");
  $(`#pal-${at}`)?.scrollIntoView({ block: "nearest" });
}

function open(entry) {
  if (!entry) return;
  $("#palette").close();
  if (entry.url) location.assign(entry.url);
  else if (entry.dialog) document.getElementById(entry.dialog)?.showModal();
  else entry.button?.click();
}
