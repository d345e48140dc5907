// Calls of the REST API and of our own parts. A refusal becomes a Refused with the problem's members and its request id.

/** What a problem says in one line: of wrong values alone, the values. */
function said({ detail, title, errors = [] }) {
  const values = errors
    .slice(0, 3)
    .map((one) => [one.detail, one.hint].filter(Boolean).join(" "))
    .join(" ");
  return detail && detail !== title ? detail : values || title;
}

export class Refused extends Error {
  constructor(status, problem, requestId) {
    super(said(problem) || `The server answered ${status}`);
    this.status = status;
    this.problem = problem;
    this.requestId = problem.request_id || requestId || "";
    this.errors = problem.errors || [];
  }
}

// A read is asked again by itself. A write that is given up may have been done all the same: it waits longer.
const READ_MS = 10_000;
const WRITE_MS = 30_000;

/** `file`: a body that is sent as it is, instead of JSON; `signal` ends the request early. */
export async function send(method, url, { body, file, headers = {}, key, timeout, signal } = {}) {
  const patience = timeout ?? (method === "GET" ? READ_MS : WRITE_MS);
  const token = document.querySelector("input[name=csrfmiddlewaretoken]");
  const sent = { ...headers };
  if (method !== "GET" && token) sent["X-CSRFToken"] = token.value;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  if (file !== undefined) sent["Content-Type"] = "application/octet-stream";
  if (key) sent["Idempotency-Key"] = key;
  let response;
  try {
    response = await fetch(url, {
      method,
      headers: sent,
      body: body === undefined ? file : JSON.stringify(body),
      credentials: "same-origin",
      signal: AbortSignal.any([AbortSignal.timeout(patience), ...(signal ? [signal] : [])]),
    });
  } catch (error) {
    throw new Refused(
      0,
      {
        title: "The server did not respond",
        detail: error.name === "TimeoutError" ? `No answer in ${patience / 1000} s.` : "The connection failed.",
      },
      "",
    );
  }
  if (response.status === 401) {
    location.assign(`/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`);
    throw new Refused(401, { title: "Sign in again" }, "");
  }
  if (!response.ok) {
    let problem = {};
    try {
      problem = await response.json();
    } catch {
      problem = { title: response.statusText };
    }
    throw new Refused(response.status, problem, response.headers.get("X-Request-ID"));
  }
  return response;
}

const answer = async (response) => (response.status === 204 ? null : response.json());

export const get = async (url) => answer(await send("GET", url, { headers: { "X-Part": "1" } }));
export const post = async (url, body = {}, key = crypto.randomUUID(), timeout = undefined) =>
  answer(await send("POST", url, { body, key, timeout, headers: { "X-Part": "1" } }));
export const upload = async (url, file, timeout) =>
  answer(await send("POST", url, { file, timeout, headers: { "X-Part": "1" } }));
/** `version`: refuse to write over a change made since it was read. */
export const patch = async (url, body, version) =>
  answer(await send("PATCH", url, { body, headers: version ? { "If-Match": `W/"${version}"` } : {} }));
export const put = async (url, body) => answer(await send("PUT", url, { body }));
export const remove = async (url) => answer(await send("DELETE", url));

/** HTML of one of our own parts, rendered and escaped by the server. */
export async function part(url) {
  return (await send("GET", url, { headers: { "X-Part": "1" } })).text();
}
