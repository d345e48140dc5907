// What the fields of forms say, and how they show a value. Forms of whole documents and of what alone was written share it.
import { el } from "./dom.js";
import { modelName, pairs, pairsText, same } from "./spec.js";

/** What a field says that cannot be read. */
export const BAD = Symbol("unreadable");
export const WRONG = {
  pairs: "Enter name: value pairs separated by commas.",
  devices: "Enter a number, or a minimum and a maximum, for example 1-4.",
  list: "Enter whole numbers separated by commas, for example 0, 1.",
  json: "Enter JSON, text in double quotes.",
};
/** What is said of a field whose text cannot be read. */
export const wrongOf = (kind) => WRONG[kind] || "Write a number.";
/** Fields that hold what is written below their pointer. */
export const KINDS_INSIDE = ["pairs", "list", "devices", "model", "dataset", "json", "sees"];
const TEXTS = ["text", "choice", "area", "name", "kind"];

/** The value that a field says; undefined: nothing; BAD: what cannot be read. */
export function valueIn(input) {
  const { kind } = input.dataset;
  const written = input.value.trim();
  if (kind === "flag") return input.checked;
  if (kind === "pairs") return pairs(written) || BAD;
  if (written === "" && (kind === "list" || "optional" in input.dataset)) return undefined;
  if (kind === "list") return /^\d+(\s*,\s*\d+)*$/.test(written) ? written.split(",").map(Number) : BAD;
  if (kind === "devices") return spanned(written);
  if (kind === "json") return parsed(written);
  if (kind === "truth") return written === "true";
  if (TEXTS.includes(kind)) return kind === "area" ? input.value : written;
  const value = Number(written.replace(",", "."));
  return written === "" || !Number.isFinite(value) ? BAD : value;
}

/** A number of devices, or a minimum and a maximum. */
function spanned(written) {
  const found = /^(\d+)(?:\s*[-–]\s*(\d+))?$/.exec(written);
  if (!found) return BAD;
  return found[2] === undefined ? Number(found[1]) : { min: Number(found[1]), max: Number(found[2]) };
}

const spanText = (value) => (value?.max === undefined ? String(value ?? "") : `${value.min}-${value.max}`);

function parsed(written) {
  try {
    return JSON.parse(written);
  } catch {
    return BAD;
  }
}

/** Write a value into a field. */
export function showIn(input, value) {
  const { kind } = input.dataset;
  if (kind === "flag") input.checked = Boolean(value);
  else if (kind === "pairs") input.value = pairsText(value);
  else if (kind === "json") input.value = value === undefined ? "" : JSON.stringify(value);
  else if (kind === "devices") input.value = spanText(value);
  else if (kind === "list") input.value = (value || []).join(", ");
  else if (kind === "variant") input.value = value ?? input.options[0].value;
  else if (kind === "sees") input.value = Array.isArray(value) ? "!seats" : (value ?? "");
  else input.value = value === null || value === undefined ? "" : String(value);
  if (input.localName === "select" && input.selectedIndex < 0) input.value = ""; // what holds without a word
}

/** Whether a model is the one that a choice names: it says the same, and may say more. */
export const isOf = (model, choice) => Object.keys(choice).every((key) => same(model?.[key], choice[key]));

/** The model that a choice stands for: one that is `known`, whole; a factory model keeps its other settings. */
export function modelOf(choice, known) {
  const factory = choice.type === "factory" && known.find((model) => model?.type === "factory");
  return known.find((model) => isOf(model, choice)) || { ...factory, ...choice };
}

/** What the dataset that a run names by default is: none that anybody imported. */
const isUnnamed = ({ name, version, project, digest }) => name === "example" && !version && !project && !digest;

/** What a choice is called that is not offered. */
export const choiceName = (kind, one) => (kind === "dataset" && isUnnamed(one) ? "choose a dataset" : modelName(one));

/** Choose a model. It, and `others`, are choices of their own where they are not offered. */
export function showModel(input, model, others = []) {
  for (const option of input.querySelectorAll("[data-own]")) option.remove();
  const offered = (one) => [...input.options].find((option) => option.value && isOf(one, JSON.parse(option.value)));
  for (const one of [...others, model])
    if (one && !offered(one)) {
      const own = el("option", {
        value: JSON.stringify(one),
        text: choiceName(input.dataset.kind, one),
        data: { own: "1" },
      });
      if (input.options[0]?.value === "") input.options[0].after(own);
      else input.prepend(own);
    }
  const chosen = (model && offered(model)) || input.options[0];
  input.value = chosen.value;
  input.title = chosen.text;
}

/** Where an error is told: at the input of its pointer, of what it lies inside of, or at the first below an object. */
export function toldAt(inputs, pointer, skipped = () => false) {
  const own = ({ dataset }) => dataset.pointer;
  return (
    inputs.find((input) => own(input) === pointer) ||
    inputs.find((input) => KINDS_INSIDE.includes(input.dataset.kind) && pointer.startsWith(`${own(input)}/`)) ||
    (pointer ? inputs.find((input) => own(input).startsWith(`${pointer}/`) && !skipped(own(input))) : undefined)
  );
}
