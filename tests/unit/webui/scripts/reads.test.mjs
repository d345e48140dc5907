// Which settings the chosen options read, and what becomes of those that are read no longer.
import assert from "node:assert/strict";
import { test } from "node:test";
import { bound, follow, inWords, unread } from "../../../../webui/static/webui/js/reads.js";
import { put } from "../../../../webui/static/webui/js/spec.js";

const clipped = [{ pointer: "/loss/type", values: ["ppo"], not: false }];
const data = {
  like: {},
  plain: { "/loss/type": "ppo", "/clip": 0.2 },
  reads: { "/clip": { ways: [clipped], own: false, absent: false } },
};

test("a setting is unread when no way to read it holds", () => {
  assert.deepEqual(unread({ loss: { type: "reinforce" } }, data), new Set(["/clip"]));
  assert.deepEqual(unread({}, data), new Set());
});

test("what is unread goes back to its default and returns as it was written", () => {
  const document = { loss: { type: "reinforce" }, clip: 0.7 };
  const kept = new Map();
  const now = follow(document, data, new Set(), kept);
  assert.deepEqual([document.clip, now], [0.2, new Set(["/clip"])]);
  document.loss.type = "ppo";
  assert.deepEqual(follow(document, data, now, kept), new Set());
  assert.equal(document.clip, 0.7);
});

test("an object whose type is unread goes back as a whole, and returns as it was written", () => {
  const page = {
    like: {},
    plain: { "/loss/type": "ppo", "/window/type": "played" },
    reads: { "/window/type": { ways: [clipped], own: false, absent: false } },
    unions: { "/window": { played: { type: "played" }, fixed: { type: "fixed", seconds: 60 } } },
  };
  const document = { loss: { type: "reinforce" }, window: { type: "fixed", seconds: 2 } };
  const kept = new Map();
  const now = follow(document, page, new Set(), kept);
  assert.deepEqual(document.window, { type: "played" });
  document.loss.type = "ppo";
  follow(document, page, now, kept);
  assert.deepEqual(document.window, { type: "fixed", seconds: 2 });
});

test("the choice that reads a setting is told in words", () => {
  const nameOf = (pointer) => ({ "/loss/type": "Loss", "/eval": "Evaluation" })[pointer];
  const ways = [clipped, [{ pointer: "/eval", values: [true], not: true }]];
  assert.equal(inWords({ ways }, nameOf), "Loss is ppo, or Evaluation is off");
});

test("a setting above its bound follows it down and up again, unless people wrote it", () => {
  const page = { bounds: { "/batch/micro": "/batch/tasks" } };
  const document = { batch: { tasks: 8, micro: 4 } };
  const kept = new Map();
  const write = (pointer, value) => {
    put(document, pointer, value);
    bound(document, page, pointer, kept);
    return document.batch.micro;
  };
  assert.deepEqual([write("/batch/tasks", 1), write("/batch/tasks", 12)], [1, 4]);
  assert.deepEqual([write("/batch/tasks", 3), write("/batch/tasks", null)], [3, 3]);
  write("/batch/micro", 2);
  assert.equal(write("/batch/tasks", 16), 2);
});
