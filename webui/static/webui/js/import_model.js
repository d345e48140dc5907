// The form of an import. What the API refuses is said beside its field, with the rule and a legal value.
import { post } from "./api.js";
import { $, $$, announce, el } from "./dom.js";

const form = $("#import-model");
const refused = $("#refused");
const chosen = () => $("input[name=type]:checked", form)?.value || "";

function source() {
  const at = form.elements;
  if (chosen() === "package") return { type: "package", name: at.package.value };
  if (chosen() === "folder") return { type: "folder", path: at.path.value.trim() };
  const [repository, revision, secret] = [at.repository, at.revision, at.secret].map((one) => one.value.trim());
  return { type: "hub", repository, revision: revision || "main", secret };
}

/** The fields of the chosen source alone. */
function show() {
  for (const part of $$("[data-for]", form)) part.hidden = part.dataset.for !== chosen();
}

function clear() {
  refused.hidden = true;
  for (const place of $$("[data-error]", form)) place.hidden = true;
  for (const field of $$("[aria-invalid]", form)) field.removeAttribute("aria-invalid");
}

function tell(error) {
  const left = error.errors.filter((one) => {
    const place = $$("[data-error]", form).find(
      (node) => one.pointer.startsWith(node.dataset.error) && !node.closest("[hidden]:not([data-error])"),
    );
    if (!place) return true;
    place.textContent = [one.detail, one.hint].filter(Boolean).join(" ");
    place.hidden = false;
    const field = $("input:not([type=radio]), select", place.parentElement);
    field?.setAttribute("aria-invalid", "true");
    return false;
  });
  if (left.length || !error.errors.length) {
    const lines = left.map((one) =>
      el("span", { text: [one.pointer.slice(1), one.detail, one.hint].filter(Boolean).join(" ") }),
    );
    refused.replaceChildren(...(lines.length ? lines : [el("span", { class: "anywhere", text: error.message })]));
    refused.hidden = false;
  }
  announce(error.message);
  const wrong = $("[aria-invalid]", form);
  (wrong || refused).scrollIntoView({ block: "nearest" });
  wrong?.focus({ preventScroll: true });
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  clear();
  const button = $("button.pri", form);
  button.disabled = true;
  const at = form.elements;
  try {
    const made = await post(form.dataset.url, {
      name: at.name.value.trim(),
      project: at.project.value,
      source: source(),
    });
    location.assign(`/models/${made.id}`);
  } catch (error) {
    tell(error);
    button.disabled = false;
  }
});
form.addEventListener("change", show);
show();
