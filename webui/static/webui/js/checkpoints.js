// Copy buttons beside model sources and digests, pins, and checkpoints that become models.
import { post } from "./api.js";
import { $, $$, el, toast } from "./dom.js";

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

const dialog = $("#promote");
for (const button of $$("[data-promote]")) {
  button.addEventListener("click", () => {
    const { promote, policies } = button.dataset;
    const form = $("form", dialog);
    form.dataset.step = promote;
    form.elements.policy.replaceChildren(
      ...policies.split(" ").map((name) => el("option", { value: name, text: name })),
    );
    $("#promote-title").textContent = `Make a model of step ${promote}`;
    $("#promote-error").hidden = true;
    dialog.showModal();
  });
}

$("[data-shut]", dialog || document)?.addEventListener("click", () => dialog.close());
dialog?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { dataset, elements } = event.target;
  try {
    const body = { name: elements.name.value.trim(), policy: elements.policy.value };
    const made = await post(`${$("#checkpoints").dataset.url}/${dataset.step}/actions/promote`, body);
    location.assign(`/models/${made.id}`);
  } catch (error) {
    const place = $("#promote-error");
    place.textContent = error.message;
    place.hidden = false;
    elements.name.focus();
  }
});
