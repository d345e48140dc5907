// Files of a model are sent in pieces, once, whatever becomes of the connection.
import assert from "node:assert/strict";
import { test } from "node:test";
import { pause, sendAll, sorted } from "../../../../webui/static/webui/js/uploading.js";

const ENDINGS = [".safetensors", ".json"];
const file = (name, text) => ({ name, size: text.length, slice: (from, to) => text.slice(from, to) });
const FILES = [file("a.json", "{}"), file("b.safetensors", "0123456789")];

/** A server that keeps what it is sent; `faults` are what befalls its next requests. */
function server(faults = []) {
  const held = { "a.json": "", "b.safetensors": "" };
  const seen = { waits: [], sent: [] };
  const io = {
    async send(name, offset, piece) {
      const fault = faults.shift();
      if (fault === "lost") throw { status: 0 };
      if (fault?.status) throw fault;
      if (offset !== held[name].length) throw { status: 409, problem: { received: held[name].length } };
      held[name] += piece;
      if (fault === "answer lost") throw { status: 0 };
      return { received: held[name].length };
    },
    wait: async (ms) => seen.waits.push(ms),
    sent: (bytes) => seen.sent.push(bytes),
  };
  const files = Object.keys(held).map((name) => ({ name, received: 0 }));
  return { held, seen, io, upload: { piece_bytes: 4, files } };
}

test("files arrive whole, in pieces, with progress", async () => {
  const { held, seen, io, upload } = server();
  await sendAll(upload, FILES, io);
  assert.deepEqual(held, { "a.json": "{}", "b.safetensors": "0123456789" });
  assert.deepEqual(seen.sent, [0, 2, 6, 10, 12]);
  assert.deepEqual(seen.waits, []);
});

test("after a cut it goes on where the server is, also when an answer alone was lost", async () => {
  const { held, seen, io, upload } = server([
    undefined,
    "lost",
    "lost",
    "answer lost",
    { status: 503 },
    { status: 429 },
  ]);
  await sendAll(upload, FILES, io);
  assert.deepEqual(held, { "a.json": "{}", "b.safetensors": "0123456789" });
  assert.deepEqual(seen.waits.slice(0, 3), [1000, 2000, 4000]);
});

test("what the server refuses for good ends it, and so does a connection that stays away", async () => {
  for (const status of [403, 404, 413]) {
    const { io, upload, seen } = server([{ status }]);
    await assert.rejects(sendAll(upload, FILES, io), { status });
    assert.deepEqual(seen.waits, []);
  }
  const { io, upload, seen } = server(Array(50).fill("lost"));
  await assert.rejects(sendAll(upload, FILES, io), { status: 0 });
  assert.equal(seen.waits.length, 8);
  assert.equal(pause(20), 15_000);
});

test("files that no model has are left out by name", () => {
  const odd = ["pytorch_model.bin", ".hidden.json", "a/b.json"].map((name) => file(name, ""));
  const { taken, left } = sorted([...FILES, ...odd, FILES[0]], ENDINGS);
  assert.deepEqual([taken.map((one) => one.name), left], [["a.json", "b.safetensors"], odd.map((one) => one.name)]);
});
