// The page of a dataset: how often its rows were solved, and what a reply to one of them would be worth by scores that
// are tried here.
import { get, post } from "./api.js";
import { $, $$, el } from "./dom.js";

const form = $("#try-scores");
const refused = $("#refused");
const button = form.querySelector("button");

/** Add a line to what each score says. */
function add(kind, text) {
  const line = document.createElement(kind);
  line.className = kind === "dd" ? "anywhere" : "";
  line.textContent = text;
  $("#why").append(line);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const at = form.elements;
  refused.hidden = true;
  $("#worth").textContent = "Scoring…";
  $("#why").replaceChildren();
  button.disabled = true;
  try {
    const body = { scores: JSON.parse(at.scores.value), reply: at.reply.value };
    const found = await post(`${form.dataset.url}/${Number(at.row.value)}/score`, body);
    $("#worth").textContent = found.score === null ? "No score: a part is missing" : found.score.toFixed(2);
    for (const [name, value] of Object.entries(found.parts)) {
      const why = found.broken.includes(name) ? `Raised. ${found.why[name] ?? ""}` : (found.why[name] ?? "");
      add("dt", name);
      add("dd", [value === null ? "not computed" : value.toFixed(2), why].filter(Boolean).join(": "));
    }
    if (found.sandbox) {
      add("dt", "Sandbox");
      add("dd", found.sandbox);
    }
  } catch (error) {
    $("#worth").textContent = "";
    refused.textContent = error instanceof SyntaxError ? `Scores are not valid JSON: ${error.message}` : error.message;
    refused.hidden = false;
  } finally {
    button.disabled = false;
  }
});

/** Say of each row that is shown how often it was solved; counting takes a moment where runs are long. */
async function rates() {
  const cells = new Map($$("[data-rate]").map((cell) => [Number(cell.dataset.rate), cell]));
  if (!cells.size) return;
  const asked = [...cells.keys()].map((place) => `place=${place}`).join("&");
  const { rows } = await get(`${$("#dataset-rows").dataset.ratesUrl}?${asked}`);
  for (const { place, solved, episodes, mean_score: mean } of rows) {
    const cell = cells.get(place);
    cell.replaceChildren(
      `${Math.round((100 * solved) / episodes)} %`,
      el("div", { class: "muted s11", text: `of ${episodes}` }),
    );
    cell.title = `${solved} of ${episodes} episodes solved it; mean score ${mean.toFixed(2)}`;
  }
}

rates().catch(() => {
  for (const cell of $$("[data-rate]")) cell.title = "Not counted: the runs have too many episodes, or the API is away";
});
