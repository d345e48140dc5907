// The editor of a team: a form and YAML edit the same settings. The server checks them while one writes, the drawing
// follows, and what would be refused stands beside its field or at its line. This module joins the parts of the page.
import { $, toast } from "./dom.js";
import { askBeforeLeaving } from "./leaving.js";
import { saveOnSubmit } from "./saved_version.js";
import * as drawing from "./team_drawing.js";
import * as fields from "./team_form.js";
import { again, ask, data, form, settings, state, take } from "./team_state.js";
import * as text from "./team_text.js";
import { unshowable } from "./team_value.js";

const PAUSE_MS = 250;
const TABS = ["form", "yaml"];
let waits;

/** Show what is wrong in the pane that is open. */
function tell(problems) {
  state.refused = problems.map((one) => ({ ...one, pointer: one.pointer.replace(/^\/settings/, "") }));
  if (state.pane === "form") fields.tell(state.refused);
  else text.tell(state.refused);
  const count = state.refused.length + state.bad.size;
  $("#checked").textContent = count ? `${count} to correct` : "";
}

/** Check and draw settings; returns them, null where they would be refused. An older answer changes nothing. */
async function check(given, mine) {
  const [{ refused }] = await Promise.all([ask(form.dataset.checkUrl, { settings: given }), drawing.draw(given)]);
  if (mine !== state.turn) return null;
  tell(refused);
  return refused.length || state.bad.size ? null : given;
}

/** Read the pane that is open. */
async function read() {
  clearTimeout(waits);
  const mine = ++state.turn;
  if (state.pane === "form") return check(settings(), mine);
  const found = await text.read();
  if (mine !== state.turn) return null;
  take(found.settings);
  if (found.settings) return check(found.settings, mine);
  tell(found.errors);
  return null;
}

function later() {
  askBeforeLeaving();
  cannot("");
  state.turn += 1; // what was asked before says nothing of this
  clearTimeout(waits);
  waits = setTimeout(readOn, PAUSE_MS);
}

/** Read until it succeeds or something else is written; saving says what goes wrong. */
async function readOn() {
  const mine = state.turn + 1;
  try {
    await read();
  } catch {
    again(() => mine === state.turn && readOn());
  }
}

/** Say what saving refused of the settings; returns the other refusals. */
function ofSettings(errors) {
  const own = errors.filter(({ pointer }) => pointer.startsWith("/settings"));
  if (own.length) tell(own);
  return errors.filter((one) => !own.includes(one));
}

async function checked() {
  const found = await read();
  if (found !== null) return found;
  if (state.pane === "form") fields.showWrong();
  else text.focus();
  return null;
}

/** Say why the YAML cannot be shown as a form. */
function cannot(why) {
  $("#cannot").textContent = why;
  $("#cannot").hidden = !why;
}

async function toForm() {
  if (text.isUnread() || state.written === null) await read();
  const why = state.written ? unshowable(state.written) : "it cannot be read";
  cannot(why && `The form cannot show this YAML: ${why}. Correct it first.`);
  if (why) return false;
  await fields.follow();
  return true;
}

async function toText() {
  if (state.bad.size) {
    fields.showWrong();
    toast("Correct the marked field first.", { tone: "bad" });
    return false;
  }
  const now = settings();
  if (JSON.stringify(now) !== JSON.stringify(state.written)) {
    await text.write(now);
    take(now);
  }
  return true;
}

async function show(name) {
  if (name === state.pane) return;
  try {
    if (await (name === "form" ? toForm() : toText())) reveal(name);
    else if (state.pane === "yaml") text.focus();
  } catch (error) {
    toast(error.message, { tone: "bad", detail: error.requestId });
  }
}

function reveal(name) {
  state.pane = name;
  for (const one of TABS) {
    $(`#tab-${one}`).setAttribute("aria-selected", String(one === name));
    $(`#tab-${one}`).tabIndex = one === name ? 0 : -1;
    $(`#pane-${one}`).hidden = one !== name;
  }
  readOn();
}

take(data.settings);
drawing.draw(data.settings).catch(() => {}); // the next change draws it
fields.begin(later);
for (const name of TABS) {
  const tab = $(`#tab-${name}`);
  tab.addEventListener("click", () => show(name));
  tab.addEventListener("keydown", async (event) => {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    const other = TABS.find((one) => one !== name);
    await show(other);
    $(`#tab-${state.pane}`).focus();
  });
}
if (!form.elements.settings.readOnly) {
  text.begin(later);
  form.addEventListener("input", askBeforeLeaving);
  saveOnSubmit(form, checked, (made) => `/teams/${made.team}`, ofSettings);
}
