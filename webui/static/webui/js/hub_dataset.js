// A dataset of a hub in the form of an import: looked up, its splits chosen and fetched by a node, with progress and a
// way out. What comes of it is a file like an uploaded one.
import { bytes } from "./amounts.js";
import { get, post, send } from "./api.js";
import { $, $$, announce, el } from "./dom.js";

const POLL_MS = 1000;
const SLOW_MS = 5000;
const LONG_MS = 120_000;
const url = "/api/v1/datasets";
let place = null; // the fields; they are on the page only where a hub is configured
let reasons = {};
let parts = {};
let mine = 0; // number of the newest request: answers of earlier ones are dropped
let open = null; // the fetch that waits or runs
let found = null; // the newest listing

/** Show what is under way, what failed or nothing of both; the choice stays where there is one. */
function show({ busy = "", done = 0, of = 0, failed = null }) {
  parts.busy.hidden = !busy;
  parts.failed.hidden = !failed;
  $("button[data-look]", place).disabled = Boolean(busy);
  $("button[data-fetch]", place).disabled = Boolean(busy) || !chosen().length;
  if (busy) {
    $("[data-now]", parts.busy).textContent = busy;
    const bar = $("progress", parts.busy);
    if (of) bar.value = done / of;
    else bar.removeAttribute("value");
  }
  if (failed) {
    const [title, next] = reasons[failed.reason] || ["Failed", ""];
    const lines = [el("b", { text: failed.title || title }), el("span", { class: "anywhere", text: failed.text })];
    if (next) lines.push(el("span", { class: "soft", text: `Next: ${next}` }));
    parts.failed.replaceChildren(...lines);
    announce(`${failed.title || title}. ${failed.text}`);
  }
}

function words(row) {
  if (row.state === "queued") return "Waits for a node …";
  if (row.now === "fetching") return `Fetching: ${bytes(row.done_bytes)} of ${bytes(row.bytes)}`;
  return row.now === "storing" ? "Storing …" : "Looking at the repository …";
}

/** Ask for something and follow it until it ends; null when something else was asked for meanwhile. */
async function followed(asked, tell) {
  const turn = ++mine;
  const wanted = () => turn === mine;
  await giveUp();
  if (!wanted()) return null;
  show({ busy: "Asking …" });
  let row;
  try {
    row = await post(`${url}/fetches`, asked);
  } catch (error) {
    if (wanted()) {
      show({ failed: error.errors.length ? null : { title: "Not asked", text: error.message } });
      if (error.errors.length) tell(error);
    }
    return null;
  }
  open = row;
  announce(words(row));
  while (row.allowed_actions.includes("cancel") && wanted()) {
    show({ busy: words(row), done: row.done_bytes, of: row.bytes });
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    try {
      row = await get(row.url);
    } catch (error) {
      if (error.status && error.status < 500) {
        show({ failed: { title: "The fetch is gone", text: error.message } });
        return null;
      }
      show({ busy: `${error.message} Goes on by itself …` });
      await new Promise((resolve) => setTimeout(resolve, SLOW_MS));
    }
  }
  if (!wanted()) return null;
  open = null;
  if (row.state === "done") show({});
  else if (row.state === "cancelled") show({ failed: { title: "Cancelled", text: "Nothing of it was kept." } });
  else show({ failed: { reason: row.reason, text: row.reason_text } });
  return row.state === "done" ? row : null;
}

/** End what is under way; it ends by itself a day later where that fails. */
async function giveUp() {
  const left = open;
  open = null;
  if (left) await post(`${left.url}/actions/cancel`).catch(() => null);
}

const chosen = () => $$("input[name=hub_split]:checked", place).map((one) => one.value);
const configuration = () => found?.configurations.find((one) => one.name === $("select", place).value);

