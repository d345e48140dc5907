// Pages of people, tokens and profile: forms, selects and buttons that say in data- attributes which call they make.
// A form sends its named fields as JSON; what may be shown once is shown in #once from the answer that made it.
import { patch, post, remove } from "./api.js";
import { $, $$, announce, toast } from "./dom.js";
import { confirmed, setTheme } from "./ui.js";

const SEND = { POST: (url, body) => post(url, body), PATCH: patch, DELETE: (url) => remove(url) };

function showErrors(form, error) {
  for (const place of $$("[data-error]", form)) place.hidden = true;
  for (const field of $$("[aria-invalid]", form)) field.removeAttribute("aria-invalid");
  const left = error.errors.filter((refused) => {
    const place = $$("[data-error]", form).find(
      (node) => node.dataset.error && refused.pointer.startsWith(node.dataset.error),
    );
    if (!place) return true;
    place.textContent = [refused.detail, refused.hint].filter(Boolean).join(" ");
    place.hidden = false;
    const field = form.elements[place.dataset.error.slice(1)];
    if (field?.setAttribute) {
      field.setAttribute("aria-invalid", "true");
      field.focus();
    }
    return false;
  });
  if (left.length || !error.errors.length) {
    const place = $('[data-error=""]', form);
    if (place) {
      place.textContent = left[0]?.detail || error.message;
      place.hidden = false;
    } else toast(error.message, { tone: "bad", detail: error.requestId });
  }
}

/** The named fields of a form as JSON: data-kind says what is not plain text. */
function bodyOf(form) {
  const body = {};
  for (const field of $$("[name]", form)) {
    const { kind } = field.dataset;
    if (kind === "list") {
      body[field.name] ??= [];
      if (field.checked) body[field.name].push(field.value);
    } else if (kind === "lines") body[field.name] = field.value.split(/[\s,]+/).filter(Boolean);
    else if (kind === "number") body[field.name] = Number(field.value);
    else if (kind === "optional") {
      if (field.value) body[field.name] = field.value;
    } else if (kind === "membership") {
      if (field.value) body.memberships = [{ project: field.value, role: $("[data-membership-role]", form).value }];
    } else if (field.name !== "csrfmiddlewaretoken") body[field.name] = field.value;
  }
  return body;
}

function showOnce(answer) {
  const text = answer.token || answer.secret || answer.password;
  const box = $("#once");
  if (!text || !box) return false;
  $("#once-text").textContent = text;
  for (const place of $$("[data-once-token]")) place.textContent = text;
  const what = $("[data-once-what]", box);
  if (what) what.textContent = answer.password ? answer.username : answer.name || answer.node;
  const curl = $("#once-curl");
  if (curl)
    curl.textContent = `curl -H "Authorization: Bearer ${text}" ${curl.dataset.origin}${answer.secret ? "/v1/models" : "/api/v1/me"}`;
  box.hidden = false;
  box.scrollIntoView({ block: "nearest" });
  announce("Created. Copy it now; it is not shown again.");
  return true;
}

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-send]");
  if (!form) return;
  event.preventDefault();
  const button = event.submitter || $("button:not([type=button])", form);
  button.disabled = true;
  try {
    const answer = await SEND[form.dataset.send](form.dataset.url, bodyOf(form));
    for (const place of $$("[data-error]", form)) place.hidden = true;
    form.closest("dialog")?.close();
    if (answer && showOnce(answer)) form.reset();
    else if (form.dataset.said) {
      toast(form.dataset.said, { tone: "ok", seconds: 4 });
      form.reset();
    } else location.reload();
  } catch (error) {
    showErrors(form, error);
  } finally {
    button.disabled = false;
  }
});

/** Every field of the object is about its new version now. */
function versioned(node, version) {
  node.dataset.version = version;
  for (const field of document.querySelectorAll("[data-patch]")) {
    if (field.dataset.patch === node.dataset.patch) field.dataset.version = version;
  }
}

/** One call from a select or a button; what was refused goes back to what it was. */
async function one(node, method, url, body) {
  node.setAttribute("aria-busy", "true");
  try {
    const answer = await (method === "PATCH" ? patch(url, body, node.dataset.version) : SEND[method](url, body));
    if (answer && showOnce(answer)) return true;
    if (node.dataset.said) {
      toast(node.dataset.said, { tone: "ok", seconds: 4 });
      if (answer?.version) versioned(node, answer.version);
    } else if (node.dataset.then) location.assign(node.dataset.then);
    else location.reload();
    return true;
  } catch (error) {
    toast(error.errors[0]?.detail || error.message, { tone: "bad", detail: error.requestId });
    return false;
  } finally {
    node.removeAttribute("aria-busy");
  }
}

document.addEventListener("change", async (event) => {
  const field = event.target.closest("[data-patch]");
  if (!field) return;
  const value =
    field.type === "checkbox" ? field.checked : field.dataset.kind === "number" ? Number(field.value) : field.value;
  const was = field.dataset.was;
  const done = await one(field, "PATCH", field.dataset.patch, { [field.dataset.member]: value });
  if (done) {
    field.dataset.was = String(value);
    document.dispatchEvent(new CustomEvent("kept", { detail: { member: field.dataset.member, value } }));
  } else if (field.type === "checkbox") field.checked = was === "true";
  else field.value = was;
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-call]");
  if (button) {
    if (
      button.dataset.title &&
      !(await confirmed({ title: button.dataset.title, text: button.dataset.text, primary: button.dataset.primary }))
    )
      return;
    await one(
      button,
      button.dataset.call,
      button.dataset.url,
      button.dataset.body ? JSON.parse(button.dataset.body) : {},
    );
    return;
  }
  const opener = event.target.closest("[data-token-for]");
  if (opener) {
    const dialog = $("#new-token");
    const form = $("form", dialog);
    form.dataset.url = opener.dataset.tokenFor;
    $("h2", dialog).textContent = `New token for ${opener.dataset.name}`;
    dialog.showModal();
    return;
  }
  const closer = event.target.closest("[data-close]");
  if (closer) {
    $(`#${closer.dataset.close}`)?.close();
    return;
  }
  const choice = event.target.closest("[data-theme-choice], [data-density-choice]");
  if (choice) choose(choice);
});

function choose(choice) {
  const density = choice.dataset.densityChoice;
  for (const other of $$("button", choice.parentElement)) {
    other.removeAttribute("aria-current");
    other.setAttribute("aria-checked", String(other === choice));
  }
  choice.setAttribute("aria-current", "true");
  if (!density) {
    setTheme(choice.dataset.themeChoice);
    return;
  }
  document.documentElement.dataset.density = density;
  patch("/api/v1/me", { density }).catch((error) => toast(error.message, { tone: "bad" }));
}

document.addEventListener("kept", ({ detail }) => {
  if (detail.member === "letter_keys") document.documentElement.dataset.letters = detail.value ? "on" : "off";
});
