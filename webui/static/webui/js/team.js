// The editor of a team: its settings are YAML, read and checked by the server while one writes; the drawing follows, and
// what would be refused stands below the text with its line.
import { post, send } from "./api.js";
import { $, $$, el } from "./dom.js";
import { saveOnSubmit } from "./saved_version.js";

const form = $("#team-form");
const area = form.elements.settings;
const { textUrl, graphUrl, checkUrl } = form.dataset;
const PAUSE_MS = 250;
let turn = 0;
let waits;

/** Say what is wrong, each with the line that it stands in. */
function tell(problems, lines) {
  const list = $("#problems");
  list.hidden = !problems.length;
  list.replaceChildren(
    ...problems.map(({ pointer, detail, hint }) => {
      const inside = pointer.replace(/^\/settings/, "");
      let here = inside;
      while (here && !(here in lines)) here = here.slice(0, here.lastIndexOf("/"));
      const where = here ? `Line ${lines[here] + 1}, ${inside.slice(1).replaceAll("/", ".")}: ` : "";
      return el("li", { text: where + [detail, hint].filter(Boolean).join(" ") });
    }),
  );
  area.toggleAttribute("aria-invalid", problems.length > 0);
  $("#checked").textContent = problems.length ? `${problems.length} to mend` : "";
}

/** Draw the team of a graph; while it is wrong the last drawing stays. */
async function draw(graph, mine) {
  $("#no-graph").hidden = Boolean(graph);
  if (!graph) {
    $("#team-graph").replaceChildren();
    return;
  }
  const answer = await send("POST", graphUrl, { body: { environment: { type: "sums", graph } } });
  if (mine !== turn || answer.status !== 200) return;
  $("#team-graph").innerHTML = await answer.text(); // rendered by the server, everything escaped
}

/** Say in each box of the drawing what its agent acts with. */
function name({ agents }) {
  for (const box of $$("[data-seat]", form)) {
    const { policy, trainable, external } = agents?.[box.dataset.seat] ?? {};
    const acts = external ? "external" : policy && policy !== box.dataset.seat ? `policy ${policy}` : "own policy";
    box.textContent = [acts, trainable === false && !external ? "frozen" : ""].filter(Boolean).join(", ");
  }
}

/** Read the text; returns its settings, null where they would be refused. An older answer changes nothing. */
async function read() {
  clearTimeout(waits);
  const mine = ++turn;
  const { spec, lines, errors } = await post(textUrl, { yaml: area.value });
  if (mine !== turn) return null;
  if (!spec) {
    tell(errors, lines);
    return null;
  }
  const [{ refused }] = await Promise.all([post(checkUrl, { settings: spec }), draw(spec.graph, mine)]);
  if (mine !== turn) return null;
  tell(refused, lines);
  if (!refused.length) name(spec);
  return refused.length ? null : spec;
}

async function checked() {
  const settings = await read();
  if (settings === null) area.focus();
  return settings;
}

name(JSON.parse($("#team-settings").textContent));
if (!area.readOnly) {
  area.addEventListener("input", () => {
    clearTimeout(waits);
    waits = setTimeout(() => read().catch(() => {}), PAUSE_MS); // saving says what goes wrong
  });
  saveOnSubmit(form, checked, (made) => `/teams/${made.team}`);
}
