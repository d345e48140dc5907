// The YAML of a team: read by the server while one writes; what would be refused stands below the text with its line.
import { $, el } from "./dom.js";
import { ask, form } from "./team_state.js";

const area = form.elements.settings;
const PAUSE_MS = 250;
let lines = {};
let waits;
let unread = false;

/** `then` is called a moment after something was typed. */
export function begin(then) {
  area.addEventListener("input", () => {
    unread = true;
    clearTimeout(waits);
    waits = setTimeout(then, PAUSE_MS);
  });
}

export const focus = () => area.focus();
/** Whether something was typed that was not read yet. */
export const isUnread = () => unread;

/** Read the text: what it says, null where that cannot be read, and why. */
export async function read() {
  clearTimeout(waits);
  const given = area.value;
  const found = await ask(form.dataset.textUrl, { yaml: given });
  if (area.value === given) unread = false;
  lines = found.lines;
  return { settings: found.spec, errors: found.errors };
}

/** Write settings as text. */
export async function write(settings) {
  const found = await ask(form.dataset.textUrl, { spec: settings });
  area.value = found.yaml;
  lines = found.lines;
}

/** Say what is wrong, each with the line that it stands in. */
export function tell(problems) {
  const list = $("#problems");
  list.hidden = !problems.length;
  list.replaceChildren(
    ...problems.map(({ pointer, detail, hint }) => {
      let here = pointer;
      while (here && !(here in lines)) here = here.slice(0, here.lastIndexOf("/"));
      const where = here ? `Line ${lines[here] + 1}, ${pointer.slice(1).replaceAll("/", ".")}: ` : "";
      return el("li", { text: where + [detail, hint].filter(Boolean).join(" ") });
    }),
  );
  area.toggleAttribute("aria-invalid", problems.length > 0);
}
