"""The ways to pause in the header, retry, and the tab Attempts, in a browser."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.services]

CHANGES = """
INSERT INTO store.attempt (run_id, no, epoch, verb, began_by, began_at, first_step, ended_at, ended_by, status, reason,
  reason_text, last_step, versions)
SELECT r.no, a.*
FROM runs_run r, (VALUES
  (1, 1, 'start', 'ada', now() - interval '3 hours', 0, now() - interval '2 hours', 'ada', 'paused',
   'devices_given_back', 'its devices were released while it paused; resume requests others', 30,
   '{"speaker": 30}'::jsonb),
  (2, 1, 'resume', 'margarethe-von-hohenstein-schwarzburg', now() - interval '2 hours', 30, NULL, '', '', '', '', NULL,
   '{}')
) AS a
WHERE r.key = %(key)s
ON CONFLICT (run_id, no) DO UPDATE SET verb = excluded.verb, began_by = excluded.began_by,
  began_at = excluded.began_at, first_step = excluded.first_step, ended_at = excluded.ended_at,
  ended_by = excluded.ended_by, status = excluded.status, reason = excluded.reason, reason_text = excluded.reason_text,
  last_step = excluded.last_step, versions = excluded.versions"""


@pytest.fixture
def guest(seeded: Any, visit: Callable[..., Any]) -> Any:
    guest = visit(seeded)
    guest.sign_in()
    return guest


def test_ways_to_pause_say_what_they_cost_and_work_by_keyboard(guest: Any, seeded: Any) -> None:
    page = guest.page
    guest.goto(f"/runs/{seeded.keys[1]}")
    opener = page.get_by_role("button", name="Pause options")
    opener.focus()
    page.keyboard.press("Enter")
    ways = page.locator("#menu-pause [role=menuitem]")
    ways.first.wait_for()
    assert ways.count() == 3
    assert "replayed on resume" in ways.nth(1).inner_text()
    assert guest.violations() == []
    page.keyboard.press("ArrowDown")
    with page.expect_request(lambda request: request.url.endswith("/actions/pause")) as asked:
        page.keyboard.press("Enter")
    assert asked.value.post_data_json == {"mode": "freeze"}
    page.locator("#pending").wait_for()
    assert guest.complaints == []


def test_a_failed_run_offers_its_retry_first(guest: Any, seeded: Any) -> None:
    guest.goto(f"/runs/{seeded.keys[4]}")
    retry = guest.page.get_by_role("button", name="Retry", exact=True)
    assert "new attempt" in retry.get_attribute("title")
    assert guest.page.get_by_role("button", name="Pause options").count() == 0


def test_attempts_fit_every_width_in_both_themes(guest: Any, seeded: Any) -> None:
    key = seeded.keys[0]
    with psycopg.connect(seeded.environment["DATABASE_URL"], autocommit=True) as conn:
        conn.execute(CHANGES, {"key": key})
    page = guest.page
    guest.goto(f"/runs/{key}/config/attempts")
    assert page.locator("#attempt-2").inner_text().count("margarethe-von-hohenstein-schwarzburg") == 1
    looks = tuple((theme, width) for theme in ("light", "dark") for width in (1440, 1024, 390))
    assert guest.seen_in("attempts", looks) == {}
    assert guest.complaints == []
