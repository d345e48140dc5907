// A refusal says what the problem says, and of wrong values alone the values.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Refused } from "../../../../webui/static/webui/js/api.js";

test("the detail of a problem is its message", () => {
  const refused = new Refused(409, { title: "Conflict", detail: "The run has ended." }, "r-1");
  assert.deepEqual([refused.message, refused.requestId, refused.errors], ["The run has ended.", "r-1", []]);
});

test("without a detail of its own a problem says the first three wrong values", () => {
  const errors = ["one", "two", "three", "four"].map((detail) => ({ detail, hint: detail === "one" ? "Try 1." : "" }));
  assert.equal(new Refused(400, { title: "Wrong", detail: "Wrong", errors }).message, "one Try 1. two three");
  assert.equal(new Refused(400, { title: "Wrong" }).message, "Wrong");
  assert.equal(new Refused(502, {}).message, "The server answered 502");
});
