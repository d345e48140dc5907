// The overview of a run: charts beside the parts that the server renders. Chart data is read again only when the run has
// moved, and at most every two seconds.
import { get } from "./api.js";
import { $, $$ } from "./dom.js";
import * as figures from "./figures.js";
import * as matrix from "./matrix.js";
import { onChange } from "./live.js";

const EVERY_MS = 2000;
const holder = $("#charts");
let last = "";

async function read(force = false) {
  let data;
  try {
    data = await get(holder.dataset.figures);
  } catch (error) {
    if (!last) for (const box of $$("[data-figure]")) figures.fail(box, error, () => read(true));
    throw error;
  }
  const stamp = `${data.step}/${data.seq}`;
  if (stamp === last && !force) return;
  last = stamp;
  await draw(data);
}

async function draw(data) {
  for (const box of $$("[data-figure]")) {
    const figure = data.figures[box.dataset.figure];
    if (figure) await figures.draw(box, figure);
  }
  for (const box of matrix.boxes()) await matrix.draw(box, box.dataset.matrix, data.matrices[box.dataset.matrix], data.warmup);
  for (const place of $$("[data-words]")) {
    const figure = data.figures[place.dataset.words];
    place.textContent = [figure?.summary, data.warmup ? `${data.warmup} supervised warm-up steps before step 0` : ""].filter(Boolean).join(". ");
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
document.addEventListener("theme", () => { figures.recolour(); matrix.redraw(); });
onChange(() => read(), EVERY_MS);
read(true).catch(() => {}); // the cards say what failed
