// Replay of an episode: its turns one after the other, and in the drawing of the team who speaks and whom that one hears.
// The turns are those of the page; nothing is read for it.
import { $, $$ } from "./dom.js";

const STEP_MS = 1500;
let host = null;
let at = -1;
let timer = null;

const panel = () => (host ? $("#replay", host) : null);
const turns = () => $$("article.msg", host);

/** Join the buttons of a trajectory that was just shown. */
export function begin(root) {
  stop();
  host = root;
  at = -1;
  $("[data-replay-open]", host)?.addEventListener("click", () => (panel().hidden ? open() : close()));
  for (const button of $$("[data-replay]", host)) button.addEventListener("click", () => ACTS[button.dataset.replay]());
}

function open() {
  if (!panel() || !turns().length) return false;
  if (panel().hidden) {
    panel().hidden = false;
    $("[data-replay-open]", host).setAttribute("aria-expanded", "true");
    go(0);
  }
  return true;
}

function close() {
  stop();
  panel().hidden = true;
  $("[data-replay-open]", host).setAttribute("aria-expanded", "false");
  host.classList.remove("replaying");
  for (const one of $$(".later, .speaks", host)) one.classList.remove("later", "speaks");
}

function go(place) {
  const all = turns();
  at = Math.max(0, Math.min(all.length - 1, place));
  const { role } = all[at].dataset;
  host.classList.add("replaying");
  for (const [number, article] of all.entries()) {
    article.classList.toggle("later", number > at);
    article.classList.toggle("speaks", number === at);
    const mark = article.previousElementSibling;
    if (mark?.classList.contains("broken")) mark.classList.toggle("later", number > at);
  }
  for (const box of $$("[data-box]", panel())) box.classList.toggle("now", box.dataset.box === role);
  for (const edge of $$("[data-to]", panel())) edge.classList.toggle("now", edge.dataset.to === role);
  $("[data-replay-words]", panel()).textContent = `Turn ${at + 1} of ${all.length}: ${role}`;
  all[at].scrollIntoView({ block: "nearest" });
}

function stop() {
  clearInterval(timer);
  timer = null;
  const button = panel() && $("[data-replay=play]", panel());
  if (button) button.textContent = "Play";
}

function play() {
  if (timer) {
    stop();
    return;
  }
  if (at === turns().length - 1) go(0);
  $("[data-replay=play]", panel()).textContent = "Pause";
  timer = setInterval(() => {
    go(at + 1);
    if (at === turns().length - 1) stop();
  }, STEP_MS);
}

function step(by) {
  stop();
  go(at + by);
}

const ACTS = { play, back: () => step(-1), next: () => step(1) };
const whenOpen = (act) => () => {
  const was = panel() && !panel().hidden;
  if (open() && (was || act === play)) act();
};

export const KEYS = { p: whenOpen(play), ",": whenOpen(ACTS.back), ".": whenOpen(ACTS.next) };
