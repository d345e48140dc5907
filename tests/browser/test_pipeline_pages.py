"""Pipeline, timelines, feed: readable in both themes and three widths, usable by keyboard, filters in the address."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

RUNNING, PAUSED = 1, 3


def address(site: Any, template: str) -> str:
    return template.format(running=site.keys[RUNNING], paused=site.keys[PAUSED])


@pytest.fixture
def guest(seeded: Any, visit: Callable[..., Any]) -> Any:
    made = visit(seeded)
    made.sign_in()
    return made


def test_a_step_shows_its_micro_batches_from_episodes_to_weights(guest: Any, seeded: Any) -> None:
    guest.goto(address(seeded, "/runs/{running}/performance?step=137"))
    lanes = guest.page.locator("#lanes svg.lanes")
    assert lanes.locator(".tb-done").count() == 12, "four micro-batches of each of three policies"
    assert lanes.locator(".tb-step").count() == 3
    flags = lanes.locator(".pubt").all_text_contents()
    assert (flags.count("v137"), set(flags) - {"v137"} <= {"v136"}) == (3, True)
    assert "12 produced = 12 accounted for" in guest.page.locator("#passed").inner_text()
    assert "in step 137" in guest.page.locator("#limits").inner_text()


def test_steps_are_walked_by_link(guest: Any, seeded: Any) -> None:
    guest.goto(address(seeded, "/runs/{running}/performance?step=137"))
    guest.page.get_by_label("Previous step").click()
    guest.page.wait_for_url("**?step=136")
    guest.page.get_by_role("link", name="1 min", exact=True).click()
    guest.page.wait_for_url("**?window=60")


def test_a_gap_is_explained_by_keyboard(guest: Any, seeded: Any) -> None:
    guest.goto(address(seeded, "/runs/{running}/performance/timeline?window=60"))
    gap = guest.page.locator(".gap-hit").first
    gap.focus()
    guest.page.keyboard.press("Enter")
    box = guest.page.get_by_role("dialog", name="Idle time")
    assert "Idle" in box.inner_text()
    guest.page.keyboard.press("Escape")
    assert box.count() == 0


def test_the_window_moves_by_keys_and_by_drag_and_stands_in_the_address(guest: Any, seeded: Any) -> None:
    guest.goto(address(seeded, "/runs/{running}/performance/timeline?window=60"))
    frame = guest.page.locator("[data-timeline]")
    frame.focus()
    guest.page.keyboard.press("ArrowLeft")
    guest.page.wait_for_url("**until=*")
    guest.page.locator("[data-timeline]").focus()
    guest.page.keyboard.press("+")
    guest.page.wait_for_url("**window=30*")
    box = guest.page.locator("[data-timeline] svg").bounding_box()
    y = box["y"] + 12
    guest.page.mouse.move(box["x"] + box["width"] * 0.4, y)
    guest.page.mouse.down()
    guest.page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=4)
    guest.page.mouse.up()
    guest.page.wait_for_function("() => Number(new URLSearchParams(location.search).get('window')) < 10")
    guest.page.get_by_role("link", name="Newest").click()
    guest.page.wait_for_function("() => !location.search.includes('until')")


def test_the_feed_filters_in_the_address_and_shows_hostile_text_as_text(guest: Any, seeded: Any) -> None:
    guest.page.on("dialog", lambda dialog: pytest.fail("a script of a log line ran"))
    guest.goto(address(seeded, "/runs/{running}/logs"))
    assert "<img src=x onerror=alert(1)>" in guest.page.locator("#feed").inner_text()
    assert guest.page.locator("#feed img").count() == 0
    guest.page.get_by_label("Component").select_option("rollout")
    guest.page.wait_for_url("**component=rollout*")
    assert guest.page.locator("#feed li").count() == 2
    guest.page.get_by_role("link", name="Error", exact=True).click()
    guest.page.wait_for_url("**level=error*")
    assert guest.page.locator("#feed li").count() == 1
    guest.page.get_by_label("Remove the filter Rollout worker").click()
    guest.page.wait_for_function("() => !location.search.includes('component')")


def test_following_stops_when_somebody_scrolls_away(guest: Any, seeded: Any) -> None:
    guest.page.set_viewport_size({"width": 1440, "height": 200})
    guest.goto(address(seeded, "/runs/{running}/logs"))
    button = guest.page.locator("#follow")
    assert button.get_attribute("aria-pressed") == "true"
    guest.page.evaluate("document.querySelector('#feed').scrollTop = 0")
    guest.page.wait_for_function("() => document.querySelector('#follow').getAttribute('aria-pressed') === 'false'")
    assert guest.page.locator("#feed").get_attribute("data-every") == "86400", "what is read does not move"
    button.click()
    guest.page.wait_for_function(
        "() => { const f = document.querySelector('#feed'); return f.scrollHeight - f.scrollTop - f.clientHeight < 2; }"
    )


def test_a_run_that_does_not_work_has_no_verdict(guest: Any, seeded: Any) -> None:
    guest.goto(address(seeded, "/runs/{paused}/performance"))
    assert guest.page.locator("#run-verdict").count() == 0
    assert "The advisor checks active runs" in guest.page.locator("#advisories").inner_text()
    guest.goto(address(seeded, "/runs/{running}/performance"))
    assert guest.page.locator("#advisories li").count() > 0
