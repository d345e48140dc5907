// Copy buttons beside model sources and digests, and pins.
import { post } from "./api.js";
import { $, $$, toast } from "./dom.js";

document.addEventListener("click", async (event) => {
  const place = event.target.closest("[data-copy-text]")?.parentElement;
  if (!place) return;
  const text = ($("[data-copy-full]", place) || $("[data-copy-source]", place)).textContent;
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied", { tone: "ok" });
  } catch {
    toast(text);
  } // no clipboard without a secure origin: show it to be copied by hand
});

for (const button of $$("[data-pin]")) {
  button.addEventListener("click", async () => {
    if (button.getAttribute("aria-disabled") === "true") return;
    try {
      await post(`${$("#checkpoints").dataset.url}/${button.dataset.step}/actions/${button.dataset.pin}`);
      location.reload();
    } catch (error) {
      toast(error.message, { tone: "bad", detail: error.requestId });
    }
  });
}
