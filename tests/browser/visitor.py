"""A person at a browser, and the site they visit."""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.forms import FULL, form

ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts"
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
COLOURS = ["color-contrast", "link-in-text-block"]
"""The rules of `WCAG` that look at colours: all that another theme of the same document can break."""
WHOLE = (("light", 1440), ("dark", 390))
"""Each theme and each end of the widths once."""
LOOKS = form(
    short=WHOLE,
    full=(("light", 1440), ("dark", 390), ("dark", 1440), ("light", 1024), ("light", 390)),
)
"""Theme and width of a window; the short form sees each theme and each end of the widths once."""
SETTLED = """() => new Promise((resolve) => {
    const limit = performance.now() + 20000;
    let still = performance.now();
    const watch = new MutationObserver(() => { still = performance.now(); });
    watch.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
    const began = still;
    const look = () => {
        const now = performance.now();
        const drawn = !document.querySelector(".sk") && document.fonts.status === "loaded";
        if (now > limit || (drawn && (now - still > 150 || now - began > 1000))) {
            watch.disconnect();
            resolve(drawn);
        } else setTimeout(look, 20);
    };
    look();
})"""
"""A page is settled when no skeleton is left and nothing changed for a moment; a live one changes on."""
TURNED = """() => new Promise((frame) => requestAnimationFrame(() => requestAnimationFrame(frame)))
    .then(() => Promise.allSettled(document.getAnimations()
        .filter((one) => Number.isFinite(one.effect.getComputedTiming().endTime)).map((one) => one.finished)))
    .then(() => true)"""
"""A page has taken another theme when its next frame is drawn and what is animated has ended: an animation, however
short, ends with a frame only, and a crowded machine draws few."""
TROUBLE = """() => [
    ...[...document.querySelectorAll(".fe, [role=alert], .toast, #offline, #refused, dialog[open]")]
        .filter((node) => node.checkVisibility() && node.innerText.trim())
        .map((node) => `${node.id || node.className || node.localName}: ${node.innerText.trim().slice(0, 300)}`),
    `focused: ${document.activeElement?.outerHTML.slice(0, 200)}`,
]"""
"""Each visible error, message and dialog of a page, and what has the focus."""
VIOLATIONS = """([tags, part]) => axe.run(part, {
    runOnly: tags, resultTypes: ["violations"], selectors: false, preload: { assets: ["media"] },
}).then((found) => found.violations.map((v) => `${v.id}: ${v.nodes[0].html.slice(0, 160)}`))"""
"""Only what is wrong: of the rest, axe would describe every element of the page, for seconds, and find a selector for
each. Of rules, only an experimental one that is not asked reads style sheets again."""


@dataclass
class Site:
    """A running web process. `keys` are the seeded runs, in the order of `seed.STORIES`; the last two are
    archived, and played by agent programs."""

    url: str
    username: str
    password: str
    keys: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    """Settings of the web process, for programs that change its rows."""
    signed_in: dict[str, list[Any]] = field(default_factory=dict)
    """Cookies of who has signed in, by name."""


class Visitor:
    """A person at a browser: signed in, with what the console said."""

    def __init__(self, page: Any, site: Site) -> None:
        self.page, self.site = page, site
        self.complaints: list[str] = []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(f"page error: {error}"))

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def sign_in(self, username: str = "") -> None:
        """Sign in: with the cookies of this person's session at the site where there is one, else by the form."""
        name, context = username or self.site.username, self.page.context
        if name in self.site.signed_in:
            context.add_cookies(self.site.signed_in[name])
            return
        self._by_form(name)
        self.site.signed_in[name] = context.cookies()

    def _by_form(self, name: str) -> None:
        self.page.goto(f"{self.site.url}/sign-in")
        self.page.get_by_label("Name").fill(name)
        self.page.get_by_label("Password").fill(self.site.password)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(f"{self.site.url}/")

    def goto(self, path: str) -> None:
        self.page.goto(f"{self.site.url}{path}")
        self.page.wait_for_load_state("load")

    def settle(self) -> None:
        """Wait until the charts of an overview are drawn and no skeleton is left."""
        assert self.page.evaluate(SETTLED), f"{self.page.url} is not drawn after 20 s"

    def resize(self, width: int) -> None:
        """Show the page as it is in another width."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.settle()

    def turn(self, theme: str, width: int) -> None:
        """Show the page as it is in another theme and width."""
        self.dress(theme, width)
        self.page.evaluate(TURNED)
        self.settle()

    def dress(self, theme: str, width: int) -> None:
        """Set theme and width of the window."""
        self.page.emulate_media(color_scheme=theme)
        self.page.set_viewport_size({"width": width, "height": 900})

    def description(self) -> str:
        """What the page shows that may say why a test waits in vain: errors, what is open, and the console."""
        from playwright.sync_api import Error

        try:
            shown = self.page.evaluate(TROUBLE)
        except Error as error:
            shown = [f"the page does not answer: {error}"]
        return "\n".join([self.page.url, *shown, *self.complaints])

    def keep(self, name: str, *, full: bool = True, wanted: bool = FULL) -> None:
        """Keep a screenshot as an artefact. Drawing a whole page takes as long as to load it: by default in the full
        form alone, beside those of pages at which a test failed."""
        if not wanted:
            return
        ARTIFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=str(ARTIFACTS / f"{name}.png"), full_page=full)

    def keep_failed(self, name: str) -> None:
        """Keep a screenshot of where a test failed, if the page can still be drawn."""
        from playwright.sync_api import Error

        with suppress(Error):
            self.keep(re.sub(r"[^\w.-]+", "-", name)[:120], full=False, wanted=True)

    def violations(self, within: str = "html", rules: list[str] | None = None) -> list[str]:
        """What axe finds on the page as it is, or in a part of it; by some of its rules, or by all of `WCAG`."""
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(AXE.read_text(encoding="utf-8"))
        return list(self.page.evaluate(VIOLATIONS, [rules or WCAG, within]))

    def seen_in(self, name: str, looks: tuple[tuple[str, int], ...] = LOOKS, within: str = "html") -> dict[str, Any]:
        """What is wrong with the page as it is, by theme and width; it is left in the last one.

        In the short form the others are asked only for what another theme of the same document can break.
        """
        found: dict[str, Any] = {}
        for place, (theme, width) in enumerate(looks):
            self.turn(theme, width)
            self.keep(f"{name}-{width}-{theme}")
            wrong = self.violations(within, form(short=COLOURS if place else WCAG, full=WCAG))
            sideways = self.stays_sideways()
            found[f"{theme} {width}"] = wrong + ([f"sideways by {sideways} px"] if sideways > 0 else [])
        return {look: wrong for look, wrong in found.items() if wrong}

    def sideways(self) -> int:
        """Pixels the page is wider than the screen."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))

    def stays_sideways(self, seconds: float = 3.0) -> int:
        """Pixels the page stays wider than the screen: charts follow a change of width a moment later."""
        for _ in range(int(seconds * 10)):
            if self.sideways() <= 0:
                return 0
            self.page.wait_for_timeout(100)
        return self.sideways()
