// The device timeline: a click on a gap says what each side waited for; arrows move the window, plus and minus zoom, a
// drag chooses one. The window lives in the address, so every view can be shared and the way back works.
import { $, el } from "./dom.js";

const region = $("#timeline");

function show(gap) {
  close();
  const card = gap.closest("figure");
  const box = el(
    "div",
    { class: "gp", role: "dialog", "aria-label": "Idle time", tabindex: "-1" },
    el(
      "div",
      { class: "hs" },
      el("b", { text: `Idle ${gap.dataset.seconds}` }),
      el("span", { class: "muted s12 tn push", text: gap.dataset.when }),
    ),
    el("p", { class: "soft s12 mt4", text: gap.dataset.gap }),
    el("p", { class: "muted s12", text: gap.dataset.device }),
  );
  card.append(box);
  const at = gap.getBoundingClientRect();
  const around = card.getBoundingClientRect();
  box.style.left = `${Math.max(8, Math.min(around.width - 276, at.left - around.left))}px`;
  box.style.top = `${at.bottom - around.top + 8}px`;
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
  if (gap && (event.key === "Enter" || event.key === " ")) {
    event.preventDefault();
    show(gap);
  }
  if (event.key === "Escape") close();
});

function open(since, until) {
  const query = new URLSearchParams(location.search);
  query.set(
    "window",
    Math.max(1, until - since)
      .toFixed(3)
      .replace(/\.?0+$/, ""),
  );
  if (until < Date.now() / 1000 - 1) query.set("until", until.toFixed(3));
  else query.delete("until");
  location.search = query.toString();
}

function frame() {
  const box = $("[data-timeline]", region);
  return box && { box, since: Number(box.dataset.since), until: Number(box.dataset.until) };
}

const MOVES = {
  ArrowLeft: [-0.25, -0.25],
  ArrowRight: [0.25, 0.25],
  "+": [0.25, -0.25],
  "=": [0.25, -0.25],
  "-": [-0.5, 0.5],
};
region.addEventListener("keydown", (event) => {
  const at = frame();
  const move = MOVES[event.key];
  if (!at || !move || event.target !== at.box || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const span = at.until - at.since;
  open(at.since + move[0] * span, at.until + move[1] * span);
});

let drag = null;
function moment(at, event) {
  const svg = $("svg.gantt", at.box).getBoundingClientRect();
  const { left, right, width } = at.box.dataset;
  const x = ((event.clientX - svg.left) / svg.width) * Number(width);
  const share = (x - Number(left)) / (Number(width) - Number(left) - Number(right));
  return at.since + Math.min(1, Math.max(0, share)) * (at.until - at.since);
}
region.addEventListener("pointerdown", (event) => {
  const at = frame();
  if (!at || event.button !== 0 || event.pointerType === "touch" || !event.target.closest("svg.gantt")) return;
  drag = { at, from: moment(at, event), x: event.clientX };
});
window.addEventListener("pointermove", (event) => {
  if (drag) drag.at.box.classList.toggle("dragging", Math.abs(event.clientX - drag.x) > 6);
});
window.addEventListener("pointerup", (event) => {
  const was = drag;
  drag = null;
  if (!was) return;
  was.at.box.classList.remove("dragging");
  if (Math.abs(event.clientX - was.x) < 12) return; // a click, on a gap perhaps
  const to = moment(was.at, event);
  open(Math.min(was.from, to), Math.max(was.from, to));
});
