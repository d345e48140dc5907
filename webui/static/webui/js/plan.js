// The plan beside the form: what the specification would become, per agent, and whether it fits now.
import { $, chip, el, icon, markOf, number } from "./dom.js";
import { abandoned, forecast, waiting } from "./forecast.js";

const range = ([low, high]) => (low === high ? number(low) : `${number(low)}–\u200b${number(high)}`);

/** Show a plan; `stale` keeps the last valid one, dimmed. */
export function show(plan, { agents, stale, ahead = {} }) {
  const section = $(".plan");
  section.setAttribute("aria-busy", "false");
  state(plan, stale);
  const body = $("#plan-body");
  body.classList.toggle("dim", stale);
  body.setAttribute("aria-disabled", String(stale));
  if (stale) {
    abandoned();
    return;
  }
  const sums = plan.arithmetic;
  const told = plan.prediction
    ? forecast(plan.prediction, agents, ahead)
    : plan.warnings.some((one) => one.code === "prediction_failed")
      ? el("span")
      : waiting(ahead.error, ahead.retry);
  body.replaceChildren(
    told,
    el("hr", { class: "rule" }),
    tiles(plan),
    el("hr", { class: "rule" }),
    samples(plan.spec, sums, agents),
    el("hr", { class: "rule" }),
    devices(plan.devices),
    ...notes(plan),
  );
}

function state(plan, stale) {
  const place = $("#plan-state");
  const fits = plan.devices?.fits_now;
  const [tone, shape, word] = stale
    ? ["wn", "history", "For the last valid text"]
    : fits
      ? ["ok", "circle-check", "Devices available"]
      : plan.devices?.fits_ever
        ? ["wn", "clock", "Waits for devices"]
        : ["bad", "alert-triangle", "Not enough devices"];
  place.replaceChildren(el("span", { class: `pill ${tone}` }, icon(shape), word));
}

function tiles(plan) {
  const sums = plan.arithmetic;
  const list = [
    ["Train steps", number(plan.spec.budget.train_steps), "at most"],
    [
      "Episodes per step",
      number(sums.episodes_per_step),
      `${number(sums.tasks_per_step)} × ${number(sums.episodes_per_task)}`,
    ],
    [
      "Episodes in all",
      number(sums.total_episodes),
      `${number(sums.evaluations * sums.evaluation_episodes)} for evaluation`,
    ],
    ["Samples in all", range(sums.total_samples), "at most"],
  ];
  return el(
    "div",
    { class: "pt" },
    ...list.map(([label, value, basis]) =>
      el(
        "div",
        { class: "tile" },
        el("div", { class: "l", text: label }),
        el(
          "div",
          { class: "v tn" },
          ...String(value)
            .split("\u200b")
            .map((part) => el("span", { text: part })),
        ),
        el("div", { class: "d", text: basis, title: basis }),
      ),
    ),
  );
}

function samples(spec, sums, agents) {
  const policies = new Map(sums.policies.map((policy) => [policy.policy, policy]));
  const seen = new Set();
  const rows = sums.agents.map((agent) => {
    const policy = policies.get(agent.policy);
    const first = !seen.has(agent.policy);
    seen.add(agent.policy);
    const mark = markOf(agents, agent.role);
    const blocks = Array.from({ length: Math.min(24, policy.micro_batches) }, () => el("i"));
    const flow = !agent.trainable
      ? el("span", { class: "muted", text: "frozen" })
      : first
        ? el("div", { class: `mbs hue-${mark.hue}` }, ...blocks, el("span", { text: number(policy.micro_batches) }))
        : el("span", { class: "muted", text: `with ${policy.roles[0]}` });
    return el(
      "tr",
      {},
      el("td", {}, chip(mark)),
      el(
        "td",
        { class: "num soft" },
        `${number(sums.tasks_per_step)} × ${number(sums.episodes_per_task)} × `,
        el("b", { class: "strong", text: range(agent.turns) }),
      ),
      el("td", { class: "num w6", text: range(agent.samples) }),
      el("td", { class: "num" }, flow),
      el("td", { class: "num", text: agent.trainable ? "1" : "–" }),
    );
  });
  const head = ["Agent", "Arithmetic", "Samples", `Micro-batches of ${number(spec.batch.micro_batch_groups)}`, "Steps"];
  return el(
    "div",
    { class: "mt12" },
    el(
      "div",
      { class: "hs" },
      el("b", { class: "sp16", text: "Samples per step" }),
      el("span", { class: "muted s12", text: "tasks × episodes × turns" }),
    ),
    el(
      "div",
      { class: "scroll-x", tabindex: "0", role: "group", "aria-label": "Samples per step" },
      el(
        "table",
        { class: "tb d mt4" },
        el("thead", {}, el("tr", {}, ...head.map((word, i) => el("th", { class: i ? "num" : "", text: word })))),
        el("tbody", {}, ...rows),
      ),
    ),
  );
}

