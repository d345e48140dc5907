// A simulation: its charts, the preset whose devices are drawn, and the page anew once it has ended.
import { get, remove } from "./api.js";
import { $, $$, toast } from "./dom.js";
import * as figures from "./figures.js";
import { confirmed } from "./ui.js";

const page = $("#simulation");
const wasOpen = "open" in page.dataset;

async function read() {
  if (!$("#charts")) return;
  let data;
  try {
    data = await get(`${page.dataset.figures}${location.search}`);
  } catch (error) {
    for (const box of $$("[data-figure]")) figures.fail(box, error, read);
    return;
  }
  for (const box of $$("[data-figure]")) {
    const figure = data.figures[box.dataset.figure];
    if (!figure) continue;
    const plot = $(".plot", box);
    if (figure.layout.height) plot.style.height = `${figure.layout.height}px`;
    await figures.draw(box, figure);
  }
  for (const place of $$("[data-words]")) place.textContent = data.figures[place.dataset.words]?.summary || "";
}

$("#simulation-top").addEventListener("reread", () => {
  if (wasOpen && !("open" in $("#sim-head").dataset)) location.reload();
});

document.addEventListener("click", async (event) => {
  const link = event.target.closest("[data-of]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    const query = new URLSearchParams(location.search);
    query.set("of", link.dataset.of);
    history.replaceState(null, "", `?${query}`);
    for (const other of $$("[data-of]")) other.removeAttribute("aria-current");
    link.setAttribute("aria-current", "true");
    for (const other of $$("a[data-keep]")) {
      const url = new URL(other.href);
      url.searchParams.set("of", link.dataset.of);
      other.href = url.href;
    }
    read();
    return;
  }
  const bin = event.target.closest("[data-delete]");
  if (
    !bin ||
    !(await confirmed({
      title: `Delete ${bin.dataset.name}?`,
      text: "Its figures are deleted with it. It can be simulated again.",
      primary: "Delete simulation",
    }))
  )
    return;
  try {
    await remove(bin.dataset.delete);
    location.assign("/simulations");
  } catch (error) {
    toast(error.message, { tone: "bad", detail: error.requestId });
  }
});

document.addEventListener("theme", figures.recolour);
read();
