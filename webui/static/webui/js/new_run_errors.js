// What the API refuses of New run: beside the field it is about, at its line of the YAML, or above the plan.
import { dots } from "./changes.js";
import { $, $$, el } from "./dom.js";
import { inputOf, showRead } from "./new_run_fields.js";
import { state } from "./new_run_state.js";
import * as sections from "./sections.js";
import * as yaml from "./yaml_pane.js";

const WRONG = {
  pairs: "Enter name: value pairs separated by commas.",
  list: "Enter whole numbers separated by commas, for example 0, 1.",
};

const KINDS_INSIDE = ["pairs", "list", "model"];
/** Where an error is told: at the input of its pointer, of what it lies inside of, or at the first below an object. */
function toldAt(pointer) {
  const inputs = $$("#spec-form [data-pointer]");
  return (
    inputOf(pointer) ||
    inputs.find(
      (input) => KINDS_INSIDE.includes(input.dataset.kind) && pointer.startsWith(`${input.dataset.pointer}/`),
    ) ||
    (pointer
      ? inputs.find(
          (input) => input.dataset.pointer.startsWith(`${pointer}/`) && !state.unread.has(input.dataset.pointer),
        )
      : undefined)
  );
}

export function showErrors(errors) {
  const places = new Map(errors.map((error) => [error, toldAt(error.pointer)]));
  for (const place of $$("#spec-form [data-error]")) {
    const input = inputOf(place.dataset.error);
    const own = errors.filter((error) => input && places.get(error) === input);
    const wrong = state.bad.has(place.dataset.error);
    place.hidden = !own.length && !wrong;
    place.textContent = wrong
      ? WRONG[input.dataset.kind] || "Write a number."
      : own.map((error) => [error.detail, error.hint].filter(Boolean).join(" ")).join(" ");
    if (input) input.setAttribute("aria-invalid", String(!place.hidden));
  }
  const count = errors.length + state.bad.size;
  $("#error-count").hidden = !count;
  $("#error-count span").textContent = `${count} error${count === 1 ? "" : "s"}`;
  showRead();
  openWrong();
  dots();
  yaml.showErrors(errors);
  const lost = errors.filter((error) => !places.get(error));
  $("#lost")?.remove();
  if (lost.length && state.pane === "form") announceLost(lost);
}

/** A section with an error that was missing before opens itself; one that is closed in spite of it stays closed. */
function openWrong() {
  const wrong = $$("#spec-form [aria-invalid=true]");
  for (const input of wrong) if (!state.told.has(input.id)) sections.reveal(input);
  state.told = new Set(wrong.map((input) => input.id));
}

function announceLost(errors) {
  $("#plan-body").before(
    el(
      "ul",
      { id: "lost", class: "yerrs", tabindex: "-1" },
      ...errors.map((error) =>
        el("li", {
          text: [error.pointer.slice(1).replaceAll("/", "."), error.detail, error.hint].filter(Boolean).join(": "),
        }),
      ),
    ),
  );
}

/** Say why a run cannot start: the first error, and how many more there are. */
export function notYet([first, ...others]) {
  if (!first) return "The specification has errors.";
  return `${first.detail}${others.length ? ` ${others.length} more ${others.length === 1 ? "value is" : "values are"} not right yet.` : ""}`;
}
