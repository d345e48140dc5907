"""The Load page in a browser: what engines tell is shown without any event of the run, and lists are narrowed."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.browser.visitor import Site, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

RUNNING = 1
POLL_S = 4
"""Between two reads of a page that nobody nudges."""


@pytest.fixture
def guest(chromium, seeded: Site):
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(60_000)
    guest = Visitor(context.new_page(), seeded)
    guest.sign_in()
    yield guest
    context.close()


def asked(seeded: Site, turns: int) -> None:
    """Let turns of the solver wait, as a rollout worker tells it: no event of the run comes of it."""
    with psycopg.connect(seeded.environment["DATABASE_URL"], autocommit=True) as conn:
        conn.execute("UPDATE store.asked_load SET waiting = %s WHERE worker = 'now' AND policy = 'solver'", [turns])


def test_the_page_reads_engines_every_four_seconds_without_any_event(guest: Visitor, seeded: Site) -> None:
    """The page's clock goes on by the second, and not before what was asked for is there: however slow the machine."""
    asked(seeded, 7)
    page, reads, read = guest.page, [], []
    page.on("request", lambda request: reads.append(request) if "/parts/load" in request.url else None)
    page.on("requestfinished", lambda request: read.append(request) if "/parts/load" in request.url else None)
    page.clock.install()
    guest.goto(f"/runs/{seeded.keys[RUNNING]}/performance/load")
    page.clock.pause_at(datetime.now(UTC) + timedelta(hours=1))
    assert "solver waits most: 7 turns" in page.locator("#load-now h2").inner_text()
    asked(seeded, 4321)
    for _ in range(1 + 10 * POLL_S):
        page.clock.run_for(1000)
        while len(read) < len(reads):
            page.wait_for_timeout(10)
    assert 10 <= len(reads) <= 13, "one at the jump, and one for each of the times"
    page.clock.resume()
    page.locator("#load-now h2", has_text="4\u2009321 turns").wait_for()
    assert guest.complaints == []


def test_lists_are_narrowed_by_keyboard(guest: Visitor, seeded: Site) -> None:
    guest.goto(f"/runs/{seeded.keys[RUNNING]}/performance/load")
    page = guest.page
    page.locator("#l-state").focus()
    page.keyboard.type("Gone")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**state=gone**")
    assert "No engine matches" in page.locator("#load-engines").inner_text()
    page.get_by_role("link", name="Show all engines").click()
    page.get_by_role("link", name="Table", exact=True).click()
    page.wait_for_url("**view=table**")
    assert page.locator("#load-table tbody tr").count() > 10
    page.locator("#load-longest a").first.click()
    page.wait_for_url("**trajectories?draw=550")
    assert guest.complaints == []
