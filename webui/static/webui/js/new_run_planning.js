// New run asks the API for a plan of every change and, once nothing has changed for a moment, for a simulation of it.
import { changes } from "./changes.js";
import { stale as choiceStale } from "./choose_devices.js";
import { $, toast } from "./dom.js";
import { keep } from "./draft.js";
import { post } from "./api.js";
import { stale as forecastStale } from "./forecast.js";
import { measured } from "./measuring.js";
import { notYet, showErrors } from "./new_run_errors.js";
import { redraw } from "./new_run_graph.js";
import { data, draft, state } from "./new_run_state.js";
import * as plan from "./plan.js";
import { text } from "./spec.js";

const PLAN_AFTER_MS = 250;
const PREDICT_AFTER_MS = 600;
const PREDICT_LIMIT_MS = 20_000;

let timer = null;
let takeSplit = null;

/** `split` is called with the changes of a division of the devices that somebody chose. */
export function begin({ split }) {
  takeSplit = split;
}

export function later() {
  keep(state, data); // now: who leaves before the plan has come keeps what was written
  clearTimeout(timer);
  timer = setTimeout(replan, PLAN_AFTER_MS);
}

/** Plan at once what `later` would plan in a moment. */
export function replanNow() {
  clearTimeout(timer);
  return replan();
}

export async function replan() {
  const mine = ++state.turn;
  keep(state, data);
  clearTimeout(ahead);
  forecastStale();
  choiceStale();
  changes();
  $("#run-name").placeholder = state.document.name || "";
  redraw(state.document.environment);
  $("#spec-form").inert = state.textErrors.length > 0; // what it would change is not what the text says
  if (state.textErrors.length) {
    settle(state.planned, state.textErrors);
    return;
  }
  try {
    const asked = draft();
    const found = await post("/api/v1/runs/plan", asked);
    if (mine !== state.turn) return;
    if (!found.errors.length && !state.bad.size) {
      takePlan(found, asked);
      predictLater(asked, mine);
    }
    settle(state.planned, found.errors);
  } catch (error) {
    if (mine !== state.turn) return;
    if (error.errors?.length) settle(state.planned, error.errors);
    else plan.fail(error, replan);
  }
}

/** Keep a plan; what was predicted of the same settings stays with it. */
function takePlan(found, asked) {
  const same = state.plannedFor === text(asked) && state.planned?.prediction;
  state.planned = same
    ? { ...found, prediction: state.planned.prediction, plan_token: state.planned.plan_token }
    : found;
  state.plannedFor = text(asked);
  state.predictError = null;
}

let ahead = null;
/** Have the plan simulated once nothing has changed for a moment; an answer to an older question is dropped. */
function predictLater(asked, mine) {
  clearTimeout(ahead);
  if (state.planned.prediction) return;
  ahead = setTimeout(() => predict(asked, mine), PREDICT_AFTER_MS);
}

let underWay = false;
let following = null;

/** One at a time: whoever writes on meanwhile has only his newest question asked, once the one under way is answered. */
async function predict(asked, mine) {
  if (underWay) {
    following = [asked, mine];
    return;
  }
  underWay = true;
  await predicted(asked, mine);
  underWay = false;
  const [next, turn] = following ?? [];
  following = null;
  if (next && turn === state.turn) predict(next, turn);
}

async function predicted(asked, mine) {
  try {
    const found = await post("/api/v1/runs/plan", { ...asked, predict: true }, crypto.randomUUID(), PREDICT_LIMIT_MS);
    if (mine !== state.turn || found.errors.length) return;
    state.planned = found;
  } catch (error) {
    if (mine !== state.turn) return;
    state.predictError = error;
  }
  settle(state.planned, []);
}

/** Have these models measured by a short run, then simulate the plan anew. */
async function measure(event) {
  event.currentTarget.disabled = true;
  state.measuring = true;
  try {
    const run = await measured(draft(), plan.measuring);
    if (run.status === "completed") toast(`${run.key} has measured these models.`, { tone: "ok" });
  } catch (error) {
    plan.notMeasured(error);
  }
  state.measuring = false;
  state.plannedFor = null;
  replan();
}

export function settle(found, errors) {
  state.valid = !errors.length && !state.bad.size;
  const retry = () => {
    state.predictError = null;
    settle(state.planned, []);
    predict(draft(), state.turn);
  };
  if (found)
    plan.show(found, {
      agents: data.agents,
      stale: !state.valid,
      ahead: {
        causes: data.causes,
        error: state.predictError,
        retry,
        measure,
        measuring: state.measuring,
        take: takeSplit,
      },
    });
  else plan.none();
  showErrors(errors);
  const start = $("#start");
  start.setAttribute("aria-disabled", String(!state.valid));
  start.textContent = found && state.valid && !found.devices?.fits_now ? "Queue run" : "Start run";
  $("#keep").setAttribute("aria-disabled", String(!state.valid));
  start.title = $("#keep").title = state.valid ? "" : notYet(errors);
}
