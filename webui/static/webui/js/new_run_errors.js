// What the API refuses of New run: beside the field it is about, at its line of the YAML, or above the plan.
import { dots } from "./changes.js";
import { $, $$, el } from "./dom.js";
import { toldAt, wrongOf } from "./fields.js";
import { inputOf, showRead } from "./new_run_fields.js";
import { state } from "./new_run_state.js";
import * as sections from "./sections.js";
import * as yaml from "./yaml_pane.js";

export function showErrors(errors) {
  const inputs = $$("#spec-form [data-pointer]");
  const isUnread = (pointer) => state.unread.has(pointer);
  const places = new Map(errors.map((error) => [error, toldAt(inputs, error.pointer, isUnread)]));
  for (const place of $$("#spec-form [data-error]")) {
    const input = inputOf(place.dataset.error);
    const own = errors.filter((error) => input && places.get(error) === input);
    const wrong = state.bad.has(place.dataset.error);
    place.hidden = !own.length && !wrong;
    place.textContent = wrong
      ? wrongOf(input.dataset.kind)
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
          text: `${error.pointer.slice(1).replaceAll("/", ".")}: ${[error.detail, error.hint].filter(Boolean).join(" ")}`,
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
