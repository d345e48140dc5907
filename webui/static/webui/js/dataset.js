// The page of a dataset: what a reply to one of its rows would be worth by scores that are tried here.
import { post } from "./api.js";
import { $ } from "./dom.js";

const form = $("#try-scores");
const refused = $("#refused");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const at = form.elements;
  refused.hidden = true;
  $("#worth").textContent = "";
  try {
    const body = { scores: JSON.parse(at.scores.value), reply: at.reply.value };
    const found = await post(`${form.dataset.url}/${Number(at.row.value)}/score`, body);
    const parts = Object.entries(found.parts).map(([name, value]) => `${name} ${value.toFixed(2)}`);
    $("#worth").textContent = `${found.score.toFixed(2)}: ${parts.join(", ")}`;
  } catch (error) {
    refused.textContent = error instanceof SyntaxError ? `Scores are no JSON: ${error.message}` : error.message;
    refused.hidden = false;
  }
});
