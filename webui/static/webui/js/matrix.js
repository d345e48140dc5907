// The agent matrix: a small uPlot per metric and agent, one y range per row, cursors in step. On a phone the agents of a
// metric share one chart.
import { $, $$, el, icon, load, monogram, token, number } from "./dom.js";
import { asTable, csv, explain } from "./figures.js";
import { ALONE, TICK_ROOM, xAxis } from "./plotting.js";

const plots = new Map(); // key -> uPlot
const drawn = new Map(); // element -> {matrix, warmup}
const DASHES = [[], [], [], [6, 3], [2, 3], [8, 3, 2, 3], [4, 2], [1, 3]];
const ALIKE = [[], [6, 6], [2, 6], [10, 6, 2, 6]]; // lines that lie on each other: the one below shows in the gaps
const phone = window.matchMedia("(max-width: 767px)");

export async function draw(box, name, matrix, warmup) {
  await load(document.documentElement.dataset.uplot);
  drawn.set(box, { name, matrix, warmup });
  const shape = JSON.stringify([phone.matches, matrix.axis, matrix.columns, matrix.rows.map((row) => row.name)]);
  if (box.dataset.shape !== shape) build(box, name, matrix);
  box.dataset.shape = shape;
  for (const [i, row] of matrix.rows.entries()) update(box, name, matrix, row, i, warmup);
}

export function redraw() {
  for (const plot of plots.values()) plot.destroy();
  plots.clear();
  for (const [box, { name, matrix, warmup }] of drawn) {
    box.dataset.shape = "";
    draw(box, name, matrix, warmup);
  }
}
phone.addEventListener("change", redraw);

function build(box, name, matrix) {
  for (const [key, plot] of plots)
    if (key.startsWith(`${name}/`)) {
      plot.destroy();
      plots.delete(key);
    }
  const count = Math.min(4, Math.max(1, matrix.columns.length));
  const grid = el(
    "div",
    { class: `mx c${count}` },
    tools(box),
    ...matrix.columns
      .slice(0, count)
      .map((agent) => el("div", { class: "hd" }, el("span", { class: "chip" }, monogram(agent), agent.role))),
  );
  for (const [i, row] of matrix.rows.entries()) {
    grid.append(
      el("div", { class: "rowl" }),
      el(
        "div",
        { class: "lb" },
        el("div", { class: "hs g4" }, el("b", { text: row.title }), info(row)),
        el("span", { class: "s11 muted", text: row.unit }),
      ),
    );
    const columns = phone.matches ? [null] : matrix.columns.slice(0, count);
    for (const agent of columns) grid.append(cell(name, matrix, i, agent));
  }
  box.replaceChildren(grid);
}

/** A button that says what a row's figure means. */
function info(row) {
  if (!row.meaning) return null;
  const button = el(
    "button",
    {
      type: "button",
      class: "ib",
      title: "Description",
      "aria-label": `What ${row.title} is`,
      "aria-pressed": "false",
    },
    icon("info-circle", "sm"),
  );
  button.addEventListener("click", () => explain(button.closest(".lb"), row.meaning, button));
  return button;
}

/** View as table, CSV: the same for all rows of a matrix. */
function tools(box) {
  const { name } = drawn.get(box);
  const view = el(
    "button",
    {
      type: "button",
      class: "ib",
      title: "View as table",
      "aria-label": `View ${name} per agent as table`,
      "aria-pressed": "false",
    },
    icon("table", "sm"),
  );
  view.addEventListener("click", () => {
    const on = view.getAttribute("aria-pressed") !== "true";
    view.setAttribute("aria-pressed", String(on));
    $(".as-table", box)?.remove();
    if (on) box.append(asTable(facts(drawn.get(box)), `${name} per agent as table`));
  });
  const save = el(
    "button",
    {
      type: "button",
      class: "ib",
      title: "Download shown rows as CSV",
      "aria-label": `Download ${name} per agent as CSV`,
      on: { click: () => csv({ name, table: facts(drawn.get(box)) }) },
    },
    icon("download", "sm"),
  );
  return el("div", { class: "hs g4 mxt" }, view, save);
}

