// The list of runs: selecting rows, verbs on many of them, saved views, the filter dialog. What a verb would do is asked
// of the API first (a dry run), so that the question says what will really happen.
import { post, remove } from "./api.js";
import { $, $$, announce, lettersOn, toast, typing } from "./dom.js";
import { refresh } from "./live.js";
import { confirmed } from "./ui.js";

const list = $("#run-list");
const bar = $("#bulk");
const chosen = new Map(); // id -> {key, allowed, status}; survives re-reads of the table
let all = false; // every matching run, not only those of this page
let last = null;

/** The button of a verb says its name, its result and why it may not fit, as the server wrote them. */
const buttonOf = (verb) => $(`[data-bulk="${verb}"]`, bar);

const rows = () => $$("tr.go", list);
const idOf = (row) => row.id.replace("row-", "");
const facts = (row) => ({
  key: row.dataset.key,
  allowed: row.dataset.allowed.split(" "),
  status: row.dataset.status,
});
const total = () => Number($("#run-table")?.dataset.total || 0);
const plural = (count) => `${count} run${count === 1 ? "" : "s"}`;

function choose(row, on) {
  all = false;
  if (on) chosen.set(idOf(row), facts(row));
  else chosen.delete(idOf(row));
}

/** Put the selection into the page: rows, the box of the head, the bar and its verbs. */
function show() {
  for (const row of rows()) {
    const on = all || chosen.has(idOf(row));
    if (chosen.has(idOf(row))) chosen.set(idOf(row), facts(row));
    row.classList.toggle("sel", on);
    $("[data-select]", row).checked = on;
  }
  const here = rows().filter((row) => all || chosen.has(idOf(row))).length;
  const head = $("[data-select-page]", list);
  if (head) {
    head.checked = here > 0 && here === rows().length;
    head.indeterminate = here > 0 && here < rows().length;
  }
  const count = all ? total() : chosen.size;
  bar.hidden = count === 0;
  $("[data-count]", bar).textContent = `${count} selected`;
  const more = $("[data-select-all]", bar);
  more.hidden = all || total() <= chosen.size;
  more.textContent = `Select all ${total()}`;
  for (const button of $$("[data-bulk]", bar)) {
    const why = reason(button.dataset.bulk, count);
    button.setAttribute("aria-disabled", String(Boolean(why)));
    button.title = why;
  }
}

/** Why a verb does not fit the selection; "" when it fits at least one run. */
function reason(verb, count) {
  const some = [...chosen.values()];
  if (verb === "clone") return count === 1 && !all ? "" : "Select one run.";
  if (verb === "compare") return count === 2 && !all ? "" : "Select two runs.";
  if (all || verb === "tag" || verb === "untag") return "";
  if (some.some((one) => one.allowed.includes(verb))) return "";
  if (buttonOf(verb).dataset.why) return buttonOf(verb).dataset.why;
  const states = [...new Set(some.map((one) => one.status))].join(" or ");
  return some.length === 1 ? `It is ${states}.` : `All of them are ${states}.`;
}

function range(from, to) {
  const shown = rows();
  const [a, b] = [shown.indexOf(from), shown.indexOf(to)].toSorted((x, y) => x - y);
  return a < 0 ? [to] : shown.slice(a, b + 1);
}

function toggle(row, shift) {
  const on = !chosen.has(idOf(row)) || all;
  if (all) chosen.clear();
  for (const one of shift && last?.isConnected ? range(last, row) : [row]) choose(one, on);
  last = row;
  show();
  announce(`${chosen.size} selected`);
}

// Clicks in the first column select; everything else in a row opens the run (app.js).
list.addEventListener("click", (event) => {
  const cell = event.target.closest(".ck");
  if (!cell) return;
  event.stopPropagation();
  const head = cell.closest("thead");
  if (head) {
    const on = rows().some((row) => !chosen.has(idOf(row)));
    for (const row of rows()) choose(row, on);
    show();
    return;
  }
  if (event.target.matches("input")) event.preventDefault();
  const row = cell.closest("tr");
  setTimeout(() => toggle(row, event.shiftKey)); // after the box has settled
});
list.addEventListener("reread", show);

document.addEventListener("keydown", (event) => {
  if (typing(event) && !event.target.matches(".cbx")) return;
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]") || !lettersOn()) return;
  const row = document.activeElement.closest?.("tr.go");
  if (event.key.toLowerCase() === "x" && row) {
    event.preventDefault();
    toggle(row, event.shiftKey);
  } else if (event.key === "c" && chosen.size) {
    event.preventDefault();
    act("compare");
  } else if (event.key === "Escape" && (chosen.size || all)) none();
});

function none() {
  chosen.clear();
  all = false;
  show();
}

// Verbs ---------------------------------------------------------------------------------------------------------------
bar.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if ("selectNone" in button.dataset) none();
  else if ("selectAll" in button.dataset) {
    all = true;
    show();
  } else if (button.dataset.bulk && button.getAttribute("aria-disabled") !== "true") act(button.dataset.bulk);
});

