// Saving a version of an agent or a team: what the API refuses stands beside its field, and nothing that was written is
// lost when somebody else saved one meanwhile.
import { post } from "./api.js";
import { $, $$, announce, el } from "./dom.js";
import { leaveFreely } from "./leaving.js";

function clear(form) {
  const refused = $("#refused");
  if (refused) refused.hidden = true;
  for (const place of $$("[data-error]", form)) place.hidden = true;
  for (const field of $$("[aria-invalid]", form)) field.removeAttribute("aria-invalid");
}

/** Offer to look at what somebody else saved meanwhile, and to save all the same. */
function offer(form, newest) {
  const again = el("button", { type: "button", class: "btn sm", text: `Save as version ${newest + 1}` });
  again.addEventListener("click", () => {
    form.dataset.basedOn = newest;
    form.requestSubmit();
  });
  const look = { class: "btn sm", href: `?version=${newest}`, target: "_blank", text: `Open version ${newest}` };
  $("#refused").append(el("span", { class: "hs g8 wrap" }, form.dataset.name ? el("a", look) : null, again));
}

/**
 * Say what the API refuses beside its field; what belongs to no field stands above the button. `others` says what fields
 * of a form of its own are refused, and returns the rest.
 */
function tell(form, error, others) {
  const refused = $("#refused");
  const left = [];
  for (const one of others(error.errors)) {
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
    if (error.problem?.newest) offer(form, error.problem.newest);
  }
  announce(error.message);
  $("[aria-invalid=true]", form)?.focus();
}

/** Save on submit what `settings` returns, null for not now, and go to the address that `place` makes of the answer. */
export function saveOnSubmit(form, settings, place, others = (errors) => errors) {
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
      const made = await post(form.dataset.url, body);
      leaveFreely();
      location.assign(place(made));
    } catch (error) {
      tell(form, error, others);
      button.disabled = false;
    }
  });
}
