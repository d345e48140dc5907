// The form of a package. What the API refuses is said beside its field, with the rule and a legal value.
import { post, upload } from "./api.js";
import { $, $$, announce, el } from "./dom.js";

const LONG_MS = 300_000;
const form = $("#build-package");
const refused = $("#refused");
const chosen = () => $("input[name=type]:checked", form)?.value || "";

/** What the form names; a file is uploaded first. */
async function source() {
  const at = form.elements;
  const entry = at.entry.value.trim();
  if (chosen() === "requirement") return { type: "requirement", requirement: at.requirement.value.trim(), entry };
  const [file] = $("#p-file").files;
  if (!file) return { type: "upload", file: "", digest: "", entry };
  const query = new URLSearchParams({ name: file.name, project: at.project.value });
  const kept = await upload(`${form.dataset.url}/files?${query}`, file, LONG_MS);
  return { type: "upload", file: kept.file, digest: kept.digest, entry };
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
      (node) => one.pointer === node.dataset.error && !node.closest("[hidden]:not([data-error])"),
    );
    if (!place) return true;
    place.textContent = [one.detail, one.hint].filter(Boolean).join(" ");
    place.hidden = false;
    $("input:not([type=radio]), select", place.parentElement)?.setAttribute("aria-invalid", "true");
    return false;
  });
  if (left.length || !error.errors.length) {
    const lines = left.map((one) => el("span", { text: [one.detail, one.hint].filter(Boolean).join(" ") }));
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
  try {
    const made = await post(form.dataset.url, { project: form.elements.project.value, source: await source() });
    location.assign(`/packages/${made.id}`);
  } catch (error) {
    tell(error);
    button.disabled = false;
  }
});
form.addEventListener("change", show);
show();
