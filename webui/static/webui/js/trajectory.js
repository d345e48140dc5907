// The trajectory viewer: token colours, the list beside it, keys. All text came escaped from the server.
import { part } from "./api.js";
import { $, $$, el, toast, typing } from "./dom.js";

const host = $("#viewer");
let colours = "logprob";
let reading = 0;

function applyColours() {
  host.classList.toggle("plain", colours === "plain");
  for (const button of $$("[data-tokens]", host)) button.setAttribute("aria-pressed", String(button.dataset.tokens === colours));
}

host.addEventListener("click", (event) => {
  const button = event.target.closest("[data-tokens]");
  if (button) { colours = button.dataset.tokens; applyColours(); return; }
  const token = event.target.closest(".k");
  if (token) facts(token);
});
host.addEventListener("mouseover", (event) => { const token = event.target.closest(".k"); if (token) facts(token); });

/** Say a token's figures under its response and mark its bar. */
function facts(token) {
  if (token.classList.contains("cur")) return;
  const box = token.closest(".tokbox");
  for (const old of $$(".cur", box)) old.classList.remove("cur");
  token.classList.add("cur");
  $(`.lpstrip rect[data-i="${token.dataset.i}"]`, box)?.classList.add("cur");
  const line = $("[data-facts]", box);
  const fact = (name, value) => el("span", {}, el("span", { class: "muted", text: `${name} ` }), el("b", { text: value }));
  line.replaceChildren(el("span", { class: "mono w6", text: JSON.stringify(token.textContent.trim()) }), fact("log-prob", token.dataset.lp || "–"), fact("advantage", line.dataset.adv), fact("version", line.dataset.version), fact("in loss", line.dataset.loss));
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
  for (const old of $$(".it[aria-current]")) old.removeAttribute("aria-current");
  item?.setAttribute("aria-current", "true");
  item?.scrollIntoView({ block: "nearest" });
  applyColours();
}

const openItem = (item) => open(item.dataset.part, item.href, item);

document.addEventListener("click", async (event) => {
  const item = event.target.closest("a.it");
  if (item && window.innerWidth >= 768 && !event.ctrlKey && !event.metaKey) { event.preventDefault(); openItem(item); return; }
  const more = event.target.closest("[data-more]");
  if (!more) return;
  more.disabled = true;
  try {
    const holder = document.createElement("template");
    holder.innerHTML = await part(more.dataset.more); // rendered by the server
    more.parentElement.replaceWith(holder.content);
  } catch (error) {
    more.disabled = false;
    toast(error.message, { tone: "bad", detail: error.requestId });
  }
});

document.addEventListener("keydown", (event) => {
  if (typing(event) || event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
  if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
  else if (event.key === "{" || event.key === "}") member(event.key === "}" ? 1 : -1);
  else if (event.key === "t") { colours = colours === "plain" ? "logprob" : "plain"; applyColours(); }
  else if (event.key === "e") for (const box of $$("details.prompt", host)) box.open = !box.open;
});

function step(by) {
  const items = $$("a.it");
  const at = items.findIndex((item) => item.hasAttribute("aria-current"));
  const next = items[Math.min(items.length - 1, Math.max(0, at + by))];
  if (next) openItem(next);
}

function member(by) {
  const shown = $("[data-trajectory]", host);
  if (!shown) return;
  const ids = shown.dataset.members.split(" ").filter(Boolean);
  const at = ids.indexOf(shown.dataset.trajectory);
  const id = ids[at + by];
  if (at < 0 || !id) return;
  open(shown.dataset.partBase.replace("ID", id), shown.dataset.urlBase.replace("ID", id), document.getElementById(`it-${id}`));
}
