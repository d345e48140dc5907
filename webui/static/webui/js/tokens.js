// Tokens of a response with their tint, a strip over their positions, and the facts of the one pointed at.
// The text of a token is hostile: it goes in through textContent alone.
import { $, $$, el } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const LEVELS = 8;
const LOGPROB_AT = 2.6; // negative log-probability (nats) with the strongest tint
const ADVANTAGE_AT = 2;
const MOST = 4000; // tokens of a turn that are drawn one by one

const minus = (value, digits = 2) =>
  value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");
const signed = (value) => (value > 0 ? `+${minus(value)}` : minus(value));

const distinct = (turn) => [...new Set(turn.versions)].toSorted((a, b) => a - b);

function share(turn, place, kind) {
  if (kind === "mask") return turn.in_loss ? 0.6 : 0;
  if (kind === "version") {
    const all = distinct(turn);
    return (1 + all.indexOf(turn.versions[place])) / (all.length + 1);
  }
  if (kind === "advantage") return Math.min(1, Math.abs(turn.advantage ?? 0) / ADVANTAGE_AT);
  return Math.min(1, Math.max(0, -turn.logprobs[place]) / LOGPROB_AT) ** 0.75;
}

const level = (value) => (value <= 0.02 ? 0 : Math.min(LEVELS, Math.ceil(value * LEVELS - 0.15)));

function svg(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** Draw all turns of a trajectory. */
export function draw(root, turns, kind) {
  for (const turn of turns) {
    const article = $$("article.msg", root).find(
      (one) => one.dataset.role === turn.role && Number(one.dataset.turn) === turn.turn,
    );
    const box = article && $("[data-tok]", article);
    if (box) fill(box, turn, kind);
  }
}

function fill(box, turn, kind) {
  const count = Math.min(MOST, turn.ids.length);
  const tokens = el("div", {
    class: `tok${turn.in_loss ? "" : " cut"}`,
    tabindex: count ? "0" : null,
    role: "group",
    "aria-label": `Tokens of ${turn.role}; left and right move`,
  });
  if (kind === "mask") tokens.append(...context(turn));
  const sign = kind === "advantage" && turn.advantage < 0 ? " neg" : "";
  for (let place = 0; place < count; place += 1)
    tokens.append(
      el("span", {
        class: `k lp${level(share(turn, place, kind))}${sign}`,
        data: { i: place },
        text: turn.texts[place],
      }),
    );
  if (!count) tokens.append(el("span", { class: "muted", text: "No token was generated." }));
  if (turn.ids.length > count)
    tokens.append(el("span", { class: "muted", text: ` and ${turn.ids.length - count} more tokens, see Raw` }));
  box.turn = turn;
  box.replaceChildren(
    legend(turn, kind),
    tokens,
    ...(kind === "logprob" && count > 3 ? [strip(turn, count)] : []),
    el(
      "div",
      { class: "hs wrap s12 tokfacts tn", data: { facts: "" }, "aria-live": "polite" },
      el("span", {
        class: "muted",
        text: turn.in_loss ? "Point at a token for its figures." : "Not in the loss: these tokens gave no gradient.",
      }),
    ),
  );
}

/** What was new in the prompt, token by token: read, and never trained on. */
function context(turn) {
  const texts = turn.context_texts || [];
  const shown = texts.slice(-MOST).map((text) => el("span", { class: "ctx", text }));
  if (texts.length > MOST)
    shown.unshift(el("span", { class: "muted", text: `${texts.length - MOST} earlier tokens, ` }));
  return shown;
}

const WORDS = {
  mask: (turn) =>
    `hatched: ${(turn.context_texts || []).length} tokens that were read, mask 0; ` +
    (turn.in_loss ? `tinted: ${turn.ids.length} tokens in the loss, mask 1` : "the reply is not in the loss"),
  version: (turn) => {
    const all = distinct(turn);
    return all.length > 1
      ? `versions, the newer the darker: ${all.map((one) => `v${one}`).join(", ")}`
      : `every token is of v${all[0] ?? "–"}`;
  },
};

function legend(turn, kind) {
  if (WORDS[kind]) return el("div", { class: "s11 muted lpkey", text: WORDS[kind](turn) });
  const scale = svg("svg", { class: "lpscale", "aria-hidden": "true" });
  for (let i = 1; i <= LEVELS; i += 1)
    scale.append(
      svg("rect", {
        x: `${(100 * (i - 1)) / LEVELS}%`,
        width: `${100 / LEVELS}%`,
        height: "8",
        opacity: (0.62 * i) / LEVELS,
      }),
    );
  const words = kind === "logprob" ? ["log-prob 0", "−2.6"] : ["|advantage| 0", String(ADVANTAGE_AT)];
  const own =
    kind === "advantage"
      ? `every token of the turn has ${turn.advantage === null ? "none" : signed(turn.advantage)}; below 0 underlined`
      : "";
  return el(
    "div",
    { class: "hs s11 muted g6 lpkey wrap" },
    el("span", { text: words[0] }),
    scale,
    el("span", { text: words[1] }),
    own ? el("span", { class: "push", text: own }) : null,
  );
}

function strip(turn, count) {
  const width = 100 / Math.max(24, count);
  const bars = svg(
    "svg",
    { class: "lpstrip", "aria-hidden": "true" },
    svg("line", { x1: "0", x2: "100%", y1: "1.5", y2: "1.5" }),
  );
  for (let place = 0; place < count; place += 1) {
    const height = Math.max(1, 40 * Math.min(1, Math.max(0, -turn.logprobs[place]) / LOGPROB_AT));
    bars.append(
      svg("rect", { "data-i": place, x: `${place * width}%`, width: `${width * 0.76}%`, y: "2", height, rx: "1.5" }),
    );
  }
  return el(
    "div",
    {},
    bars,
    el(
      "div",
      { class: "hs s11 muted tn" },
      el("span", { text: "token 0" }),
      el("span", { class: "push", text: String(count - 1) }),
    ),
  );
}

/** Say a token's figures under its response and mark its bar. */
export function showFacts(token) {
  if (!token || token.classList.contains("cur")) return;
  const box = token.closest("[data-tok]");
  for (const old of $$(".cur", box)) old.classList.remove("cur");
  token.classList.add("cur");
  $(`.lpstrip rect[data-i="${token.dataset.i}"]`, box)?.classList.add("cur");
  const { turn } = box;
  const place = Number(token.dataset.i);
  const fact = (name, value) =>
    el("span", {}, el("span", { class: "muted", text: `${name} ` }), el("b", { text: value }));
  $("[data-facts]", box).replaceChildren(
    el("span", { class: "mono w6 anywhere", text: JSON.stringify(turn.texts[place]) }),
    fact("log-prob", minus(turn.logprobs[place])),
    turn.played ? "" : fact("advantage", turn.advantage === null ? "–" : signed(turn.advantage)),
    fact("version", `v${turn.versions[place]}`),
    fact("id", String(turn.ids[place])),
    turn.played ? "" : fact("in loss", turn.in_loss ? "yes" : "no"),
  );
}

export function moveToken(tokens, by) {
  const all = $$(".k", tokens);
  const at = all.findIndex((token) => token.classList.contains("cur"));
  showFacts(all[Math.min(all.length - 1, Math.max(0, at + by))]);
}