function devices(found) {
  if (!found) return el("span");
  const words = { engine: "rollout engine", trainer: "trainer" };
  const boxes = found.needed.map((need) =>
    el(
      "div",
      { class: "pdev" },
      el("div", { class: "s11 muted", text: `pool ${need.pool}` }),
      el("div", { text: counted(need, words[need.use] || need.use) }),
    ),
  );
  const mark = found.fits_now ? ["ok", "circle-check"] : ["wn", "alert-triangle"];
  return el(
    "div",
    { class: "p16" },
    el("b", { text: "Devices" }),
    el("div", { class: "pgrid" }, ...boxes),
    el(
      "div",
      { class: "hs top-al mt12" },
      el("span", { class: mark[0] }, icon(mark[1], "sm")),
      el("span", {
        class: "soft",
        text: found.fits_now
          ? found.text
          : `${found.text} ${found.fits_ever ? "The run waits in the queue until they are free." : "It cannot start before more devices of the pool are healthy."}`,
      }),
    ),
  );
}

function counted(need, word) {
  const each = need.each > 1 ? ` of ${number(need.each)} devices` : "";
  const most = need.max_devices > need.devices ? ` to ${number(need.max_devices / need.each)}` : "";
  return `${number(need.devices / need.each)}${most} × ${word}${each}`;
}

function notes(plan) {
  if (!plan.warnings.length) return [];
  const lines = plan.warnings.map((warning) =>
    el(
      "div",
      { class: "hs top-al" },
      el("span", { class: "wn" }, icon("alert-triangle", "sm")),
      el("span", { class: "soft anywhere", text: [warning.detail, warning.hint].filter(Boolean).join(" ") }),
    ),
  );
  return [el("hr", { class: "rule" }), el("div", { class: "vs g8 p16" }, ...lines)];
}

/** Above the plan, which may be of older settings: how far the run is that measures these models, or why it measured nothing. */
export function measuring(run) {
  if (!run.finished_at)
    tellMeasuring(
      run,
      `measures these models: ${run.step ? `step ${number(run.step)} of ${number(run.max_steps)}` : run.status}. The plan follows.`,
    );
  else if (run.status === "completed") $("#measuring").hidden = true;
  else tellMeasuring(run, `measured nothing: ${run.reason_text || run.status}`, true);
}

/** The measuring run could not be had, or is not heard of any more. */
export function notMeasured(error) {
  tellMeasuring(null, `Nothing was measured: ${error.message} ${error.requestId}`, true);
}

function tellMeasuring(run, words, failed = false) {
  const place = $("#measuring");
  place.hidden = false;
  place.replaceChildren(
    el("span", { class: failed ? "bad" : "muted" }, icon(failed ? "alert-circle" : "progress", "sm")),
    el(
      "span",
      { class: "anywhere" },
      run ? el("a", { class: "link", href: `/runs/${run.key}`, text: run.key }) : null,
      ` ${words}`,
    ),
  );
}

/** A plan could not be had: say so, and offer another try. */
export function fail(error, retry) {
  $(".plan").setAttribute("aria-busy", "false");
  $("#plan-state").replaceChildren();
  $("#plan-body").replaceChildren(
    el(
      "div",
      { class: "state error", role: "alert" },
      icon("alert-circle", "lead"),
      el("b", { text: "The plan did not load" }),
      el("p", { class: "soft", text: error.message }),
      el(
        "div",
        { class: "hs" },
        el("button", { type: "button", class: "btn sm", text: "Retry", on: { click: retry } }),
        el("span", { class: "muted s12 mono", text: error.requestId }),
      ),
    ),
  );
}

/** Errors without a plan at all: nothing valid has been seen yet. */
export function none() {
  $(".plan").setAttribute("aria-busy", "false");
  $("#plan-state").replaceChildren();
  $("#plan-body").replaceChildren(
    el(
      "div",
      { class: "state" },
      icon("adjustments"),
      el("b", { text: "No plan yet" }),
      el("p", { class: "soft", text: "It appears when all fields are valid." }),
    ),
  );
}
