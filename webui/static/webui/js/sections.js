// The sections of New run: they fold, say in one line what they hold, and are searched by name. Which are open stays with
// this browser window, per template or original; what a search opens is closed again when it ends.
import { $, $$, announce, el } from "./dom.js";

const boxes = () => $$("#spec-form details[data-section]");
const setting = (input) => input.closest(".fit");
let key = "";
let finding = false;

function remember() {
  if (finding) return;
  try {
    sessionStorage.setItem(
      key,
      JSON.stringify(
        boxes()
          .filter((box) => box.open)
          .map((box) => box.dataset.section),
      ),
    );
  } catch {
    /* storage may be forbidden: sections then open as they come */
  }
}

function restore() {
  let open = null;
  try {
    open = JSON.parse(sessionStorage.getItem(key));
  } catch {
    /* nothing is known of an earlier visit then */
  }
  if (Array.isArray(open)) for (const box of boxes()) box.open = open.includes(box.dataset.section);
}

function label() {
  const every = boxes().every((box) => box.open);
  $("#fold-all").textContent = every ? "Close all" : "Open all";
}

/** Make an input visible: its section opens. */
export function reveal(input) {
  if (input.closest("[data-missed]")) stopFinding();
  const box = input.closest("details");
  if (box) box.open = true;
}

/** Say in a section's head what was changed, and what is set differently from the default. */
export function summarise(box, { changed, differs }) {
  const tag = $("[data-changed]", box);
  tag.hidden = !changed;
  tag.textContent = changed ? `${changed} changed` : "";
  const place = $("[data-differs]", box);
  if (!place) return;
  place.textContent = differs.join(", ");
  place.title = differs.length ? `Not as by default: ${differs.join(", ")}` : "";
}

/** What people wrote beside the specification, as the head of its section says it. */
export function summariseMarks() {
  const box = $("#g-run");
  const written = $$("[data-mark]", box).filter((input) =>
    input.localName === "select"
      ? !input.options[input.selectedIndex]?.defaultSelected && input.selectedIndex > 0
      : input.value !== input.defaultValue,
  );
  summarise(box, {
    changed: 0,
    differs: written.map((input) => `${setting(input).dataset.label} ${input.value.replace(/\s+/g, " ").slice(0, 40)}`),
  });
}

function stopFinding() {
  $("#find-setting").value = "";
  find("", () => "");
}

/** The settings whose name has these words; where there is none, those whose explanation has them. */
function found(words) {
  const all = $$("#spec-form .fit[data-label]");
  const having = (textOf) => all.filter((one) => words.every((word) => textOf(one).toLowerCase().includes(word)));
  const names = having((one) => {
    const pointer = $("[data-pointer]", one)?.dataset.pointer || "";
    return `${one.dataset.label} ${pointer} ${pointer.replaceAll(/[/_]/g, " ")}`;
  });
  return new Set(names.length ? names : having((one) => `${one.dataset.label} ${$(".fh", one)?.textContent || ""}`));
}

/** Show only the settings whose name or explanation has these words; those that nobody reads now say when they are. */
export function find(written, why) {
  const words = written.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const begins = words.length > 0 && !finding;
  if (begins) remember();
  finding = words.length > 0;
  const fits = found(words);
  const missed = [];
  let count = 0;
  for (const box of boxes()) {
    let own = 0;
    for (const one of $$(".fit[data-label]", box)) {
      one.toggleAttribute("data-missed", finding && !fits.has(one));
      if (!finding || !fits.has(one)) continue;
      if (one.hidden) missed.push([one.dataset.label, why($("[data-pointer]", one).dataset.pointer)]);
      else own += 1;
    }
    for (const part of $$("[data-part], .agrow", box))
      part.toggleAttribute("data-missed", finding && !$(".fit[data-label]:not([data-missed], [hidden])", part));
    box.toggleAttribute("data-missed", finding && own === 0);
    if (finding) box.open = own > 0;
    count += own;
  }
  if (!finding) restore();
  $("#spec-form").classList.toggle("finding", finding);
  const lines = [...new Map(missed.map((one) => [one.join(), one])).values()].slice(0, 6);
  $("#find-unread").replaceChildren(
    ...lines.map(([name, when]) => el("li", {}, el("b", { text: name }), ` applies when ${when}.`)),
  );
  $("#find-unread").hidden = !lines.length;
  $("#find-none").hidden = !finding || count + lines.length > 0;
  if (finding) announce(`${count} setting${count === 1 ? "" : "s"} found`);
  label();
}

/** Let sections fold. `why` tells when a setting is read. */
export function begin(name, why) {
  key = `new-run-open:${name}`;
  restore();
  label();
  for (const box of boxes())
    box.addEventListener("toggle", () => {
      remember();
      label();
    });
  $("#fold-all").addEventListener("click", () => {
    const open = boxes().some((box) => !box.open);
    for (const box of boxes()) box.open = open;
  });
  const search = $("#find-setting");
  search.addEventListener("input", () => find(search.value, why));
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && search.value) {
      event.preventDefault();
      stopFinding();
    }
  });
  for (const link of $$(".fn nav a")) {
    link.addEventListener("click", () => {
      stopFinding();
      $(link.getAttribute("href")).open = true;
      for (const one of $$(".fn nav a")) one.removeAttribute("aria-current");
      link.setAttribute("aria-current", "true");
    });
  }
}
