// One chart of one series, alone or beside the same series of other runs. It has a caption, its definition, its facts as a
// table and as CSV, a cursor for the arrow keys, and its last values at the line ends. A zoom that somebody set stays.
import { $, announce, el, icon, load, number, token } from "./dom.js";
import { asTable, csv, explain } from "./figures.js";
import { ALONE, xAxis } from "./plotting.js";

const charts = new Map(); // figure element -> {plot, spec, zoomed, at, table}
const RUN_LOOK = [
  ["q6", []],
  ["q4", []],
  ["q3", []],
  ["q6", [6, 3]],
  ["q4", [6, 3]],
  ["q3", [6, 3]],
  ["q6", [2, 3]],
  ["q4", [2, 3]],
];
const HEIGHT = 176;

/** Write a value in few digits. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${number(value / 1e6, 1)} M`;
  if (size >= 1e4) return `${number(value / 1e3, 1)} k`;
  if (value !== 0 && size < 0.001) return value.toExponential(1).replaceAll("-", "−");
  return number(value, Number.isInteger(value) ? 0 : size >= 100 ? 1 : 3);
}

/** Write a tick of an axis with the digits that its step needs, the same for all of the axis. */
function tick(value, ticks) {
  const step = Math.abs((ticks[1] ?? 1) - (ticks[0] ?? 0));
  if (value === 0 || Math.abs(value) >= 1e4 || step < 0.001) return short(value);
  return number(value, step >= 1 ? 0 : step >= 0.1 ? 1 : step >= 0.01 ? 2 : 3);
}

/** Exponential moving average as the overview uses it; 0 leaves the values as they are. */
export function smooth(values, strength) {
  if (!strength) return values;
  const keep = Math.min(0.97, 0.88 * strength, 1 - 1 / Math.max(1, (values.length * strength * strength) / 25));
  let last = null;
  return values.map((value) => {
    last = last === null ? value : keep * last + (1 - keep) * value;
    return last;
  });
}

/** Draw `lines` ({label, x, y}) into a figure. `spec`: {title, unit, meaning, word, hue, monogram, strength}. */
export async function draw(box, spec, lines) {
  await load(document.documentElement.dataset.uplot);
  const kept = charts.get(box) || { zoomed: false, at: -1, table: false };
  if (kept.spec && kept.spec.word !== spec.word) kept.zoomed = false;
  Object.assign(kept, { spec, lines });
  charts.set(box, kept);
  head(box, kept);
  const plot = $(".plot", box);
  if (!lines.some((line) => line.x.length)) return say(box, kept, spec.empty || "No point on this axis.");
  const xs = [...new Set(lines.flatMap((line) => line.x))].toSorted((a, b) => a - b);
  kept.data = [xs, ...lines.map((line) => column(xs, line.x, smooth(line.y, spec.strength)))];
  kept.raw = [xs, ...lines.map((line) => column(xs, line.x, line.y))];
  facts(box, kept);
  plot.setAttribute("tabindex", "0");
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", `${spec.title}. ${summary(kept)}. Arrow keys read the values.`);
  caption(box, summary(kept));
  const shape = `${lines.map((line) => line.label).join()}|${spec.word}|${spec.strength}`;
  if (kept.plot && kept.shape === shape && plot.contains(kept.plot.root)) {
    kept.plot.setData(kept.data, !kept.zoomed);
    return undefined;
  }
  kept.shape = shape;
  make(box, kept);
  return undefined;
}

const column = (xs, own, ys) => {
  const at = new Map(own.map((x, i) => [x, ys[i]]));
  return xs.map((x) => at.get(x) ?? null);
};

export function say(box, kept, text, again = null) {
  kept?.plot?.destroy();
  if (kept) kept.plot = null;
  $(".plot", box).replaceChildren(
    el(
      "div",
      { class: "state" },
      icon(again ? "alert-circle" : "hourglass", again ? "lead" : ""),
      el("b", { text: again ? "This chart did not load" : "Nothing to draw" }),
      el("p", { class: "soft", text }),
      again ? el("button", { type: "button", class: "btn sm", text: "Retry", on: { click: again } }) : null,
    ),
  );
}

