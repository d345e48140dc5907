// Charts drawn by Plotly from what the server made. Every chart has a caption, its facts as a table and as CSV, and a
// cursor for the arrow keys. Colours are names of design tokens until the moment of drawing.
import { $, el, icon, load, token, number } from "./dom.js";
import { wholeGap } from "./plotting.js";

const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset", showTips: false };
const shown = new Map(); // figure name -> {box, figure, zoomed}

const FONT_KEYS = new Set(["color", "bgcolor", "bordercolor", "linecolor", "tickcolor", "gridcolor", "fillcolor"]);

/** Replace `$q6` and `$q1/0.5` by the colours of the theme. */
function coloured(value, key = "") {
  if (typeof value === "string" && value.startsWith("$") && (FONT_KEYS.has(key) || key === ""))
    return colour(value.slice(1));
  if (Array.isArray(value))
    return value.length && typeof value[0] === "object" ? value.map((item) => coloured(item, key)) : value;
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, coloured(item, name)]));
  return value;
}

function colour(name) {
  const [word, alpha] = name.split("/");
  const value = token(word);
  if (!alpha || !value.startsWith("#")) return value;
  return (
    value +
    Math.round(Number(alpha) * 255)
      .toString(16)
      .padStart(2, "0")
  );
}

/** Draw a figure into its box, or say why there is none yet. A zoom that somebody set stays. */
export async function draw(box, figure) {
  const kept = shown.get(figure.name) || { box, zoomed: null };
  kept.figure = figure;
  shown.set(figure.name, kept);
  head(box, figure);
  const body = $(".body", box);
  const plot = $(".plot", body);
  if (figure.empty) {
    if ($(".js-plotly-plot", body)) window.Plotly.purge(plot);
    plot.replaceChildren(
      el(
        "div",
        { class: "state" },
        icon("hourglass"),
        el("b", { text: "Nothing to draw yet" }),
        el("p", { class: "soft", text: figure.empty }),
      ),
    );
    return;
  }
  await load(document.documentElement.dataset.plotly);
  if (!plot.classList.contains("js-plotly-plot")) {
    plot.replaceChildren();
    plot.setAttribute("tabindex", "0");
    plot.setAttribute("role", "img");
  }
  plot.setAttribute("aria-label", `${figure.title}. ${figure.summary}. Arrow keys read the values.`);
  const layout = coloured({ ...figure.layout });
  layout.uirevision = `kept ${figure.axis || "step"}`; // keeps zoom over re-reads, not over another axis
  layout.width = undefined;
  await window.Plotly.react(plot, coloured(figure.data), layout, CONFIG);
  if (!plot.dataset.wired) wire(plot, figure.name);
  tickWholly(plot, figure);
  table(box, figure);
}

/** Keep the ticks of an axis that counts on whole numbers, and as many as can be read, in whatever part of it is shown. */
function tickWholly(plot, figure) {
  if (!figure.layout.xaxis?.dtick || !plot.layout.xaxis?.range) return;
  const gap = wholeGap(...plot.layout.xaxis.range);
  if (gap !== plot.layout.xaxis.dtick) window.Plotly.relayout(plot, { "xaxis.dtick": gap });
}

export function fail(box, error, retry) {
  const body = $(".body", box) || box;
  const again = el("button", { type: "button", class: "btn sm", text: "Retry", on: { click: retry } });
  $(".plot", body)?.replaceChildren(
    el(
      "div",
      { class: "state error", role: "alert" },
      icon("alert-circle", "lead"),
      el("b", { text: "This chart did not load" }),
      el("p", { class: "soft", text: `${error.message} The run is not affected.` }),
      el("div", { class: "hs" }, again, el("span", { class: "muted s12 mono", text: error.requestId || "" })),
    ),
  );
}

function head(box, figure) {
  const line = $(".ch", box);
  if (line.dataset.done === JSON.stringify(figure.legend)) {
    $("figcaption", box).textContent = figure.summary;
    return;
  }
  line.dataset.done = JSON.stringify(figure.legend);
  const legend = el(
    "span",
    { class: "leg" },
    ...figure.legend.map((item) =>
      el("span", {}, el("i", { class: item.hue ? `sw-hue hue-${item.hue}` : `sw-${item.swatch}` }), item.label),
    ),
  );
  const tools = el(
    "span",
    { class: "tools" },
    figure.meaning
      ? el(
          "button",
          {
            type: "button",
            class: "ib",
            title: "Description",
            "aria-label": `What ${figure.title} is`,
            "aria-pressed": "false",
            on: { click: (event) => explain(box, figure.meaning, event.currentTarget) },
          },
          icon("info-circle", "sm"),
        )
      : null,
    el(
      "button",
      {
        type: "button",
        class: "ib",
        title: "View as table",
        "aria-label": `View ${figure.title} as table`,
        "aria-pressed": "false",
        on: { click: (event) => toggle(box, figure.name, event.currentTarget) },
      },
      icon("table", "sm"),
    ),
    el(
      "button",
      {
        type: "button",
        class: "ib",
        title: "Download shown rows as CSV",
        "aria-label": `Download ${figure.title} as CSV`,
        on: { click: () => csv(shown.get(figure.name).figure) },
      },
      icon("download", "sm"),
    ),
  );
  line.replaceChildren(el("h3", { text: figure.title }), ...(figure.legend.length ? [legend] : []), tools);
  $("figcaption", box)?.remove();
  box.append(el("figcaption", { class: "sr", text: figure.summary }));
}

