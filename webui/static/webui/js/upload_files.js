// The files of the form of an import: chosen or dropped, sent with progress, cancelled.
import { bytes } from "./amounts.js";
import { Refused, get, post, remove, send } from "./api.js";
import { $, announce, el } from "./dom.js";
import { askBeforeLeaving, leaveFreely } from "./leaving.js";
import { mayPass, sendAll, size, sorted } from "./uploading.js";

const PIECE_MS = 120_000;
const place = $("#upload");
const input = $("input[type=file]", place);
const endings = place.dataset.endings.split(" ");
let files = [];
let begun = null; // the upload of `files`, whole or not; other files get another one
let stop = null;

function show({ taken, left }) {
  giveUp();
  files = taken;
  const rows = files.map((file) =>
    el("li", { class: "hs g8" }, el("span", { class: "anywhere fit", text: file.name }), bytes(file.size)),
  );
  $("ul", place).replaceChildren(...rows);
  const words = files.length ? [`${files.length} files, ${bytes(size(files))}.`] : ["No model files chosen."];
  if (left.length) words.push(`Left out: ${left.slice(0, 5).join(", ")}${left.length > 5 ? ", …" : ""}.`);
  $("[data-chosen]", place).textContent = words.join(" ");
  announce(words.join(" "));
}

function progress(at) {
  const whole = size(files);
  $("progress", place).value = whole ? at / whole : 1;
  $("[data-sent]", place).textContent = `${bytes(at)} of ${bytes(whole)}`;
}

/** Wait, but no longer than until the upload is cancelled or the connection is back. */
function wait(ms, error) {
  $("[data-sent]", place).textContent = `${error.message} Goes on by itself …`;
  if (stop.signal.aborted) return null;
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    for (const [target, event] of [
      [stop.signal, "abort"],
      [window, "online"],
    ])
      target.addEventListener(event, () => resolve(clearTimeout(timer)), { once: true });
  });
}

async function sendPiece(url, name, offset, blob) {
  if (stop.signal.aborted) throw new Refused(499, { title: "The upload was cancelled" }, "");
  const path = `${url}/files/${encodeURIComponent(name)}?offset=${offset}`;
  return (await send("PUT", path, { file: blob, timeout: PIECE_MS, signal: stop.signal })).json();
}

/** Delete what was begun; it expires by itself where that fails. */
function giveUp() {
  if (begun) remove(begun.url).catch(() => null);
  begun = null;
}

/** The upload of what is chosen, with how far it is: the one that was begun, unless it is of another project or gone. */
async function upload(project) {
  if (begun && begun.project !== project) giveUp();
  try {
    if (begun) return await get(begun.url);
  } catch (error) {
    if (error.status !== 404) throw error;
  }
  const declared = files.map((file) => ({ name: file.name, bytes: file.size }));
  begun = await post(place.dataset.url, { project, files: declared });
  return begun;
}

/** Upload what the server lacks of what is chosen; return the upload's id. Throws Refused. */
export async function uploaded(project) {
  stop = new AbortController();
  const running = $("[data-running]", place);
  running.hidden = false;
  input.disabled = true;
  askBeforeLeaving();
  try {
    const at = await upload(project);
    await sendAll(at, files, { send: (...piece) => sendPiece(at.url, ...piece), wait, sent: progress });
    return at.id;
  } catch (error) {
    if (stop.signal.aborted || !mayPass(error)) giveUp();
    throw stop.signal.aborted ? new Refused(499, { title: "The upload was cancelled" }, "") : error;
  } finally {
    running.hidden = true;
    input.disabled = false;
    leaveFreely();
  }
}

input.addEventListener("change", () => show(sorted([...input.files], endings)));
$("[data-cancel]", place).addEventListener("click", () => stop?.abort());
for (const name of ["dragover", "dragleave", "drop"])
  place.addEventListener(name, (event) => {
    event.preventDefault();
    place.classList.toggle("over", name === "dragover");
    if (name === "drop" && !input.disabled) show(sorted([...event.dataTransfer.files], endings));
  });
