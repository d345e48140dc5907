// New run: the form and the YAML are two views of one document; every change is planned by the API, and refusals stand
// beside their field or line.
import { post } from "./api.js";
import { $, $$, el, announce, toast } from "./dom.js";
import { forget, keep, restored, restoreMarks, marks, showMarkErrors } from "./draft.js";
import { measured } from "./measuring.js";
import * as plan from "./plan.js";
import { stale as forecastStale } from "./forecast.js";
import { follow, inWords, unread } from "./reads.js";
import * as sections from "./sections.js";
import { at, copy, overridesOf, pairs, pairsText, put, remove, text } from "./spec.js";
import { changed, changes, dots, begin as beginChanges } from "./changes.js";
import { confirmed } from "./ui.js";
import * as yaml from "./yaml_pane.js";

const data = JSON.parse($("#new-run-data").textContent);
const PLAN_AFTER_MS = 250;
const PREDICT_AFTER_MS = 600;
const PREDICT_LIMIT_MS = 20_000;
const state = { base: copy(data.document), template: data.template_document, document: copy(data.document), preset: data.preset, pane: "form", bad: new Set(), lines: {}, textErrors: [], edited: false, valid: false, planned: null, measuring: false, turn: 0, unread: new Set(), kept: new Map(), told: new Set() };
// base: what changes are marked against; template: what overrides are sent on top of, null when there is none.
// unread: settings nobody reads now, which are hidden; kept: what was written of them; told: errors shown last time.

let timer = null;
const later = () => { clearTimeout(timer); timer = setTimeout(replan, PLAN_AFTER_MS); };

/** What the API is asked with: changes on top of the template, or the whole text when it leaves something out. */
function draft() {
  const name = $("#run-name").value.trim();
  const body = { preset: state.preset, ...(name ? { name } : {}) };
  if (data.parent) return { ...body, template: data.template, spec: state.document };
  const overrides = state.template ? overridesOf(state.template, state.document) : null;
  if (overrides === null) return { ...body, spec: state.document };
  return { ...body, template: data.template, overrides };
}

async function replan() {
  const mine = ++state.turn;
  clearTimeout(ahead);
  forecastStale();
  changes();
  $("#run-name").placeholder = state.document.name || "";
  $("#spec-form").inert = state.textErrors.length > 0; // what it would change is not what the text says
  if (state.textErrors.length) { settle(state.planned, state.textErrors); return; }
  try {
    const asked = draft();
    const found = await post("/api/v1/runs/plan", asked);
    if (mine !== state.turn) return;
    if (!found.errors.length && !state.bad.size) { takePlan(found, asked); predictLater(asked, mine); }
    keep(state, data);
    settle(state.planned, found.errors);
  } catch (error) {
    if (mine !== state.turn) return;
    if (error.errors?.length) settle(state.planned, error.errors);
    else plan.fail(error, replan);
  }
}

/** Keep a plan; what was predicted of the same settings stays with it. */
function takePlan(found, asked) {
  const same = state.plannedFor === text(asked) && state.planned?.prediction;
  state.planned = same ? { ...found, prediction: state.planned.prediction, plan_token: state.planned.plan_token } : found;
  state.plannedFor = text(asked);
  state.predictError = null;
}

let ahead = null;
/** Have the plan simulated once nothing has changed for a moment; an answer to an older question is dropped. */
function predictLater(asked, mine) {
  clearTimeout(ahead);
  if (state.planned.prediction) return;
  ahead = setTimeout(() => predict(asked, mine), PREDICT_AFTER_MS);
}

async function predict(asked, mine) {
  try {
    const found = await post("/api/v1/runs/plan", { ...asked, predict: true }, crypto.randomUUID(), PREDICT_LIMIT_MS);
    if (mine !== state.turn || found.errors.length) return;
    state.planned = found;
  } catch (error) {
    if (mine !== state.turn) return;
    state.predictError = error;
  }
  settle(state.planned, []);
}

/** Have these models measured by a short run, then simulate the plan anew. */
async function measure(event) {
  event.currentTarget.disabled = true;
  state.measuring = true;
  try {
    const run = await measured(draft(), plan.measuring);
    if (run.status === "completed") toast(`${run.key} has measured these models.`, { tone: "ok" });
  } catch (error) {
    plan.notMeasured(error);
  }
  state.measuring = false;
  state.plannedFor = null;
  replan();
}

