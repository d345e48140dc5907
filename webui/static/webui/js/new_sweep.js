// The form of a new sweep: lines of parameters become the plan; what the API refuses stands beside its field.
import { get, post } from "./api.js";
import { $, $$, announce } from "./dom.js";

const form = $("#new-sweep");

function value(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** A line as a parameter; what it lacks is said by the API. */
function parameter(line) {
  const [pointer, type, ...rest] = line.split(/\s+/);
  if (type === "choice") return { pointer, type, values: rest.map(value) };
  const log = rest.at(-1) === "log";
  const [low, high] = rest.map(value);
  return { pointer, type, low, high, ...(log ? { log } : {}) };
}

async function body() {
  const at = form.elements;
  const lines = at.parameters.value
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
  const key = at.run.value.trim();
  const base = key
    ? { spec: (await get(`/api/v1/runs/${encodeURIComponent(key)}`)).spec }
    : { template: at.template.value };
  return {
    ...base,
    name: at.name.value,
    project: form.dataset.project,
    experiment: at.experiment.value.trim(),
    plan: {
      parameters: lines.map(parameter),
      method: at.method.value,
      metric: at.metric.value.trim(),
      goal: at.goal.value,
      trials: Number(at.trials.value),
      parallel: Number(at.parallel.value),
      grace_steps: Number(at.grace_steps.value),
      early_stop: at.early_stop.checked,
      device_hours: at.device_hours.value ? Number(at.device_hours.value) : null,
    },
  };
}

function tell(error) {
  const left = [];
  for (const one of error.errors || []) {
    const text = [one.detail, one.hint].filter(Boolean).join(" ");
    const place = $$("[data-error]", form).find((node) => one.pointer.startsWith(node.dataset.error));
    if (!place) left.push(text);
    else {
      place.textContent = place.hidden ? text : `${place.textContent} ${text}`;
      place.hidden = false;
    }
  }
  const box = $("#refused");
  if (left.length || !error.errors?.length) {
    box.textContent = left.join(" ") || error.message;
    box.hidden = false;
  }
  announce(error.message);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  $("#refused").hidden = true;
  for (const place of $$("[data-error]", form)) place.hidden = true;
  const button = $("button.pri", form);
  button.disabled = true;
  try {
    location.assign((await post("/api/v1/sweeps", await body())).web_url);
  } catch (error) {
    tell(error);
    button.disabled = false;
  }
});
