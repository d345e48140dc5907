// New run: devices chosen by an objective and a limit, beside the plan; one press fills the form with them.
import { amount, counted, long, percent, seconds, span } from "./amounts.js";
import { post } from "./api.js";
import { $, el, icon, number } from "./dom.js";
import { draft } from "./new_run_state.js";

const LIMIT_MS = 20_000;
const HOUR_S = 3600;

let take = null;
let turn = 0;

/** `takeChanges` fills the form with changes of the specification. */
export function begin(takeChanges) {
  take = takeChanges;
  const form = $("#choose-form");
  if (!form) return;
  $("#choose-limit").addEventListener("change", () => {
    $("#choose-amount-box").hidden = !$("#choose-limit").value;
    $("#choose-amount").required = Boolean($("#choose-limit").value);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    choose();
  });
}

/** Say that what is shown was chosen for the settings before. */
export function stale() {
  turn += 1;
  const answer = $("#choose-answer");
  answer?.classList.toggle("dim", answer.childElementCount > 0);
}

/** What the control asks for. */
function wish() {
  const limit = $("#choose-limit").value;
  const asked = { objective: $("#choose-objective").value, free: $("#choose-free").checked };
  if (limit) asked[limit] = Number($("#choose-amount").value) * (limit === "deadline_s" ? HOUR_S : 1);
  if ($("#choose-lag").value !== "") asked.max_lag = Number($("#choose-lag").value);
  return asked;
}

async function choose() {
  const mine = ++turn;
  const [answer, button] = [$("#choose-answer"), $("#choose-ask")];
  answer.classList.remove("dim");
  answer.replaceChildren(el("span", { class: "muted s12", text: "Choosing" }));
  button.disabled = true;
  try {
    const found = await post("/api/v1/runs/plan", { ...draft(), choose: wish() }, crypto.randomUUID(), LIMIT_MS);
    if (mine !== turn) answer.replaceChildren();
    else if (found.choice) answer.replaceChildren(...chosen(found.choice));
    else answer.replaceChildren(refusal("Fix the errors of the form first."));
  } catch (error) {
    const first = error.errors?.[0];
    if (mine === turn) answer.replaceChildren(refusal(first?.detail || error.message, first?.hint));
    else answer.replaceChildren();
  }
  button.disabled = false;
}

function refusal(text, hint) {
  return el(
    "div",
    { class: "hs top-al" },
    el("span", { class: "wn" }, icon("alert-triangle", "sm")),
    el("span", { class: "soft anywhere" }, text, hint ? el("div", { class: "s12", text: hint }) : null),
  );
}

/** Pools and numbers of a plan. */
function where(plan) {
  const wide = plan.engine_devices > 1 ? `, ${number(plan.engine_devices)} to an engine` : "";
  if (plan.shared)
    return `${counted(plan.rollout_devices, "device")} of ${plan.rollout_pool}${wide}, shared with ${counted(plan.training_devices, "trainer")}`;
  return `${number(plan.rollout_devices)} of ${plan.rollout_pool} for rollout${wide}, ${number(plan.training_devices)} of ${plan.training_pool} for training`;
}

function figures(plan) {
  const [whole, unit] = long(plan.hours);
  const parts = [`${span(plan.step_s, seconds)} s a step`, `${whole} ${unit} in all`];
  if (plan.cost) parts.push(`costs ${span(plan.cost, amount)}, ${amount(plan.cost_per_hour)} an hour`);
  if (plan.lag_bound) parts.push(`lag bound ${plan.lag_bound}`);
  return parts.join(", ").replaceAll("\u200b", "");
}

function use(plan, name) {
  if (!plan.changes.length) return el("span", { class: "muted s12", text: "In the form" });
  return el("button", {
    type: "button",
    class: "btn sm",
    text: "Use this",
    "aria-label": `Use this: ${where(plan)}`,
    title: plan.changes.map((one) => `${one.pointer.slice(1).replaceAll("/", ".")}: ${text(one.value)}`).join("\n"),
    "data-use": name,
    on: { click: () => take(plan.changes) },
  });
}

const text = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value ?? "none"));

function row(plan, name, shape) {
  return el(
    "div",
    { class: "hs top-al g8 mb8" },
    shape ? el("span", { class: "ok" }, icon(shape, "sm")) : null,
    el(
      "div",
      { class: "grow" },
      el("b", { class: "anywhere", text: where(plan) }),
      el("div", { class: "soft s12", text: figures(plan) }),
    ),
    use(plan, name),
  );
}

/** The chosen devices, what they are compared with, why, and the runners-up. */
function chosen(choice) {
  const { best, asked, others } = choice;
  const gain = asked && best.changes.length ? 1 - best.step_s.likely / asked.step_s.likely : 0;
  const compared =
    Math.abs(gain) >= 0.005
      ? `The form's devices take ${seconds(asked.step_s.likely)} s a step: ${percent(Math.abs(gain))} % ${gain > 0 ? "less" : "more"} time here.`
      : "";
  const notes = [compared, ...choice.unmeasured, ...choice.left_out].filter(Boolean);
  const looked = `${counted(choice.looked_at, "set")} of devices, ${number(choice.simulated)} simulated`;
  return [
    row(best, "best", "circle-check"),
    el(
      "ul",
      { class: "soft s12" },
      ...[...notes, ...best.why].map((line) => el("li", { class: "anywhere", text: line })),
    ),
    others.length
      ? el(
          "details",
          { class: "mt4" },
          el("summary", { class: "s12 muted tn", text: `Runners-up, of ${looked}` }),
          ...others.map((plan, index) => row(plan, String(index))),
        )
      : el("div", { class: "muted s12", text: looked }),
  ];
}
