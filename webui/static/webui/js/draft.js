// What a person has written into New run and not yet made: kept in this browser per template or original, and the marks
// beside the specification (project, priority, experiment, tags, notes).
import { $, $$ } from "./dom.js";

const keyOf = (data) => `new-run:${data.parent ? data.parent.key : data.template}`;
const MARKS = "#g-run [data-mark]";

/** The marks as the API takes them; what is left empty is left out. */
export function marks() {
  const found = {};
  for (const input of $$(MARKS)) {
    const text = input.value.trim();
    if (!text) continue;
    if (input.dataset.mark === "tags")
      found.tags = text
        .split(",")
        .map((one) => one.trim())
        .filter(Boolean);
    else if (input.dataset.mark === "priority") found.priority = /^\d+$/.test(text) ? Number(text) : text;
    else found[input.dataset.mark] = text;
  }
  return found;
}

function written() {
  return Object.fromEntries($$(MARKS).map((input) => [input.dataset.mark, input.value]));
}

export function restoreMarks(values = {}) {
  for (const input of $$(MARKS)) {
    const value = values[input.dataset.mark];
    if (value === undefined) continue;
    if (input.localName === "select" && ![...input.options].some((option) => option.value === value)) continue;
    input.value = value;
  }
}

export function showMarkErrors(errors) {
  for (const place of $$("[data-mark-error]")) {
    const own = errors.filter((error) => error.pointer.startsWith(place.dataset.markError));
    place.hidden = !own.length;
    place.textContent = own.map((error) => [error.detail, error.hint].filter(Boolean).join(" ")).join(" ");
    $(`[aria-describedby~="${place.id}"]`)?.setAttribute("aria-invalid", String(own.length > 0));
  }
}

let begun = null; // what the page looked like when it was opened: nothing is kept until something differs

export function keep(state, data) {
  const now = { document: state.document, preset: state.preset, name: $("#run-name").value, marks: written() };
  const text = JSON.stringify(now);
  if (begun === null) begun = text;
  if (begun === text && !restored(data)) return;
  const at = new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  try {
    localStorage.setItem(keyOf(data), JSON.stringify({ ...now, at, base: JSON.stringify(data.document) }));
    $("#draft-saved").textContent = `, draft saved ${at}`;
  } catch {
    /* storage may be full or forbidden: the page still works, the draft ends with it */
  }
}

export function forget(data) {
  begun = null;
  $("#draft-saved").textContent = "";
  try {
    localStorage.removeItem(keyOf(data));
  } catch {
    /* nothing was kept then */
  }
}

/** The draft of this template or original; null when there is none, or the template has changed since. */
export function restored(data) {
  try {
    const found = JSON.parse(localStorage.getItem(keyOf(data)));
    return found && found.base === JSON.stringify(data.document) ? found : null;
  } catch {
    return null;
  } // storage may be forbidden, or hold something else
}
