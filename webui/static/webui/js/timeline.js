// The device timeline: a click on a gap says how long it was and between what.
import { $, el } from "./dom.js";

const region = $("#timeline");

function show(gap) {
  close();
  const card = gap.closest("figure");
  const box = el("div", { class: "gp", role: "dialog", "aria-label": "Idle time", tabindex: "-1" },
    el("div", { class: "hs" }, el("b", { text: `Idle ${gap.dataset.seconds}` }), el("span", { class: "muted s12 tn push", text: gap.dataset.when })),
    el("p", { class: "soft s12 mt4", text: gap.dataset.gap }), el("p", { class: "muted s12", text: gap.dataset.device }));
  card.append(box);
  const at = gap.getBoundingClientRect();
  const frame = card.getBoundingClientRect();
  box.style.left = `${Math.max(8, Math.min(frame.width - 276, at.left - frame.left))}px`;
  box.style.top = `${at.bottom - frame.top + 8}px`;
  box.focus();
}

function close() {
  $(".gp", region)?.remove();
}

region.addEventListener("click", (event) => {
  const gap = event.target.closest("[data-gap]");
  if (gap) show(gap);
  else if (!event.target.closest(".gp")) close();
});
region.addEventListener("keydown", (event) => {
  const gap = event.target.closest("[data-gap]");
  if (gap && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); show(gap); }
  if (event.key === "Escape") close();
});
