// The drawing of a team: it follows the settings while one writes them, and says in each box what its agent acts with.
import { send } from "./api.js";
import { $, $$ } from "./dom.js";
import { PATIENCE_MS, data, form } from "./team_state.js";

let drawn = JSON.stringify(data.settings.graph ?? null); // by the server, with the page
let asked = 0;

/** Draw the team of settings; while its graph is wrong the last drawing stays. */
export async function draw(settings) {
  const graph = settings.graph ?? null;
  $("#no-graph").hidden = Boolean(graph);
  const wanted = JSON.stringify(graph);
  if (wanted !== drawn) {
    const mine = ++asked;
    if (!graph) $("#team-graph").replaceChildren();
    else {
      const body = { environment: { type: "sums", graph } };
      const answer = await send("POST", form.dataset.graphUrl, { body, timeout: PATIENCE_MS });
      if (mine !== asked || answer.status !== 200) return;
      $("#team-graph").innerHTML = await answer.text(); // rendered by the server, everything escaped
    }
    drawn = wanted;
  }
  name(settings);
}

function name({ agents }) {
  for (const box of $$("[data-seat]", form)) {
    const { policy, trainable, external } = agents?.[box.dataset.seat] ?? {};
    const acts = external ? "external" : policy && policy !== box.dataset.seat ? `policy ${policy}` : "own policy";
    box.textContent = [acts, trainable === false && !external ? "frozen" : ""].filter(Boolean).join(", ");
  }
}