function summary({ lines, spec }) {
  return lines
    .filter((line) => line.y.length)
    .map(
      (line) =>
        `${line.label}: ${short(line.y[0])} to ${short(line.y.at(-1))}${spec.unit ? ` ${spec.unit}` : ""} over ${number(line.y.length)} points`,
    )
    .join("; ");
}

function caption(box, text) {
  let node = $("figcaption", box);
  if (!node) {
    node = el("figcaption", { class: "sr" });
    box.append(node);
  }
  node.textContent = text;
}

const press = (shape, title, text, action, pressed) =>
  el(
    "button",
    { type: "button", class: "ib", title, "aria-label": text, "aria-pressed": pressed, on: { click: action } },
    icon(shape, "sm"),
  );

function head(box, kept) {
  const { spec, lines } = kept;
  const line = $(".ch", box);
  const stamp = JSON.stringify([spec.title, spec.sub, lines.map((one) => one.label)]);
  if (line.dataset.done === stamp) return;
  line.dataset.done = stamp;
  const name = `${spec.title}${spec.sub ? ` of ${spec.sub}` : ""}`;
  const tools = el(
    "span",
    { class: "tools" },
    spec.meaning
      ? press(
          "info-circle",
          "Description",
          `What ${name} is`,
          (event) => explain(box, spec.meaning, event.currentTarget),
          "false",
        )
      : null,
    press(
      "table",
      "View as table",
      `View ${name} as table`,
      (event) => {
        kept.table = !kept.table;
        event.currentTarget.setAttribute("aria-pressed", String(kept.table));
        facts(box, kept);
      },
      String(kept.table),
    ),
    press("download", "Download shown rows as CSV", `Download ${name} as CSV`, () =>
      csv({ name: box.dataset.name.replaceAll("/", "-"), table: kept.facts }),
    ),
    spec.onClose ? press("x", "Close", `Close ${name}`, spec.onClose) : null,
  );
  const legend =
    lines.length > 1
      ? el(
          "span",
          { class: "leg" },
          ...lines.map((one, i) => el("span", {}, el("i", { class: lookClass(kept, i) }), one.label)),
        )
      : null;
  line.replaceChildren(
    el(
      "h3",
      {},
      spec.title,
      spec.sub ? el("span", { class: "muted", text: ` ${spec.sub}` }) : "",
      spec.unit ? el("span", { class: "muted s11", text: `, ${spec.unit}` }) : "",
    ),
    tools,
  );
  $(".leg", box)?.remove();
  if (legend) line.after(legend);
}

const lookClass = ({ spec, lines }, i) =>
  i === 0 && spec.hue
    ? `sw-hue hue-${spec.hue}`
    : `sw-${RUN_LOOK[i % 8][0]}${RUN_LOOK[i % 8][1].length ? " dashed" : ""}${lines.length > 1 ? "" : " only"}`;

function look(spec, i) {
  const [name, dash] = RUN_LOOK[i % 8];
  return { stroke: i === 0 && spec.hue ? token(`a${spec.hue}`) : token(name), dash };
}

function make(box, kept) {
  kept.plot?.destroy();
  const host = $(".plot", box);
  host.replaceChildren();
  const { spec, lines, data } = kept;
  const axis = { stroke: token("axis"), font: "11px Inter", ticks: { show: false } };
  const faint = { ...look(spec, 0), width: 1, alpha: 0.28, points: { show: false }, spanGaps: true };
  const raw = lines.length === 1 && spec.strength ? [faint] : [];
  const series = lines.map((line, i) => ({ ...look(spec, i), width: 1.8, points: ALONE, spanGaps: true }));
  kept.faint = raw.length;
  const plot = new window.uPlot(
    {
      width: Math.max(120, host.clientWidth),
      height: HEIGHT,
      padding: [10, 58, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: true, y: false }, points: { show: false }, y: false },
      scales: { x: { time: false } },
      axes: [
        xAxis(spec.word, axis),
        {
          ...axis,
          size: 46,
          gap: 4,
          space: 28,
          grid: { stroke: token("grid"), width: 1 },
          values: (u, ticks) => ticks.map((v) => tick(v, ticks)),
        },
      ],
      series: [{}, ...series, ...raw],
      hooks: {
        draw: [(u) => ends(u, kept)],
        setSelect: [
          (u) => {
            kept.zoomed = u.select.width > 0 || kept.zoomed;
          },
        ],
        ready: [
          (u) =>
            u.over.addEventListener("dblclick", () => {
              kept.zoomed = false;
              u.setData(u.data);
            }),
        ],
        setCursor: [(u) => read(box, kept, u)],
      },
    },
    raw.length ? [...data, kept.raw[1]] : data,
    host,
  );
  kept.plot = plot;
  const set = plot.setData.bind(plot);
  plot.setData = (fresh, reset) =>
    set(kept.faint && fresh.length === kept.data.length ? [...fresh, kept.raw[1]] : fresh, reset);
  if (!host.dataset.wired) wire(box, host);
  watchSize(host, kept, plot);
}

