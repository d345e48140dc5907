// The drawing of the team on New run: it follows the environment of the document, and stands in the pane that is open.
import { send } from "./api.js";
import { seats } from "./changes.js";
import { $ } from "./dom.js";
import { text } from "./spec.js";

const drawing = $("#team-graph");
const home = drawing.parentElement;
const behind = drawing.nextSibling;
let drawn = "";
let asking = 0;

/** Stand in the YAML pane while that is open, else among the fields of the team. */
export function standIn(pane) {
  if (pane === "yaml") $("#pane-yaml").prepend(drawing);
  else home.insertBefore(drawing, behind);
}

/** Draw the team that an environment asks for; while it is wrong the last drawing stays. */
export async function redraw(environment) {
  const wanted = text(environment);
  if (wanted === drawn) return;
  const mine = ++asking;
  try {
    const answer = await send("POST", $("#new-run").dataset.graphUrl, { body: { environment } });
    if (mine !== asking) return;
    drawn = wanted;
    if (answer.status === 200) {
      drawing.innerHTML = await answer.text(); // rendered by the server, everything escaped
      seats();
    }
  } catch {
    drawn = ""; // the plan says what is wrong; the drawing comes with the next change
  }
}
