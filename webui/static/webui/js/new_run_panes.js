// The three panes of New run (form, YAML, changes), and what leads from one to another.
import { $, announce } from "./dom.js";
import { fillForm, inputOf } from "./new_run_fields.js";
import { standIn } from "./new_run_graph.js";
import { later } from "./new_run_planning.js";
import { state } from "./new_run_state.js";
import * as sections from "./sections.js";
import { put } from "./spec.js";
import * as yaml from "./yaml_pane.js";

const TABS = ["form", "yaml", "changes"];
for (const name of TABS) {
  const tab = $(`#tab-${name}`);
  tab.addEventListener("click", () => open(name));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) {
      const next = TABS[(TABS.indexOf(name) + step + 3) % 3];
      open(next);
      $(`#tab-${next}`).focus();
    }
  });
}

export function open(name) {
  state.pane = name;
  for (const one of TABS) {
    $(`#tab-${one}`).setAttribute("aria-selected", String(one === name));
    $(`#tab-${one}`).tabIndex = one === name ? 0 : -1;
    $(`#pane-${one}`).hidden = one !== name;
  }
  standIn(name);
  if (name === "yaml" && !state.textErrors.length) yaml.show();
  if (name === "form") {
    if (!state.textErrors.length) fillForm();
    later();
  }
}

/** Lead whoever wants to start to the first thing that is not right. */
export function showWrong() {
  if (state.pane === "changes") open("form");
  if (state.pane === "yaml" || state.textErrors.length) {
    open("yaml");
    yaml.focus();
    return;
  }
  const input = $("#spec-form [aria-invalid=true]");
  if (input) sections.reveal(input);
  (input || $("#lost"))?.focus();
}

/** Fill the form with a split of the devices that the plan advises. */
export function takeSplit(split) {
  for (const { pointer, value } of split) put(state.document, pointer, value);
  fillForm();
  if (state.pane !== "form") open("form");
  const first = inputOf(split[0].pointer);
  if (first) {
    sections.reveal(first);
    first.focus();
  }
  announce("The split is in the form; the plan follows");
  later();
}
