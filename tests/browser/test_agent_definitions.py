"""An agent is described in the browser: previewed while one writes, saved in versions, compared, and named by a run."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.seeded_agents import AGENT

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]


def test_an_agent_is_created_previewed_changed_and_compared(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/agents")
    page = guest.page
    page.get_by_role("link", name="New agent").first.click()
    page.get_by_label("Name").fill("terse")
    page.get_by_label("Instructions", exact=True).fill("Be terse, {{ role }} of {{ team | join(' and ') }}.")
    page.locator("#preview", has_text="Be terse, solver of solver and reviser.").wait_for()
    page.get_by_label("Instructions", exact=True).fill("Be {{ terse }}.")
    page.locator("#preview", has_text="terse is not a variable; there are role, team, environment").wait_for()
    page.get_by_role("button", name="Create agent").click()
    page.locator("[data-error='/settings/instructions']", has_text="terse is not a variable").wait_for()
    assert page.evaluate("document.activeElement.name") == "instructions"
    page.get_by_label("Instructions", exact=True).fill("Be terse.")
    page.get_by_label("What changed, and why").fill("first words")
    page.get_by_role("button", name="Create agent").click()
    page.get_by_role("button", name="Save version").wait_for()
    page.get_by_label("Instructions", exact=True).fill("Be very terse.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_role("button", name="Save version").click()
    page.get_by_role("heading", name="Save as version 3").wait_for()
    changed = page.locator(".textdiff").inner_text()
    assert "-  Be terse." in changed
    assert "+  Be very terse." in changed
    page.goto(f"{seeded.url}/agents?q=ters")
    page.locator("tr", has_text="terse").get_by_text("2", exact=True).wait_for()


def test_of_two_tabs_the_second_is_told_that_a_version_was_saved_meanwhile(
    seeded: Any, visit: Callable[..., Any]
) -> None:
    one, other = visit(seeded), visit(seeded)
    for guest in (one, other):
        guest.sign_in()
        guest.goto(f"/agents/{AGENT}")
    for guest in (one, other):
        guest.page.get_by_label("What changed, and why").fill("mine")
        guest.page.get_by_role("button", name="Save version").click()
    one.page.get_by_role("heading", name="Save as version 5").wait_for()
    one.page.locator("pre", has_text="Done.").wait_for()  # a setting that has no field was kept
    other.page.locator("#refused", has_text="Version 4 of careful_solver was saved meanwhile").wait_for()
    assert "mine" in other.page.get_by_label("What changed, and why").input_value(), "nothing that was written is lost"
