// What the page of a team was given, and what it holds now.
import { post } from "./api.js";
import { $ } from "./dom.js";
import { copy } from "./spec.js";
import { closed, opened, unshowable } from "./team_value.js";

export const form = $("#team-form");
export const data = JSON.parse($("#team-data").textContent);

/** How long an answer is waited for: a busy server is late, and nothing is lost meanwhile. */
export const PATIENCE_MS = 60_000;
const AGAIN_MS = 2_000;
/** Call again a moment later: what failed once is tried until something newer takes its place. */
export const again = (call) => setTimeout(call, AGAIN_MS);

/** Ask the server what a part of the page shows of what is edited. */
export const ask = (url, body) => post(url, body, crypto.randomUUID(), PATIENCE_MS);

/**
 * What the page holds. value: the settings as the form edits them, null while the YAML cannot be read or shown; pane: the
 * one that is open; bad: pointers of fields whose text cannot be read; kept: what was written for choices of before;
 * written: what the YAML says as it stands; turn: counts changes, so that an older answer changes nothing.
 */
export const state = {
  value: null,
  pane: form.dataset.pane,
  bad: new Map(),
  kept: new Map(),
  written: data.settings,
  refused: [],
  turn: 0,
};

/** Take settings from the YAML. */
export function take(given) {
  state.written = given;
  state.value = given && !unshowable(given) ? opened(given, data.kinds) : null;
  state.first = state.value && copy(state.value);
}

/** The settings as they would be saved: as written where nothing was changed in the form. */
export function settings() {
  if (state.value === null) return state.written;
  const isChanged = JSON.stringify(state.value) !== JSON.stringify(state.first);
  return isChanged ? closed(state.value, data.kinds) : state.written;
}