/** Say or hide what a figure means. */
export function explain(box, meaning, button) {
  const said = $(".def", box);
  button.setAttribute("aria-pressed", String(!said));
  if (said) return said.remove();
  ($(".body", box) || box).prepend(el("p", { class: "def soft s12", text: meaning }));
  return undefined;
}

/** Offer the trajectories of a step below the chart's head. */
function pick(box, step) {
  const where = $("#charts")?.dataset.trajectories;
  if (!where || step === null) return;
  $(".picked", box)?.remove();
  $(".ch", box).after(
    el(
      "p",
      { class: "picked s12" },
      el("a", { class: "link", href: `${where}?step=${step}`, text: `Trajectories of step ${number(step)}` }),
    ),
  );
}

function toggle(box, name, button) {
  const on = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(on));
  box.dataset.table = on ? "1" : "";
  table(box, shown.get(name).figure);
}

function table(box, figure) {
  const body = $(".body", box);
  $(".as-table", body)?.remove();
  const plot = $(".plot", body);
  plot.hidden = box.dataset.table === "1";
  if (!plot.hidden) return;
  body.prepend(asTable(figure.table, `${figure.title} as table`));
}

/** The facts of a chart, newest first. */
export function asTable(facts, label) {
  const rows = facts.rows.slice(-500).toReversed();
  return el(
    "div",
    { class: "as-table", tabindex: "0", role: "group", "aria-label": label },
    el(
      "table",
      { class: "tb d" },
      el("thead", {}, el("tr", {}, ...facts.columns.map((name) => el("th", { class: "num", text: name })))),
      el(
        "tbody",
        {},
        ...rows.map((row) => el("tr", {}, ...row.map((value) => el("td", { class: "num", text: cell(value) })))),
      ),
    ),
  ); // text only
}

const cell = (value) =>
  typeof value === "number" ? number(value, Number.isInteger(value) ? 0 : 3) : value === null ? "–" : String(value);

export function csv(figure) {
  const quote = (value) =>
    value === null || value === undefined
      ? ""
      : /[",\n]/.test(String(value))
        ? `"${String(value).replaceAll('"', '""')}"`
        : String(value);
  const text = [figure.table.columns, ...figure.table.rows].map((row) => row.map(quote).join(",")).join("\n");
  const link = el("a", {
    href: URL.createObjectURL(new Blob([text], { type: "text/csv" })),
    download: `${figure.name}.csv`,
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Arrow keys walk along the points; the unified hover shows them and a live region reads them. */
function wire(plot, name) {
  plot.dataset.wired = "1";
  let at = -1;
  plot.on("plotly_relayout", () => tickWholly(plot, shown.get(name).figure));
  plot.on("plotly_click", (event) => {
    const { box, figure } = shown.get(name);
    const x = event.points[0]?.x;
    if (figure.table.columns[0] !== "step" || typeof x !== "number") return;
    const column = figure.table.columns[1] === figure.axis ? 1 : 0;
    const near = figure.table.rows.reduce((best, row) =>
      Math.abs(row[column] - x) < Math.abs(best[column] - x) ? row : best,
    );
    pick(box, near[0]);
  });
  plot.addEventListener("keydown", (event) => {
    const { box, figure } = shown.get(name);
    const count = figure.table.rows.length;
    if (event.key === "Enter" && at >= 0 && figure.table.columns[0] === "step") {
      pick(box, figure.table.rows[at][0]);
      $(".picked a", box)?.focus();
      return;
    }
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -count, End: count }[event.key];
    if (!step || !count) return;
    event.preventDefault();
    at = Math.min(count - 1, Math.max(0, (at < 0 ? count : at) + step));
    const row = figure.table.rows[at];
    $("#announce").textContent = figure.table.columns.map((column, i) => `${column} ${cell(row[i])}`).join(", ");
    try {
      window.Plotly.Fx.hover(plot, [{ xval: row[figure.table.columns[1] === figure.axis ? 1 : 0], curveNumber: 0 }]);
    } catch {
      /* bars of merged steps have no such point; the words were said */
    }
  });
  plot.addEventListener("blur", () => window.Plotly.Fx.unhover(plot));
}

/** Draw everything again in the colours of the theme. */
export function recolour() {
  for (const { box, figure } of shown.values()) draw(box, figure);
}
