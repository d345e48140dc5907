// What charts of both kinds share: ticks that lie on whole numbers where x counts something, and a mark for a point that
// stands alone, which no line shows.
import { number } from "./dom.js";

const COUNTED = ["step", "samples", "version"];
const SIZES = Array.from({ length: 12 }, (_, power) => [1, 2, 2.5, 5].map((size) => size * 10 ** power))
  .flat()
  .filter(Number.isInteger);
const TICKS = 6;
/** Room at the right of a plot for half of the last tick's label, "10 000" at most. */
export const TICK_ROOM = 20;

/** Say how far apart the ticks of an axis that counts from `low` to `high` are. */
export const wholeGap = (low, high) => SIZES.find((size) => size * TICKS >= high - low);

/** Make the x axis of a uPlot chart; `word` is what x is. */
export function xAxis(word, look) {
  const whole = COUNTED.includes(word.split(" ")[0]) ? { incrs: SIZES } : {};
  return {
    ...look,
    size: 20,
    gap: 4,
    space: 70,
    grid: { show: false },
    ...whole,
    values: (u, ticks) => ticks.map((v) => number(v, Number.isInteger(v) ? 0 : 1)),
  };
}

/** Marks of a uPlot line: none, unless it is a single point. */
export const ALONE = {
  show: (u, i) => u.data[i].filter((value) => value !== null && value !== undefined).length === 1,
  size: 6,
  width: 0,
  fill: (u, i) => u.series[i].stroke(u, i),
};
