// How numbers, ranges, durations and sizes are written, and where the ticks of an axis lie.
import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, counted, long, percent, span } from "../../../../webui/static/webui/js/amounts.js";
import { number } from "../../../../webui/static/webui/js/dom.js";
import { wholeGap } from "../../../../webui/static/webui/js/plotting.js";

test("numbers have thin spaces, a true minus and no negative zero", () => {
  assert.equal(number(1234567.25, 1), "1\u2009234\u2009567.3");
  assert.equal(number(-1234), "−1\u2009234");
  assert.equal(number(-0.001, 1), "0.0");
  assert.equal(number(Number.NaN), "–");
  assert.equal(number(null), "–");
});

test("a range whose ends read alike is one figure", () => {
  assert.equal(span({ low: 0.101, high: 0.104 }, percent), "10");
  assert.equal(span({ low: 0.1, high: 0.2 }, percent), "10–\u200b20");
});

test("hours are written in the unit of their high end", () => {
  assert.deepEqual(long({ low: 0.5, high: 2 }), ["0.5–\u200b2.0", "h"]);
  assert.deepEqual(long({ low: 0.005, high: 0.01 }), ["18–\u200b36", "s"]);
  assert.deepEqual(long({ low: 0.25, high: 0.5 }), ["15–\u200b30", "min"]);
});

test("sizes are binary, counts have their plural", () => {
  assert.deepEqual([bytes(512), bytes(1536), bytes(20 * 2 ** 30)], ["512 B", "1.5 KiB", "20 GiB"]);
  assert.deepEqual([counted(1, "device"), counted(2, "device")], ["1 device", "2 devices"]);
});

test("ticks lie on whole numbers, six at most", () => {
  assert.deepEqual([wholeGap(0, 5), wholeGap(0, 20), wholeGap(0, 1000)], [1, 5, 200]);
});
