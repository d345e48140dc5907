// Owns the websocket. A push is a hint: it says that a topic has a newer sequence, and pages re-read. Nothing depends on
// a message arriving; a poll re-reads as well (often while there is no socket), and a gap in the sequence is no special
// case. The first hint re-reads at once; the next wait, so that a page never spends more than a fifth of its time reading.
import { $, $$ } from "./dom.js";

const COALESCE_MS = 200;
const BREATHS = 4;
const STALE_AFTER_MS = 20_000;
const POLL_MS = 15_000;
const POLL_WITHOUT_SOCKET_MS = 4_000;
const BACKOFF_MS = [500, 1000, 2000, 4000, 8000, 15_000];

const listeners = new Set();
const state = {
  socket: null, tries: 0, retryAt: 0, freshAt: Date.now(), held: false, due: null, again: false, running: false, ranAt: 0, tookMs: 0,
  seqs: new Map(), failed: false, active: false,
};

/**
 * Ask to be called when something changed, at most once in `every` milliseconds; a change in between is read at the end
 * of that time. The callback returns a promise.
 */
export function onChange(callback, every = 0) {
  const listener = { callback, every, ranAt: 0, late: null };
  listeners.add(listener);
  return () => { clearTimeout(listener.late); listeners.delete(listener); };
}

export function start() {
  const topics = (document.body.dataset.topics || "").split(/\s+/).filter(Boolean);
  state.active = topics.length > 0;
  if (!state.active) return;
  for (const mark of $$("[data-live-mark]")) mark.hidden = false;
  connect(topics);
  setInterval(show, 1000);
  setInterval(poll, 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  document.addEventListener("click", (event) => { if (event.target.closest("[data-live-mark]")) hold(); });
}

const open = () => state.socket?.readyState === WebSocket.OPEN;

function poll() {
  if (Date.now() - state.ranAt >= (open() ? POLL_MS : POLL_WITHOUT_SOCKET_MS)) refresh();
}

function connect(topics) {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  let socket;
  try { socket = new WebSocket(`${scheme}://${location.host}/ws/v1/`); } catch { return; } // sockets are forbidden here: polling stays
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

/** Re-read soon; hints that come close together become one, and one re-read ends before the next begins. */
export function refresh(now = false) {
  if (state.held || document.hidden) return;
  if (state.running) { state.again = true; return; }
  if (state.due && !now) return;
  clearTimeout(state.due);
  const rest = Math.max(COALESCE_MS, BREATHS * state.tookMs);
  state.due = setTimeout(run, now ? 0 : Math.max(0, rest - (Date.now() - state.ranAt)));
}

async function run() {
  state.due = null;
  state.running = true;
  const began = Date.now();
  const results = await Promise.allSettled([...listeners].map(call));
  state.ranAt = Date.now();
  state.tookMs = state.ranAt - began;
  state.failed = results.some((result) => result.status === "rejected");
  if (!state.failed) state.freshAt = state.ranAt;
  state.running = false;
  if (state.again) { state.again = false; refresh(); }
  show();
}

/** Call a listener, or see to it that it is called when its time has come. */
function call(listener) {
  const left = listener.every - (Date.now() - listener.ranAt);
  if (left > 50) {
    listener.late ??= setTimeout(() => { listener.late = null; refresh(); }, left);
    return null;
  }
  listener.ranAt = Date.now();
  return listener.callback();
}

/** Hold the figures still, or let them follow again. */
export function hold() {
  if (!state.active) return;
  state.held = !state.held;
  if (!state.held) refresh(true);
  show();
}

function show() {
  const age = Math.round((Date.now() - state.freshAt) / 1000);
  const stale = !state.held && (state.failed || !open()) && Date.now() - state.freshAt > STALE_AFTER_MS / (open() ? 1 : 2.5);
  const polled = !open() && state.tries > 1;
  const kind = state.held ? "held" : stale ? "stale" : open() ? "live" : polled ? "polled" : "waiting";
  const words = { held: "Held still", stale: `${age} s old`, live: age < 2 ? "Live" : `Live, ${age} s ago`, polled: `Read ${age} s ago`, waiting: "Connecting" };
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