/** Fill the form with a split of the devices that the plan advises. */
function takeSplit(split) {
  for (const { pointer, value } of split) put(state.document, pointer, value);
  fillForm();
  if (state.pane !== "form") open("form");
  const first = inputOf(split[0].pointer);
  if (first) { sections.reveal(first); first.focus(); }
  announce("The split is in the form; the plan follows");
  later();
}

function settle(found, errors) {
  state.valid = !errors.length && !state.bad.size;
  const retry = () => { state.predictError = null; settle(state.planned, []); predict(draft(), state.turn); };
  if (found) plan.show(found, { agents: data.agents, stale: !state.valid, ahead: { causes: data.causes, error: state.predictError, retry, measure, measuring: state.measuring, take: takeSplit } });
  else plan.none();
  showErrors(errors);
  const start = $("#start");
  start.setAttribute("aria-disabled", String(!state.valid));
  start.textContent = found && state.valid && !found.devices?.fits_now ? "Queue run" : "Start run";
  $("#keep").setAttribute("aria-disabled", String(!state.valid));
  start.title = $("#keep").title = state.valid ? "" : notYet(errors);
}

/** Say why a run cannot start: the first error, and how many more there are. */
function notYet([first, ...others]) {
  if (!first) return "The specification has errors.";
  return `${first.detail}${others.length ? ` ${others.length} more ${others.length === 1 ? "value is" : "values are"} not right yet.` : ""}`;
}

const WRONG = { pairs: "Enter name: value pairs separated by commas.", list: "Enter whole numbers separated by commas, for example 0, 1." };
const inputOf = (pointer) => $(`#spec-form [data-pointer="${CSS.escape(pointer)}"]`);
const KINDS_INSIDE = ["pairs", "list"];
/** Where an error is told: at the input of its pointer, of what it lies inside of, or at the first below an object. */
function toldAt(pointer) {
  const inputs = $$("#spec-form [data-pointer]");
  return inputOf(pointer) || inputs.find((input) => KINDS_INSIDE.includes(input.dataset.kind) && pointer.startsWith(`${input.dataset.pointer}/`))
    || (pointer ? inputs.find((input) => input.dataset.pointer.startsWith(`${pointer}/`) && !state.unread.has(input.dataset.pointer)) : undefined);
}

