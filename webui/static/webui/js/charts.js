// A page whose charts come from one address, that its element with data-figures names.
import { get } from "./api.js";
import { $, $$ } from "./dom.js";
import * as figures from "./figures.js";

const page = $("[data-figures]");

async function read() {
  const boxes = $$("[data-figure]");
  if (!page.dataset.figures || !boxes.length) return;
  try {
    const data = await get(page.dataset.figures);
    for (const box of boxes) {
      const figure = data.figures[box.dataset.figure];
      if (figure) await figures.draw(box, figure);
    }
  } catch (error) {
    for (const box of boxes) figures.fail(box, error, read);
  }
}

document.addEventListener("theme", figures.recolour);
page.addEventListener("reread", read);
read();
