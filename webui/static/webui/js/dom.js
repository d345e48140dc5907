// Small helpers. Text always goes in through textContent: what models and people wrote is never read as markup.

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/** Make an element: el("div", {class: "hs", text: "x", data: {id: 1}}, children...) */
export function el(name, options = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") node.className = value;
    else if (key === "text") node.textContent = value;
    else if (key === "data") Object.assign(node.dataset, value);
    else if (key === "on") for (const [type, handler] of Object.entries(value)) node.addEventListener(type, handler);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

/** Draw an icon of the sprite. */
export function icon(name, classes = "") {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", `i ${classes}`);
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `${document.documentElement.dataset.sprite}#${name}`);
  svg.append(use);
  return svg;
}

/** A role's square. */
export function monogram(agent) {
  const two = agent.monogram.length > 1 ? " two" : "";
  return el("span", { class: `mg hue-${agent.hue}${two}`, text: agent.monogram, "aria-hidden": "true" });
}

/** The mark of a role among agents by role; of one that is none of them, its first letter. */
export const markOf = (agents, role) =>
  Object.values(agents).find((one) => one.role === role) || { role, hue: 1, monogram: role[0].toUpperCase() };

export const chip = (agent) => el("span", { class: "chip" }, monogram(agent), agent.role);

/** The value of a design token. */
export const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export function announce(text) {
  const place = $("#announce");
  if (place) place.textContent = text;
}

/** Say something at the foot of the page for some seconds. */
export function toast(text, { tone = "", seconds = 6, detail = "" } = {}) {
  const place = $("#toasts");
  if (!place) return;
  const shape = tone === "bad" ? "alert-circle" : tone === "ok" ? "circle-check" : "info-circle";
  const mark = el("span", { class: tone }, icon(shape, "sm"));
  const words = el(
    "span",
    { class: "anywhere" },
    text,
    detail ? el("span", { class: "muted mono s11", text: ` ${detail}` }) : null,
  );
  const box = el("div", { class: "toast-x" }, mark, words);
  place.append(box);
  setTimeout(() => box.remove(), seconds * 1000);
}

const THIN = "\u2009";

/** Write a number with thin spaces and a true minus. */
export function number(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const [whole, part] = Math.abs(value).toFixed(digits).split(".");
  const text = whole.replace(/\B(?=(\d{3})+$)/g, THIN) + (part ? `.${part}` : "");
  return value < 0 && Number(text.replaceAll(THIN, "")) !== 0 ? `−${text}` : text;
}

/** Whether keys of one letter do something: people may turn them off. */
export const lettersOn = () => document.documentElement.dataset.letters !== "off";

/** Whether somebody types into a field. */
export const typing = (event) =>
  Boolean(event.target.closest?.("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]"));

/** Load a classic script once. */
export function load(src) {
  const found = $(`script[data-src="${src}"]`);
  if (found) return found.ready;
  const script = el("script", { src, data: { src } });
  script.ready = new Promise((resolve, reject) => {
    script.addEventListener("load", resolve);
    script.addEventListener("error", () => reject(new Error(`${src} did not load`)));
  });
  document.head.append(script);
  return script.ready;
}