function showErrors(errors) {
  const places = new Map(errors.map((error) => [error, toldAt(error.pointer)]));
  for (const place of $$("#spec-form [data-error]")) {
    const input = inputOf(place.dataset.error);
    const own = errors.filter((error) => input && places.get(error) === input);
    const wrong = state.bad.has(place.dataset.error);
    place.hidden = !own.length && !wrong;
    place.textContent = wrong ? WRONG[input.dataset.kind] || "Write a number." : own.map((error) => [error.detail, error.hint].filter(Boolean).join(" ")).join(" ");
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

/** Hide what nobody reads; what is refused is seen all the same. */
function showRead() {
  for (const input of $$("#spec-form [data-pointer]")) {
    const { pointer } = input.dataset;
    if (pointer in data.reads) input.closest(".fit").hidden = state.unread.has(pointer) && input.getAttribute("aria-invalid") !== "true";
  }
}

/** A section with an error that was missing before opens itself; one that is closed in spite of it stays closed. */
function openWrong() {
  const wrong = $$("#spec-form [aria-invalid=true]");
  for (const input of wrong) if (!state.told.has(input.id)) sections.reveal(input);
  state.told = new Set(wrong.map((input) => input.id));
}

/** Lead whoever wants to start to the first thing that is not right. */
function showWrong() {
  if (state.pane === "changes") open("form");
  if (state.pane === "yaml" || state.textErrors.length) { open("yaml"); yaml.focus(); return; }
  const input = $("#spec-form [aria-invalid=true]");
  if (input) sections.reveal(input);
  (input || $("#lost"))?.focus();
}

function announceLost(errors) {
  $("#plan-body").before(el("ul", { id: "lost", class: "yerrs", tabindex: "-1" }, ...errors.map((error) => el("li", { text: [error.pointer.slice(1).replaceAll("/", "."), error.detail, error.hint].filter(Boolean).join(": ") }))));
}

/** Take a field's value into the document. */
function take(input) {
  const { pointer, kind } = input.dataset;
  const written = input.value.trim();
  state.bad.delete(pointer);
  if (kind === "variant") choose(input);
  else if (kind === "pairs") {
    const found = pairs(written);
    if (found) put(state.document, pointer, found);
    else state.bad.add(pointer);
  } else if (kind === "list") {
    if (!written) remove(state.document, pointer);
    else if (/^\d+(\s*,\s*\d+)*$/.test(written)) put(state.document, pointer, written.split(",").map(Number));
    else state.bad.add(pointer);
  } else if (kind === "flag") put(state.document, pointer, input.checked);
  else if (written === "" && "optional" in input.dataset) clear(pointer);
  else if (kind === "text") put(state.document, pointer, written);
  else {
    const value = Number(written.replace(",", "."));
    if (written === "" || !Number.isFinite(value)) state.bad.add(pointer);
    else set(pointer, value);
  }
  followChoice();
  later();
}

/** Show what is read since a choice, hide what no longer is. */
function followChoice() {
  const before = state.unread;
  state.unread = follow(state.document, data, before, state.kept);
  const follows = Object.keys(data.like);
  for (const pointer of new Set([...before, ...state.unread, ...follows])) {
    const input = inputOf(pointer);
    if (!input || (!follows.includes(pointer) && before.has(pointer) === state.unread.has(pointer))) continue;
    if (state.unread.has(pointer)) { state.bad.delete(pointer); input.setAttribute("aria-invalid", "false"); } // an error of before
    if (!state.bad.has(pointer)) fill(input);
  }
  showRead();
}

/** Another type of an object: what both types have is kept, what was written for it before comes back. */
function choose(input) {
  const root = input.dataset.pointer.replace(/\/type$/, "");
  const before = at(state.document, root) || {};
  const own = at(state.base, root);
  state.kept.set(`${root} ${before.type}`, before);
  const fresh = { ...data.unions[root][input.value], ...(own?.type === input.value ? own : {}), ...state.kept.get(`${root} ${input.value}`) };
  for (const name of Object.keys(fresh)) if (name !== "type" && name in before) fresh[name] = before[name];
  put(state.document, root, copy(fresh));
  for (const one of $$(`#spec-form [data-pointer^="${CSS.escape(root)}/"]`)) { fill(one); state.bad.delete(one.dataset.pointer); }
}

const TARGET = "/budget/target";
function clear(pointer) {
  if (pointer.startsWith(`${TARGET}/`)) put(state.document, TARGET, null);
  else put(state.document, pointer, null);
}
function set(pointer, value) {
  if (pointer.startsWith(`${TARGET}/`) && !at(state.document, TARGET)) put(state.document, TARGET, { metric: "eval/solved" });
  put(state.document, pointer, value);
}

function fill(input) {
  const value = at(state.document, input.dataset.pointer);
  if (input.dataset.kind === "flag") input.checked = Boolean(value);
  else if (input.dataset.kind === "pairs") input.value = pairsText(value);
  else if (input.dataset.kind === "list") input.value = (value || []).join(", ");
  else if (input.dataset.kind === "variant") input.value = value ?? input.options[0].value;
  else input.value = value === null || value === undefined ? "" : String(value);
}

/** Write the document's values into the fields. */
function fillForm() {
  for (const input of $$("#spec-form [data-pointer]")) fill(input);
  state.unread = unread(state.document, data);
  showRead();
  $("#preset").value = state.preset;
  state.bad.clear();
}

// Tabs, name, start --------------------------------------------------------------------------------------------------
const TABS = ["form", "yaml", "changes"];
for (const name of TABS) {
  const tab = $(`#tab-${name}`);
  tab.addEventListener("click", () => open(name));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) { const next = TABS[(TABS.indexOf(name) + step + 3) % 3]; open(next); $(`#tab-${next}`).focus(); }
  });
}

function open(name) {
  state.pane = name;
  for (const one of TABS) {
    $(`#tab-${one}`).setAttribute("aria-selected", String(one === name));
    $(`#tab-${one}`).tabIndex = one === name ? 0 : -1;
    $(`#pane-${one}`).hidden = one !== name;
  }
  if (name === "yaml" && !state.textErrors.length) yaml.show();
  if (name === "form") { if (!state.textErrors.length) fillForm(); later(); }
}

