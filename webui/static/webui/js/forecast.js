// What a run would take: the simulator's answer beside the plan, with its ranges, their reasons and their sources.
import { amount, bytes, counted, long, percent, seconds, span } from "./amounts.js";
import { $, chip, el, icon, markOf, number } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const PARTS = { weights: "k1", reference: "k1", optimizer: "k2" };
const SOURCES = { runs: "measured in", profile: "profile,", declared: "declared", default: "not measured" };

function tile(label, value, unit, basis) {
  return el(
    "div",
    { class: "tile" },
    el("div", { class: "l", text: label }),
    el(
      "div",
      { class: "v tn" },
      ...String(value)
        .split("\u200b")
        .map((part) => el("span", { text: part })),
      unit ? el("small", { text: ` ${unit}` }) : null,
    ),
    el("div", { class: "d", text: basis, title: basis }),
  );
}

/** The forecast of a plan; null while there is none. */
export function forecast(found, agents, { causes, measure, measuring, take }) {
  if (!found) return null;
  const [whole, unit] = long(found.hours);
  const cost = found.cost
    ? tile("Cost", span(found.cost, amount), "", "at the pools' prices")
    : tile(
        "Tokens/s",
        span(found.tokens_s, (value) => number(value)),
        "",
        "trained",
      );
  return el(
    "div",
    { class: "ahead" },
    el(
      "div",
      { class: "pt" },
      tile("Per step", span(found.step_s, seconds), "s", `likely ${seconds(found.step_s.likely)} s`),
      tile("Whole run", whole, unit, "to the end of the budget"),
      tile(
        "Device hours",
        span(found.device_hours, amount),
        "",
        `${number(found.devices.reduce((sum, one) => sum + (one.devices ?? 1), 0))} places`,
      ),
      cost,
    ),
    use(found, causes),
    memory(found, agents),
    split(found.split, take),
    why(found, measure, measuring),
  );
}

