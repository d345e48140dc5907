// The form of a team. Its fields come from the server, made from the schema for the settings as they stand: when seats
// come, go or change places, or a choice brings other fields, the form is made anew around what was written.
import { send } from "./api.js";
import { $, $$, announce, el, toast } from "./dom.js";
import { BAD, modelOf, showIn, showModel, toldAt, valueIn, wrongOf } from "./fields.js";
import { at, copy, modelName, same } from "./spec.js";
import { PATIENCE_MS, again, data, form, state } from "./team_state.js";
import * as team from "./team_value.js";

const pane = $("#pane-form");
const open = new Set();
const told = new Set();
let changed;
let shown;
let asked = 0;

const inputs = () => $$("[data-pointer]", pane);
export const inputOf = (pointer) => inputs().find((input) => input.dataset.pointer === pointer);
/**
 * Where what a field says goes: until the form is made anew, a seat that was moved is not where its fields say. Null: its
 * seat is gone.
 */
function placed(node, pointer) {
  const seat = node.closest("[data-seat-of]");
  if (!seat || !pointer.startsWith("/graph/")) return pointer;
  const now = team.seatPointer(state.value, data.kinds, seat.dataset.seatOf);
  return now && now + pointer.slice(seat.dataset.at.length);
}

const roleOf = (node) => node.closest("[data-seat-of]")?.dataset.seatOf;

/** `then` is called after each change. */
export function begin(then) {
  changed = then;
  pane.addEventListener("input", (event) => edit(event.target));
  pane.addEventListener("change", (event) => choose(event.target));
  pane.addEventListener("click", (event) => press(event.target.closest("button")));
  pane.addEventListener("keydown", enter);
  pane.addEventListener("toggle", ({ target }) => remember(target), { capture: true });
  const first = $("details[data-open]", pane);
  if (first) first.open = true;
  shown = copy(state.value);
  fill();
}

function remember({ dataset, open: isOpen, isConnected }) {
  if (!dataset.open || !isConnected) return;
  if (isOpen) open.add(dataset.open);
  else open.delete(dataset.open);
}

/** Enter takes what a field says, and saves nothing. */
function enter(event) {
  const { target } = event;
  if (event.key !== "Enter" || target.localName !== "input") return;
  event.preventDefault();
  target.blur();
  target.focus();
}

/** Take what is typed; what brings other fields is taken when it is chosen. */
function edit(input) {
  const { kind } = input.dataset;
  if (!input.dataset.pointer || RENEWS.includes(kind)) return;
  const pointer = placed(input, input.dataset.pointer);
  if (pointer === null) return;
  const given = kind === "model" ? model(input) : valueIn(input);
  state.bad.delete(pointer);
  if (given === BAD) state.bad.set(pointer, input.value);
  else team.setAt(state.value, pointer, given);
  if (kind === "model") renew();
  say();
  changed();
}

function model(input) {
  const before = at(state.value, input.dataset.pointer);
  return input.value ? copy(modelOf(JSON.parse(input.value), before ? [before] : [])) : undefined;
}

const RENEWS = ["graph", "kind", "definition", "acts", "name", "sees"];
const CHOICES = {
  graph: (input) => team.setKind(state.value, data.kinds, input.value, state.kept),
  acts: (input) => team.setActs(state.value, roleOf(input), input.value, state.kept),
  kind: (input) => chooseKind(input.dataset.pointer.replace(/\/type$/, ""), input.value),
  sees: (input) => chooseSeen(input),
  definition: (input) =>
    team.setAt(
      state.value,
      input.dataset.pointer.replace(/\/name$/, ""),
      input.value.trim() ? { name: input.value.trim() } : undefined,
    ),
};

/** Another type of an object: what was written for it before comes back. */
function chooseKind(root, type) {
  const before = at(state.value, root);
  if (before) state.kept.set(`${root} ${before.type}`, before);
  team.setAt(state.value, root, type ? state.kept.get(`${root} ${type}`) || { type } : undefined);
}

/** Chosen seats begin with all others. */
function chooseSeen(input) {
  const own = roleOf(input);
  const pointer = placed(input, input.dataset.pointer);
  if (pointer === null) return;
  const all = team.seatsOf(state.value, data.kinds).map(({ name }) => name);
  const others = all.filter((name) => name !== own);
  team.setAt(state.value, pointer, input.value === "!seats" ? others : input.value || undefined);
}

