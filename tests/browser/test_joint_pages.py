"""Cohorts, lag, store and decisions as a researcher meets them: both themes, three widths, by keyboard and address."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

RUNNING, QUEUED = 1, 5
PAGES = ("/runs/{running}/pipeline", "/runs/{running}/events?view=decisions", "/runs/{queued}/pipeline")


def address(site: Any, template: str) -> str:
    return template.format(running=site.keys[RUNNING], queued=site.keys[QUEUED])


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 1440), ("light", 1024), ("dark", 390)])
def test_the_pages_fit_and_are_accessible(seeded: Any, visit: Callable[..., Any], theme: str, width: int) -> None:
    guest = visit(seeded, theme=theme, width=width)
    guest.sign_in()
    wrong: dict[str, Any] = {}
    for place, path in enumerate(PAGES):
        guest.goto(address(seeded, path))
        guest.settle()
        guest.keep(f"joint-{place}-{width}-{theme}")
        wrong[path] = (guest.sideways() > 0, guest.violations())
    assert wrong == dict.fromkeys(PAGES, (False, []))


def test_from_a_cohort_to_its_decisions_and_their_events(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(address(seeded, "/runs/{running}/pipeline"))
    guest.page.get_by_role("link", name="Count the rows now").click()
    guest.page.wait_for_url("**count=1*")
    store = guest.page.locator("#store")
    text = store.inner_text()
    assert "Every row is in one place" in text, text
    assert "No sample is trained twice" in store.inner_text()
    assert "too old" in guest.page.locator("#lag").inner_text()
    guest.page.locator("#cohorts tbody a.link").last.click()
    guest.page.wait_for_url("**view=decisions&step=*")
    rows = guest.page.locator("#decisions tbody tr")
    assert rows.filter(has_text="Refuse a group").count() == 1
    guest.page.get_by_label("Kind").select_option("rows_dropped")
    guest.page.get_by_role("button", name="Filter").click()
    guest.page.wait_for_url("**kind=rows_dropped*")
    assert guest.page.locator("#decisions tbody tr").count() == 1
    href = guest.page.locator("#decisions tbody a.link").first.get_attribute("href")
    assert "/events?after=2&limit=1&expand=body" in href
