// A team's settings as values: what the form and the YAML both edit, and what changes when seats come, go or get another
// name. Pure. `kinds` says of each graph where its seats are (`slots`) and what else it has (`settings`).
import { copy, isObject, put, remove } from "./spec.js";

const seatOf = (given) => (typeof given === "string" ? { name: given } : given);
const NAME = /^[a-z][a-z0-9_]{0,31}$/;

export const slotsOf = ({ graph }, kinds) => (graph && kinds[graph.type]?.slots) || [];

/** Why the form cannot show settings; empty when it can. What the graph's own rules refuse it can show. */
export function unshowable(settings) {
  const { graph, agents, policies = {} } = settings;
  if (graph !== undefined && graph !== null && typeof graph !== "string" && !isObject(graph))
    return "graph is not a mapping";
  for (const [name, part] of Object.entries({ agents, policies })) {
    if (!isObject(part)) return `${name} is not a mapping`;
    const wrong = Object.keys(part).find((key) => !isObject(part[key]));
    if (wrong) return `${name}.${wrong} is not a mapping`;
  }
  return "";
}

/** Settings with all that the form edits written out: the seats of the graph as objects, and an agent for each. */
export function opened(settings, kinds) {
  const value = copy(settings);
  if (typeof value.graph === "string") value.graph = { type: value.graph };
  if (isObject(value.graph)) {
    value.graph = "type" in value.graph ? value.graph : { type: Object.keys(kinds)[0], ...value.graph };
    for (const slot of slotsOf(value, kinds)) open(value.graph, slot);
  }
  for (const { name } of seatsOf(value, kinds)) value.agents[name] ??= {};
  for (const policy of Object.values(value.policies || {})) {
    if (typeof policy.tuning === "string") policy.tuning = { type: policy.tuning };
    if (typeof policy.devices === "number") policy.devices = { least: policy.devices, most: policy.devices };
  }
  return value;
}

function open(graph, { name, many, plain }) {
  if (name in graph) {
    const given = graph[name];
    if (Array.isArray(given)) graph[name] = given.map(seatOf);
    else if (!many && given !== null) graph[name] = seatOf(given);
  } else if (plain.length) graph[name] = many ? copy(plain) : copy(plain[0]);
}

/** What `opened` wrote out, as people write it: a seat without settings is its name; the graph first, then its agents. */
export function closed(value, kinds) {
  const { graph, agents, policies, ...rest } = copy(value);
  const short = (seat) => (isObject(seat) && Object.keys(seat).join() === "name" ? seat.name : seat);
  for (const { name } of slotsOf({ graph }, kinds)) {
    if (Array.isArray(graph[name])) graph[name] = graph[name].map(short);
    else if (name in graph) graph[name] = short(graph[name]);
  }
  const roles = seatsOf({ graph, agents }, kinds).map((seat) => seat.name);
  const acting = roles.map((role) => agents[role]?.policy || role);
  return {
    ...(graph === undefined ? {} : { graph }),
    agents: ordered(agents, roles),
    ...(policies === undefined ? {} : { policies: ordered(policies, acting) }),
    ...rest,
  };
}

const ordered = (mapping, first) =>
  Object.fromEntries(
    [...new Set([...first, ...Object.keys(mapping)])].filter((key) => key in mapping).map((key) => [key, mapping[key]]),
  );

/** The seats of a team in the order of its graph, each as an object; of a team without one its agents. */
export function seatsOf(value, kinds) {
  const { graph, agents } = value;
  if (!isObject(graph)) return Object.keys(agents || {}).map((name) => ({ name }));
  return slotsOf(value, kinds)
    .flatMap(({ name }) => graph[name] ?? [])
    .map(seatOf)
    .filter((seat) => isObject(seat) && typeof seat.name === "string");
}

/** Where a seat is; null where there is none of the name. */
export function seatPointer(value, kinds, role) {
  for (const { name, many } of slotsOf(value, kinds)) {
    const held = value.graph[name];
    if (!many && held?.name === role) return `/graph/${name}`;
    const index = many && Array.isArray(held) ? held.findIndex((seat) => seat.name === role) : -1;
    if (index >= 0) return `/graph/${name}/${index}`;
  }
  return null;
}

/** What keeps a seat from having a name; empty when nothing does. */
export function nameProblem(value, kinds, from, to) {
  if (!NAME.test(to)) return "Write lower-case letters, digits and _, a letter first; at most 32.";
  const taken = to !== from && (seatsOf(value, kinds).some(({ name }) => name === to) || to in value.agents);
  return taken ? `Another seat is named ${to}.` : "";
}