function chooseSeats(box) {
  const pointer = placed(box, box.dataset.seats);
  const names = $$("input", box).flatMap((one) => (one.checked ? [one.value] : []));
  if (pointer !== null) team.setAt(state.value, pointer, names);
  changed();
}

async function choose(input) {
  const seen = input.closest("[data-seats]");
  if (seen) {
    chooseSeats(seen);
    return;
  }
  const { kind } = input.dataset;
  if (kind === "name") await nameSeat(input);
  else if (kind in CHOICES && lead(input)) {
    CHOICES[kind](input);
    changed();
    await renew();
  }
}

/** Before fields change places, what cannot be read is mended; returns whether all can be. */
function lead(source) {
  if (!state.bad.size) return true;
  const [pointer] = state.bad.keys();
  if (source) showIn(source, at(state.value, source.dataset.pointer));
  toast("Correct the marked field first.", { tone: "bad" });
  reveal(inputOf(pointer));
  return false;
}

async function nameSeat(input) {
  const { pointer } = input.dataset;
  const from = roleOf(input);
  const to = input.value.trim();
  const problem = team.nameProblem(state.value, data.kinds, from, to);
  if (problem) {
    state.bad.set(pointer, input.value);
    tell(state.refused, { [pointer]: problem });
    return;
  }
  state.bad.delete(pointer);
  if (from === to || !lead(input)) {
    tell(state.refused);
    return;
  }
  team.rename(state.value, data.kinds, from, to);
  point(from, to);
  for (const key of [from, `${from} more`]) if (open.delete(key)) open.add(key.replace(from, to));
  changed();
  await renew({ [from]: to });
}

/** Let fields say where they are now that a seat has another name. */
function point(from, to) {
  seatOf(from).dataset.seatOf = to;
  const policy = from in (state.value.policies || {}) ? from : to;
  for (const { dataset } of inputs())
    dataset.pointer = dataset.pointer
      .replace(`/agents/${from}/`, `/agents/${to}/`)
      .replace(`/policies/${from}/`, `/policies/${policy}/`);
}

/** Add, move and remove seats. */
async function press(button) {
  if (!button || state.value === null) return;
  const { add, move } = button.dataset;
  const role = roleOf(button);
  const slot = button.closest("[data-slot]")?.dataset.slot;
  if (add === undefined && move === undefined && !("remove" in button.dataset)) return;
  if (!lead()) return;
  if (add !== undefined) await added(team.addSeat(state.value, data.kinds, add));
  else if (move !== undefined) {
    team.moveSeat(state.value, slot, role, Number(move));
    changed();
    await renew();
    const moved = $$("[data-move]", seatOf(role));
    (moved.find((one) => one.dataset.move === move && !one.disabled) || moved.find((one) => !one.disabled))?.focus();
    announce(`${role} moved ${move < 0 ? "up" : "down"}`);
  } else await removed(role, slot);
}

const seatOf = (role) => $(`[data-seat-of="${CSS.escape(role)}"]`, pane);

async function added(name) {
  open.add(name);
  changed();
  await renew();
  const input = $("[data-kind=name]", seatOf(name));
  input?.focus();
  input?.select();
  announce(`Seat ${name} added`);
}

async function removed(role, slot) {
  const before = copy(state.value);
  team.removeSeat(state.value, data.kinds, role);
  seatOf(role).remove();
  changed();
  await renew();
  const undo = el("button", { type: "button", class: "btn mt12", text: `Undo: bring ${role} back` });
  undo.addEventListener("click", async () => {
    state.value = before;
    changed();
    await renew();
    $("[data-kind=name]", seatOf(role))?.focus();
  });
  const place = $(`[data-slot="${slot}"]`, pane);
  place?.append(undo);
  undo.focus();
  announce(`Seat ${role} removed`);
}

const STOPS = "input, select, textarea, button, summary";

/** Where the focus is: the id of its field, or its place in its seat. */
function focused() {
  const node = document.activeElement;
  if (!pane.contains(node)) return null;
  const role = roleOf(node);
  return { id: node.id, role, index: role ? $$(STOPS, seatOf(role)).indexOf(node) : -1 };
}

