// Owns the websocket. A push is a hint: it says that a topic has a newer sequence, and pages re-read. Nothing depends on
// a message arriving; a slow poll re-reads as well, and a gap in the sequence is no special case.
import { $, $$ } from "./dom.js";

const COALESCE_MS = 1000;
const STALE_AFTER_MS = 20_000;
const POLL_MS = 15_000;
const BACKOFF_MS = [500, 1000, 2000, 4000, 8000, 15_000];

const listeners = new Set();
const state = { socket: null, tries: 0, retryAt: 0, freshAt: Date.now(), held: false, due: null, seqs: new Map(), failed: false, active: false };

/** Ask to be called, at most once a second, when something changed. The callback returns a promise. */
export function onChange(callback) {
  listeners.add(callback);
  return () => listeners.delete(callback);
}

export function start() {
  const topics = (document.body.dataset.topics || "").split(/\s+/).filter(Boolean);
  state.active = topics.length > 0;
  if (!state.active) return;
  for (const mark of $$("[data-live-mark]")) mark.hidden = false;
  connect(topics);
  setInterval(show, 1000);
  setInterval(() => refresh(), POLL_MS);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  document.addEventListener("click", (event) => { if (event.target.closest("[data-live-mark]")) hold(); });
}

function connect(topics) {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const socket = new WebSocket(`${scheme}://${location.host}/ws/v1/`);
  state.socket = socket;
  socket.addEventListener("open", () => {
    state.tries = 0;
    state.retryAt = 0;
    socket.send(JSON.stringify({ subscribe: topics }));
    refresh();
    show();
  });
  socket.addEventListener("message", (event) => {
    const nudge = JSON.parse(event.data);
    if (nudge.error || nudge.topic === undefined) return;
    const known = state.seqs.get(nudge.topic);
    state.seqs.set(nudge.topic, nudge.seq);
    state.freshAt = Math.max(state.freshAt, state.due ? state.freshAt : Date.now());
    if (known !== nudge.seq || nudge.seq === 0) refresh();
  });
  socket.addEventListener("close", (event) => {
    if (event.code === 4401 || event.code === 4403) return show();
    const wait = BACKOFF_MS[Math.min(state.tries++, BACKOFF_MS.length - 1)] * (0.8 + 0.4 * Math.random());
    state.retryAt = Date.now() + wait;
    setTimeout(() => connect(topics), wait);
    show();
    return undefined;
  });
}

/** Re-read soon; calls within a second become one, and one re-read ends before the next begins. */
export function refresh(now = false) {
  if (state.held || document.hidden) return;
  if (state.due) { state.again = true; return; }
  state.due = setTimeout(run, now ? 0 : Math.max(0, COALESCE_MS - (Date.now() - (state.ranAt || 0))));
}

async function run() {
  state.ranAt = Date.now();
  const results = await Promise.allSettled([...listeners].map((callback) => callback()));
  state.failed = results.some((result) => result.status === "rejected");
  if (!state.failed) state.freshAt = Date.now();
  state.due = null;
  if (state.again) { state.again = false; refresh(); }
  show();
}

/** Hold the figures still, or let them follow again. */
export function hold() {
  if (!state.active) return;
  state.held = !state.held;
  if (!state.held) refresh(true);
  show();
}

function show() {
  const open = state.socket?.readyState === WebSocket.OPEN;
  const age = Math.round((Date.now() - state.freshAt) / 1000);
  const stale = !state.held && (state.failed || !open) && Date.now() - state.freshAt > STALE_AFTER_MS / (open ? 1 : 2.5);
  const kind = state.held ? "held" : stale ? "stale" : open ? "live" : "waiting";
  const words = { held: "Held still", stale: `${age} s old`, live: age < 2 ? "Live" : `Live, ${age} s ago`, waiting: "Connecting" };
  for (const mark of $$("[data-live-mark]")) {
    mark.dataset.state = kind;
    $("span", mark).textContent = words[kind];
    mark.setAttribute("aria-pressed", String(state.held));
  }
  document.body.classList.toggle("stale", stale);
  const bar = $("#offline");
  bar.hidden = !stale;
  if (stale) {
    const shown = new Date(state.freshAt).toLocaleTimeString([], { hour12: false });
    const next = state.retryAt > Date.now() ? ` Retrying in ${Math.ceil((state.retryAt - Date.now()) / 1000)} s.` : "";
    $("span", bar).textContent = `Showing ${shown}, ${age} s old. The live connection is lost.${next}`;
  }
}
