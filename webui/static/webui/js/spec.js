// Documents and JSON pointers: what differs from the template, and how it is sent.

const parts = (pointer) =>
  pointer
    .split("/")
    .slice(1)
    .map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
export const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const holds = (value) => value !== null && typeof value === "object";
export const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

export function at(document, pointer) {
  return parts(pointer).reduce((here, part) => (holds(here) ? here[part] : undefined), document);
}

/** Set a value, making the objects on the way. */
export function put(document, pointer, value) {
  const path = parts(pointer);
  let here = document;
  for (const part of path.slice(0, -1)) {
    if (!holds(here[part])) here[part] = {};
    here = here[part];
  }
  here[path.at(-1)] = value;
}

/** Take a value out; nothing happens where there is none. */
export function remove(document, pointer) {
  const path = parts(pointer);
  const above = path.slice(0, -1).reduce((here, part) => (holds(here) ? here[part] : undefined), document);
  if (isObject(above)) delete above[path.at(-1)];
}

/**
 * Every leaf that differs: [pointer, value in base, value in now]. Of an object of another type: its type, what both types have, and
 * what is not as in `unions`, which has the plain values by pointer and type.
 */
export function differences(base, now, unions = {}, pointer = "") {
  if (!isObject(base) || !isObject(now)) return same(base, now) ? [] : [[pointer, base, now]];
  const below = (key, before) =>
    differences(before, now[key], unions, `${pointer}/${key.replaceAll("~", "~0").replaceAll("/", "~1")}`);
  if (base.type === now.type)
    return [...new Set([...Object.keys(base), ...Object.keys(now)])].flatMap((key) => below(key, base[key]));
  const plain = unions[pointer]?.[now.type] || {}; // another type: what only the one before has says nothing
  return Object.keys(now).flatMap((key) => below(key, key in base ? base[key] : plain[key]));
}

/** The smallest partial document that turns base into now, where an object of another type is whole; null when something of base is missing in now. */
export function overridesOf(base, now) {
  const found = {};
  for (const key of new Set([...Object.keys(base), ...Object.keys(now)])) {
    const before = base[key],
      value = now[key];
    if (same(before, value)) continue;
    if (value === undefined) return null;
    const joins = isObject(before) && isObject(value) && (value.type === undefined || value.type === before.type);
    const changed = joins ? overridesOf(before, value) : value;
    if (changed === null && value !== null) return null;
    if (!joins || Object.keys(changed).length) found[key] = changed;
  }
  return found;
}

/** A template for a document whose team is named: as for the API, the team takes the place of who plays in the template. */
export function templateOf(template, document) {
  if (!document.team) return template;
  const rest = structuredClone(template);
  for (const pointer of ["/agents", "/policies", "/environment/graph"]) remove(rest, pointer);
  return rest;
}

/** What is written on top of a whole document, as the API does it; an object of another type replaces the one it had. */
export function completed(whole, written) {
  for (const [key, value] of Object.entries(written)) {
    const before = whole[key];
    const joins = isObject(before) && isObject(value) && (value.type === undefined || value.type === before.type);
    whole[key] = joins ? completed(before, value) : value;
  }
  return whole;
}

export function copy(document) {
  return structuredClone(document);
}

const PAIR = /\s*([^\s:=,"]+)\s*[:=]\s*("(?:[^"\\]|\\.)*"|[^,"]+?)\s*(?:,|$)/y;

function valueOf(written) {
  try {
    const value = JSON.parse(written);
    return value === null || typeof value === "object" ? written : value;
  } catch {
    return written;
  }
}

/** Read `name: value, name: value`; null when it is not that. Numbers, true and false are values, the rest is text. */
export function pairs(written) {
  const found = {};
  let here = 0;
  const whole = written.trim().replace(/,$/, "");
  while (here < whole.length) {
    PAIR.lastIndex = here;
    const one = PAIR.exec(whole);
    if (!one) return null;
    found[one[1]] = valueOf(one[2]);
    here = PAIR.lastIndex;
  }
  return found;
}

/** Write what `pairs` reads; text that would be read as something else stands in quotes. */
export function pairsText(values) {
  const plain = (value) =>
    typeof value !== "string" ||
    (value.trim() === value && value !== "" && !/[,"]/.test(value) && valueOf(value) === value);
  return Object.entries(values || {})
    .map(([name, value]) => `${name}: ${plain(value) ? value : JSON.stringify(value)}`)
    .join(", ");
}

/** What people call a model: its name and version, the run that made it, the last part of its folder, or its size. */
export function modelName(model) {
  if (!model) return "none";
  if (model.run) return `${model.run}, step ${model.step}`;
  if (model.path) return model.path.replace(/\/+$/, "").split("/").at(-1);
  if (model.name) return model.type === "registered" && model.version ? `${model.name} v${model.version}` : model.name;
  return model.size ? `size ${model.size}` : "model";
}

export function text(value) {
  if (value === undefined) return "–";
  if (value === null) return "null";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
