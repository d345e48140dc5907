// Every page: theme, menus, dialogs, palette, keys, verbs, live parts.
import { post, remove } from "./api.js";
import { $, $$, announce, toast } from "./dom.js";
import { confirmed, switchTheme, themeIcon } from "./ui.js";
import { hold, refresh, start as startLive } from "./live.js";
import { start as startRegions } from "./regions.js";
import { openPalette, start as startPalette } from "./palette.js";
import { start as startKeys } from "./keys.js";

startRegions();
startLive();
startPalette();
startKeys({ hold, openPalette });
themeIcon();
for (const shown of $$(".tabs [aria-current], .views [aria-current]"))
  shown.scrollIntoView({ block: "nearest", inline: "center" });

document.addEventListener("click", (event) => {
  const target = event.target.closest("button, a, tr.go");
  closeMenus(event.target);
  if (!target) return;
  if (target.getAttribute("aria-disabled") === "true") {
    event.preventDefault();
    const why = target.title || $(".why", target)?.textContent;
    if (why) toast(why);
    return;
  }
  if (target.dataset.menu) toggleMenu(target);
  else if (target.dataset.open === "palette") openPalette();
  else if (target.dataset.open) document.getElementById(target.dataset.open).showModal();
  else if (target.dataset.verb) act(target);
  else if (target.dataset.deleteRun) deleteRun(target);
  else if ("themeToggle" in target.dataset) switchTheme();
  else if (target.dataset.startTemplate) startTemplate(target);
  else if (target.dataset.copy) copy(target.dataset.copy);
  else if ("copyCall" in target.dataset) copy($(".code:not([hidden])", target.closest("li")).textContent);
  else if (target.dataset.language) speak(target.dataset.language);
  else if (target.dataset.copyFrom) copy($(`#${target.dataset.copyFrom}`).textContent);
  else if (target.matches("tr.go") && !event.target.closest("a, button, details") && !String(getSelection()))
    location.assign(target.dataset.href);
});

function toggleMenu(button) {
  const menu = $(`#menu-${button.dataset.menu}`);
  menu.hidden = !menu.hidden;
  button.setAttribute("aria-expanded", String(!menu.hidden));
  if (!menu.hidden) $("a, button", menu)?.focus();
}

function closeMenus(target) {
  for (const menu of $$(".menu:not([hidden])")) {
    const box = menu.closest(".menu-box");
    if (box?.contains(target) && target.closest("[data-menu]")) continue;
    menu.hidden = true;
    const button = $("[data-menu]", box);
    button?.setAttribute("aria-expanded", "false");
  }
}

document.addEventListener("keydown", (event) => {
  const menu = event.target.closest?.(".menu");
  if (!menu) return;
  const items = $$("a, button", menu);
  const at = items.indexOf(document.activeElement);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) {
    event.preventDefault();
    items[(at + step + items.length) % items.length].focus();
  } else if (event.key === "Escape") {
    const button = $("[data-menu]", menu.closest(".menu-box"));
    closeMenus(document.body);
    button?.focus();
  }
});

/** Ask for a verb; the page shows the request, never the wished state. */
async function act(button) {
  const { run } = (button.closest("[data-run]") || $("[data-run]")).dataset;
  if ("confirm" in button.dataset && !(await confirmed(button.dataset))) return;
  button.setAttribute("aria-busy", "true");
  try {
    await post(`/api/v1/runs/${run}/actions/${button.dataset.verb}`, JSON.parse(button.dataset.body || "{}"));
    announce(`${button.textContent.trim()} requested`);
    refresh(true);
  } catch (error) {
    toast(error.message, { tone: "bad", detail: error.requestId });
  } finally {
    button.removeAttribute("aria-busy");
  }
}

/** Delete a run after a confirmation; its page is gone then. */
async function deleteRun(button) {
  if (!(await confirmed(button.dataset))) return;
  button.setAttribute("aria-busy", "true");
  try {
    await remove(`/api/v1/runs/${button.dataset.deleteRun}`);
    location.assign("/runs");
  } catch (error) {
    button.removeAttribute("aria-busy");
    toast(error.message, { tone: "bad", detail: error.requestId });
  }
}

async function startTemplate(button) {
  button.disabled = true;
  try {
    const run = await post("/api/v1/runs", {
      template: button.dataset.startTemplate,
      start: true,
      ...(button.dataset.project ? { project: button.dataset.project } : {}),
    });
    location.assign(run.web_url);
  } catch (error) {
    button.disabled = false;
    toast(error.message, { tone: "bad", detail: error.requestId });
  }
}

/** Show the calls behind the page in one language. */
function speak(language) {
  for (const button of $$("[data-language]"))
    button.setAttribute("aria-pressed", String(button.dataset.language === language));
  for (const text of $$("[data-language-of]")) text.hidden = text.dataset.languageOf !== language;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied", { seconds: 2 });
  } catch {
    toast("The browser does not allow copying here; select the text instead.");
  }
}
