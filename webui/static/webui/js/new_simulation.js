// The form of a new simulation. What the API refuses is said beside its field; what belongs to a preset's specification
// is listed with pointer, rule and a legal value.
import { post } from "./api.js";
import { $, $$, announce, el } from "./dom.js";

const form = $("#new-simulation");
const refused = $("#refused");
const recorded = $("[data-recorded]", form);

/** What is played: a workload, or what a run recorded, which is played in that run's project. */
function load() {
  if (recorded.checked) return { run: form.elements.run.value };
  return { project: form.dataset.project, workload: $("input[name=workload]:checked", form)?.value || "" };
}

function wish() {
  const at = form.elements;
  return {
    ...load(),
    name: at.name.value,
    presets: $$("input[name=presets]:checked", form).map((box) => box.value),
    steps: Number(at.steps.value),
    warm_up: Number(at.warm_up.value),
    seeds: Number(at.seeds.value),
    changes: at.changes.value
      .split("\n")
      .map((line) => line.trim())
      .filter(Boolean),
    leave_out_refused: at.leave_out_refused.checked,
  };
}

function clear() {
  refused.hidden = true;
  for (const place of $$("[data-error]", form)) place.hidden = true;
  for (const field of $$("[aria-invalid]", form)) field.removeAttribute("aria-invalid");
}

function tell(error) {
  const left = [];
  const path = (pointer) => pointer.slice(1).replaceAll("/", ".");
  const written = form.elements.changes.value;
  const changed = (one) => one.pointer.includes("/", 1) && written.includes(path(one.pointer));
  for (const one of error.errors) {
    const place = !changed(one) && $$("[data-error]", form).find((node) => one.pointer.startsWith(node.dataset.error));
    if (!place) {
      left.push(one);
      continue;
    }
    place.textContent = [one.detail, one.hint].filter(Boolean).join(" ");
    place.hidden = false;
    const field = form.elements[place.dataset.error.slice(1)];
    field?.setAttribute?.("aria-invalid", "true");
  }
  if (left.length || !error.errors.length) {
    if (left.some(changed)) form.elements.changes.setAttribute("aria-invalid", "true");
    const lines = left.map((one) =>
      el(
        "li",
        {},
        el("code", { class: "anywhere", text: path(one.pointer) }),
        " ",
        el("span", { text: one.detail }),
        " ",
        el("span", { class: "muted", text: one.hint }),
      ),
    );
    refused.replaceChildren(
      el(
        "div",
        { class: "fit anywhere" },
        el("b", { text: left.length ? "Refused" : error.message }),
        el("ul", { class: "vs g4 s12" }, ...lines),
      ),
    );
    refused.hidden = false;
  }
  announce(error.message);
  const wrong = $("[aria-invalid]", form);
  (wrong || $$("[data-error]", form).find((place) => !place.hidden) || refused).scrollIntoView({ block: "nearest" });
  wrong?.focus({ preventScroll: true });
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  clear();
  const body = wish();
  if (!body.presets.length) {
    tell({
      message: "Choose a preset.",
      errors: [{ pointer: "/presets", detail: "Choose one preset or more.", hint: "" }],
    });
    return;
  }
  const button = $("button.pri", form);
  button.disabled = true;
  try {
    location.assign((await post(form.dataset.url, body)).web_url);
  } catch (error) {
    tell(error);
    button.disabled = false;
  }
});

/** Say how much is asked for. */
function count() {
  const boxes = $$("input[name=presets]", form);
  const chosen = boxes.filter((box) => box.checked).length;
  const played = (chosen + (recorded.checked && chosen ? 1 : 0)) * (Number(form.elements.seeds.value) || 0);
  $("#chosen").textContent = `${chosen} of ${boxes.length}; ${played} simulation${played === 1 ? "" : "s"}`;
}

for (const button of $$("[data-all]", form)) {
  button.addEventListener("click", () => {
    for (const box of $$("input[name=presets]", form)) box.checked = Boolean(button.dataset.all);
    count();
  });
}

form.elements.run?.addEventListener("change", () => {
  recorded.checked = true;
});
form.addEventListener("input", count);
count();
