// Pools and nodes, and the queue: administrators' rules, sent with the version that the page shows.
import { Refused, send } from "./api.js";
import { $, $$, announce, toast } from "./dom.js";
import { refresh } from "./live.js";
import { confirmed } from "./ui.js";

const ruled = (version) => (version === "" || version === undefined ? {} : { "If-Match": `W/"${version}"` });

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-rule]");
  if (!button || !(await confirmed(button.dataset))) return;
  await tried(button, async () => {
    await send("POST", button.dataset.url, {
      body: {},
      headers: ruled(button.dataset.version),
      key: crypto.randomUUID(),
    });
    announce(`${button.textContent.trim()} done`);
    refresh(true);
  });
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  const handler = ["drain", "pool", "quota", "priority", "move", "put"].find((name) => name in form.dataset);
  if (!handler) return;
  event.preventDefault();
  const button = $("[type=submit]", form);
  tried(button, () => HANDLERS[handler](form), form);
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-delete-pool]");
  if (!button || button.getAttribute("aria-disabled") === "true") return;
  const form = button.closest("form");
  const name = form.dataset.url.split("/").pop();
  if (
    !(await confirmed({
      title: `Delete pool ${name}`,
      text: "Its bindings and quotas are deleted with it.",
      primary: `Delete ${name}`,
    }))
  )
    return;
  await tried(
    button,
    async () => {
      await send("DELETE", form.dataset.url, { headers: ruled(form.dataset.version) });
      location.assign(form.dataset.done);
    },
    form,
  );
});

document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-provider]")) return;
  for (const group of $$("[data-options]")) group.hidden = group.dataset.options !== event.target.value;
});

const linesOf = (field) =>
  field.value
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

/** Lines of NAME=VALUE as an object; a line without a sign has an empty value, which the server refuses by its name. */
const pairsOf = (field, read) =>
  Object.fromEntries(
    linesOf(field).map((line) => {
      const [name, ...rest] = line.split("=");
      return [name.trim(), read(rest.join("=").trim())];
    }),
  );

const OPTIONS = {
  text: (field) => field.value.trim(),
  number: (field) => (field.value.trim() === "" ? null : Number(field.value)),
  lines: linesOf,
  pairs: (field) => pairsOf(field, (text) => text),
  amounts: (field) => pairsOf(field, Number),
};

/** Where a pool's hosts come from, as its form says. */
function providerOf(form) {
  const type = $("[data-provider]", form).value;
  if (type === "static") return { type };
  const fields = $$(`[data-options="${type}"] [data-option]`, form).map((field) => [
    field.dataset.field.split("/").pop(),
    OPTIONS[field.dataset.option](field),
  ]);
  return { type, ...Object.fromEntries(fields.filter(([, value]) => value !== null)) };
}

const HANDLERS = {
  async drain(form) {
    const { mode, url, version, done } = form.dataset;
    const deadline = $("#drain-deadline", form);
    const body = { mode: deadline || mode !== "stop" ? mode : "wait", note: $("#drain-note", form).value };
    if (deadline) body.deadline = new Date(deadline.value).toISOString();
    await send("POST", url, { body, headers: ruled(version), key: crypto.randomUUID() });
    location.assign(done);
  },
  async pool(form) {
    const { url, version, done } = form.dataset;
    const body = {
      description: $("#pool-description", form).value,
      note: $("#pool-note", form).value,
      device_hour_price: $("#pool-price", form).value.trim() === "" ? null : Number($("#pool-price", form).value),
      preemptible: $("#pool-preemptible", form).checked,
      is_default: $("#pool-default", form).checked,
      projects: $$("[name=project]:checked", form).map((box) => box.value),
      provider: providerOf(form),
    };
    if (version) await send("PATCH", url, { body, headers: ruled(version) });
    else await send("POST", url, { body: { ...body, name: $("#pool-name", form).value }, key: crypto.randomUUID() });
    location.assign(done);
  },
  async quota(form) {
    const { url, version } = form.dataset;
    const text = $("input", form).value.trim();
    if (text) await send("PUT", url, { body: { devices: Number(text) }, headers: ruled(version) });
    else await send("DELETE", url, { headers: ruled(version) });
    location.reload();
  },
  async move(form) {
    await send("POST", form.dataset.url, { body: { pool: $("select", form).value }, key: crypto.randomUUID() });
    announce("Moved to another pool");
    document.activeElement.blur();
    refresh(true);
  },
  async put(form) {
    await send("PATCH", form.dataset.url, {
      body: { pool: $("select", form).value },
      headers: ruled(form.dataset.version),
    });
    announce("Moved to another pool");
    document.activeElement.blur();
    refresh(true);
  },
  async priority(form) {
    await send("POST", form.dataset.url, {
      body: { priority: Number($("input", form).value) },
      key: crypto.randomUUID(),
    });
    announce("Priority set");
    document.activeElement.blur();
    refresh(true);
  },
};

/** Mark the fields that a refusal speaks of, and lead to the first. */
function point(form, errors) {
  const wrong = $$("[data-field]", form).filter(
    (field) =>
      !field.closest("[hidden]") && errors.some((one) => `${one.pointer}/`.startsWith(`${field.dataset.field}/`)),
  );
  for (const field of wrong) field.setAttribute("aria-invalid", "true");
  wrong[0]?.focus();
}

/** Run a change; a refusal is said beside the form, or at the foot of the page. */
async function tried(button, change, form = null) {
  button.setAttribute("aria-busy", "true");
  for (const field of form ? $$("[aria-invalid]", form) : []) field.removeAttribute("aria-invalid");
  try {
    await change();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    const place = form && $(".fe", form);
    const text =
      error.status === 412 ? "It was changed meanwhile. Reload the page to see the current state." : error.message;
    if (place) {
      place.textContent = text;
      place.hidden = false;
      point(form, error.errors);
    } else toast(text, { tone: "bad", detail: error.requestId });
    refresh(true);
  } finally {
    button.removeAttribute("aria-busy");
  }
}
