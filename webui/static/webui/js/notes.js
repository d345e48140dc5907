// Name, tags and notes of a run. A change somebody else made meanwhile is never overwritten: the API refuses by version.
import { patch } from "./api.js";
import { $, $$, toast } from "./dom.js";
import { refresh } from "./live.js";

const dialog = $("#edit-run");
dialog?.addEventListener("close", async () => {
  if (dialog.returnValue !== "yes") return;
  const form = $("form", dialog);
  const tags = form.elements.tags.value
    .split(",")
    .map((one) => one.trim())
    .filter(Boolean);
  for (const place of $$("[data-error]", form)) place.hidden = true;
  try {
    const run = await patch(
      dialog.dataset.url,
      { name: form.elements.name.value.trim(), tags, notes: form.elements.notes.value },
      dialog.dataset.version,
    );
    dialog.dataset.version = run.version;
    toast("Notes saved", { seconds: 3 });
    refresh(true);
  } catch (error) {
    for (const one of error.errors) say(form, one.pointer, [one.detail, one.hint].filter(Boolean).join(" "));
    if (!error.errors.length)
      say(
        form,
        "",
        error.status === 412 ? "This run was changed meanwhile. Copy your text and reload the page." : error.message,
      );
    dialog.showModal();
  }
});

function say(form, pointer, text) {
  const place =
    $$("[data-error]", form).find((one) => one.dataset.error && pointer.startsWith(one.dataset.error)) ||
    $('[data-error=""]', form);
  place.textContent = text;
  place.hidden = false;
}
