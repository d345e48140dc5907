// Group compare: `c` closes it again.
import { $, typing } from "./dom.js";

document.addEventListener("keydown", (event) => {
  if (typing(event) || event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
  if (event.key === "c") $("[data-close-compare]")?.click();
});
