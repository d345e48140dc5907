// The trajectory viewer: the list beside it, labels, keys. All text came escaped from the server or goes in as text.
import { get, part, put, remove } from "./api.js";
import { $, $$, lettersOn, toast, typing } from "./dom.js";
import { begin as beginReplay, KEYS as REPLAY_KEYS } from "./replay.js";
import { draw, moveToken, showFacts } from "./tokens.js";

const host = $("#viewer");
const page = $("#tv");
const chosen = new Set();
const COLOURS = ["plain", "logprob", "advantage", "version", "mask"];
let colours = "plain";
let text = "rendered";
let reading = 0;
const arrays = new Map();

const shown = () => $("[data-trajectory]", host);

function applyColours() {
  for (const button of $$("[data-tokens]", host))
    button.setAttribute("aria-pressed", String(button.dataset.tokens === colours));
  for (const button of $$("[data-text]", host))
    button.setAttribute("aria-pressed", String(button.dataset.text === text));
  for (const node of $$("[data-as]", host)) node.hidden = node.dataset.as !== text;
  const plain = colours === "plain";
  for (const box of $$("[data-tok]", host)) {
    box.hidden = plain;
    box.parentElement.querySelector(".said").hidden = !plain;
  }
  coming.disconnect();
  if (!plain && shown()?.dataset.view === "transcript")
    for (const article of $$("article.msg", host)) coming.observe(article);
}

/** Tokens of a turn are read when it comes into view: an episode may have very many. */
const coming = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) if (entry.isIntersecting) colour(entry.target);
  },
  { rootMargin: "400px" },
);

async function colour(article) {
  coming.unobserve(article);
  const at = shown();
  const { role, turn } = article.dataset;
  const url = `${at.dataset.api}/tokens?${new URLSearchParams({ agent: role, turn })}`;
  let found = arrays.get(url);
  if (!found) {
    try {
      found = await get(url);
    } catch (error) {
      if (colours === "plain") return;
      colours = "plain";
      applyColours();
      toast(error.message, { tone: "bad", detail: error.requestId });
      return;
    }
    if (arrays.size > 200) arrays.clear();
    arrays.set(url, found);
  }
  if (shown() === at && colours !== "plain") draw(at, found.turns, colours);
}

async function fillRaw() {
  const box = $("[data-raw]", host);
  if (!box) return;
  try {
    box.textContent = JSON.stringify(await get(shown().dataset.api), null, 2);
  } catch (error) {
    box.textContent = error.message;
  }
}

function settle() {
  applyColours();
  beginReplay(host);
  fillRaw();
}

host.addEventListener("click", (event) => {
  const button = event.target.closest(
    "[data-tokens], [data-text], [data-expand], [data-copy-call], [data-label-open], [data-view-open], [data-compare-open]",
  );
  if (!button) {
    const token = event.target.closest(".k");
    if (token) showFacts(token);
    return;
  }
  const data = button.dataset;
  if (data.tokens) {
    colours = data.tokens;
    applyColours();
  } else if (data.text) {
    text = data.text;
    colours = "plain";
    applyColours();
  } else if ("expand" in data) expand();
  else if ("copyCall" in data) copyCall();
  else if ("labelOpen" in data) openLabel();
  else if ("compareOpen" in data && chosen.size > 1) {
    event.preventDefault();
    compare();
  } else if (data.viewOpen && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    const at = shown();
    const query = new URLSearchParams(at.dataset.query);
    query.set("view", data.viewOpen);
    open(`${at.dataset.partBase.replace("ID", at.dataset.trajectory)}?${query}`, button.href);
  }
});
host.addEventListener("mouseover", (event) => {
  const token = event.target.closest(".k");
  if (token) showFacts(token);
});
host.addEventListener("focusin", (event) => {
  if (event.target.matches(".tok")) showFacts($(".k.cur", event.target) || $(".k", event.target));
});

function expand() {
  const boxes = $$("details.prompt", host);
  const all = boxes.every((box) => box.open);
  for (const box of boxes) box.open = !all;
  const button = $("[data-expand]", host);
  if (button) button.textContent = all ? "Expand all" : "Fold all";
}

async function copyCall() {
  const call = `curl -H "Authorization: Bearer $FLEXMARL_TOKEN" ${location.origin}${shown().dataset.api}`;
  try {
    await navigator.clipboard.writeText(call);
    toast("Copied the API call", { tone: "ok" });
  } catch {
    toast(call);
  } // no clipboard without a secure origin: show it to be copied by hand
}