function svg(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** A range of a share: solid to its low end, light to its high end, a line where it is likely. */
function rangeBar(range) {
  const at = (value) => `${(100 * Math.min(1, Math.max(0, value))).toFixed(2)}%`;
  return svg(
    "svg",
    { class: "bar rng", "aria-hidden": "true" },
    svg("rect", { class: "hi", width: at(range.high), height: "100%" }),
    svg("rect", { class: "lo", width: at(range.low), height: "100%" }),
    svg("rect", { class: "at", x: at(range.likely), width: "2", height: "100%" }),
  );
}

function use(found, words) {
  const rows = [
    ["Engines", "engine"],
    ["Trainers", "trainer"],
  ].map(([word, kind]) => {
    const causes = found.bubble[kind]
      .slice(0, 2)
      .map((cause) => `${words[kind][cause.cause]} ${percent(cause.likely)}\u00a0%`)
      .join(", ");
    return el(
      "div",
      { class: "ub" },
      el("span", { class: "w5", text: word }),
      rangeBar(found.utilisation[kind]),
      el("b", { class: "num", text: `${span(found.utilisation[kind], percent).replace("\u200b", "")} %` }),
      el("span", {
        class: "muted s12 of",
        title: found.bubble[kind].map((cause) => `${words[kind][cause.cause]}: ${cause.text}`).join("\n"),
        text: causes ? `idle: ${causes}` : "",
      }),
    );
  });
  return el(
    "div",
    { class: "p16 bt" },
    el("b", { text: "Busy" }),
    el("span", { class: "muted s12", text: " share of the time devices are held" }),
    ...rows,
  );
}

/** An engine or trainer: whose models lie on its device, or on each of several, and how much of the memory they take. */
function placed(device, agents) {
  const several = device.devices > 1 ? `, each of ${number(device.devices)} devices` : "";
  const marks = device.policies.slice(0, 4).map((policy) => chip(markOf(agents, policy)));
  const lies = device.memory;
  const whole = lies?.capacity || lies?.total.high || 1;
  let x = 0;
  const parts = (lies?.parts || []).map((part) => {
    const width = (100 * part.likely) / whole;
    const rect = svg("rect", {
      class: PARTS[part.name] || "k3",
      x: `${x.toFixed(2)}%`,
      width: `${width.toFixed(2)}%`,
      height: "100%",
    });
    x += width;
    return rect;
  });
  const amounts = !lies
    ? "size not known yet"
    : `${bytes(lies.total.low)} to ${bytes(lies.total.high)}${lies.capacity ? ` of ${bytes(lies.capacity)}` : ""}`;
  const tone = lies?.fits === "no" ? "bad" : lies?.fits === "maybe" ? "wn" : "";
  return el(
    "div",
    { class: "md" },
    el(
      "div",
      { class: "hs g6 wrap" },
      el("span", { class: "muted s12 tn", text: `${device.use} ${device.no}${several}` }),
      ...marks,
      device.policies.length > 4
        ? el("span", { class: "muted s12", text: `and ${device.policies.length - 4} more` })
        : null,
      el("span", { class: `push s12 tn ${tone}`, text: amounts }),
    ),
    lies ? svg("svg", { class: "bar mem", "aria-hidden": "true" }, ...parts) : null,
    lies
      ? el(
          "details",
          { class: "s12 muted" },
          el("summary", { text: "What is counted" }),
          ...lies.parts.map((part) => el("div", { text: `${part.name}, about ${bytes(part.likely)}: ${part.text}` })),
        )
      : null,
  );
}

function memory(found, agents) {
  return el(
    "div",
    { class: "p16 bt" },
    el(
      "div",
      { class: "hs wrap" },
      el("b", { text: "Placement and memory" }),
      el(
        "span",
        { class: "leg push" },
        ...[
          ["k1", "weights"],
          ["k2", "optimizer"],
          ["k3", "cache, activations, program and others"],
        ].map(([tone, word]) => el("span", {}, el("i", { class: tone }), word)),
      ),
    ),
    ...found.devices.map((device) => placed(device, agents)),
  );
}

/** Another split of the same devices, if one is faster; `take` fills the form with it. */
function split(advice, take) {
  const { better, devices, looked_at: looked, least_gain: least } = advice;
  const head = el("b", { text: "Split of the devices" });
  if (!better) {
    const others = advice.stopped
      ? `${counted(looked, "other")} simulated, then time was up`
      : `${counted(looked, "other")} simulated`;
    const none = advice.stopped
      ? "No other split was simulated: time limit reached. Change something, or plan again later."
      : `The rules allow no other split of ${counted(devices, "device")}.`;
    return el(
      "div",
      { class: "p16 bt" },
      head,
      el("p", {
        class: "soft s12",
        text: looked
          ? `No other split of the ${number(devices)} devices is over ${percent(least)} % faster; ${others}.`
          : none,
      }),
    );
  }
  const where = better.shared
    ? `${counted(better.engines, "engine")} and ${counted(better.trainers, "trainer")} on the same devices, in turns`
    : `${counted(better.engines, "engine")}, ${counted(better.trainers, "trainer")}`;
  const was = better.changes
    .map(
      (one) => `${one.pointer.slice(1).replaceAll("/", ".")}: ${one.before ?? "none"} becomes ${one.value ?? "none"}`,
    )
    .join("\n");
  return el(
    "div",
    { class: "p16 bt", id: "split" },
    head,
    el(
      "div",
      { class: "hs top-al" },
      el("span", { class: "ok" }, icon("bulb", "sm")),
      el(
        "div",
        { class: "grow", title: was },
        el("b", { text: where }),
        el("div", {
          class: "soft s12",
          text: `${span(better.step_s, seconds).replace("\u200b", "")} s a step, ${span(better.gain, percent).replace("\u200b", "")} % less time per trained token`,
        }),
      ),
      el("button", {
        type: "button",
        class: "btn sm",
        text: "Use this split",
        title: was,
        on: { click: () => take(better.changes) },
      }),
    ),
  );
}

/** Figures of several policies that are the same, as one. */
function together(figures) {
  const rows = new Map();
  for (const figure of figures) {
    const key = [figure.name, figure.low, figure.likely, figure.high, figure.source].join();
    const row = rows.get(key);
    rows.set(key, row ? { ...row, of: `${row.of}, ${figure.of}` } : figure);
  }
  return [...rows.values()];
}

/** The offer to have the models measured. */
function unmeasured(measure) {
  const said = el("span", { class: "soft s12 grow", text: "These models have no measurements on these devices." });
  return el(
    "div",
    { class: "hs top-al mb8" },
    said,
    el("button", {
      type: "button",
      class: "btn sm",
      text: "Measure first",
      title: "Starts a short run that measures these models here",
      on: { click: measure },
    }),
  );
}

function why(found, measure, measuring) {
  const unknown = found.figures.filter(
    (figure) => figure.source === "default" && figure.of && !["trainer.swap", "trainer.create"].includes(figure.name),
  );
  const scale = (figure, value) =>
    figure.unit === "s"
      ? value < 1
        ? `${number(value * 1e3, value < 0.01 ? 3 : 1)} ms`
        : `${number(value, 1)} s`
      : number(value, 1);
  const rows = together(found.figures).map((figure) =>
    el(
      "tr",
      {},
      el("td", { class: "anywhere" }, `${figure.meaning}${figure.of ? ", " : ""}`, el("b", { text: figure.of })),
      el(
        "td",
        { class: "num" },
        scale(figure, figure.likely),
        el("div", { class: "muted s11", text: `${scale(figure, figure.low)} to ${scale(figure, figure.high)}` }),
      ),
      el("td", { class: "soft", text: `${SOURCES[figure.source]} ${figure.source_text}`.trim() }),
    ),
  );
  const button = unknown.length && !measuring ? unmeasured(measure) : null;
  return el(
    "div",
    { class: "p16 bt" },
    button,
    el(
      "details",
      { class: "why" },
      el(
        "summary",
        {},
        icon("chevron-right", "sm"),
        el("b", { text: "Why this range" }),
        el("span", {
          class: "muted s12 push tn",
          text: `${number(found.simulations)} simulations of ${number(found.steps)} steps`,
        }),
      ),
      el("ul", { class: "soft s12" }, ...found.why.map((line) => el("li", { text: line }))),
      el(
        "table",
        { class: "tb d mt4" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            ...["Figure", "Likely", "Source"].map((word, i) => el("th", { class: i === 1 ? "num" : "", text: word })),
          ),
        ),
        el("tbody", {}, ...rows),
      ),
    ),
  );
}

/** Where the forecast will stand: being simulated, or why there is none. */
export function waiting(error, retry) {
  if (!error)
    return el(
      "div",
      { class: "ahead p16 vs g8", "aria-busy": "true" },
      el("span", { class: "muted s12", text: "Estimating" }),
    );
  return el(
    "div",
    { class: "ahead p16" },
    el(
      "div",
      { class: "hs top-al" },
      el("span", { class: "wn" }, icon("alert-triangle", "sm")),
      el("span", { class: "soft", text: error.message }),
      el("button", { type: "button", class: "btn sm push", text: "Retry", on: { click: retry } }),
    ),
  );
}

/** Say that nothing is being simulated any more: an error came before the answer. */
export function abandoned() {
  const place = $("#plan-body .ahead[aria-busy]");
  place?.removeAttribute("aria-busy");
  place?.replaceChildren(el("span", { class: "muted s12", text: "Fix errors to update the estimate" }));
}

/** Say that what is shown is of the settings before. */
export const stale = () => {
  $("#plan-body .ahead")?.classList.add("dim");
};
