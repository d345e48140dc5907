"""Open pages follow what happens: with the socket and without it, and they end up showing what a fresh visit shows.

Changes are made in a random order (from a fixed seed) by another process, as a driver and people make them.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import program
from tests.browser.visitor import Site

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

RUNNING = 2
VIEWS = {
    "header": ("/runs/{key}", "#run-header"),
    "summary": ("/runs/{key}", "#run-top"),
    "runs": ("/runs", "#run-list"),
    "home": ("/", ".homeg"),
    "events": ("/runs/{key}/logs", "main [data-live]"),
    "pipeline": ("/runs/{key}/performance", "main .pg [data-live]"),
    "cluster": ("/cluster", "main"),
    "queue": ("/queue", "main"),
}
"""View -> (address, what of it is compared)."""
TOGETHER = (("header", "events", "runs", "cluster"), ("summary", "pipeline", "home", "queue"))
WORDS = """selector => document.querySelector(selector).innerText
  .replace(/\\d\\d:\\d\\d(:[\\d.]+)?|\\d+ times|[\\d.]+\\s*%/g, '')
  .replace(/\\d+(\\.\\d+)?\\s*(ms|s|min|h|d)\\b( \\d+ (s|min|h))*( ago)?/g, '')
  .replace(/just now|now|Live|Connecting|Read|,/g, '')
  .replace(/\\s+/g, ' ').trim()"""
"""The words of a region without times and shares of time, which move on their own."""


@pytest.fixture
def change(seeded: Site) -> Callable[[int], None]:
    """Return a function that makes some random changes in another process."""

    def make(seed: int) -> None:
        program("make_changes", {**seeded.environment, "CHANGES": f"{seeded.keys[RUNNING]} {seed}"})

    return make


@pytest.mark.parametrize("views", TOGETHER, ids="+".join)
def test_what_a_page_holds_is_what_a_fresh_visit_shows(
    seeded: Site, visit: Any, change: Any, views: tuple[str, ...]
) -> None:
    """Several windows are open while the same changes happen."""
    shown = {view: tuple(text.format(key=seeded.keys[RUNNING]) for text in VIEWS[view]) for view in views}
    guests, before = {}, {}
    for view, (address, region) in shown.items():
        guests[view] = guest = visit(seeded)
        guest.sign_in()
        guest.goto(address)
        guest.page.locator("[data-live-mark][data-state=live]").first.wait_for()
        before[view] = guest.page.evaluate(WORDS, region)
    change(sum(map(ord, "".join(views))))
    fresh = visit(seeded)
    fresh.sign_in()
    for view, (address, region) in shown.items():
        for _ in range(24):  # what time alone changes has no hint; a page reads it with its next poll
            fresh.goto(address)
            fresh.page.wait_for_timeout(800)
            expected, held = fresh.page.evaluate(WORDS, region), guests[view].page.evaluate(WORDS, region)
            if held == expected:
                break
        assert held == expected, view
        if view in {"header", "summary", "runs"}:
            assert expected != before[view], f"{view}: nothing changed, so nothing was shown"
        assert guests[view].complaints == [], view


def test_without_a_socket_a_page_polls(seeded: Site, visit: Any, change: Any) -> None:
    guest = visit(seeded)
    guest.page.route_web_socket("**/ws/v1/", lambda socket: socket.close())
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[RUNNING]}")
    step = guest.page.locator("#run-line2 b").first.inner_text()
    change(5)
    guest.page.wait_for_function(
        "step => document.querySelector('#run-line2 b').innerText !== step", arg=step, timeout=15_000
    )
    guest.page.locator("[data-live-mark][data-state=polled]").first.wait_for()
    assert guest.page.locator("#offline").is_hidden()


def test_a_server_that_is_away_is_said_and_figures_are_dimmed(seeded: Site, visit: Any) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[RUNNING]}")
    guest.page.locator("[data-live-mark][data-state=live]").first.wait_for()
    guest.page.context.set_offline(True)
    guest.page.evaluate("() => dispatchEvent(new Event('offline'))")
    guest.page.route("**/*", lambda route: route.abort())
    guest.page.locator("#offline").wait_for(state="visible", timeout=60_000)
    assert "old" in guest.page.locator("#offline").inner_text()
    assert "stale" in (guest.page.locator("body").get_attribute("class") or "")


def test_held_figures_stand_still_until_they_are_let_go(seeded: Site, visit: Any, change: Any) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[RUNNING]}")
    guest.page.locator("[data-live-mark][data-state=live]").first.wait_for()
    guest.page.keyboard.press(" ")
    guest.page.locator("[data-live-mark][data-state=held]").first.wait_for()
    step = guest.page.locator("#run-line2 b").first.inner_text()
    change(11)
    guest.page.wait_for_timeout(1500)
    assert guest.page.locator("#run-line2 b").first.inner_text() == step
    guest.page.keyboard.press(" ")
    guest.page.wait_for_function("step => document.querySelector('#run-line2 b').innerText !== step", arg=step)


def test_an_open_menu_and_the_focus_outlive_a_change(seeded: Site, visit: Any, change: Any) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[RUNNING]}")
    guest.page.locator("[data-live-mark][data-state=live]").first.wait_for()
    guest.page.get_by_role("button", name="More actions").click()
    step = guest.page.locator("#run-line2 b").first.inner_text()
    change(13)
    guest.page.wait_for_function("step => document.querySelector('#run-line2 b').innerText !== step", arg=step)
    assert guest.page.locator("#menu-verbs").is_visible()
    guest.page.keyboard.press("Escape")
    assert guest.page.evaluate("document.activeElement.dataset.menu") == "verbs"


def test_a_press_that_spans_a_change_is_a_click(seeded: Site, visit: Any, change: Any) -> None:
    """The header is put in anew with every step; the button under a finger stays until the finger is up."""
    guest = visit(seeded)
    page, key = guest.page, seeded.keys[RUNNING]
    guest.sign_in()
    guest.goto(f"/runs/{key}")
    page.locator("[data-live-mark][data-state=live]").first.wait_for()
    page.get_by_role("button", name="Stop", exact=True).hover()
    page.mouse.down()
    step = page.locator("#run-line2 b").first.inner_text()
    change(17)
    page.wait_for_function("step => document.querySelector('#run-line2 b').innerText !== step", arg=step)
    page.mouse.up()
    page.locator("#confirm[open]").wait_for(timeout=5_000)