function offerSplits() {
  const one = configuration();
  const list = $("[data-splits]", place);
  list.replaceChildren(
    ...(one?.splits || []).map((split) => {
      const size = `${bytes(split.bytes)} in ${split.files === 1 ? "1 file" : `${split.files} files`}`;
      const box = el("input", { type: "checkbox", name: "hub_split", value: split.name });
      box.checked = !one.refused;
      box.disabled = Boolean(one.refused);
      const text = el("span", { class: "fit anywhere" }, el("b", { text: split.name }), ` ${size}`);
      return el("label", { class: "check wlc" }, box, text);
    }),
  );
  const why = $("[data-refused]", place);
  why.textContent = one?.refused || "";
  why.hidden = !one?.refused;
  $("button[data-fetch]", place).disabled = !chosen().length;
}

function offer(row) {
  found = row;
  const select = $("select", place);
  const options = row.configurations.map((one) =>
    el("option", { value: one.name, text: one.refused ? `${one.name} (not importable)` : one.name }),
  );
  select.replaceChildren(...options);
  const first = row.configurations.find((one) => !one.refused) || row.configurations[0];
  select.value = first?.name || "";
  const licence = row.licence ? `licence ${row.licence}` : "its card names no licence";
  $("[data-commit]", place).textContent = `Commit ${row.commit.slice(0, 12)}, ${licence}.`;
  const out = row.left_out.slice(0, 3).map((one) => `${one.path}: ${one.why}`);
  if (row.left_out.length > 3) out.push(`and ${row.left_out.length - 3} more files.`);
  const left = $("[data-left]", place);
  left.textContent = out.length ? `Not imported: ${out.join(" ")}` : "";
  left.hidden = !out.length;
  parts.choice.hidden = false;
  offerSplits();
  announce(`${row.configurations.length} configurations found`);
  select.focus();
}

/** Wire the fields in `root`: `project()` names the project, `taken(file)` gets what was fetched, `reset()` and `tell(error)` the form's. */
export function fromHub(root, { project, taken, reset, tell }) {
  place = root;
  reasons = JSON.parse($("#fetch-reasons").textContent);
  parts = Object.fromEntries($$("[data-hub]", place).map((node) => [node.dataset.hub, node]));
  const value = (name) => $(`[name=${name}]`, place).value.trim();
  const repository = () => ({ project: project(), repository: value("repository"), secret: value("secret") });

  async function look() {
    reset();
    found = null;
    parts.choice.hidden = true;
    const row = await followed({ ...repository(), revision: value("revision") || "main" }, tell);
    if (row) offer(row);
  }

  async function fetchSplits() {
    reset();
    const asked = { ...repository(), revision: found.commit, configuration: configuration().name, splits: chosen() };
    const row = await followed({ ...asked, repository: found.repository, secret: found.secret }, tell);
    if (!row) return;
    show({ busy: "Reading the first rows …" });
    try {
      const query = new URLSearchParams({ project: row.project });
      const answer = await send("GET", `${url}/files/${row.file}?${query}`, { timeout: LONG_MS });
      const file = await answer.json();
      show({});
      await taken(file);
    } catch (error) {
      show({ failed: { title: "Not readable", text: error.message } });
    }
  }

  $("button[data-look]", place).addEventListener("click", look);
  $("button[data-fetch]", place).addEventListener("click", fetchSplits);
  $("button[data-cancel]", place).addEventListener("click", async () => {
    const left = open;
    mine += 1;
    await giveUp();
    if (left) show({ failed: { title: "Cancelled", text: "Nothing of it was kept." } });
  });
  place.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.target.type !== "text") return;
    event.preventDefault(); // Enter in these fields looks up and does not import
    if (parts.busy.hidden) look();
  });
  place.addEventListener("change", (event) => {
    if (event.target.name === "hub_configuration") offerSplits();
    if (event.target.name === "hub_split") $("button[data-fetch]", place).disabled = !chosen().length;
    if (["repository", "revision", "secret"].includes(event.target.name)) parts.choice.hidden = true;
  });
  window.addEventListener("pagehide", giveUp);
}
