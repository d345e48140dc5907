// Tokens and profile. A token's text is shown once, from the answer that made it.
import { patch, post, remove } from "./api.js";
import { $, $$, toast } from "./dom.js";
import { confirmed, setTheme } from "./ui.js";

function showErrors(form, error) {
  for (const place of $$("[data-error]", form)) place.hidden = true;
  const left = error.errors.filter((one) => {
    const place = $(`[data-error="${CSS.escape(one.pointer)}"]`, form);
    if (!place || !one.pointer) return true;
    place.textContent = [one.detail, one.hint].filter(Boolean).join(" ");
    place.hidden = false;
    return false;
  });
  if (left.length || !error.errors.length) {
    const place = $('[data-error=""]', form);
    if (place) { place.textContent = left[0]?.detail || error.message; place.hidden = false; } else toast(error.message, { tone: "bad", detail: error.requestId });
  }
}

const tokens = $("#token-form");
tokens?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const data = new FormData(tokens);
  try {
    const made = await post("/api/v1/tokens", { name: data.get("name"), expires_in_days: Number(data.get("expires_in_days")), scopes: data.getAll("scopes") });
    const text = made.token || made.text || made.secret;
    $("#token-text").textContent = text;
    const curl = $("#token-curl");
    curl.textContent = `curl -H "Authorization: Bearer ${text}" ${curl.dataset.origin}/api/v1/runs`;
    $("#new-token").hidden = false;
    $("#new-token").scrollIntoView({ block: "nearest" });
    for (const place of $$("[data-error]", tokens)) place.hidden = true;
    tokens.reset();
  } catch (error) {
    showErrors(tokens, error);
  }
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-revoke]");
  if (button && await confirmed({ title: `Revoke ${button.dataset.name}?`, text: "Scripts that use it are refused from now on.", primary: "Revoke token" })) {
    try {
      await remove(`/api/v1/tokens/${button.dataset.revoke}`);
      location.reload();
    } catch (error) {
      toast(error.message, { tone: "bad", detail: error.requestId });
    }
  }
  const choice = event.target.closest("[data-theme-choice]");
  if (choice) {
    for (const one of $$("[data-theme-choice]")) { one.removeAttribute("aria-current"); one.setAttribute("aria-checked", String(one === choice)); }
    choice.setAttribute("aria-current", "true");
    setTheme(choice.dataset.themeChoice);
  }
});

$("#zone")?.addEventListener("change", async (event) => {
  try {
    await patch("/api/v1/me", { time_zone: event.target.value });
    toast("Time zone kept", { seconds: 3 });
  } catch (error) {
    showErrors($("#profile-form"), error);
  }
});
