// Which settings the chosen options read. The rules come with the form, from where the API's refusals come as well; a
// setting that is read no longer goes back to its default, so that nothing hidden is refused, and what was written
// comes back when it is read again.
import { at, put, remove, same } from "./spec.js";

/** What a setting is without a word of people; of one that follows another, the value of that one. */
export function plainOf(document, data, pointer) {
  const other = data.like[pointer];
  return other ? (at(document, other) ?? data.plain[other]) : data.plain[pointer];
}

const valueOf = (document, data, pointer) => at(document, pointer) ?? data.plain[pointer];
const holds = (document, data, { pointer, values, not }) => values.includes(valueOf(document, data, pointer)) !== not;

/** The settings that nobody reads as the document stands. */
export function unread(document, data) {
  const isRead = ({ ways }) => ways.some((way) => way.every((choice) => holds(document, data, choice)));
  return new Set(Object.keys(data.reads).filter((pointer) => !isRead(data.reads[pointer])));
}

/** Let the document follow a choice; returns what is unread then. `kept` holds what was written of the others. */
export function follow(document, data, before, kept) {
  let known = before;
  for (let turn = 0; turn < 8; turn += 1) {
    // a setting that goes may take others with it; none goes and comes for ever
    const now = unread(document, data);
    const moved = [...new Set([...known, ...now])].filter(
      (pointer) => known.has(pointer) !== now.has(pointer) && !data.reads[pointer].own,
    );
    known = now;
    if (!moved.length) break;
    for (const pointer of moved) if (now.has(pointer)) reset(document, data, pointer, kept);
    for (const pointer of moved)
      if (!now.has(pointer) && kept.has(pointer)) {
        write(document, wholeOf(data, pointer) ?? pointer, kept.get(pointer));
        kept.delete(pointer);
      }
  }
  for (const pointer of Object.keys(data.like))
    if (known.has(pointer) && at(document, pointer) !== undefined)
      put(document, pointer, plainOf(document, data, pointer));
  return known;
}

/**
 * Let the settings that another bounds follow it: lowered where they are above it, back where it allows what they were. A setting
 * that people write is theirs from then on. `kept` holds what they were.
 */
export function bound(document, data, pointer, kept) {
  kept.delete(`bound ${pointer}`);
  const most = at(document, pointer);
  for (const below of Object.keys(data.bounds)) {
    if (data.bounds[below] !== pointer || typeof most !== "number") continue;
    const own = kept.get(`bound ${below}`) ?? at(document, below);
    if (own > most && most >= 1) kept.set(`bound ${below}`, own);
    else kept.delete(`bound ${below}`);
    put(document, below, most >= 1 ? Math.min(own, most) : own);
  }
}

/** The object that goes with its type, where people choose that: other types have other settings. */
function wholeOf(data, pointer) {
  const root = pointer.replace(/\/type$/, "");
  return root !== pointer && data.unions?.[root] ? root : undefined;
}

function reset(document, data, pointer, kept) {
  const value = at(document, pointer);
  const plain = plainOf(document, data, pointer);
  if (value === undefined || same(value, plain)) return;
  const root = wholeOf(data, pointer);
  kept.set(pointer, root ? at(document, root) : value);
  if (root) put(document, root, { ...data.unions[root][plain] });
  else write(document, pointer, data.reads[pointer].absent ? undefined : plain);
}

function write(document, pointer, value) {
  if (value === undefined) remove(document, pointer);
  else put(document, pointer, value);
}

/** When a setting is read, in words; `nameOf` tells what a setting is called on the page. */
export function inWords({ ways }, nameOf) {
  const said = (value) => String(value).replaceAll("_", " ");
  const words = ({ pointer, values, not }) => {
    if (values.length === 1 && typeof values[0] === "boolean")
      return `${nameOf(pointer)} is ${values[0] !== not ? "on" : "off"}`;
    return `${nameOf(pointer)} is ${not ? "not " : ""}${values.map(said).join(" or ")}`;
  };
  return ways.map((way) => way.map(words).join(" and ")).join(", or ");
}
