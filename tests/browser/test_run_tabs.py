"""The tabs of a run and the views below them: by keyboard, on a phone, in the palette."""

from typing import Any

import pytest

from tests.browser.visitor import Site

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

RUNNING = 1
INSIDE = """link => {
    const box = link.getBoundingClientRect();
    return box.left >= 0 && box.right <= innerWidth && link.scrollWidth <= link.clientWidth + 1;
}"""


def test_figures_open_tabs_and_v_the_next_view(seeded: Site, visit: Any) -> None:
    guest = visit(seeded)
    guest.sign_in()
    base = f"{seeded.url}/runs/{seeded.keys[RUNNING]}"
    guest.goto(f"/runs/{seeded.keys[RUNNING]}")
    for key, path in (("2", "/metrics"), ("4", "/performance"), ("6", "/config"), ("7", "/checkpoints")):
        guest.page.keyboard.press(key)
        guest.page.wait_for_url(f"{base}{path}")
    guest.page.keyboard.press("4")
    for path in ("", "/load", "/timeline", "/what-if", ""):
        guest.page.wait_for_url(f"{base}/performance{path}")
        guest.page.keyboard.press("v")
    assert guest.complaints == []


def test_a_phone_shows_the_tab_and_the_view_that_it_is_on(seeded: Site, visit: Any) -> None:
    guest = visit(seeded, width=390, height=844)
    guest.sign_in()
    for path in ("", "/trajectories/playground", "/performance/what-if", "/config/attempts", "/checkpoints"):
        guest.goto(f"/runs/{seeded.keys[RUNNING]}{path}")
        for nav in ("tabs", "views"):
            shown = guest.page.locator(f".{nav} [aria-current]")
            assert shown.count() == (nav == "tabs" or path not in ("", "/checkpoints"))
            if shown.count():
                assert shown.evaluate(INSIDE), (path, nav)
        assert guest.sideways() <= 0


def test_the_palette_knows_tabs_and_views(seeded: Site, visit: Any) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[RUNNING]}/performance")
    guest.page.keyboard.press("Control+k")
    guest.page.locator("dialog[open] input").fill("What-if")
    guest.page.locator("dialog[open]").get_by_text("What-if of this run").wait_for()
