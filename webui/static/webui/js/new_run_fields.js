// The fields of New run: what is typed goes into the document, and the document's values into the fields.
import { $, $$ } from "./dom.js";
import { BAD, modelOf, showIn, showModel, valueIn } from "./fields.js";
import { data, state } from "./new_run_state.js";
import { bound, follow, unread } from "./reads.js";
import { at, copy, put, remove } from "./spec.js";

export const inputOf = (pointer) => $(`#spec-form [data-pointer="${CSS.escape(pointer)}"]`);

/** Take a field's value into the document. */
export function take(input) {
  const { pointer, kind } = input.dataset;
  state.bad.delete(pointer);
  if (kind === "variant") choose(input);
  else if (kind === "model" || kind === "dataset") {
    const known = [at(state.document, pointer), at(state.base, pointer)];
    put(state.document, pointer, copy(modelOf(JSON.parse(input.value), known)));
    fill(input);
  } else {
    const value = valueIn(input);
    if (value === BAD) state.bad.add(pointer);
    else if (value !== undefined) set(pointer, value);
    else if (kind === "list") remove(state.document, pointer);
    else clear(pointer);
  }
  bound(state.document, data, pointer, state.kept);
  followChoice();
}

/** Show what is read since a choice, hide what no longer is. */
function followChoice() {
  const before = state.unread;
  state.unread = follow(state.document, data, before, state.kept);
  const follows = [...Object.keys(data.like), ...Object.keys(data.bounds)];
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

/** Objects that may be absent, of which the form has one field, with what stands beside it. */
const ABSENT = { "/budget/target": { metric: "eval/solved" }, "/sampling/replay/begins_with": {} };
const absentAbove = (pointer) => Object.keys(ABSENT).find((root) => pointer.startsWith(`${root}/`));
function clear(pointer) {
  put(state.document, absentAbove(pointer) ?? pointer, null);
}
function set(pointer, value) {
  const root = absentAbove(pointer);
  if (root && !at(state.document, root)) put(state.document, root, copy(ABSENT[root]));
  put(state.document, pointer, value);
}

function fill(input) {
  const { pointer, kind } = input.dataset;
  const value = at(state.document, pointer);
  if (kind === "model" || kind === "dataset") showModel(input, value, [at(state.base, pointer)]);
  else showIn(input, value === null && "optional" in input.dataset ? undefined : value); // no value is written as none
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