/** A preset brings its own mechanisms: they become the base, and what was changed of the old ones is dropped. */
async function usePreset() {
  const { mechanisms, ...rest } = state.document;
  const body = state.template ? { template: data.template } : { spec: rest };
  try {
    const found = await post("/api/v1/runs/plan", { ...body, preset: state.preset });
    const fresh = found.spec?.mechanisms || mechanisms;
    for (const document of [state.base, state.document, state.template]) if (document) document.mechanisms = copy(fresh);
    fillForm();
    if (state.pane === "yaml") yaml.show();
  } catch (error) {
    toast(error.message, { tone: "bad", detail: error.requestId });
  }
  later();
}

$("#spec-form").addEventListener("input", (event) => { if (event.target.dataset.pointer) take(event.target); });
$("#spec-form").addEventListener("submit", (event) => event.preventDefault());
$("#preset").addEventListener("change", (event) => {
  state.preset = event.target.value;
  usePreset();
});
$("#run-name").addEventListener("input", later);
$("#discard").addEventListener("click", async () => {
  const count = changed();
  const lost = count ? `${count} change${count === 1 ? "" : "s"}` : "Your input";
  const asked = { title: "Discard changes?", text: `${lost} and the saved draft of this page are lost.`, primary: "Discard changes" };
  if ((count || state.edited || state.textErrors.length || state.bad.size) && !(await confirmed(asked))) return;
  Object.assign(state, { document: copy(data.document), preset: data.preset, textErrors: [], edited: false });
  state.kept.clear();
  forget(data);
  fillForm();
  usePreset();
  announce("Changes discarded");
});

/** Plan what was changed a moment ago, so that its run is not refused. False when the plan is then another decision. */
async function upToDate() {
  if (yaml.unreadText()) await yaml.read();
  if (!state.valid) return false;
  if (state.planned && state.plannedFor === text(draft())) return true;
  const fitted = state.planned?.devices?.fits_now;
  clearTimeout(timer);
  await replan();
  if (!state.valid || state.plannedFor !== text(draft())) return false;
  if (state.planned.devices?.fits_now === fitted) return true;
  toast("Devices changed since the plan. Check the plan and press again.");
  return false;
}

/** Make the run as it was planned; what changed since is shown and planned again. */
async function make(button, start) {
  if (!state.valid) { showWrong(); return; }
  button.disabled = true;
  if (!await upToDate()) { button.disabled = false; return; }
  const path = data.parent ? `/api/v1/runs/${data.parent.id}/actions/${data.fork ? "fork" : "clone"}` : "/api/v1/runs";
  const begins = data.fork ? { checkpoint: data.fork.checkpoint, take: $("#fork-take").value } : {};
  try {
    const run = await post(path, { ...draft(), ...marks(), ...begins, start, plan_token: state.planned.plan_token });
    forget(data);
    location.assign(run.web_url);
  } catch (error) {
    if (error.problem?.code === "plan_stale") { state.planned = { ...state.planned, prediction: null }; replan(); } // what it said holds no more, nor does its token
    else if (error.errors.length) { showMarkErrors(error.errors); settle(state.planned, error.errors.filter((one) => one.location === "spec")); showWrong(); }
    toast(error.message, { tone: "bad", detail: error.requestId });
  } finally {
    button.disabled = false;
  }
}
$("#start").addEventListener("click", (event) => make(event.currentTarget, true));
$("#keep").addEventListener("click", (event) => make(event.currentTarget, false));
$("#g-run").addEventListener("input", () => { showMarkErrors([]); sections.summariseMarks(); keep(state, data); });

const nameOf = (pointer) => inputOf(pointer)?.closest(".fit").dataset.label || pointer.split("/").at(-1);
sections.begin(data.parent ? data.parent.key : data.template, (pointer) => (data.reads[pointer] ? inWords(data.reads[pointer], nameOf) : "it is visible in its section"));
beginChanges(state, data);
yaml.begin(state, replan);
const old = restored(data);
if (old) {
  Object.assign(state, { document: old.document, preset: old.preset });
  $("#run-name").value = old.name;
  restoreMarks(old.marks);
  toast(`Your draft of ${old.at} is back. Discard changes to start over.`);
}
fillForm();
replan();
