// Following the feed: the newest line stays in sight until somebody scrolls away; then nothing moves until they follow
// again. Without this script the feed is a page like any other.
import { $, $$ } from "./dom.js";

const box = $("#feed");
const button = $("#follow");
const every = box.dataset.every;
const still = new URLSearchParams(location.search).has("at");
let following = !still;

function atEnd() {
  return box.scrollHeight - box.scrollTop - box.clientHeight < 24;
}

function show() {
  button.setAttribute("aria-pressed", String(following));
  $("span", button).textContent = following ? "Following" : "Follow";
  box.dataset.every = following ? every : "86400"; // held still: what is read must not move
  if (following) box.scrollTop = box.scrollHeight;
}

button.hidden = still;
button.addEventListener("click", () => {
  following = !following;
  show();
});
box.addEventListener("scroll", () => {
  if (still || following === atEnd()) return;
  following = atEnd();
  show();
});
box.addEventListener("reread", () => {
  if (following) box.scrollTop = box.scrollHeight;
});
for (const choice of $$("select", $("#feed-filter")))
  choice.addEventListener("change", () => choice.form.requestSubmit());
$("#feed-filter").addEventListener("formdata", (event) => {
  for (const [name, value] of [...event.formData]) if (!value) event.formData.delete(name); // short addresses
});
box.scrollTop = box.scrollHeight;
show();