/** Give a seat another name, wherever it is referred to. */
export function rename(value, kinds, from, to) {
  if (from === to) return;
  if (isObject(value.graph)) renameIn(value.graph, from, to);
  const agent = value.agents[from] || {};
  const actsAlone = !agent.policy && !agent.external;
  const isTaken = to in (value.policies || {}) || Object.values(value.agents).some((one) => one.policy === to);
  value.agents = Object.fromEntries(Object.entries(value.agents).map(([key, one]) => [key === from ? to : key, one]));
  if (!actsAlone) return;
  if (isTaken) {
    agent.policy = from; // another policy has the new name: the seat keeps its own
    return;
  }
  for (const one of Object.values(value.agents)) if (one.policy === from) one.policy = to;
  if (value.policies && from in value.policies)
    value.policies = Object.fromEntries(
      Object.entries(value.policies).map(([key, one]) => [key === from ? to : key, one]),
    );
}

/** Names stand in a graph as the names of seats and in lists; words outside of lists say something else. */
function renameIn(node, from, to) {
  for (const [key, one] of Object.entries(node)) {
    if (one === from && (Array.isArray(node) || key === "name")) node[key] = to;
    else if (one !== null && typeof one === "object") renameIn(one, from, to);
  }
}

function freeName(value, kinds, base) {
  const taken = new Set([
    ...seatsOf(value, kinds).map(({ name }) => name),
    ...Object.keys(value.agents),
    ...Object.keys(value.policies || {}),
  ]);
  if (!taken.has(base)) return base;
  const stem = base.replace(/_\d+$/, "").slice(0, 28);
  for (let number = 2; ; number += 1) if (!taken.has(`${stem}_${number}`)) return `${stem}_${number}`;
}

/** Seat an agent like another one: with the same settings, and a policy of its own where that has one. */
function seatLike(value, name, model) {
  const agent = copy(value.agents[model] || {});
  value.agents[name] = agent;
  if (agent.policy || agent.external) return;
  const policy = value.policies?.[model];
  if (policy) value.policies[name] = copy(policy);
}

/** Add a seat like the last one of its slot; returns its name. */
export function addSeat(value, kinds, slotName) {
  if (!slotName) {
    const last = Object.keys(value.agents).at(-1);
    const name = freeName(value, kinds, last || "agent");
    seatLike(value, name, last);
    return name;
  }
  const slot = slotsOf(value, kinds).find((one) => one.name === slotName);
  const seats = slot.many ? (value.graph[slotName] ?? []) : [];
  const last = seats.at(-1);
  const name = freeName(value, kinds, last?.name || slot.plain[0]?.name || slot.name);
  const model = last?.name || seatsOf(value, kinds)[0]?.name;
  const seat = { ...copy(last || slot.plain[0] || {}), name };
  value.graph[slotName] = slot.many ? [...seats, seat] : seat;
  seatLike(value, name, model);
  return name;
}

/** Take a seat away, with its agent, what refers to it, and a policy that nobody else acts with. */
export function removeSeat(value, kinds, name) {
  for (const slot of slotsOf(value, kinds)) {
    const held = value.graph[slot.name];
    if (Array.isArray(held)) value.graph[slot.name] = held.filter((seat) => seat.name !== name);
    else if (held?.name === name) {
      if (slot.plain.length) value.graph[slot.name] = null;
      else delete value.graph[slot.name];
    }
  }
  unseat(value, kinds, [name]);
}

function unseat(value, kinds, names) {
  const isGone = (name) => names.includes(name);
  for (const seat of seatsOf(value, kinds))
    if (Array.isArray(seat.sees)) seat.sees = seat.sees.filter((other) => !isGone(other));
  const used = () =>
    new Set(Object.entries(value.agents).flatMap(([role, one]) => (one.external ? [] : [one.policy || role])));
  const before = used();
  value.agents = Object.fromEntries(Object.entries(value.agents).filter(([role]) => !isGone(role)));
  const now = used();
  for (const policy of before) if (!now.has(policy) && value.policies) delete value.policies[policy];
}

/** Move a seat by so many places among those of its slot. */
export function moveSeat(value, slotName, name, step) {
  const seats = value.graph[slotName];
  const from = seats.findIndex((seat) => seat.name === name);
  const to = Math.min(Math.max(from + step, 0), seats.length - 1);
  seats.splice(to, 0, ...seats.splice(from, 1));
}

/**
 * Give the team another graph; empty: none. Seats stay with their agents as far as the graph has room; what was written
 * for a graph comes back when it is chosen again and its seats are still those. `kept` holds that.
 */
export function setKind(value, kinds, kind, kept) {
  const { graph, agents, policies } = copy(value);
  const before = seatsOf({ graph, agents }, kinds).map(({ name }) => name);
  if (isObject(graph)) kept.set(graph.type, { graph, agents, policies });
  if (kind === "") delete value.graph;
  else if (!restore(value, kinds, kind, before, kept)) convert(value, kinds, kind);
  for (const { name } of seatsOf(value, kinds)) if (!(name in value.agents)) seatLike(value, name, before[0]);
  const now = new Set(seatsOf(value, kinds).map(({ name }) => name));
  unseat(
    value,
    kinds,
    before.filter((name) => !now.has(name)),
  );
}

