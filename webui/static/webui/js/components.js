// The page of components: writes the value of each token under its swatch and shows a toast.
import { $$, toast, token } from "./dom.js";

function name() {
  for (const place of $$("[data-token]")) place.textContent = token(place.dataset.token).toUpperCase();
}

name();
document.addEventListener("theme", name);
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-toast]");
  if (button) toast(button.dataset.toast, { seconds: 3 });
});
