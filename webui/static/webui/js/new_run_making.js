// Start run and Keep as draft: the run is made as it was planned.
import { post } from "./api.js";
import { $, toast } from "./dom.js";
import { forget, marks, showMarkErrors } from "./draft.js";
import { showWrong } from "./new_run_panes.js";
import { replan, replanNow, settle } from "./new_run_planning.js";
import { data, draft, state } from "./new_run_state.js";
import { text } from "./spec.js";
import * as yaml from "./yaml_pane.js";

/** Plan what was changed a moment ago, so that its run is not refused. False when the plan is then another decision. */
async function upToDate() {
  if (yaml.unreadText()) await yaml.read();
  if (!state.valid) return false;
  if (state.planned && state.plannedFor === text(draft())) return true;
  const fitted = state.planned?.devices?.fits_now;
  await replanNow();
  if (!state.valid || state.plannedFor !== text(draft())) return false;
  if (state.planned.devices?.fits_now === fitted) return true;
  toast("Devices changed since the plan. Check the plan and press again.");
  return false;
}

/** Make the run as it was planned; what changed since is shown and planned again. */
export async function make(button, start) {
  if (!state.valid) {
    showWrong();
    return;
  }
  button.disabled = true;
  if (!(await upToDate())) {
    button.disabled = false;
    return;
  }
  const path = data.parent ? `/api/v1/runs/${data.parent.id}/actions/${data.fork ? "fork" : "clone"}` : "/api/v1/runs";
  const begins = data.fork ? { checkpoint: data.fork.checkpoint, take: $("#fork-take").value } : {};
  try {
    const run = await post(path, { ...draft(), ...marks(), ...begins, start, plan_token: state.planned.plan_token });
    forget(data);
    location.assign(run.web_url);
  } catch (error) {
    if (error.problem?.code === "plan_stale") {
      state.planned = { ...state.planned, prediction: null }; // what it said holds no more, nor does its token
      replan();
    } else if (error.errors.length) {
      showMarkErrors(error.errors);
      settle(
        state.planned,
        error.errors.filter((one) => one.location === "spec"),
      );
      showWrong();
    }
    toast(error.message, { tone: "bad", detail: error.requestId });
  } finally {
    button.disabled = false;
  }
}
