// The YAML of a new run: the same document as text, with the line of each value and of each error. A text that leaves
// sections out means what it means over REST: they are the template's.
import { post } from "./api.js";
import { $, el, toast } from "./dom.js";
import { completed, copy, differences } from "./spec.js";

const READ_AFTER_MS = 250;
const area = $("#yaml");
const textUrl = $("#new-run").dataset.textUrl;
let typed = null;
let strokes = 0;
let reads = 0;
let state;
let replan;

/** `page` is the state of the page, `then` plans what was read. */
export function begin(page, then) {
  state = page;
  replan = then;
  area.addEventListener("input", () => {
    state.edited = true;
    strokes += 1;
    numberLines();
    clearTimeout(typed);
    typed = setTimeout(read, READ_AFTER_MS);
  });
}

export const focus = () => area.focus();
/** Whether something was typed that was not read yet. */
export const unreadText = () => typed !== null;

/** How often something was typed. What is typed while an answer is on its way stays as it is. */
export const typedSoFar = () => strokes;

/** Write the document as text, unless something was typed since then. */
export async function show(since = strokes) {
  try {
    const found = await post(textUrl, { spec: state.document });
    if (strokes !== since) return;
    area.value = found.yaml;
    state.lines = found.lines;
    sparse([]);
    numberLines();
  } catch (error) {
    toast(error.message, { tone: "bad", detail: error.requestId });
  }
}

function numberLines(wrong = new Set()) {
  const changed = new Set(differences(state.base, state.document).map(([pointer]) => lineOf(pointer)));
  const count = area.value.split("\n").length;
  $("#yaml-lines").replaceChildren(
    ...Array.from({ length: count }, (_, i) =>
      el("div", { class: `ln${changed.has(i) ? " chg" : ""}${wrong.has(i) ? " err" : ""}` }),
    ),
  );
}

function lineOf(pointer) {
  for (let here = pointer; here; here = here.slice(0, here.lastIndexOf("/")))
    if (here in state.lines) return state.lines[here];
  return 0;
}

export function showErrors(errors) {
  const list = $("#yaml-errors");
  list.hidden = !errors.length;
  list.replaceChildren(
    ...errors.map((error) =>
      el("li", {
        text: `${error.pointer && error.pointer !== "" ? `Line ${lineOf(error.pointer) + 1}, ${error.pointer.slice(1).replaceAll("/", ".")}: ` : ""}${[error.detail, error.hint].filter(Boolean).join(" ")}`,
      }),
    ),
  );
  if (state.pane === "yaml")
    numberLines(new Set(errors.filter((error) => error.pointer).map((error) => lineOf(error.pointer))));
}

/** Say which sections a text leaves out. */
function sparse(missing) {
  const place = $("#yaml-sparse");
  place.hidden = !missing.length;
  place.textContent = missing.length ? `Not in the text, so taken from the template: ${missing.join(", ")}.` : "";
}

/** Read the text into the document and plan it. */
export async function read() {
  clearTimeout(typed);
  typed = null;
  const mine = ++reads;
  state.turn += 1; // a plan of what was there before is none any more
  try {
    const found = await post(textUrl, { yaml: area.value });
    if (mine !== reads) return; // a later one reads the newer text
    state.textErrors = found.errors;
    if (found.spec) {
      const whole = state.base;
      const missing = Object.keys(whole).filter((name) => !(name in found.spec) && name !== "name");
      Object.assign(state, {
        document: missing.length ? completed(copy(whole), found.spec) : found.spec,
        lines: found.lines,
      });
      state.bad.clear();
      sparse(missing);
    }
    await replan();
  } catch (error) {
    toast(error.message, { tone: "bad", detail: error.requestId });
  }
}