/** The series of a matrix as one table, a line per step. */
function facts({ matrix }) {
  const columns = matrix.rows.flatMap((row) =>
    row.cells.map((one) => ({ title: `${row.title}, ${one.role}`, at: new Map(one.x.map((x, i) => [x, one.raw[i]])) })),
  );
  const steps = [...new Set(columns.flatMap((column) => [...column.at.keys()]))].toSorted((a, b) => a - b);
  return {
    columns: [matrix.axis, ...columns.map((column) => column.title)],
    rows: steps.map((step) => [step, ...columns.map((column) => column.at.get(step) ?? null)]),
  };
}

function cell(name, matrix, i, agent) {
  const key = `${name}/${i}/${agent ? agent.role : "*"}`;
  const values = agent
    ? el("span", { class: "lv", data: { value: key } })
    : el("div", { class: "vals", data: { values: key } });
  return el("div", { class: "cell", role: "img", data: { cell: key } }, values, el("div", { data: { plot: key } }));
}

function update(box, name, matrix, row, i, warmup) {
  const all = phone.matches;
  const groups = all ? [row.cells] : row.cells.slice(0, 4).map((one) => [one]);
  for (const cells of groups) {
    const key = `${name}/${i}/${all ? "*" : cells[0].role}`;
    const holder = $(`[data-plot="${CSS.escape(key)}"]`, box);
    if (!holder) continue;
    label(box, key, matrix, row, cells);
    const data = all ? overlaid(cells) : [cells[0].x, cells[0].raw, cells[0].smooth];
    if (!data[0].length) {
      if (!holder.firstChild) holder.append(el("p", { class: "muted s12", text: "after the first step" }));
      continue;
    }
    const plot = plots.get(key);
    if (plot && holder.contains(plot.root)) {
      plot.flexmarlRange = row.range;
      plot.setData(data, !plot.flexmarlZoomed);
    } else {
      holder.replaceChildren();
      plots.set(key, make(holder, matrix, row, cells, data, warmup, name));
    }
  }
}

function label(box, key, matrix, row, cells) {
  const value = $(`[data-value="${CSS.escape(key)}"]`, box);
  if (value) value.textContent = cells[0].last;
  const values = $(`[data-values="${CSS.escape(key)}"]`, box);
  values?.replaceChildren(
    ...cells.map((one, i) =>
      el("span", { class: "hs g4" }, monogram(matrix.columns[i]), el("b", { class: "tn", text: one.last })),
    ),
  );
  $(`[data-cell="${CSS.escape(key)}"]`, box).setAttribute(
    "aria-label",
    cells
      .map((one) => one.summary)
      .filter(Boolean)
      .join(". ") || `${row.title}: no value yet`,
  );
}

function overlaid(cells) {
  const steps = [...new Set(cells.flatMap((one) => one.x))].toSorted((a, b) => a - b);
  const of = (one) => {
    const at = new Map(one.x.map((x, i) => [x, one.smooth[i]]));
    return steps.map((x) => at.get(x) ?? null);
  };
  return [steps, ...cells.map(of)];
}

/** Whether two of some lines cannot be told apart by eye: closer than a hundredth of the scale in most places. */
function lieTogether(cells) {
  const scale = Math.max(...cells.flatMap((one) => one.smooth.map(Math.abs)), 1e-9);
  const alike = (one, other) =>
    one.length > 0 &&
    one.length === other.length &&
    one.filter((value, i) => Math.abs(value - other[i]) < 0.01 * scale).length > 0.8 * one.length;
  return cells.some((one, i) => cells.slice(0, i).some((other) => alike(one.smooth, other.smooth)));
}

/** The lines of one plot: of one agent its values, faint, below their smoothed line. */
function seriesOf(matrix, cells, all) {
  const dashes = all && lieTogether(cells) ? ALIKE : matrix.columns.length > 3 ? DASHES : [[]];
  const hue = (role) => {
    const at = matrix.columns.findIndex((agent) => agent.role === role);
    return { colour: token(`a${matrix.columns[at].hue}`), dash: dashes[at % dashes.length] };
  };
  const line = (role, extra) => {
    const { colour, dash } = hue(role);
    return { stroke: colour, dash, points: ALONE, spanGaps: true, ...extra };
  };
  const series = all
    ? cells.map((one) => line(one.role, { width: 1.8 }))
    : [
        line(cells[0].role, { width: 1, alpha: 0.28, dash: [], points: { show: false } }),
        line(cells[0].role, { width: 1.8 }),
      ];
  return [{}, ...series];
}

