// The forms of a new suite and of a new evaluation: what is refused stands beside its field.
import { post } from "./api.js";
import { $, $$, announce } from "./dom.js";

const suite = $("#new-suite");
const evaluation = $("#new-evaluation");
const refused = $("#refused");
const LONG_MS = 120_000;

function tell(form, error) {
  const left = [];
  for (const one of error.errors || []) {
    const place = $$("[data-error]", form).find(
      (node) => one.pointer === node.dataset.error || one.pointer.startsWith(`${node.dataset.error}/`),
    );
    const text = [one.detail, one.hint].filter(Boolean).join(" ");
    if (place) {
      place.textContent = `${one.pointer.slice(1)}: ${text}`;
      place.hidden = false;
    } else left.push(text);
  }
  if (left.length || !(error.errors || []).length) {
    refused.textContent = left.join(" ") || error.message;
    refused.hidden = false;
  }
  announce(error.message);
}

/** Send what a form says, then go to what was made; `body` may throw where it cannot be read. */
async function submit(form, url, body, target) {
  refused.hidden = true;
  for (const place of $$("[data-error]", form)) place.hidden = true;
  const button = $("button.pri", form);
  button.disabled = true;
  try {
    location.assign(target(await post(url, body(form.elements), undefined, LONG_MS)));
  } catch (error) {
    tell(form, error);
    button.disabled = false;
  }
}

/** A limit of replies; an empty field leaves them as long as the environment asks for. */
const limit = (text) => (text.trim() ? Number(text) : null);

function suiteBody(at) {
  const based = suite.dataset.basedOn;
  const content = {
    parts: JSON.parse(at.parts.value),
    attempts: Number(at.attempts.value),
    greedy: at.greedy.checked,
    seed: Number(at.seed.value),
    sampling: { temperature: Number(at.temperature.value.replace(",", ".")), max_tokens: limit(at.max_tokens.value) },
  };
  const whole = { name: at.name.value.trim(), project: at.project.value, note: at.note.value, content };
  return based ? { ...whole, based_on: Number(based) } : whole;
}

function entries(form) {
  const models = $$("input[name=model]:checked", form).map((box) => ({ model: JSON.parse(box.value) }));
  const checkpoints = $$("[data-checkpoint]", form)
    .map((row) => [$("[name=run]", row).value.trim(), Number($("[name=step]", row).value)])
    .filter(([run]) => run)
    .map(([run, step]) => ({ model: { type: "checkpoint", run, step } }));
  const { url, external, secret } = form.elements;
  const outside = url.value.trim()
    ? [{ external: { url: url.value.trim(), model: external.value.trim(), secret: secret.value.trim() } }]
    : [];
  return [...models, ...checkpoints, ...outside];
}

suite?.addEventListener("submit", (event) => {
  event.preventDefault();
  submit(suite, "/api/v1/suites", suiteBody, (made) =>
    suite.dataset.then ? `${suite.dataset.then}&suite=${made.suite}` : `/suites/${made.suite}`,
  );
});

evaluation?.addEventListener("submit", (event) => {
  event.preventDefault();
  const body = (at) => ({
    name: at.name.value.trim(),
    suite: at.suite.value,
    note: at.note.value,
    entries: entries(evaluation),
  });
  submit(evaluation, "/api/v1/evaluations", body, (made) => made.web_url);
});

$("#more-checkpoints")?.addEventListener("click", () => {
  const rows = $("#checkpoints");
  const another = rows.lastElementChild.cloneNode(true);
  for (const field of $$("input", another)) field.value = "";
  rows.append(another);
  $("input", another).focus();
});