function focusAgain(was, renamed) {
  const field = was.id && document.getElementById(was.id);
  const seat = seatOf(renamed[was.role] || was.role);
  (field || (seat && $$(STOPS, seat)[was.index]))?.focus();
}

/** Make the form anew for the settings as they stand; the focus stays where it is. `renamed`: seats, old name to new. */
export async function renew(renamed = {}) {
  const mine = ++asked;
  const body = { settings: copy(state.value), project: form.dataset.project };
  try {
    const answer = await send("POST", form.dataset.formUrl, { body, headers: { "X-Part": "1" }, timeout: PATIENCE_MS });
    const html = await answer.text();
    if (mine !== asked) return;
    const was = focused();
    shown = body.settings;
    pane.innerHTML = html; // rendered by the server, everything escaped
    for (const box of $$("details[data-open]", pane)) box.open = open.has(box.dataset.open);
    fill();
    tell(state.refused);
    if (was) focusAgain(was, renamed);
  } catch (error) {
    toast(error.message, { tone: "bad", detail: error.requestId });
    again(() => mine === asked && renew(renamed));
  }
}

/** Make the form anew where the settings are not those that it was made for. */
export async function follow() {
  if (!same(shown, state.value)) await renew();
}

/** Write the settings into the fields; what cannot be read stays as it was typed. */
function fill() {
  if (state.value === null) return;
  for (const input of inputs()) {
    const { pointer, kind } = input.dataset;
    const value = at(state.value, pointer);
    if (state.bad.has(pointer)) input.value = state.bad.get(pointer);
    else if (kind === "graph") input.value = state.value.graph?.type ?? "";
    else if (kind === "acts") input.value = actsOf(roleOf(input));
    else if (kind === "model") showModel(input, value);
    else if (kind === "name") input.value = roleOf(input);
    else showIn(input, value);
  }
  say();
}

function actsOf(role) {
  const { policy, external } = state.value.agents[role] || {};
  return external ? "!external" : policy && policy !== role ? policy : "";
}

/** Say in a line what the agent and the policy of each seat are. */
function say() {
  for (const place of $$("[data-says]", pane))
    place.textContent = team.inShort(state.value, place.dataset.says, modelName);
}

/** Say what is refused beside its field; what belongs to no field stands above the form. `own`: of the page itself. */
export function tell(refused, own = {}) {
  const fields = inputs();
  const places = new Map(refused.map((error) => [error, toldAt(fields, error.pointer)]));
  for (const place of $$("[data-error]", pane)) {
    const { error: pointer } = place.dataset;
    const input = fields.find((one) => one.dataset.pointer === pointer);
    if (!input) continue;
    const said = refused.filter((error) => places.get(error) === input);
    const isBad = state.bad.has(pointer);
    place.textContent = isBad ? own[pointer] || wrongText(input) : said.map(inWords).join(" ");
    place.hidden = !place.textContent;
    input.setAttribute("aria-invalid", String(!place.hidden));
    if (place.hidden) told.delete(pointer);
    else if (!told.has(pointer)) reveal(input, false);
    if (!place.hidden) told.add(pointer);
  }
  const lost = refused.filter((error) => !places.get(error));
  const list = $("#form-problems", pane);
  if (!list) return;
  list.hidden = !lost.length;
  list.replaceChildren(
    ...lost.map((error) =>
      el("li", { text: [error.pointer.slice(1).replaceAll("/", "."), inWords(error)].join(": ") }),
    ),
  );
}

const inWords = ({ detail, hint }) => [detail, hint].filter(Boolean).join(" ");

function wrongText(input) {
  if (input.dataset.kind !== "name") return wrongOf(input.dataset.kind);
  return team.nameProblem(state.value, data.kinds, roleOf(input), input.value.trim());
}

/** Open what a field stands in. */
function reveal(input, focus = true) {
  for (let box = input.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
  if (focus) input.focus();
}

/** Lead to the first thing that is not right. */
export function showWrong() {
  const input = $("[aria-invalid=true]", pane);
  if (input) reveal(input);
  else $("#form-problems", pane)?.focus();
}
