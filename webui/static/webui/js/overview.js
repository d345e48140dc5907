// The overview of a run: charts beside the parts that the server renders. Chart data is read again only when the run has
// moved, and at most every two seconds.
import { get } from "./api.js";
import { $, $$ } from "./dom.js";
import * as figures from "./figures.js";
import * as matrix from "./matrix.js";
import { onChange } from "./live.js";
import { unpacked } from "./packing.js";

const EVERY_MS = 2000;
const holder = $("#charts");
let last = "";

async function read(force = false) {
  let data;
  try {
    data = unpacked(await get(`${holder.dataset.figures}?${chosen()}`));
  } catch (error) {
    if (!last) for (const box of $$("[data-figure]")) figures.fail(box, error, () => read(true));
    throw error;
  }
  const stamp = `${data.step}/${data.seq}/${chosen()}`;
  if (stamp === last && !force) return;
  last = stamp;
  await draw(data);
}

function chosen() {
  return new URLSearchParams(
    [...new URLSearchParams(location.search)].filter(([name]) => name === "x" || name === "smooth"),
  ).toString();
}

/** Another axis or smoothing: the address changes, the charts are read anew, the rest of the page stays. */
document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-choice] a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const query = new URLSearchParams(location.search);
  query.set(link.closest("[data-choice]").dataset.choice, link.dataset.value);
  history.replaceState(null, "", `?${query}${location.hash}`);
  for (const group of $$("[data-choice]")) {
    for (const one of $$("a", group)) {
      const own = new URLSearchParams(query);
      own.set(group.dataset.choice, one.dataset.value);
      one.href = `?${own}`;
      if (group.contains(link) && one !== link) one.removeAttribute("aria-current");
    }
  }
  link.setAttribute("aria-current", "true");
  read(true).catch(() => {}); // the cards keep what they show
});

async function draw(data) {
  for (const box of $$("[data-figure]")) {
    const figure = data.figures[box.dataset.figure];
    if (figure) await figures.draw(box, figure);
  }
  for (const box of matrix.boxes())
    await matrix.draw(box, box.dataset.matrix, data.matrices[box.dataset.matrix], data.warmup);
  $("#axis-word").textContent =
    data.axis.name === "version"
      ? "Charts of agents by version, of the team by step"
      : data.axis.name === "time"
        ? `Charts by ${data.axis.word}`
        : "Charts by";
  for (const place of $$("[data-words]")) {
    const figure = data.figures[place.dataset.words];
    place.textContent = [figure?.summary, data.warmup ? `${data.warmup} supervised warm-up steps before step 0` : ""]
      .filter(Boolean)
      .join(". ");
  }
}

/** Parts of the summary that belong lower on the page travel in templates and are put into their slots. */
function fill() {
  for (const template of $$("template[data-fill]", $("#run-top"))) {
    const slot = $(`[data-slot="${template.dataset.fill}"]`);
    if (!slot || slot.dataset.html === template.innerHTML) continue;
    slot.dataset.html = template.innerHTML;
    slot.replaceChildren(template.content.cloneNode(true));
  }
}

/** The arrows beside the step bar move its cell in focus. */
$("#run-top").addEventListener("click", (event) => {
  const walk = event.target.closest("[data-walk]");
  if (!walk) return;
  const all = $$("#stepbar .cells a");
  const at = all.findIndex((cell) => cell.classList.contains("walked"));
  const next = all[Math.min(all.length - 1, Math.max(0, (at < 0 ? all.length - 1 : at) + Number(walk.dataset.walk)))];
  for (const cell of all) cell.classList.toggle("walked", cell === next);
  next.focus();
});

/** Arrow keys walk along the cells of the step bar; Enter opens the episodes of a step. */
$("#run-top").addEventListener("keydown", (event) => {
  const cell = event.target.closest?.(".cells a");
  const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1000, End: 1000 }[event.key];
  if (!cell || !step) return;
  event.preventDefault();
  const all = $$(".cells a", cell.parentElement);
  all[Math.min(all.length - 1, Math.max(0, all.indexOf(cell) + step))].focus();
});

fill();
$("#run-top").addEventListener("reread", fill);
document.addEventListener("theme", () => {
  figures.recolour();
  matrix.redraw();
});
onChange(() => read(), EVERY_MS);
read(true).catch(() => {}); // the cards say what failed
