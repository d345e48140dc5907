// The playground: sends the form as any client would, waits for an engine to start, draws the reply's tokens.
import { Refused, send } from "./api.js";
import { $, $$, announce, el, monogram } from "./dom.js";
import { draw, moveToken, showFacts } from "./tokens.js";

const form = $("#play");
const state = $("#play-state");
const replies = $("#replies");
const error = $("[data-error]", form);
const again = $("[data-again]", form);
const { model, role, hue } = form.dataset;
const agent = { role, hue, monogram: form.dataset.monogram };
const STARTING_MS = 180_000; // an engine that has not started by then will not
const ANSWER_MS = 65_000;
const WAIT_S = 3; // of one request; between two the page says how long it has been
const MOST = 30;
let example = null;
let asking = false;
let count = 0;

const pause = (ms) =>
  new Promise((done) => {
    setTimeout(done, ms);
  });
const known = (problem) => problem?.error || {};

/** Whether the text is a message, which the model's chat template renders, and not the whole prompt. */
const isMessage = () => form.elements.as?.value === "message";

function question() {
  const text = form.elements.observation.value;
  const wordsOnly = !form.elements.as; // whose prompts have no blanks that mean anything
  const asked = isMessage()
    ? { messages: [{ role: "user", content: text }], logprobs: true }
    : { prompt: wordsOnly ? text.trim() : text, logprobs: 1 };
  const body = {
    model: `${model}@${form.elements.version.value}`,
    ...asked,
    temperature: Number(form.elements.temperature.value),
    max_tokens: Number(form.elements.max_tokens.value),
  };
  const words = form.elements.words.value;
  if (words === "all") body.allowed_words = [];
  if (words === "example" && example) body.allowed_words = example;
  return body;
}

/** Ask until an engine answers; says what it waits for. */
async function answered(body) {
  const began = Date.now();
  for (;;) {
    try {
      return await (
        await send("POST", body.messages ? "/v1/chat/completions" : "/v1/completions", {
          body,
          timeout: ANSWER_MS,
          headers: { Prefer: `wait=${WAIT_S}` },
        })
      ).json();
    } catch (refused) {
      const waiting = refused instanceof Refused && known(refused.problem).code === "engine_starting";
      if (!waiting || Date.now() - began > STARTING_MS) throw refused;
      state.textContent = `Starting an engine for v${form.elements.version.value}, ${Math.round((Date.now() - began) / 1000)} s.`;
      await pause(500);
    }
  }
}

async function ask() {
  if (asking || !form.reportValidity()) return;
  asking = true;
  clearError();
  const body = question();
  const button = $("button[type=submit]", form);
  button.setAttribute("aria-disabled", "true");
  state.textContent = "Asking.";
  const began = performance.now();
  try {
    const reply = await answered(body);
    show(body, reply, performance.now() - began);
    state.textContent = `${reply.usage.completion_tokens} tokens by v${reply.model.split("@").pop()}, ${reply.choices[0].finish_reason === "stop" ? "complete" : "stopped at the token limit"}.`;
    announce(`${role} replied: ${replyOf(reply.choices[0]).text}`);
    again.disabled = false;
  } catch (refused) {
    fail(refused);
  } finally {
    asking = false;
    button.removeAttribute("aria-disabled");
  }
}

function fail(refused) {
  const said = known(refused.problem);
  error.textContent = said.message || refused.message;
  error.hidden = false;
  const field = { max_tokens: "max_tokens", temperature: "temperature", model: "version" }[said.param] || "observation";
  form.elements[field].setAttribute("aria-invalid", "true");
  state.textContent = refused.requestId ? `No answer. Request ${said.request_id || refused.requestId}` : "No answer.";
}

function clearError() {
  error.hidden = true;
  for (const field of $$("[aria-invalid]", form)) field.removeAttribute("aria-invalid");
}

/** A reply of either form: its text, and its tokens with their log-probabilities. */
function replyOf(choice) {
  if (!choice.message) return { text: choice.text, ...choice.logprobs };
  const tokens = choice.logprobs.content;
  return {
    text: choice.message.content,
    tokens: tokens.map((one) => one.token),
    token_logprobs: tokens.map((one) => one.logprob),
  };
}

/** Put a reply on top: what was observed, what was said, token by token. */
function show(body, reply, ms) {
  $("[data-empty]", replies)?.remove();
  const [choice] = reply.choices;
  const { text, tokens, token_logprobs } = replyOf(choice);
  const version = Number(reply.model.split("@").pop());
  const turn = {
    role,
    turn: ++count,
    ids: choice.token_ids,
    texts: tokens,
    logprobs: token_logprobs,
    versions: choice.token_ids.map(() => version),
    advantage: null,
    in_loss: true,
    played: true,
  };
  const facts = `v${version}, temperature ${body.temperature}, ${Math.round(ms)} ms`;
  const article = el(
    "article",
    { class: `msg hue-${hue}`, "aria-label": `Reply ${count} of ${role}`, data: { role, turn: count } },
    large(monogram(agent)),
    el(
      "div",
      { class: "fit" },
      el("div", { class: "h" }, el("b", { text: role }), el("span", { class: "muted s12 tn push", text: facts })),
      el("div", { class: "observed", text: body.messages ? body.messages[0].content : body.prompt }),
      el("div", { class: "bdy" }, text || el("span", { class: "muted", text: "No text." })),
      el("div", { class: "card tokbox", data: { tok: "" } }),
    ),
  );
  replies.prepend(article);
  draw(replies, [turn], "logprob");
  for (const old of $$("article.msg", replies).slice(MOST)) old.remove();
}

function large(mark) {
  mark.classList.add("l");
  return mark;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
again.addEventListener("click", ask);
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    ask();
  }
});
form.elements.observation.addEventListener("input", clearError);

document.addEventListener("click", (event) => {
  const one = event.target.closest("[data-observation]");
  const word = event.target.closest("[data-word]");
  if (one) {
    form.elements.observation.value = one.dataset.observation;
    if (form.elements.as) form.elements.as.value = "prompt";
    example = one.dataset.allowed ? one.dataset.allowed.split(" ") : [];
    $("option[value=example]", form).disabled = false;
    form.elements.words.value = "example";
    for (const other of $$("[data-observation]", form)) other.setAttribute("aria-pressed", String(other === one));
    clearError();
  } else if (word) {
    const field = form.elements.observation;
    field.value = `${field.value.trimEnd()} ${word.dataset.word}`.trimStart();
    clearError();
  }
});

replies.addEventListener("click", (event) => {
  const token = event.target.closest(".k");
  if (token) showFacts(token);
});
replies.addEventListener("mouseover", (event) => {
  const token = event.target.closest(".k");
  if (token) showFacts(token);
});
replies.addEventListener("focusin", (event) => {
  if (event.target.matches(".tok")) showFacts($(".k.cur", event.target) || $(".k", event.target));
});
replies.addEventListener("keydown", (event) => {
  if (event.target.matches(".tok") && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
    event.preventDefault();
    moveToken(event.target, event.key === "ArrowRight" ? 1 : -1);
  }
});
