// Documents and JSON pointers: what differs from the template, and how it is sent.

const parts = (pointer) => pointer.split("/").slice(1).map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
export const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

export function at(document, pointer) {
  return parts(pointer).reduce((here, part) => (isObject(here) ? here[part] : undefined), document);
}

/** Set a value, making the objects on the way. */
export function put(document, pointer, value) {
  const path = parts(pointer);
  let here = document;
  for (const part of path.slice(0, -1)) {
    if (!isObject(here[part])) here[part] = {};
    here = here[part];
  }
  here[path.at(-1)] = value;
}

/** Take a value out; nothing happens where there is none. */
export function remove(document, pointer) {
  const path = parts(pointer);
  const above = path.slice(0, -1).reduce((here, part) => (isObject(here) ? here[part] : undefined), document);
  if (isObject(above)) delete above[path.at(-1)];
}

/** Every leaf that differs: [pointer, value in base, value in now]. */
export function differences(base, now, pointer = "") {
  if (isObject(base) && isObject(now)) {
    return [...new Set([...Object.keys(base), ...Object.keys(now)])].flatMap((key) =>
      differences(base[key], now[key], `${pointer}/${key.replaceAll("~", "~0").replaceAll("/", "~1")}`));
  }
  return same(base, now) ? [] : [[pointer, base, now]];
}

/** The smallest partial document that turns base into now; null when something of base is missing in now. */
export function overridesOf(base, now) {
  const found = {};
  for (const [pointer, , value] of differences(base, now)) {
    if (value === undefined) return null;
    put(found, pointer, value);
  }
  return found;
}

export function copy(document) {
  return structuredClone(document);
}

const PAIR = /\s*([^\s:=,"]+)\s*[:=]\s*("(?:[^"\\]|\\.)*"|[^,"]+?)\s*(?:,|$)/y;

function valueOf(written) {
  try {
    const value = JSON.parse(written);
    return value === null || typeof value === "object" ? written : value;
  } catch { return written; }
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
  const plain = (value) => typeof value !== "string" || (value.trim() === value && value !== "" && !/[,"]/.test(value) && valueOf(value) === value);
  return Object.entries(values || {}).map(([name, value]) => `${name}: ${plain(value) ? value : JSON.stringify(value)}`).join(", ");
}

export function text(value) {
  if (value === undefined) return "–";
  if (value === null) return "null";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
