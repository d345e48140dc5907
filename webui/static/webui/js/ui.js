// Confirming and the theme; shared by entry modules, which never import each other.
import { patch } from "./api.js";
import { $, toast } from "./dom.js";

/** Verb and object in the title, the consequence in one line, the verb again on the button. */
export function confirmed({ title, text, primary }) {
  const dialog = $("#confirm");
  $("#confirm-title").textContent = title;
  $("[data-text]", dialog).textContent = text;
  $("[data-yes]", dialog).textContent = primary;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }),
  );
}

export function switchTheme() {
  setTheme(document.documentElement.dataset.bsTheme === "dark" ? "light" : "dark");
}

/** Show a theme now and keep it with the person. */
export function setTheme(theme) {
  try {
    sessionStorage.removeItem("theme");
  } catch {
    /* storage may be forbidden; the person's setting is enough */
  }
  document.documentElement.dataset.theme = theme;
  window.flexmarlTheme();
  themeIcon();
  document.dispatchEvent(new CustomEvent("theme"));
  patch("/api/v1/me", { theme }).catch((error) => toast(error.message, { tone: "bad" }));
}

export function themeIcon() {
  const dark = document.documentElement.dataset.bsTheme === "dark";
  $("[data-theme-toggle] use")?.setAttribute(
    "href",
    `${document.documentElement.dataset.sprite}#${dark ? "sun" : "moon"}`,
  );
}
