// What differs from the template or original: marks beside groups and fields, the list of changes, the team's drawing.
import { $, $$, el } from "./dom.js";
import { plainOf } from "./reads.js";
import * as sections from "./sections.js";
import { at, differences, modelName, text } from "./spec.js";

let state;
let data;

/** `page` is the state of the page, `given` what it came with. */
export function begin(page, given) {
  state = page;
  data = given;
}

/** How many values differ. */
export const changed = () =>
  differences(state.base, state.document, data.unions).length + (state.preset !== data.preset ? 1 : 0);

/** Marks of change and error beside the groups. */
export function dots() {
  for (const link of $$(".fn nav a")) {
    $("i", link)?.remove();
    const section = $(link.getAttribute("href"));
    const wrong = $("[aria-invalid=true]", section);
    const marked = $$(".chg", section).filter((input) => !input.closest("[hidden]"));
    sections.summarise(section, {
      changed: marked.length,
      differs: [...$$("[data-pointer]", section)].filter(isSet).map(inShort),
    });
    if (wrong || marked.length)
      link.append(el("i", { class: wrong ? "err" : "", title: wrong ? "Has an error" : "Changed from the template" }));
  }
  sections.summariseMarks();
}

/** Whether a setting that is read is not as it is by default. */
function isSet(input) {
  const { pointer } = input.dataset;
  const plain = plainOf(state.document, data, pointer);
  return (
    !input.closest("[hidden]") &&
    pointer in data.plain &&
    text(at(state.document, pointer) ?? null) !== text(plain ?? null)
  );
}

function inShort(input) {
  const { label } = input.closest(".fit").dataset;
  if (input.dataset.kind === "flag") return input.checked ? label : `${label} off`;
  const shown = input.localName === "select" ? input.options[input.selectedIndex]?.text : input.value;
  return `${label} ${shown || "none"}`;
}

export function changes() {
  const found = differences(state.base, state.document, data.unions);
  const preset = state.preset !== data.preset ? [["/preset", data.preset, state.preset]] : [];
  const all = [...preset, ...found];
  const origin = data.parent ? data.parent.key : "the template";
  $("#change-count").textContent = all.length
    ? `${all.length} change${all.length === 1 ? "" : "s"} from ${origin}`
    : `No changes from ${origin}`;
  for (const input of $$("#spec-form [data-pointer]"))
    input.classList.toggle(
      "chg",
      text(at(state.document, input.dataset.pointer) ?? null) !== text(at(state.base, input.dataset.pointer) ?? null),
    );
  $("#preset").classList.toggle("chg", preset.length > 0);
  const rows = all.map(([pointer, before, now]) =>
    el(
      "tr",
      {},
      el("td", { class: "mono anywhere", text: pointer.slice(1).replaceAll("/", ".") }),
      el("td", { class: "mono soft anywhere", text: text(before) }),
      el("td", { class: "mono w6 anywhere", text: text(now) }),
    ),
  );
  $("#changes").replaceChildren(
    ...(rows.length
      ? rows
      : [el("tr", {}, el("td", { colspan: "3", class: "soft", text: `Nothing differs from ${origin}.` }))]),
  );
  dots();
  seats();
}

const ROOM = 12; // characters of a model's name in the team's drawing
const short = (name) => (name.length > ROOM ? `${name.slice(0, ROOM - 1)}…` : name);

/** Say under each agent of the team's drawing what it is now. */
export function seats() {
  for (const box of $$("[data-seat]")) {
    const agent = state.document.agents?.[box.dataset.seat] || {},
      policy = agent.policy || box.dataset.seat;
    const { model } = state.document.policies?.[policy] || {};
    box.textContent = [
      model ? short(modelName(model)) : "",
      policy === box.dataset.seat ? "own policy" : `policy ${policy}`,
      agent.trainable === false ? "frozen" : "",
    ]
      .filter(Boolean)
      .join(", ");
  }
}
