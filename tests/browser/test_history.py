"""Back and Forward show whole pages, also after their live parts were read again under the page's own address."""

from typing import Any

import pytest

from tests.browser.test_matrix import EXAMPLES, address
from tests.browser.visitor import Site, Visitor
from tests.support.forms import form

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

AWAY = "/help"
REREAD = """() => {
    const regions = [...document.querySelectorAll("[data-live]")].filter((region) => !region.closest("[hidden]"));
    const mark = document.querySelector("[data-live-mark]:not([hidden])");
    if (!regions.length || !mark) return Promise.resolve(0);
    const read = regions.map((region) => new Promise((done) => region.addEventListener("reread", done, {once: true})));
    mark.click(); // hold the figures, then let them follow: all parts are read at once
    mark.click();
    return Promise.all(read).then(() => regions.length);
}"""
"""Has every live part of the page read again, and says how many there are."""
WHOLE = """() => document.querySelectorAll("nav[aria-label=Main] a").length > 3
    && document.querySelectorAll("h1").length === 1 && document.styleSheets.length > 0"""
"""Whether the document is a page with its frame, not a part of one."""


def seen(guest: Visitor, move: Any, wanted: str) -> str:
    """What is wrong after a move in the history, "" when a whole page is there."""
    move()
    guest.page.wait_for_load_state("load")
    return "" if guest.page.evaluate(WHOLE) else f"{wanted}: {guest.page.locator('body').inner_text()[:80]!r}"


def test_back_and_forward_show_whole_pages_after_a_live_refresh(seeded: Site, visit: Any) -> None:
    guest = visit(seeded)
    guest.sign_in()
    reread, wrong = 0, []
    for name, template in list(EXAMPLES.items())[:: form(short=3, full=1)]:
        guest.goto(address(seeded, template))
        reread += guest.page.evaluate(REREAD)
        guest.goto(AWAY)
        wrong += [seen(guest, guest.page.go_back, f"{name}, Back")]
        reread += guest.page.evaluate(REREAD)
        wrong += [seen(guest, guest.page.go_forward, f"{name}, Forward")]
        wrong += [seen(guest, guest.page.go_back, f"{name}, Back again")]
    assert [text for text in wrong if text] == []
    assert reread > form(short=12, full=40), "hardly any part was read again, so nothing was tried"
