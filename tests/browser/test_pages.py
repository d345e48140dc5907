"""Every page over seeded rows: readable by everybody, in both themes and three widths; text of models stays text."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.visitor import WHOLE

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

FINISHED = 0


def test_signing_in_is_accessible_and_fits(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.page.goto(f"{seeded.url}/sign-in")
    assert guest.seen_in("sign-in", WHOLE) == {}


def test_another_theme_is_there_at_once_where_less_motion_is_asked_for(seeded: Any, visit: Callable[..., Any]) -> None:
    """A transition of every property of every element takes seconds of a page's time, however short it is."""
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[FINISHED]}/config")
    guest.page.evaluate("() => { window.moved = 0; addEventListener('transitionrun', () => { window.moved += 1; }); }")
    guest.turn("dark", 1440)
    assert guest.page.evaluate("() => document.documentElement.dataset.bsTheme") == "dark"
    assert guest.page.evaluate("() => window.moved") == 0


def test_a_button_pressed_before_the_scripts_are_there_still_acts(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    guest.page.route("**/js/app*.js", hold)
    guest.page.goto(f"{seeded.url}/runs/{seeded.keys[2]}", wait_until="commit")
    guest.page.get_by_role("button", name="Stop", exact=True).click()
    assert not guest.page.locator("#confirm").is_visible()
    held[0].continue_()
    guest.page.locator("#confirm").get_by_role("button", name="Cancel").click()


def test_text_of_models_stays_text(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.page.on("dialog", lambda dialog: pytest.fail("a script of a model's text ran"))
    guest.goto(f"/runs/{seeded.keys[FINISHED]}/trajectories/955-0-1")
    assert "<img src=x onerror=alert(1)>" in guest.page.locator("#conversation").inner_text()
    assert guest.page.locator("#conversation img, #conversation script").count() == 0


def test_the_form_and_the_yaml_are_one_document(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/new?from={seeded.keys[FINISHED]}")
    page = guest.page
    page.locator("#plan-body .tile").first.wait_for()
    tasks = page.get_by_label("Tasks per step")
    tasks.fill("0")
    error = page.locator("[data-error='/batch/tasks_per_step']")
    error.wait_for(state="visible")
    assert "Set 1" in error.inner_text()
    assert page.locator("#start").get_attribute("aria-disabled") == "true"
    assert "dim" in (page.locator("#plan-body").get_attribute("class") or "")
    tasks.fill("24")
    page.locator("#start[aria-disabled=false]").wait_for()
    assert "24 × 8" in page.locator("#plan-body").inner_text()
    assert "1 change" in page.locator("#change-count").inner_text()
    page.get_by_role("tab", name="YAML").click()
    page.wait_for_function("() => document.querySelector('#yaml').value.includes('tasks_per_step: 24')")
    written = page.locator("#yaml").input_value()
    page.locator("#yaml").fill(written.replace("tasks_per_step: 24", "tasks_per_step: none"))
    page.locator("#yaml-errors li").first.wait_for()
    assert "tasks_per_step" in page.locator("#yaml-errors").inner_text()
    page.locator("#yaml").fill(written.replace("tasks_per_step: 24", "tasks_per_step: 48"))
    page.locator("#yaml-errors").wait_for(state="hidden")
    page.get_by_role("tab", name="Form").click()
    assert tasks.input_value() == "48"


def test_filters_live_in_the_address(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/runs?status=failed")
    assert guest.page.locator("tr.go").count() == 2
    guest.page.get_by_role("link", name="All").first.click()
    guest.page.wait_for_url("**/runs")
    guest.page.keyboard.press("/")
    guest.page.keyboard.type("hot or cold")
    guest.page.keyboard.press("Enter")
    guest.page.wait_for_url("**q=hot+or+cold")
    assert guest.page.locator("tr.go").count() == 2


def test_a_verb_shows_the_request_not_the_wished_state(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(f"/runs/{seeded.keys[2]}")
    guest.page.get_by_role("button", name="Pause", exact=True).click()
    guest.page.locator("#pending").wait_for()
    assert guest.page.locator("#pending").inner_text().startswith("Pausing at the end of step 65")
    assert guest.page.locator("#run-head .pill").first.inner_text().startswith("Running")
    guest.page.get_by_role("button", name="Stop", exact=True).click()
    dialog = guest.page.locator("#confirm")
    assert dialog.get_by_role("heading").inner_text().startswith("Stop ")
    dialog.get_by_role("button", name="Cancel").click()


def test_a_token_is_shown_once_and_can_be_revoked(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/settings/tokens")
    guest.page.get_by_label("Name", exact=True).fill("notebook")
    guest.page.get_by_role("button", name="Create token").click()
    guest.page.locator("#once").wait_for()
    assert guest.page.locator("#once-text").inner_text().startswith("fmx_")
    guest.page.reload()
    assert not guest.page.locator("#once").is_visible()
    assert guest.page.locator("#once-text").text_content() == ""
    guest.page.get_by_role("button", name="Revoke").first.click()
    guest.page.get_by_role("button", name="Revoke token").click()
    guest.page.get_by_text("revoked", exact=True).wait_for()


def test_the_palette_finds_runs_and_verbs(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/help")
    guest.page.keyboard.press("Control+k")
    guest.page.locator("#palette input").fill("planner")
    guest.page.locator("#palette-list li", has_text="planner-solver").wait_for()
    guest.page.keyboard.press("Enter")
    guest.page.wait_for_url("**/runs/planner-solver-*")


def test_the_first_visit_offers_to_begin(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in("newcomer")
    guest.goto("/")
    assert guest.page.get_by_role("heading", level=1).inner_text() == "Train a team of agents"
    assert guest.violations() == []
