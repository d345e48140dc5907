// The editor of an agent definition: what the model is told is rendered by the server while one writes, and saving makes
// the next version of what was edited, or says that somebody else saved one meanwhile.
import { post } from "./api.js";
import { $ } from "./dom.js";
import { askBeforeLeaving } from "./leaving.js";
import { saveOnSubmit } from "./saved_version.js";

const form = $("#agent-definition");
const saved = JSON.parse($("#saved-settings").textContent);
const PAUSE_MS = 250;

/** What the form says, over what was saved: settings without a field stay as they are. */
function settings() {
  const at = form.elements;
  const sampling = { temperature: Number(at.temperature.value), max_tokens: Number(at.max_tokens.value) || null };
  return {
    ...saved,
    instructions: at.instructions.value,
    context_tokens: at.context_tokens.value ? Number(at.context_tokens.value) : null,
    sampling: { ...saved.sampling, ...sampling },
    trainable: at.trainable.checked,
  };
}

let waits;
let asked = 0;

/** Render the instructions for the seat that the preview names; an older answer never replaces a newer one. */
async function preview() {
  const at = form.elements;
  const mine = ++asked;
  const shown = $("#preview");
  const team = at.preview_team.value
    .split(",")
    .map((one) => one.trim())
    .filter(Boolean);
  const body = {
    instructions: at.instructions.value,
    role: at.preview_role.value || "solver",
    team: team.length ? team : ["solver"],
    environment: at.preview_environment.value,
  };
  try {
    const { text } = await post("/api/v1/agents/preview", body);
    if (mine !== asked) return;
    shown.textContent = text || "Nothing: the conversation begins with the environment's first message.";
    shown.classList.remove("wn");
  } catch (error) {
    if (mine !== asked) return;
    shown.textContent = error.errors?.[0]?.detail || error.message;
    shown.classList.add("wn");
  }
}

function count() {
  const box = form.elements.instructions;
  $("#length").textContent = `${box.value.length} of ${box.maxLength} characters`;
}

form.addEventListener("input", (event) => {
  if (!event.target.name.startsWith("preview_")) askBeforeLeaving();
  count();
  clearTimeout(waits);
  waits = setTimeout(preview, PAUSE_MS);
});

saveOnSubmit(form, settings, (made) => `/agents/${made.agent}`);

count();
preview();