async function open(partUrl, pageUrl, item) {
  const mine = ++reading;
  let html;
  try {
    html = await part(partUrl);
  } catch (error) {
    toast(error.message, { tone: "bad", detail: error.requestId });
    return;
  }
  if (mine !== reading) return; // a later key was faster
  host.innerHTML = html; // rendered by the server, everything in it escaped
  history.replaceState(null, "", pageUrl);
  const id = shown()?.dataset.trajectory;
  for (const old of $$(".it[aria-current]")) old.removeAttribute("aria-current");
  const row = item || document.getElementById(`it-${id}`);
  row?.setAttribute("aria-current", "true");
  row?.scrollIntoView({ block: "nearest" });
  settle();
}

const openItem = (item) => open(item.dataset.part, item.href, item);

document.addEventListener("click", async (event) => {
  const item = event.target.closest("a.it");
  if (item && window.innerWidth >= 768 && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    openItem(item);
    return;
  }
  const more = event.target.closest("[data-more]");
  if (!more) return;
  event.preventDefault();
  try {
    const holder = document.createElement("template");
    holder.innerHTML = await part(more.dataset.more); // rendered by the server
    more.parentElement.replaceWith(holder.content);
  } catch (error) {
    toast(error.message, { tone: "bad", detail: error.requestId });
  }
});

$("#trj-filter")?.addEventListener("submit", (event) => {
  for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true;
});

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  "{": () => member(-1),
  "}": () => member(1),
  "[": () => otherStep(-1),
  "]": () => otherStep(1),
  t: () => {
    colours = COLOURS[(COLOURS.indexOf(colours) + 1) % COLOURS.length];
    applyColours();
  },
  e: expand,
  x: select,
  c: compare,
  ...REPLAY_KEYS,
};
document.addEventListener("keydown", (event) => {
  if (event.target.matches?.(".tok") && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
    event.preventDefault();
    moveToken(event.target, event.key === "ArrowRight" ? 1 : -1);
    return;
  }
  if (
    typing(event) ||
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    $("dialog[open]") ||
    !lettersOn() ||
    !KEYS[event.key]
  )
    return;
  event.preventDefault();
  KEYS[event.key]();
});

function step(by) {
  const items = $$("a.it");
  const at = items.findIndex((item) => item.hasAttribute("aria-current"));
  const next = items[Math.min(items.length - 1, Math.max(0, at + by))];
  if (next) openItem(next);
}

function member(by) {
  const at = shown();
  if (!at) return;
  const ids = at.dataset.members.split(" ").filter(Boolean);
  const id = ids[ids.indexOf(at.dataset.trajectory) + by];
  if (!ids.includes(at.dataset.trajectory) || !id) return;
  const query = at.dataset.query ? `?${at.dataset.query}` : "";
  open(at.dataset.partBase.replace("ID", id) + query, at.dataset.urlBase.replace("ID", id) + query);
}

/** The list of the step before or after, with the filters in force. */
function otherStep(by) {
  const at = shown();
  if (!at) return;
  const query = new URLSearchParams(at.dataset.query);
  const wanted = Number(at.dataset.step) + by;
  if (wanted < 1) return;
  query.set("step", wanted);
  query.delete("draw");
  if (at.dataset.origin === "eval") query.set("origin", "eval");
  location.assign(`${page.dataset.list}?${query}`);
}

function select() {
  const item = $("a.it[aria-current]");
  if (!item) return;
  const group = item.dataset.id.split("-")[0];
  const other = [...chosen].some((id) => id.split("-")[0] !== group);
  if (other) {
    toast("Only episodes of one group can be compared; the selection was reset.");
    chosen.clear();
    for (const old of $$("a.it.chosen")) old.classList.remove("chosen");
  }
  if (chosen.has(item.dataset.id)) chosen.delete(item.dataset.id);
  else chosen.add(item.dataset.id);
  item.classList.toggle("chosen", chosen.has(item.dataset.id));
}

function compare() {
  if (chosen.size > 1) {
    location.assign(`${page.dataset.compare}?ids=${[...chosen].slice(0, 8).join(",")}`);
    return;
  }
  const link = $("[data-compare-open]", host);
  if (link) location.assign(link.href);
}

const dialog = $("#label-dialog");
function openLabel() {
  if (dialog) {
    dialog.returnValue = "";
    dialog.showModal();
  }
}
dialog?.addEventListener("close", async () => {
  const how = dialog.returnValue;
  const at = shown();
  if (!at || (how !== "put" && how !== "remove")) return;
  const form = $("form", dialog);
  try {
    if (how === "put")
      await put(`${at.dataset.api}/labels`, { label: form.elements.label.value, comment: form.elements.comment.value });
    else await remove(`${at.dataset.api}/labels`);
  } catch (error) {
    toast(error.message, { tone: "bad", detail: error.requestId });
    return;
  }
  const query = new URLSearchParams(at.dataset.query);
  query.set("view", at.dataset.view);
  open(`${at.dataset.partBase.replace("ID", at.dataset.trajectory)}?${query}`, location.href);
});

settle();
