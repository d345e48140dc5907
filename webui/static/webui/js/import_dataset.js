// The import of a dataset: the file goes up once or is fetched from a hub, what is chosen of it is previewed by the server, and saving says every
// bad row by its line.
import { Refused, post, upload } from "./api.js";
import { $, $$, announce, el } from "./dom.js";
import { fromHub } from "./hub_dataset.js";

const form = $("#import-dataset");
const refused = $("#refused");
const button = $("button.pri", form);
const LONG_MS = 120_000;
const MOST_LINES = 20;
let file = null;
let asked = 0;

function clear() {
  refused.hidden = true;
  for (const place of $$("[data-error]", form)) place.hidden = true;
}

/** Say what is refused: beside its field, or line by line where it is of rows of the file. */
function tell(error) {
  const left = [];
  for (const one of error.errors) {
    const text = [one.detail, one.hint].filter(Boolean).join(" ");
    const place = $$("[data-error]", form).find(
      (node) => one.pointer === node.dataset.error || one.pointer.startsWith(`${node.dataset.error}/`),
    );
    if (!place || one.pointer.startsWith("/file/")) left.push(text);
    else {
      place.textContent = text;
      place.hidden = false;
    }
  }
  if (left.length || !error.errors.length) {
    const more = (error.problem.bad_rows || left.length) - Math.min(left.length, MOST_LINES);
    const lines = left.slice(0, MOST_LINES).map((text) => el("span", { class: "anywhere", text }));
    if (more > 0) lines.push(el("span", { text: `And ${more} more.` }));
    refused.replaceChildren(...(lines.length ? lines : [el("span", { text: error.message })]));
    refused.hidden = false;
  }
  announce(error.message);
}

/** What is held out, as the form says it. */
function split() {
  const at = form.elements;
  const amount = Number(at.amount.value.replace(",", "."));
  if (at.split.value === "share") return { type: "share", share: amount };
  if (at.split.value === "count") return { type: "count", rows: amount };
  return { type: "splits", held_out: $$("input[name=held_out]:checked", form).map((one) => one.value) };
}

function choices() {
  const at = form.elements;
  return {
    project: at.project.value,
    file: file.digest,
    mapping: { [at.holds.value]: at.asked.value, answer: at.answer.value },
    split: split(),
  };
}

/** Each message as the agent will read it. */
function example(row) {
  const lines = row.messages.map((one) =>
    el("p", { class: "anywhere" }, el("b", { text: `${one.role}: ` }), el("span", { text: one.content })),
  );
  const side = row.held_out ? "held out" : "training";
  const answer = el("p", { class: "soft anywhere", text: `Answer: ${row.answer || "none"}` });
  return el(
    "div",
    { class: "vs g4" },
    el("span", { class: "tag", text: `row ${row.place}, ${side}` }),
    ...lines,
    answer,
  );
}

async function preview() {
  if (!file) return;
  const mine = ++asked;
  clear();
  button.disabled = true;
  try {
    const found = await post("/api/v1/datasets/preview", choices(), undefined, LONG_MS);
    if (mine !== asked) return;
    const otherwise = form.elements.holds.value === "request" ? ", unless it evaluates on training rows" : "";
    const none = `none held out: no run can be evaluated on it${otherwise}, so hold out a larger share`;
    $("#counts").textContent =
      `${found.training} rows to train on, ${found.held_out ? `${found.held_out} held out` : none}`;
    $("#examples").replaceChildren(...found.examples.map(example));
    $("#preview").hidden = false;
    button.disabled = false;
  } catch (error) {
    if (mine !== asked) return;
    $("#preview").hidden = true;
    tell(error);
  }
}

function offer(select, columns, chosen, none) {
  const options = columns.map((name) => el("option", { value: name, text: name }));
  if (none) options.unshift(el("option", { value: "", text: none }));
  select.replaceChildren(...options);
  select.value = chosen;
}

function reset() {
  file = null;
  asked += 1;
  button.disabled = true;
  $("#mapping").hidden = true;
  $("#preview").hidden = true;
  clear();
}

/** Offer to hold out whole splits where the file has several, and what their names suggest. */
function offerSplits() {
  const several = file.splits.length > 1;
  const option = $("option[value=splits]", form);
  option.hidden = option.disabled = !several;
  const { type, share, held_out: held = [] } = file.split;
  form.elements.split.value = type;
  form.elements.amount.value = share ?? "0.1";
  const boxes = file.splits.map((name) => {
    const box = el("input", { type: "checkbox", name: "held_out", value: name });
    box.checked = held.includes(name);
    return el("label", { class: "check" }, box, el("span", { class: "anywhere", text: name }));
  });
  $("[data-part=splits]", form).replaceChildren(...(several ? boxes : []));
  showSplit();
}

function showSplit() {
  const whole = form.elements.split.value === "splits";
  $("[data-part=splits]", form).hidden = !whole;
  $("[data-part=amount]", form).hidden = whole;
}

/** Show what a file that is there has, and the preview. */
async function looked(one) {
  file = one;
  const { columns, mapping } = file;
  const held = ["request", "messages"].find((kind) => mapping[kind]) ?? "prompt";
  offer(form.elements.asked, columns, mapping[held] || columns[0] || "");
  offer(form.elements.answer, columns, mapping.answer, "none");
  form.elements.holds.value = held;
  offerSplits();
  $("#mapping").hidden = false;
  await preview();
}

async function take() {
  const chosen = form.elements.file.files[0];
  reset();
  const mine = asked;
  if (!chosen) return;
  announce(`Uploading ${chosen.name}`);
  const query = new URLSearchParams({ name: chosen.name, project: form.elements.project.value });
  let uploaded;
  try {
    uploaded = await upload(`/api/v1/datasets/files?${query}`, chosen, LONG_MS);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    const place = $("[data-error='/file']", form);
    place.textContent = error.message;
    place.hidden = false;
    return;
  }
  if (mine === asked) await looked(uploaded);
}

/** The fields of the chosen source alone. */
function showSource() {
  for (const part of $$("[data-for]", form)) part.hidden = part.dataset.for !== form.elements.source.value;
}

form.addEventListener("change", (event) => {
  const { name } = event.target;
  if (name === "source") {
    showSource();
    reset();
    if (event.target.value === "file") take();
  } else if (name === "file" || (name === "project" && form.elements.source.value === "file")) take();
  else if (["project", "repository", "revision", "secret"].includes(name)) reset();
  else if (name === "split") {
    form.elements.amount.value = event.target.value === "share" ? "0.1" : "100";
    showSplit();
    preview();
  } else if (["asked", "answer", "holds", "amount", "held_out"].includes(name)) preview();
});

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!file) return;
  clear();
  button.disabled = true;
  const at = form.elements;
  const body = { ...choices(), name: at.name.value.trim(), note: at.note.value };
  try {
    const made = await post("/api/v1/datasets", body, crypto.randomUUID(), LONG_MS);
    location.assign(`/datasets/${made.dataset}?version=${made.number}`);
  } catch (error) {
    tell(error);
    button.disabled = false;
  }
});

const hub = $("#hub"); // only where a hub is configured
if (hub)
  fromHub(hub, {
    project: () => form.elements.project.value,
    taken: (one) => form.elements.source.value === "hub" && looked(one),
    reset,
    tell,
  });
showSource();
// A file may have been chosen before this script came, or be there again after Back.
if (form.elements.source.value === "file" && form.elements.file.files.length) take();