function watchSize(host, kept, plot) {
  new ResizeObserver(() => {
    if (host.isConnected && kept.plot === plot && host.clientWidth > 0)
      plot.setSize({ width: Math.max(120, host.clientWidth), height: HEIGHT });
  }).observe(host);
}

/** Last values at the line ends, pushed apart where they would touch. */
function ends(u, { spec, lines, raw }) {
  const { ctx } = u;
  const ratio = devicePixelRatio;
  const marks = lines
    .map((line, i) => {
      const ys = raw[i + 1];
      let at = ys.length - 1;
      while (at >= 0 && ys[at] === null) at -= 1;
      return { i, at, value: ys[at] };
    })
    .filter((mark) => mark.at >= 0)
    .map((mark) => ({ ...mark, y: u.valToPos(u.data[mark.i + 1][mark.at], "y", true) }))
    .toSorted((a, b) => a.y - b.y);
  ctx.save();
  ctx.font = `600 ${11 * ratio}px Inter`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  ctx.beginPath();
  let above = -Infinity;
  for (const mark of marks) {
    const y = Math.min(u.bbox.top + u.bbox.height, Math.max(u.bbox.top, mark.y, above + 13 * ratio));
    above = y;
    ctx.fillStyle = mark.i === 0 ? token("t1") : token("t3");
    ctx.fillText(
      `${mark.i === 0 && spec.monogram ? `${spec.monogram} ` : ""}${short(mark.value)}`,
      u.bbox.left + u.bbox.width + 5 * ratio,
      y,
    );
  }
  ctx.restore();
}

function read(box, kept, u) {
  let place = $(".at", box);
  if (u.cursor.left < 0 || u.cursor.idx === null || u.cursor.idx === undefined) {
    place?.remove();
    return;
  }
  if (!place) {
    place = el("span", { class: "at tn s11" });
    $(".body", box).append(place);
  }
  place.textContent = words(kept, u.cursor.idx);
}

const words = ({ spec, lines, raw }, at) =>
  [
    `${spec.word} ${short(raw[0][at])}`,
    ...lines.map((line, i) => `${lines.length > 1 ? `${line.label} ` : ""}${short(raw[i + 1][at])}`),
  ].join(" · ");

function wire(box, host) {
  host.dataset.wired = "1";
  host.addEventListener("keydown", (event) => {
    const kept = charts.get(box);
    if (!kept?.plot) return;
    const count = kept.raw[0].length;
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -count, End: count }[event.key];
    if (!step) return;
    event.preventDefault();
    kept.at = Math.min(count - 1, Math.max(0, (kept.at < 0 ? count : kept.at) + step));
    kept.plot.setCursor({ left: kept.plot.valToPos(kept.raw[0][kept.at], "x"), top: 10 });
    announce(words(kept, kept.at));
  });
  host.addEventListener("blur", () => charts.get(box)?.plot?.setCursor({ left: -10, top: -10 }));
}

function facts(box, kept) {
  kept.facts = {
    columns: [kept.spec.word, ...kept.lines.map((line) => line.label)],
    rows: kept.raw ? kept.raw[0].map((x, at) => [x, ...kept.raw.slice(1).map((ys) => ys[at])]) : [],
  };
  const body = $(".body", box);
  $(".as-table", body)?.remove();
  $(".plot", body).hidden = kept.table;
  if (kept.table) body.prepend(asTable(kept.facts, `${kept.spec.title} as table`));
}

/** Forget a figure that left the page. */
export function forget(box) {
  charts.get(box)?.plot?.destroy();
  charts.delete(box);
}

/** Draw everything again in the colours of the theme. */
export function recolour() {
  for (const [box, kept] of charts) if (kept.plot) make(box, kept);
}
