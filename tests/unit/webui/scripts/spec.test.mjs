// Documents, JSON pointers and what is sent of a changed document.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as spec from "../../../../webui/static/webui/js/spec.js";

test("a pointer reads, writes and removes, with its escapes", () => {
  const document = { a: { "x/y": { "t~z": 1 } } };
  assert.equal(spec.at(document, "/a/x~1y/t~0z"), 1);
  spec.put(document, "/a/new/leaf", 2);
  assert.deepEqual(document.a.new, { leaf: 2 });
  spec.remove(document, "/a/x~1y/t~0z");
  assert.deepEqual(document.a["x/y"], {});
  spec.remove(document, "/nowhere/at/all");
  assert.equal(spec.at(document, "/nowhere/at/all"), undefined);
});

test("differences name each leaf with both values", () => {
  const base = { a: 1, b: { c: [1, 2], d: 3 } };
  const now = { a: 1, b: { c: [1, 3], d: 3 }, e: null };
  assert.deepEqual(spec.differences(base, now), [
    ["/b/c", [1, 2], [1, 3]],
    ["/e", undefined, null],
  ]);
});

test("of another type only what is not plain differs", () => {
  const unions = { "/loss": { other: { type: "other", clip: 0.2, own: 5 } } };
  const base = { loss: { type: "first", clip: 0.2, gone: 1 } };
  const now = { loss: { type: "other", clip: 0.2, own: 6 } };
  assert.deepEqual(spec.differences(base, now, unions), [
    ["/loss/type", "first", "other"],
    ["/loss/own", 5, 6],
  ]);
});

test("overrides laid on the base give the document again", () => {
  const base = { name: "n", batch: { size: 4, groups: 2 }, loss: { type: "first", clip: 0.2 } };
  const now = { name: "n", batch: { size: 8, groups: 2 }, loss: { type: "other", own: 1 } };
  const overrides = spec.overridesOf(base, now);
  assert.deepEqual(overrides, { batch: { size: 8 }, loss: { type: "other", own: 1 } });
  assert.deepEqual(spec.completed(spec.copy(base), overrides), now);
});

test("there are no overrides that leave something out", () => {
  assert.equal(spec.overridesOf({ a: 1, b: { c: 2, d: 3 } }, { a: 1, b: { c: 2 } }), null);
});

test("pairs read what pairsText writes", () => {
  const values = { count: 3, on: true, word: "plain", digits: "7", list: "a, b", empty: "", none: "null" };
  assert.deepEqual(spec.pairs(spec.pairsText(values)), values);
});

test("text that is no pairs is refused", () => {
  assert.equal(spec.pairs("just words"), null);
  assert.equal(spec.pairs("a: 1, b"), null);
  assert.deepEqual(spec.pairs("a=1, b: x,"), { a: 1, b: "x" });
});

test("a pointer leads through lists", () => {
  const document = { seats: [{ name: "a" }] };
  spec.put(document, "/seats/0/sees", "own");
  assert.equal(spec.at(document, "/seats/0/sees"), "own");
  spec.remove(document, "/seats/0/sees");
  assert.deepEqual(document, { seats: [{ name: "a" }] });
});

test("a named team takes the place of who plays in the template", () => {
  const template = { agents: { a: {} }, policies: { a: {} }, environment: { type: "sums", graph: { order: ["a"] } } };
  const played = { agents: { b: {} }, policies: { b: {} }, environment: { type: "sums", graph: { order: ["b"] } } };
  const document = { ...played, team: { name: "mine", version: 1 } };
  assert.equal(spec.overridesOf(template, document), null);
  assert.deepEqual(spec.overridesOf(spec.templateOf(template, document), document), {
    ...document,
    environment: { graph: { order: ["b"] } },
  });
  assert.equal(spec.templateOf(template, { ...played, team: null }), template);
});
