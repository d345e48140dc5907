// What the page New run was given by the server, what it holds now, and how that is sent.
import { $ } from "./dom.js";
import { copy, overridesOf, templateOf } from "./spec.js";

export const data = JSON.parse($("#new-run-data").textContent);

/**
 * What the page holds. base: what changes are marked against; template: what overrides are sent on top of, null when
 * there is none; unread: settings that no chosen option reads, which are hidden; kept: what was written of them; told:
 * inputs whose errors were shown last time.
 */
export const state = {
  base: copy(data.document),
  template: data.template_document,
  document: copy(data.document),
  preset: data.preset,
  pane: "form",
  bad: new Set(),
  lines: {},
  textErrors: [],
  edited: false,
  valid: false,
  planned: null,
  measuring: false,
  turn: 0,
  unread: new Set(),
  kept: new Map(),
  told: new Set(),
};

/** What the API is asked with: changes on top of the template, or the whole text when it leaves something out. */
export function draft() {
  const name = $("#run-name").value.trim();
  const body = { preset: state.preset, ...(name ? { name } : {}) };
  if (data.parent) return { ...body, template: data.template, spec: state.document };
  const overrides = state.template ? overridesOf(templateOf(state.template, state.document), state.document) : null;
  if (overrides === null) return { ...body, spec: state.document };
  return { ...body, template: data.template, overrides };
}
