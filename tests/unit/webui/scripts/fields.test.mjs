// What fields say: the text of an input and the value that it stands for.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as fields from "../../../../webui/static/webui/js/fields.js";

const input = (kind, value = "", more = {}) => ({ value, dataset: { kind, ...more }, options: [], localName: "input" });

test("a number of devices is one, and two bounds are an object", () => {
  assert.equal(fields.valueIn(input("devices", "3")), 3);
  assert.deepEqual(fields.valueIn(input("devices", " 1-4 ")), { min: 1, max: 4 });
  assert.deepEqual(fields.valueIn(input("devices", "2 – 16")), { min: 2, max: 16 });
  for (const wrong of ["", "1-", "-4", "1.5", "1-2-3", "some", "1 4"])
    assert.equal(fields.valueIn(input("devices", wrong)), fields.BAD, wrong);
});

test("what is shown of devices is read as the same value", () => {
  for (const value of [1, 64, { min: 1, max: 4 }]) {
    const shown = input("devices");
    fields.showIn(shown, value);
    assert.deepEqual(fields.valueIn(shown), value);
  }
});

test("an error of a bound is told at the field of both", () => {
  const one = input("devices", "4-1", { pointer: "/resources/rollout_devices" });
  assert.equal(fields.toldAt([one], "/resources/rollout_devices/max"), one);
});

test("what is wrong with a dataset is told where it is chosen", () => {
  const one = input("dataset", "", { pointer: "/environment/dataset" });
  assert.equal(fields.toldAt([one], "/environment/dataset/name"), one);
});

test("the dataset that nobody named is not offered as one", () => {
  const unnamed = { name: "example", version: null, project: "", digest: "", training: 0, held_out: 0 };
  assert.equal(fields.choiceName("dataset", unnamed), "choose a dataset");
  assert.equal(fields.choiceName("dataset", { ...unnamed, project: "default", version: 2 }), "example");
});