async function act(verb) {
  const why = reason(verb, all ? total() : chosen.size);
  if (why) {
    toast(why);
    return;
  }
  const [first, second] = [...chosen.values()];
  if (verb === "clone") {
    location.assign(`/runs/new?from=${first.key}`);
    return;
  }
  if (verb === "compare") {
    location.assign(`/runs/${first.key}/config?against=${second.key}`);
    return;
  }
  const which = all
    ? { filter: JSON.parse($("#run-table").dataset.filter), expected_count: total() }
    : { ids: [...chosen.keys()] };
  const name = buttonOf(verb).textContent.trim();
  const { result } = buttonOf(verb).dataset;
  const body = { action: verb, ...which };
  if (verb === "tag" || verb === "untag") {
    const given = await ask({
      title: verb === "tag" ? "Tag the selected runs" : "Remove tags",
      label: "Comma-separated tags",
      primary: name,
    });
    body.tags = (given?.text || "")
      .split(",")
      .map((one) => one.trim())
      .filter(Boolean);
    if (!body.tags.length) return;
  }
  try {
    const would = await post("/api/v1/runs/bulk", { ...body, dry_run: true });
    const refused = would.results.filter((one) => one.outcome === "refused");
    if (!would.done) {
      toast(refused[0]?.error.detail || "No run in the selection allows this.");
      return;
    }
    const rest = refused.length
      ? ` ${refused.length} of ${would.count} will be skipped: ${refused[0].error.detail}`
      : "";
    if (result || rest) {
      const yes = await confirmed({
        title: `${name} ${plural(would.done)}?`,
        text: `${result}${rest}`.trim(),
        primary: `${name} ${plural(would.done)}`,
      });
      if (!yes) return;
    }
    const done = await post("/api/v1/runs/bulk", body);
    toast(`${name}: ${done.done} of ${done.count}`, { seconds: 4 });
    none();
    refresh(true);
  } catch (error) {
    toast(error.message, { tone: "bad", detail: error.requestId });
  }
}

/** Ask for one line of text; null when nothing is given. */
function ask({ title, label, primary, share = false }) {
  const dialog = $("#ask");
  $("#ask-title").textContent = title;
  $("[data-label]", dialog).textContent = label;
  $("[data-yes]", dialog).textContent = primary;
  $("[data-share-box]", dialog).hidden = !share;
  const input = $("[data-answer]", dialog);
  input.value = "";
  dialog.returnValue = "no";
  dialog.showModal();
  input.focus();
  return new Promise((resolve) =>
    dialog.addEventListener(
      "close",
      () =>
        resolve(
          dialog.returnValue === "yes" && input.value.trim()
            ? { text: input.value.trim(), share: $("[data-share]", dialog).checked }
            : null,
        ),
      { once: true },
    ),
  );
}

// Saved views ---------------------------------------------------------------------------------------------------------
document.addEventListener("click", async (event) => {
  const save = event.target.closest("[data-save-view]");
  const forget = event.target.closest("[data-forget-view]");
  try {
    if (save) {
      const given = await ask({ title: "Save this view", label: "Name", primary: "Save view", share: true });
      if (!given) return;
      const project = $(".runspg").dataset.project;
      await post("/api/v1/saved-views", {
        name: given.text,
        page: "runs",
        query: save.dataset.saveView,
        shared: given.share,
        ...(project ? { project } : {}),
      });
      refresh(true);
    } else if (
      forget &&
      (await confirmed({
        title: `Delete the view ${forget.dataset.name}?`,
        text: "The runs in it are kept.",
        primary: "Delete view",
      }))
    ) {
      await remove(`/api/v1/saved-views/${forget.dataset.forgetView}`);
      refresh(true);
    }
  } catch (error) {
    toast(error.message, { tone: "bad", detail: error.requestId });
  }
});

// The filter dialog ---------------------------------------------------------------------------------------------------
const HELP = {
  time: "2026-01-31, or 14d for the last fourteen days.",
  config: "A field such as batch.tasks_per_step.",
  metric: "A series such as reward/team or reward/agent@solver.",
};
const kinds = $("[data-add]");
function suit() {
  const option = kinds.selectedOptions[0];
  const { kind } = option.dataset;
  for (const label of $$("[data-for]")) label.hidden = !label.dataset.for.split(" ").includes(kind);
  $("[data-path-word]").textContent = kind === "metric" ? "Series" : "Field";
  $("[data-value]").setAttribute("list", `values-${option.value}`);
  const help = $("[data-help]");
  help.hidden = !HELP[kind];
  help.textContent = HELP[kind] || "";
}
kinds.addEventListener("change", suit);
$("#add-filter [data-close]").addEventListener("click", () => $("#add-filter").close());
suit();
show();
