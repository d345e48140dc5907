// Sets the theme before the first paint. A classic script in the head, so that no page flashes in the other theme.
(function () {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const apply = function () {
    let kept = null;
    try {
      kept = sessionStorage.getItem("theme");
    } catch {
      kept = null; // storage may be forbidden
    }
    const wish = kept || root.dataset.theme;
    root.setAttribute("data-bs-theme", wish === "dark" || (wish !== "light" && dark.matches) ? "dark" : "light");
  };
  apply();
  dark.addEventListener("change", function () {
    apply();
    document.dispatchEvent(new CustomEvent("theme"));
  });
  window.flexmarlTheme = apply;
})();