function make(holder, matrix, row, cells, data, warmup, group) {
  const axis = { stroke: token("axis"), font: "11px Inter", ticks: { show: false } };
  const all = cells.length > 1 || phone.matches;
  const plot = new window.uPlot(
    {
      width: Math.max(120, holder.clientWidth),
      height: phone.matches ? 104 : 92,
      padding: [all ? 6 : 18, TICK_ROOM, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: group }, drag: { x: true, y: false }, points: { show: false }, y: false },
      scales: { x: { time: false }, y: { range: (u) => u.flexmarlRange || row.range } },
      axes: [
        xAxis(matrix.axis, axis),
        {
          ...axis,
          size: 42,
          gap: 4,
          space: 24,
          grid: { stroke: token("grid"), width: 1 },
          values: (u, ticks) => ticks.map((v) => tick(v, ticks)),
        },
      ],
      series: seriesOf(matrix, cells, all),
      hooks: {
        draw: [(u) => mark(u, warmup), (u) => attempts(u, matrix.attempts)],
        setSelect: [
          (u) => {
            u.flexmarlZoomed = u.select.width > 0 || u.flexmarlZoomed;
          },
        ],
        ready: [
          (u) =>
            u.over.addEventListener("dblclick", () => {
              u.flexmarlZoomed = false;
              u.setData(u.data);
            }),
        ],
        setCursor: [(u) => read(u, holder, cells, all)],
      },
    },
    data,
    holder,
  );
  plot.flexmarlRange = row.range;
  watchSize(holder, plot);
  return plot;
}

function tick(value, ticks) {
  const step = Math.abs((ticks[1] ?? 1) - (ticks[0] ?? 0));
  if (Math.abs(value) >= 10_000) return `${number(value / 1000)} k`;
  if (value === 0) return "0";
  if (step < 0.0005) return value.toExponential(0).replaceAll("-", "−");
  return number(value, step >= 1 ? 0 : step >= 0.1 ? 1 : step >= 0.01 ? 2 : step >= 0.001 ? 3 : 4);
}

/** The value under the cursor replaces the last value while the pointer is over the row. */
function read(u, holder, cells, all) {
  if (all) return;
  const shown = $(".lv", holder.parentElement);
  if (!shown) return;
  const at = u.cursor.idx;
  const value = at === null || at === undefined ? null : u.data[1][at];
  shown.textContent =
    value === null || value === undefined || u.cursor.left < 0
      ? cells[0].last
      : number(value, Math.abs(value) >= 100 ? 0 : Math.abs(value) < 0.001 ? 6 : 3);
}

function mark(u, warmup) {
  if (!warmup || !u.data[0].length) return;
  const x = Math.round(u.valToPos(u.data[0][0], "x", true)) + 0.5;
  const { ctx } = u;
  ctx.save();
  ctx.strokeStyle = token("bd2");
  ctx.setLineDash([2 * devicePixelRatio, 2 * devicePixelRatio]);
  ctx.lineWidth = devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(x, u.bbox.top);
  ctx.lineTo(x, u.bbox.top + u.bbox.height);
  ctx.stroke();
  ctx.restore();
}

/** Where later attempts began, as dotted lines. */
function attempts(u, places) {
  const { ctx } = u;
  for (const place of places || []) {
    if (place < u.scales.x.min || place > u.scales.x.max) continue;
    const x = Math.round(u.valToPos(place, "x", true)) + 0.5;
    ctx.save();
    ctx.strokeStyle = token("bd2");
    ctx.setLineDash([devicePixelRatio, 3 * devicePixelRatio]);
    ctx.lineWidth = devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(x, u.bbox.top);
    ctx.lineTo(x, u.bbox.top + u.bbox.height);
    ctx.stroke();
    ctx.restore();
  }
}

function watchSize(holder, plot) {
  const sizes = new ResizeObserver(() => {
    if (!holder.isConnected) return sizes.disconnect();
    const width = Math.max(120, holder.clientWidth);
    if (width !== plot.width) plot.setSize({ width, height: plot.height });
    return undefined;
  });
  sizes.observe(holder);
}

export const boxes = () => $$("[data-matrix]");
