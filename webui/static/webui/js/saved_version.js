// Saving a version of an agent or a team: what the API refuses stands beside its field, and nothing that was written is
// lost when somebody else saved one meanwhile.
import { post } from "./api.js";
import { $, $$, announce } from "./dom.js";

function clear(form) {
  const refused = $("#refused");
  if (refused) refused.hidden = true;
  for (const place of $$("[data-error]", form)) place.hidden = true;
  for (const field of $$("[aria-invalid]", form)) field.removeAttribute("aria-invalid");
}

/** Say what the API refuses beside its field; what belongs to no field stands above the button. */
function tell(form, error) {
  const refused = $("#refused");
  const left = [];
  for (const one of error.errors) {
    const place = $$("[data-error]", form).find((node) => one.pointer === node.dataset.error);
    const text = [one.detail, one.hint].filter(Boolean).join(" ");
    if (!place) {
      left.push(text);
      continue;
    }
    place.textContent = text;
    place.hidden = false;
    form.elements[place.dataset.error.split("/").pop()]?.setAttribute("aria-invalid", "true");
  }
  if (left.length || !error.errors.length) {
    refused.textContent = left.join(" ") || error.message;
    refused.hidden = false;
  }
  announce(error.message);
  $("[aria-invalid]", form)?.focus();
}

/** Save on submit what `settings` returns, null for not now, and go to the address that `place` makes of the answer. */
export function saveOnSubmit(form, settings, place) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clear(form);
    const button = $("button.pri", form);
    const { name, description, note } = form.elements;
    button.disabled = true;
    try {
      const whole = await settings();
      if (whole === null) {
        button.disabled = false;
        return;
      }
      const body = {
        name: form.dataset.name || name.value,
        project: form.dataset.project,
        description: description.value,
        note: note.value,
        settings: whole,
        based_on: Number(form.dataset.basedOn),
      };
      location.assign(place(await post(form.dataset.url, body)));
    } catch (error) {
      tell(form, error);
      button.disabled = false;
    }
  });
}
