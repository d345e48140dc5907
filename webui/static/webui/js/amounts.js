// Amounts of a forecast as the page writes them: ranges, durations, sizes.
import { number } from "./dom.js";

/** Two figures that say a range; one where both read alike. */
export function span(range, write) {
  const [low, high] = [write(range.low), write(range.high)];
  return low === high ? low : `${low}–\u200b${high}`;
}

export const seconds = (value) => (value < 1 ? number(value, 2) : value < 10 ? number(value, 1) : number(value));
export const percent = (value) => number(value * 100);
const digits = (value) => (value < 0.095 ? 3 : value < 10 ? 2 : value < 100 ? 1 : 0);
export const amount = (value) => number(value, digits(value));

function duration(hours) {
  if (hours < 1 / 60) return [number(hours * 3600), "s"];
  if (hours < 1) return [number(hours * 60, hours < 1 / 6 ? 1 : 0), "min"];
  return [number(hours, hours < 10 ? 1 : 0), "h"];
}

/** Hours as a range in one unit: that of its high end. */
export function long(range) {
  const unit = duration(range.high)[1];
  const times = { s: 3600, min: 60, h: 1 }[unit];
  return [span(range, (value) => number(value * times, value * times < 10 ? 1 : 0)), unit];
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let left = value;
  while (left >= 1024 && at < units.length - 1) {
    left /= 1024;
    at += 1;
  }
  return `${number(left, left < 10 && at ? 1 : 0)} ${units[at]}`;
}

export const counted = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
