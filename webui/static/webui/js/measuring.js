// A run that measures a team for New run, followed until it has ended. Invariant: one at a time; whoever shows it is told of each change.

import { get, post } from "./api.js";

const LOOK_EVERY_MS = 1_500;
const MISSED_LOOKS = 5;
const pause = () =>
  new Promise((resolve) => {
    setTimeout(resolve, LOOK_EVERY_MS);
  });

/** Make the run, and return it once it has ended. Throws what the API refuses, and the last failure of so many looks. */
export async function measured(draft, shown) {
  let run = await post("/api/v1/runs/measure", draft),
    missed = 0;
  shown(run);
  while (!run.finished_at) {
    await pause();
    try {
      const now = await get(`/api/v1/runs/${run.id}`),
        moved = now.step !== run.step || now.status !== run.status;
      run = now;
      missed = 0;
      if (moved) shown(run);
    } catch (error) {
      missed += 1;
      if (missed === MISSED_LOOKS) throw error;
    }
  }
  return run;
}