function restore(value, kinds, kind, before, kept) {
  const old = kept.get(kind);
  if (!old) return false;
  const were = seatsOf(old, kinds).map(({ name }) => name);
  if (!before.some((name) => were.includes(name))) return false;
  const carried = before.filter((name) => !were.includes(name));
  if (carried.some((name) => !isMade(name, kinds))) return false;
  value.graph = copy(old.graph);
  for (const name of were)
    if (!(name in value.agents)) {
      value.agents[name] = copy(old.agents[name] || {});
      if (old.policies?.[name]) put(value, `/policies/${name}`, copy(old.policies[name]));
    }
  return true;
}

/** Whether a name is one that a graph has by default: nobody chose it. */
const isMade = (name, kinds) =>
  Object.values(kinds).some(({ slots }) => slots.some(({ plain }) => plain.some((seat) => seat.name === name)));

function convert(value, kinds, kind) {
  const { slots, settings } = kinds[kind];
  const singles = slotsOf(value, kinds)
    .filter((slot) => !slot.many)
    .map((slot) => value.graph[slot.name]?.name);
  const pool = seatsOf(value, kinds);
  const old = value.graph || {};
  value.graph = { type: kind };
  for (const name of settings) if (name in old) value.graph[name] = old[name];
  const hasList = slots.some((slot) => slot.many);
  const draw = (fits) => {
    const index = pool.findIndex(fits);
    return index < 0 ? undefined : pool.splice(index, 1)[0];
  };
  for (const slot of slots.filter((one) => !one.many)) {
    const named = draw(({ name }) => slot.plain.some((seat) => seat.name === name) || name === slot.name);
    const seat = named || (slot.least ? draw(({ name }) => !hasList || singles.includes(name)) : undefined);
    if (seat) value.graph[slot.name] = fitted(seat, slot);
    else if (slot.least) value.graph[slot.name] = made(value, kinds, slot.plain[0] || { name: slot.name }, pool);
  }
  for (const slot of slots.filter((one) => one.many)) {
    const seats = pool.splice(0, slot.most).map((seat) => fitted(seat, slot));
    value.graph[slot.name] = seats;
    for (const seat of slot.plain.slice(0, Math.max(slot.least - seats.length, 0)))
      seats.push(made(value, kinds, seat, pool));
  }
}

/** A seat with the settings that seats of a slot have. */
const fitted = (seat, { has }) => Object.fromEntries(Object.entries(seat).filter(([key]) => has.includes(key)));

function made(value, kinds, seat, pool) {
  const taken = pool.some(({ name }) => name === seat.name);
  return { ...copy(seat), name: taken ? freeName(value, kinds, `${seat.name}_2`) : freeName(value, kinds, seat.name) };
}

/** What a seat acts with: its own policy (empty), that of another, or an external model. */
export function setActs(value, role, choice, kept) {
  const agent = (value.agents[role] ??= {});
  if (agent.external) kept.set(`external ${role}`, agent.external);
  if (choice === "!external") {
    delete agent.policy;
    agent.external = kept.get(`external ${role}`) || {};
    return;
  }
  delete agent.external;
  if (choice) agent.policy = choice;
  else delete agent.policy;
}

/** Write a setting, or take it away where it is undefined, with the objects that then say nothing. */
export function setAt(value, pointer, given) {
  if (given !== undefined) {
    put(value, pointer, given);
    return;
  }
  remove(value, pointer);
  const path = pointer.split("/").slice(0, -1);
  while (path.length > 3 && path[1] !== "graph") {
    const above = path.slice(1).reduce((here, part) => here?.[part], value);
    if (!isObject(above) || Object.keys(above).length) return;
    remove(value, path.join("/"));
    path.pop();
  }
}

/** What an agent and its policy are, in a line. `modelName` says what people call a model. */
export function inShort({ agents = {}, policies = {} }, role, modelName) {
  const { definition, policy, external, trainable } = agents[role] || {};
  const { model, tuning } = policies[policy || role] || {};
  const acts = policy && policy !== role ? `policy ${policy}` : "own policy";
  return [
    definition?.name ? `${definition.name}${definition.version ? ` v${definition.version}` : ""}` : "",
    external ? `external ${external.model || "model"}` : model ? modelName(model) : "factory S",
    external ? "" : acts,
    tuning?.type === "lora" && !external ? "LoRA" : "",
    trainable === false && !external ? "frozen" : "",
  ]
    .filter(Boolean)
    .join(", ");
}
