"""Cohorts, lag, store and decisions as a researcher meets them: both themes, three widths, by keyboard and address."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

RUNNING, QUEUED = 1, 5
PAGES = (
    "/runs/{running}/logs?view=decisions",
    "/runs/{running}/logs?view=transitions",
    "/runs/{queued}/performance",
)
"""Beside the page of a running run's performance, which `test_matrix` looks at by all rules."""


def address(site: Any, template: str) -> str:
    return template.format(running=site.keys[RUNNING], queued=site.keys[QUEUED])


def test_the_pages_fit_and_are_accessible(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    found: dict[str, Any] = {}
    for place, path in enumerate(PAGES):
        guest.goto(address(seeded, path))
        guest.settle()
        found[path] = guest.seen_in(f"joint-{place}")
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_the_form_offers_every_mechanism_and_refuses_beside_the_field(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto("/runs/new?template=reference_game")
    page = guest.page
    page.locator("#start[aria-disabled=false]").wait_for()
    page.locator("#fold-all").click()

    def choose(pointer: str, value: str) -> None:
        field = page.locator(f'[data-pointer="/mechanisms/{pointer}"]')
        if field.evaluate("node => node.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
            field.press("Tab")

    def told(pointer: str) -> Any:
        return page.locator(f'[data-error="/mechanisms/{pointer}"]')

    choose("lag_policy/bound", "1")
    choose("lag_policy/in_flight", "continue")
    choose("redundancy/type", "extra_groups")
    told("redundancy/extra").get_by_text("Set 1 or more, or type: none.").wait_for()
    field = page.locator('[data-pointer="/mechanisms/redundancy/extra"]')
    assert field.get_attribute("aria-invalid") == "true"
    assert page.locator("#start").get_attribute("aria-disabled") == "true"
    choose("redundancy/extra", "2")
    choose("redundancy/surplus", "continue")
    told("redundancy/extra").wait_for(state="hidden")
    choose("publication/type", "delayed")
    told("lag_policy/in_flight").get_by_text("publication: cohort").wait_for()
    choose("publication/type", "cohort")
    choose("trainer_protocol", "mini_batch")
    told("lag_policy/bound").get_by_text("Set 3, or fewer mini_batches.").wait_for()
    guest.keep("new-run-refused")
    assert guest.violations(within="#spec-form") == [], "the plan beside it is that of the last valid text, and dimmed"
    choose("trainer_protocol", "batch")
    told("lag_policy/bound").wait_for(state="hidden")
    page.wait_for_function("() => document.querySelector('#start').getAttribute('aria-disabled') === 'false'")


def test_from_a_cohort_to_its_decisions_and_their_events(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    guest.goto(address(seeded, "/runs/{running}/performance"))
    guest.page.get_by_role("link", name="Count rows").click()
    guest.page.wait_for_url("**count=1*")
    store = guest.page.locator("#store")
    text = store.inner_text()
    assert "Every row is counted once" in text, text
    assert "not checked yet" in text, "checks are made on demand"
    assert "stale" in guest.page.locator("#lag").inner_text()
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
