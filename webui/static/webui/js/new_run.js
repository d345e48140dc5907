// New run: the form and the YAML are two views of one document; every change is planned by the API, and refusals stand
// beside their field or line. This module joins the parts of the page.
import { post } from "./api.js";
import { begin as beginChoosing } from "./choose_devices.js";
import { begin as beginChanges, changed } from "./changes.js";
import { $, $$, announce, toast } from "./dom.js";
import { forget, keep, restored, restoreMarks, showMarkErrors } from "./draft.js";
import { fillForm, inputOf, take } from "./new_run_fields.js";
import { make } from "./new_run_making.js";
import { takeSplit } from "./new_run_panes.js";
import { begin as beginPlanning, later, replan } from "./new_run_planning.js";
import { data, state } from "./new_run_state.js";
import { inWords } from "./reads.js";
import * as sections from "./sections.js";
import { copy, put } from "./spec.js";
import { confirmed } from "./ui.js";
import * as yaml from "./yaml_pane.js";

/** A preset brings its own mechanisms: they become the base, and what was changed of the old ones is dropped. */
async function usePreset() {
  const { mechanisms, ...rest } = state.document;
  const body = state.template ? { template: data.template } : { spec: rest };
  const since = yaml.typedSoFar();
  try {
    const found = await post("/api/v1/runs/plan", { ...body, preset: state.preset });
    const fresh = found.spec?.mechanisms || mechanisms;
    const typed = yaml.typedSoFar() !== since;
    for (const document of [state.base, state.template, typed ? null : state.document])
      if (document) document.mechanisms = copy(fresh);
    fillForm();
    if (state.pane === "yaml") yaml.show(since);
  } catch (error) {
    toast(error.message, { tone: "bad", detail: error.requestId });
  }
  later();
}

$("#spec-form").addEventListener("input", (event) => {
  if (!event.target.dataset.pointer) return;
  take(event.target);
  later();
});
$("#spec-form").addEventListener("submit", (event) => event.preventDefault());
$("#preset").addEventListener("change", (event) => {
  state.preset = event.target.value;
  usePreset();
});
$("#run-name").addEventListener("input", later);
$("#discard").addEventListener("click", async () => {
  const count = changed();
  const lost = count ? `${count} change${count === 1 ? "" : "s"}` : "Your input";
  const asked = {
    title: "Discard changes?",
    text: `${lost} and the saved draft of this page are lost.`,
    primary: "Discard changes",
  };
  if ((count || state.edited || state.textErrors.length || state.bad.size) && !(await confirmed(asked))) return;
  Object.assign(state, { document: copy(data.document), preset: data.preset, textErrors: [], edited: false });
  state.kept.clear();
  forget(data);
  fillForm();
  usePreset();
  announce("Changes discarded");
});

$("#start").addEventListener("click", (event) => make(event.currentTarget, true));
$("#keep").addEventListener("click", (event) => make(event.currentTarget, false));
$("#g-run").addEventListener("input", () => {
  showMarkErrors([]);
  sections.summariseMarks();
  keep(state, data);
});

const nameOf = (pointer) => inputOf(pointer)?.closest(".fit").dataset.label || pointer.split("/").at(-1);
sections.begin(data.parent ? data.parent.key : data.template, (pointer) =>
  data.reads[pointer] ? inWords(data.reads[pointer], nameOf) : "it is visible in its section",
);
beginChanges(state, data);
beginPlanning({ split: takeSplit });
beginChoosing(takeSplit);
yaml.begin(state, replan);
const old = restored(data);
if (old) {
  Object.assign(state, { document: old.document, preset: old.preset });
  $("#run-name").value = old.name;
  restoreMarks(old.marks);
  toast(`Your draft of ${old.at} is back. Discard changes to start over.`);
}
if (data.model)
  for (const { dataset } of $$("#spec-form [data-kind=model]")) put(state.document, dataset.pointer, copy(data.model));
if (data.dataset && inputOf("/environment/dataset")) {
  const { named, held_out } = data.dataset;
  put(state.document, "/environment/dataset", { ...state.document.environment.dataset, ...named });
  // A template may evaluate more rows than this dataset holds out.
  const { evaluation } = state.document;
  if (held_out && evaluation.tasks > held_out) put(state.document, "/evaluation/tasks", held_out);
}
fillForm();
replan();
