// Copy buttons beside folders and digests.
import { $, $$, toast } from "./dom.js";

for (const button of $$("[data-copy-text]")) {
  button.addEventListener("click", async () => {
    const text = ($("[data-copy-full]", button.parentElement) || $("[data-copy-source]", button.parentElement)).textContent;
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied", { tone: "ok" });
    } catch { toast(text); } // no clipboard without a secure origin: show it to be copied by hand
  });
}
