// The fields of New run: what is typed goes into the document, and the document's values into the fields.
import { $, $$, el } from "./dom.js";
import { data, state } from "./new_run_state.js";
import { follow, unread } from "./reads.js";
import { at, copy, modelName, pairs, pairsText, put, remove, same } from "./spec.js";

export const inputOf = (pointer) => $(`#spec-form [data-pointer="${CSS.escape(pointer)}"]`);

/** Take a field's value into the document. */
export function take(input) {
  const { pointer, kind } = input.dataset;
  const written = input.value.trim();
  state.bad.delete(pointer);
  if (kind === "variant") choose(input);
  else if (kind === "model" || kind === "dataset") {
    chooseModel(pointer, JSON.parse(input.value));
    showModel(input, at(state.document, pointer));
  } else if (kind === "pairs") {
    const found = pairs(written);
    if (found) put(state.document, pointer, found);
    else state.bad.add(pointer);
  } else if (kind === "list") {
    if (!written) remove(state.document, pointer);
    else if (/^\d+(\s*,\s*\d+)*$/.test(written)) put(state.document, pointer, written.split(",").map(Number));
    else state.bad.add(pointer);
  } else if (kind === "json") takeJson(pointer, written);
  else if (kind === "flag") put(state.document, pointer, input.checked);
  else if (written === "" && "optional" in input.dataset) clear(pointer);
  else if (kind === "text") put(state.document, pointer, written);
  else {
    const value = Number(written.replace(",", "."));
    if (written === "" || !Number.isFinite(value)) state.bad.add(pointer);
    else set(pointer, value);
  }
  followChoice();
}

function takeJson(pointer, written) {
  try {
    put(state.document, pointer, JSON.parse(written));
  } catch {
    state.bad.add(pointer);
  }
}

/** Show what is read since a choice, hide what no longer is. */
function followChoice() {
  const before = state.unread;
  state.unread = follow(state.document, data, before, state.kept);
  const follows = Object.keys(data.like);
  for (const pointer of new Set([...before, ...state.unread, ...follows])) {
    const input = inputOf(pointer);
    if (!input || (!follows.includes(pointer) && before.has(pointer) === state.unread.has(pointer))) continue;
    if (state.unread.has(pointer)) {
      state.bad.delete(pointer);
      input.setAttribute("aria-invalid", "false");
    } // an error of before
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
  const fresh = {
    ...data.unions[root][input.value],
    ...(own?.type === input.value ? own : {}),
    ...state.kept.get(`${root} ${input.value}`),
  };
  for (const name of Object.keys(fresh)) if (name !== "type" && name in before) fresh[name] = before[name];
  put(state.document, root, copy(fresh));
  for (const one of $$(`#spec-form [data-pointer^="${CSS.escape(root)}/"]`)) {
    fill(one);
    state.bad.delete(one.dataset.pointer);
  }
}

/** Whether a document's model is the one that a choice names: it says the same, and may say more. */
const isOf = (model, choice) => Object.keys(choice).every((key) => same(model?.[key], choice[key]));

/** Another model: what the run began with comes back whole, and a factory model keeps its other settings. */
function chooseModel(pointer, choice) {
  const known = [at(state.document, pointer), at(state.base, pointer)];
  const factory = choice.type === "factory" && known.find((model) => model?.type === "factory");
  put(state.document, pointer, copy(known.find((model) => isOf(model, choice)) || { ...factory, ...choice }));
}

/** Choose what a document says. It, and what the run began with, are choices of their own where they are not offered. */
function showModel(input, model) {
  for (const option of $$("[data-own]", input)) option.remove();
  const offered = (one) => [...input.options].find((option) => isOf(one, JSON.parse(option.value)));
  for (const one of [at(state.base, input.dataset.pointer), model])
    if (one && !offered(one))
      input.prepend(el("option", { value: JSON.stringify(one), text: modelName(one), data: { own: "1" } }));
  const chosen = offered(model) || input.options[0];
  input.value = chosen.value;
  input.title = chosen.text;
}

const TARGET = "/budget/target";
function clear(pointer) {
  if (pointer.startsWith(`${TARGET}/`)) put(state.document, TARGET, null);
  else put(state.document, pointer, null);
}
function set(pointer, value) {
  if (pointer.startsWith(`${TARGET}/`) && !at(state.document, TARGET))
    put(state.document, TARGET, { metric: "eval/solved" });
  put(state.document, pointer, value);
}

function fill(input) {
  const value = at(state.document, input.dataset.pointer);
  if (input.dataset.kind === "flag") input.checked = Boolean(value);
  else if (input.dataset.kind === "pairs") input.value = pairsText(value);
  else if (input.dataset.kind === "model" || input.dataset.kind === "dataset") showModel(input, value);
  else if (input.dataset.kind === "json") input.value = JSON.stringify(value);
  else if (input.dataset.kind === "list") input.value = (value || []).join(", ");
  else if (input.dataset.kind === "variant") input.value = value ?? input.options[0].value;
  else input.value = value === null || value === undefined ? "" : String(value);
}

/** Write the document's values into the fields. */
export function fillForm() {
  for (const input of $$("#spec-form [data-pointer]")) fill(input);
  state.unread = unread(state.document, data);
  showRead();
  $("#preset").value = state.preset;
  state.bad.clear();
}

/** Hide what nobody reads; what is refused is seen all the same. */
export function showRead() {
  for (const input of $$("#spec-form [data-pointer]")) {
    const { pointer } = input.dataset;
    if (pointer in data.reads)
      input.closest(".fit").hidden = state.unread.has(pointer) && input.getAttribute("aria-invalid") !== "true";
  }
}
