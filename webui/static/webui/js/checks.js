// The card of consistency checks: start one or cancel it, then read the card again. It polls by itself while one runs.
import { post } from "./api.js";
import { toast } from "./dom.js";
import { reread } from "./regions.js";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-check]");
  if (!button) return;
  const region = button.closest("[data-live]");
  button.disabled = true;
  try {
    await post(button.dataset.check, {});
    await reread(region);
  } catch (error) {
    button.disabled = false;
    toast(error.message, { tone: "bad", detail: error.requestId });
  }
});
