// The import of a dataset: the file goes up once, what is chosen of it is previewed by the server, and saving says every
// bad row by its line.
import { Refused, post, upload } from "./api.js";
import { $, $$, announce, el } from "./dom.js";

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

function choices() {
  const at = form.elements;
  const column = at.is_messages.checked ? "messages" : "prompt";
  const amount = Number(at.amount.value.replace(",", "."));
  return {
    project: at.project.value,
    file: file.digest,
    mapping: { [column]: at.asked.value, answer: at.answer.value },
    split: at.split.value === "share" ? { type: "share", share: amount } : { type: "count", rows: amount },
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
    $("#counts").textContent = `${found.training} rows to train on, ${found.held_out} held out`;
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

async function take() {
  const chosen = form.elements.file.files[0];
  file = null;
  asked += 1;
  button.disabled = true;
  $("#mapping").hidden = true;
  $("#preview").hidden = true;
  clear();
  if (!chosen) return;
  announce(`Uploading ${chosen.name}`);
  const query = new URLSearchParams({ name: chosen.name, project: form.elements.project.value });
  try {
    file = await upload(`/api/v1/datasets/files?${query}`, chosen, LONG_MS);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    const place = $("[data-error='/file']", form);
    place.textContent = error.message;
    place.hidden = false;
    return;
  }
  const { columns, mapping } = file;
  offer(form.elements.asked, columns, mapping.prompt || mapping.messages || columns[0] || "");
  offer(form.elements.answer, columns, mapping.answer, "none");
  form.elements.is_messages.checked = Boolean(mapping.messages);
  $("#mapping").hidden = false;
  await preview();
}

form.addEventListener("change", (event) => {
  const { name } = event.target;
  if (name === "file" || name === "project") take();
  else if (name === "split") {
    form.elements.amount.value = event.target.value === "share" ? "0.1" : "100";
    preview();
  } else if (["asked", "answer", "is_messages", "amount"].includes(name)) preview();
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

// A file may have been chosen before this script came, or be there again after Back.
if (form.elements.file.files.length) take();
