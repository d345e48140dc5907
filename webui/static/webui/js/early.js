// Presses of buttons while the page's scripts still load are kept and carried out as soon as they are there. A classic
// script in the head: modules begin to run only when the whole page was read, which buttons can be seen before.
(function () {
  const pressed = new Set();
  const keep = function (event) {
    const button = event.target.closest("button");
    if (!button) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    pressed.add(button);
  };
  document.addEventListener("click", keep, true);
  document.addEventListener("DOMContentLoaded", function () {
    document.removeEventListener("click", keep, true);
    for (const button of pressed) button.click();
  });
})();
