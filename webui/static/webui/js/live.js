// Owns the websocket. A push is a hint: it says that a topic has a newer sequence, and pages re-read. Nothing depends on
// a message arriving; a poll re-reads as well (often while there is no socket), and a gap in the sequence is no special
// case. Each part of a page reads at its own pace: the first hint at once, the next ones so that a part spends no more
// than a fifth of the time reading. A slow part never holds a quick one up.
import { $, $$ } from "./dom.js";

const COALESCE_MS = 200;
const BREATHS = 4;
const STALE_AFTER_MS = 20_000;
const POLL_MS = 15_000;
const TICK_MS = 250; // a part that is read every second is read every second, not every other one
const POLL_WITHOUT_SOCKET_MS = 4_000;
const BACKOFF_MS = [500, 1000, 2000, 4000, 8000, 15_000];

const listeners = new Set();
const state = {
  socket: null,
  tries: 0,
  retryAt: 0,
  freshAt: Date.now(),
  held: false,
  polledAt: Date.now(),
  seqs: new Map(),
  answered: new Set(),
  failed: false,
  active: false,
};

/**
 * Ask to be called when something changed, at most once in `every` milliseconds; a change in between is read at the end
 * of that time. The callback returns a promise.
 */
export function onChange(callback, every = 0) {
  const listener = {
    callback,
    every,
    ranAt: Date.now(),
    tookMs: 0,
    timer: null,
    running: false,
    again: false,
    failed: false,
  };
  listeners.add(listener);
  return () => {
    clearTimeout(listener.timer);
    listeners.delete(listener);
  };
}

export function start() {
  const topics = (document.body.dataset.topics || "").split(/\s+/).filter(Boolean);
  state.active = topics.length > 0;
  if (!state.active) return;
  for (const pair of (document.body.dataset.seqs || "").split(/\s+/).filter(Boolean)) {
    const [topic, seq] = pair.split("@");
    state.seqs.set(topic, Number(seq)); // what the page was rendered from: being told the same again is no news
  }
  for (const mark of $$("[data-live-mark]")) mark.hidden = false;
  connect(topics);
  setInterval(show, 1000);
  setInterval(poll, TICK_MS);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });
  addEventListener("pageshow", (event) => {
    if (event.persisted) refresh(true);
  }); // kept by the browser, so it is old
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-live-mark]")) hold();
  });
}

const open = () => state.socket?.readyState === WebSocket.OPEN;

/** How long the page waits for a hint: a part that changes without any (`data-poll`, in seconds) is read by the clock. */
const patience = () =>
  Math.min(open() ? POLL_MS : POLL_WITHOUT_SOCKET_MS, ...$$("[data-poll]").map((part) => part.dataset.poll * 1000));

function poll() {
  if (Date.now() - state.polledAt >= patience()) refresh();
}

function connect(topics) {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  let socket;
  try {
    socket = new WebSocket(`${scheme}://${location.host}/ws/v1/`);
  } catch {
    return;
  } // sockets are forbidden here: polling stays
  state.socket = socket;
  socket.addEventListener("open", () => {
    if (state.tries) refresh(); // what happened without us may have left the sequence as it was
    Object.assign(state, { tries: 0, retryAt: 0, answered: new Set() });
    socket.send(JSON.stringify({ subscribe: topics })); // the answer names each topic's newest sequence
    show();
  });
  socket.addEventListener("message", (event) => {
    const nudge = JSON.parse(event.data);
    if (nudge.error || nudge.topic === undefined) return;
    const answer = !state.answered.has(nudge.topic);
    const news = !answer || state.seqs.get(nudge.topic) !== nudge.seq;
    state.answered.add(nudge.topic);
    state.seqs.set(nudge.topic, nudge.seq);
    if (news) refresh();
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

/** Re-read soon, or now; hints that come close together become one. */
export function refresh(now = false) {
  if (state.held || document.hidden) return;
  state.polledAt = Date.now();
  for (const listener of listeners) schedule(listener, now);
}

function schedule(listener, now = false) {
  if (listener.running) {
    listener.again = true;
    return;
  }
  if (listener.timer && !now) return;
  clearTimeout(listener.timer);
  const rest = Math.max(COALESCE_MS, BREATHS * listener.tookMs, listener.every);
  listener.timer = setTimeout(run, now ? 0 : Math.max(0, rest - (Date.now() - listener.ranAt)), listener);
}

async function run(listener) {
  Object.assign(listener, { timer: null, running: true });
  const began = Date.now();
  try {
    await listener.callback();
    listener.failed = false;
  } catch {
    listener.failed = true; // the part says what failed; the mark says how old the figures are
  }
  Object.assign(listener, { ranAt: Date.now(), tookMs: Date.now() - began, running: false });
  state.failed = [...listeners].some((one) => one.failed);
  if (!state.failed) state.freshAt = Date.now();
  if (listener.again && !state.held) {
    listener.again = false;
    schedule(listener);
  }
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
  const age = Math.round((Date.now() - state.freshAt) / 1000);
  const stale =
    !state.held && (state.failed || !open()) && Date.now() - state.freshAt > STALE_AFTER_MS / (open() ? 1 : 2.5);
  const polled = !open() && state.tries > 1;
  const kind = state.held ? "held" : stale ? "stale" : open() ? "live" : polled ? "polled" : "waiting";
  const words = {
    held: "Frozen",
    stale: `${age} s old`,
    live: age < 2 ? "Live" : `Live, ${age} s ago`,
    polled: `Read ${age} s ago`,
    waiting: "Connecting",
  };
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
    $("span", bar).textContent = `Showing ${shown}, ${age} s old. Live connection lost.${next}`;
  }
}
