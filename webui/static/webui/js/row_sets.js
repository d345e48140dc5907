// The import of rows that a run exported: one tar file, which the server checks as a whole.
import { upload } from "./api.js";
import { $, announce } from "./dom.js";

const form = $("#import-rows");
const refused = $("#rows-refused");
const button = $("button", form);
const LONG_MS = 300_000;

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const at = form.elements;
  refused.hidden = true;
  button.disabled = true;
  announce("Importing rows");
  try {
    const query = new URLSearchParams({ name: at.name.value.trim(), project: at.project.value });
    await upload(`/api/v1/row-sets?${query}`, at.file.files[0], LONG_MS);
    location.reload();
  } catch (error) {
    const lines = error.errors?.map((one) => [one.detail, one.hint].filter(Boolean).join(" ")) ?? [];
    refused.textContent = lines.join(" ") || error.message;
    refused.hidden = false;
    announce(refused.textContent);
    button.disabled = false;
  }
});
