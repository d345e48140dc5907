// Charts of single series: opened from the catalogue, or set on an agent's page. Only those on the screen are read, in one
// request for all of them; which are open, the axis, the smoothing and the other runs are in the address.
import { post } from "./api.js";
import { $, $$ } from "./dom.js";
import { onChange } from "./live.js";
import * as chart from "./series_chart.js";

const page = $("#metrics");
const grid = $("#open-charts");
const form = $("#metrics-form");
const state = {
  x: page.dataset.x,
  smooth: Number(page.dataset.smooth),
  others: page.dataset.others.split(" ").filter(Boolean),
};
const visible = new Set();
let due = null;

const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) visible.add(entry.target);
      else visible.delete(entry.target);
      if (entry.isIntersecting && !entry.target.dataset.read) soon();
    }
  },
  { rootMargin: "200px" },
);

const figures = () => (grid ? $$("[data-series]", grid) : []);

function soon() {
  due ??= setTimeout(() => {
    due = null;
    read([...visible].filter((box) => !box.dataset.read)).catch(() => {});
  }, 30);
}

/** Read the points of some figures; series that the axis does not fit are read by step. */
async function read(boxes) {
  if (!boxes.length) return;
  const byAxis = Map.groupBy
    ? Map.groupBy(boxes, axisOf)
    : boxes.reduce((map, box) => map.set(axisOf(box), [...(map.get(axisOf(box)) || []), box]), new Map());
  for (const [x, some] of byAxis) {
    const names = [...new Set(some.map((box) => box.dataset.name))];
    try {
      const answer = await post("/api/v1/series/data", {
        runs: [page.dataset.runKey, ...state.others],
        names,
        x,
        max_points: 500,
      });
      await Promise.all(some.map((box) => drawOne(box, answer, x)));
    } catch (error) {
      for (const box of some)
        if (!box.dataset.read)
          chart.say(box, null, `${error.message} The run is not affected.`, () => read(some).catch(() => {}));
      throw error;
    }
  }
}

const axisOf = (box) => (box.dataset.axes.split(" ").includes(state.x) ? state.x : "step");

async function drawOne(box, answer, x) {
  const { name, agent, stat, title, unit, meaning, hue, monogram } = box.dataset;
  const start = Math.min(
    ...answer.runs.flatMap((run) => run.series).flatMap((one) => (x === "time" && one.x.length ? [one.x[0]] : [])),
  );
  const lines = answer.runs.map((run) => {
    const own = run.series.find((one) => one.name === name && one.agent === agent && one.stat === stat) || {
      x: [],
      y: [],
    };
    return {
      label: answer.runs.length > 1 ? run.key : agent || "team",
      x: x === "time" ? own.x.map((at) => Math.round(at - (answer.runs.length > 1 ? own.x[0] : start))) : own.x,
      y: own.y,
    };
  });
  box.dataset.read = "1";
  const drawn = lines.filter((line, i) => i === 0 || line.x.length);
  const word = x === "time" ? "seconds" : x === "step" && x !== state.x ? "step (no other axis)" : x;
  await chart.draw(
    box,
    {
      title,
      sub: [agent, stat === "mean" ? "" : stat].filter(Boolean).join(", "),
      unit,
      meaning,
      word,
      hue: Number(hue),
      monogram,
      strength: state.smooth,
      onClose: form ? () => close(box.dataset.series) : null,
    },
    drawn,
  );
}

function place() {
  const query = new URLSearchParams(location.search);
  query.delete("open");
  query.delete("with");
  if (form) for (const box of figures()) query.append("open", box.dataset.series);
  for (const other of state.others) query.append("with", other);
  query.set("x", state.x);
  query.set("smooth", String(state.smooth));
  history.replaceState(null, "", `${location.pathname}?${query}${location.hash}`);
  if (!form) return;
  for (const input of $$("input[type=hidden]", form)) input.remove();
  for (const [name, value] of query)
    if (!["q", "agent"].includes(name) && !(name === "with" && !value))
      form.append(Object.assign(document.createElement("input"), { type: "hidden", name, value }));
  $("#open-bar").hidden = !figures().length;
  for (const button of $$("[data-open-series]"))
    button.setAttribute("aria-pressed", String(figures().some((box) => box.dataset.series === button.dataset.key)));
}

function open(button) {
  const found = figures().find((box) => box.dataset.series === button.dataset.key);
  if (found) return close(button.dataset.key);
  const box = $("#series-figure").content.firstElementChild.cloneNode(true);
  for (const name of ["name", "agent", "stat", "title", "unit", "meaning", "hue", "monogram", "axes"])
    box.dataset[name] = button.dataset[name];
  box.dataset.series = button.dataset.key;
  box.id = button.dataset.name.replaceAll("/", "-");
  $("h3", box).textContent = button.dataset.title;
  grid.append(box);
  watcher.observe(box);
  place();
  box.scrollIntoView({ block: "nearest", behavior: "auto" });
  return undefined;
}

function close(key) {
  const box = figures().find((one) => one.dataset.series === key);
  if (!box) return;
  watcher.unobserve(box);
  visible.delete(box);
  chart.forget(box);
  box.remove();
  place();
}

function again() {
  for (const box of figures()) delete box.dataset.read;
  place();
  soon();
}

page.addEventListener("click", (event) => {
  const row = event.target.closest("[data-open-series]");
  if (row) return open(row);
  const choice = event.target.closest("[data-choice] [data-value]");
  if (choice) {
    const group = choice.closest("[data-choice]");
    state[group.dataset.choice] =
      group.dataset.choice === "smooth" ? Number(choice.dataset.value) : choice.dataset.value;
    for (const one of $$("[data-value]", group)) one.setAttribute("aria-pressed", String(one === choice));
    return again();
  }
  const drop = event.target.closest("[data-drop-with]");
  if (drop) {
    state.others = state.others.filter((other) => other !== drop.dataset.dropWith);
    drop.closest("[data-with]").remove();
    return again();
  }
  if (event.target.closest("#close-all")) for (const box of figures()) close(box.dataset.series);
  return undefined;
});

for (const box of figures()) watcher.observe(box);
document.addEventListener("theme", chart.recolour);
onChange(() => read([...visible].filter((box) => box.dataset.read)));
